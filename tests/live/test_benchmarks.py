"""The benchmarks run on a small scale, say what they measured, and skip what is not there; no timing is judged."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from antecede.cli import run
from benchmarks import channel, objects, paper000
from benchmarks.__main__ import main
from benchmarks.change import WINDOWS
from benchmarks.common import NAMES, SideError, Up


def _report(capsys: pytest.CaptureFixture[str], command: str) -> Any:
    assert main([*command.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bench"] == command.split()[0]
    assert isinstance(found["interpreter"]["optimized"], bool)
    return found


def test_an_unknown_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["none"]) == main([]) == 2
    told = capsys.readouterr().err
    assert all(name in told for name in NAMES)


def test_the_alias_in_a_clone(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "antecede", "bench"]
    listed = subprocess.run([*command, "channel", "--list"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [side.name for side in channel.sides]
    # Elsewhere, as in an installed wheel, there are no benchmarks beside the package.
    shutil.copytree(root / "src" / "antecede", tmp_path / "a" / "b" / "antecede")
    away = subprocess.run(
        [*command, "hop"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "a" / "b")},
    )
    assert (away.returncode, away.stdout, away.stderr.count("\n")) == (2, "", 1)


def test_a_round_of_our_own_sides_and_floors(capsys: pytest.CaptureFixture[str]) -> None:
    names = "durable,durable-clients,floor-64,stateful,accepted,exchange,floor-exchange,ping-pong,ping-pong-client"
    found = _report(capsys, f"channel --rounds 1 --messages 1000 --only {names}")
    assert {row["name"] for row in found["sides"]} == set(names.split(","))
    assert all(row["skipped"] is None and row["median"] > 0 for row in found["sides"]), found
    ratios = {(row["side"], row["against"]) for row in found["ratios"]}
    assert ("exchange", "floor-exchange") in ratios
    assert ("durable", "redis-pipelined") not in ratios


def test_a_comparison_with_redis_has_clients_at_both_ends_too() -> None:
    named = [side.name for side in channel.chosen("durable,redis-pipelined")]
    assert named == ["durable", "durable-clients", "redis-pipelined"]
    assert [side.name for side in channel.chosen("durable,floor-1")] == ["durable", "floor-1"]


def test_what_is_missing_or_fails_is_said_and_the_rest_goes_on() -> None:
    def fails(messages: int, place: str) -> dict[str, float]:
        raise SideError("no luck")

    wanted = [
        channel.Side("absent", "", 1.0, fails, modules=("no_such_module",)),
        channel.Side("unlucky", "", 1.0, fails),
        channel.Side("fine", "", 1.0, lambda messages, place: {"per_second": float(messages)}),
    ]
    found = channel.bench_channel(wanted, 1_000, 2, None)
    assert [row["skipped"] for row in found["sides"]] == ["not installed: no_such_module", "no luck", None]
    assert found["sides"][2]["samples"] == [1_000.0, 1_000.0]


@pytest.mark.parametrize("against", ["--permissions --only ping-pong-client", "--against HEAD --only durable"])
def test_two_versions(against: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "HEAD" in against and not (root / ".git").exists():
        against = against.replace("HEAD", str(root))
    found = _report(capsys, f"channel {against} --rounds 2 --messages 1000")
    (row,) = found["sides"]
    for name in channel.FIGURES:
        assert len(row[name]["ratios"]) == 2
        assert 0 < row[name]["low"] / 3 <= 1 <= row[name]["high"] * 3


def test_the_interval_of_a_ratio() -> None:
    assert channel.interval([1.0]) == (None, None)
    # Student's t for 4 degrees of freedom, 2.776, on the logarithms.
    assert channel.interval([0.9, 1.0, 1.1, 1.0, 1.0]) == pytest.approx((0.9138, 1.0900), abs=0.001)


def test_the_constants_of_the_planner(capsys: pytest.CaptureFixture[str]) -> None:
    found = _report(capsys, "hop --letters 100 --rounds 1 --order fifo,pruned --sizes 2,3")
    assert len(found["alpha_rounds_ns"]) == 1
    assert found["beta_ns"] > found["beta_line_ns"] == 8
    assert {order: len(row) for order, row in found["stamp_bytes"].items()} == {"fifo": 2, "pruned": 2}
    assert found["stamp_bytes"]["pruned"][0] < found["stamp_bytes"]["pruned"][1]


def test_a_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _report(
        capsys, f"change --servers 2 --rounds 1 --rate 40 --seconds 0.3 --durability os --directory {tmp_path}"
    )
    assert tuple(found["windows"]) == WINDOWS
    for row in found["windows"].values():
        assert row["round_trips"] > 2
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["longest_ms"]
    ratio = found["ratios"]["p99"]
    assert ratio["value"] == found["windows"]["change"]["p99_ms"] / found["windows"]["dry_run"]["p99_ms"]
    assert ratio["low"] <= ratio["value"] <= ratio["high"]
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_calls_of_objects_in_memory_without_etcd(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "program", lambda name: None)
    kinds = "compatible,unconfirmed,nested"
    found = _report(capsys, f"objects --calls 20 --kinds {kinds} --under-way 1 --states 1000 --disk no")
    rows = {(row["side"], row["kind"]): row for row in found["rows"]}
    assert set(rows) == {("floor", "compatible"), *(("ours", kind) for kind in kinds.split(","))}
    assert all(row["per_second"] > 0 for row in rows.values())
    assert 6 <= rows["ours", "compatible"]["frames"] < 7
    assert 2 <= rows["ours", "unconfirmed"]["frames"] < 3
    assert "etcd-server" in found["skipped"]["etcd"]


def test_the_experiments_of_a_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = tmp_path / "figures.svg"
    options = (
        f"--servers 4 --shapes bus --sends 4 --broadcasts 4 --durability memory --svg {svg} --directory {tmp_path}"
    )
    (row,) = (found := _report(capsys, f"paper000 {options}"))["rows"]
    assert (row["shape"], row["servers"], row["route"]) == ("bus", 4, 3)
    assert all(row[kind]["median_ms"] > 0 for kind in paper000.KINDS)
    assert row["idle_pss_bytes"] > 2**20
    assert row["start_cpu_seconds"] > 0
    assert found["fits"]["bus"]["remote"] == {"linear": None, "quadratic": None}, "one point shows no law"
    assert "Fig. 11" in svg.read_text()
    assert list(tmp_path.iterdir()) == [svg], "nothing is left behind"


def test_servers_that_cannot_start_are_reported(tmp_path: Path) -> None:
    up = Up(str(tmp_path / "none.toml"), str(tmp_path / "data"), "memory")
    with up, pytest.raises(SideError, match=r"none\.toml"):
        up.await_ready(60)


def test_the_law_that_fits() -> None:
    rows = [
        {"shape": shape, "servers": n, **{kind: {"median_ms": time(n)} for kind in paper000.KINDS}}
        for n in (10, 50, 100, 150)
        for shape, time in (("flat", lambda n: 3 + n**2 / 100), ("bus", lambda n: 20 + 2 * n))
    ]
    fits = paper000.fits(rows)
    flat, bus = fits["flat"]["remote"], fits["bus"]["remote"]
    assert flat["quadratic"] == pytest.approx({"a": 3, "b": 0.01, "r2": 1})
    assert bus["linear"] == pytest.approx({"a": 20, "b": 2, "r2": 1})
    assert flat["linear"] is not None
    assert flat["linear"]["r2"] < 0.99
    svg = paper000.figures({"rows": rows, "fits": fits, "order": "matrix", "durability": "disk"})
    drawn = ElementTree.fromstring(svg)
    titles = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text") if one.get("class") == "title"]
    assert [title and title.split(":")[0] for title in titles] == [
        "Fig. 9",
        "Fig. 11",
        "Fig. 12",
        "Broadcast to all servers, and back",
    ]


def test_a_restart(capsys: pytest.CaptureFixture[str]) -> None:
    found = _report(capsys, "restart --records 300 --messages 20 --subscribers 400")
    assert (found["single"]["records"], found["single"]["waiting"]) == (300, 1)
    crowd = found["crowd"]
    assert crowd["entries"] == 8_000
    # With a full copy for each client it would be more than a megabyte.
    assert crowd["snapshot_bytes"] < 64_000 < crowd["allowed_bytes"]


def test_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _report(capsys, f"store --records 1000 --rounds 1 --directory {tmp_path}")
    for durability in ("disk", "os", "memory"):
        for figure in ("one_in_flight_us", "records_per_second", "grouped_per_second"):
            assert found[durability][figure] > 0
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_the_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = _report(capsys, "simulate --order pruned --processes 4 --deliveries 200 --rounds 1")["rows"]
    assert row["deliveries_per_second"] > 0
    assert row["ratio"] > 0


@pytest.mark.parametrize(
    "options",
    [
        "channel --only kafka",
        "channel --only floor-1 --against {root}",
        "channel --only durable --permissions",
        "channel --against {tmp_path}",
        "channel --against HEAD --permissions",
        "objects --kinds odd",
        "objects --under-way 0",
        "objects --states 1,x",
        "objects --etcd /no/such/program",
        "paper000 --servers 2",
        "paper000 --shapes ring",
        "paper000 --order fifo2",
        "paper000 --svg {tmp_path}/no/such.svg",
        "hop --sizes 1",
        "simulate --processes nonsense",
        "store --directory {tmp_path}/none",
        "verify --lost 0.9",
    ],
)
def test_bad_options_are_refused(options: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(options.format(root=root, tmp_path=tmp_path).split())
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert capsys.readouterr().out == ""


def test_the_alias_passes_exit_codes_on() -> None:
    assert run(["bench", "channel", "--only", "kafka"]) == 2
