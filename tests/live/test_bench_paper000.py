"""``antecede bench paper000``: it starts servers, measures and draws; no timing is judged."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from antecede.bench import paper000
from antecede.cli import run
from antecede.report.paper000 import figures


def test_a_small_bus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = tmp_path / "figures.svg"
    command = ["bench", "paper000", "--servers", "4", "--shapes", "bus", "--sends", "4", "--broadcasts", "4", "--json"]
    assert run([*command, "--durability", "memory", "--svg", str(svg), "--directory", str(tmp_path)]) == 0
    (row,) = (found := json.loads(capsys.readouterr().out))["rows"]
    assert (row["shape"], row["servers"], row["route"]) == ("bus", 4, 3)
    assert all(row[kind]["median_ms"] > 0 for kind in paper000.KINDS)
    assert row["idle_pss_bytes"] > 2**20
    assert row["start_cpu_seconds"] > 0
    assert found["fits"]["bus"]["remote"] == {"linear": None, "quadratic": None}, "one point shows no law"
    assert "Fig. 11" in svg.read_text()
    assert list(tmp_path.iterdir()) == [svg], "nothing is left behind"
    assert "memory" in paper000.table(found)


def test_bad_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, said in (
        (["--servers", "2"], "expected numbers from 3 to 1000"),
        (["--servers", "10,x"], "expected numbers of at least 1"),
        (["--shapes", "ring"], "--shapes ring: expected some of bus"),
        (["--durability", "tape"], "expected disk, os or memory"),
        (["--order", "fifo2"], "fifo2"),
        (["--svg", f"{tmp_path}/no/such.svg"], "no/such.svg"),
    ):
        assert run(["bench", "paper000", *options]) == 2
        assert said in capsys.readouterr().err


def test_servers_that_cannot_start_are_reported(tmp_path: Path) -> None:
    up = paper000._Up(str(tmp_path / "none.toml"), str(tmp_path / "data"), "memory")
    with up, pytest.raises(paper000.SideError, match=r"antecede up ended: .*none\.toml"):
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
    svg = figures({"rows": rows, "fits": fits, "order": "matrix", "durability": "disk"})
    drawn = ElementTree.fromstring(svg)
    titles = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text") if one.get("class") == "title"]
    assert [title and title.split(":")[0] for title in titles] == [
        "Fig. 9",
        "Fig. 11",
        "Fig. 12",
        "Broadcast to all servers, and back",
    ]
