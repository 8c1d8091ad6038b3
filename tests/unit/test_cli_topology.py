"""``antecede topology`` and ``simulate --topology`` as people meet them."""

import json
from pathlib import Path

import pytest

from antecede import cli
from helpers.snapshots import Snapshots

_ring = """[servers]
s1 = "tcp://h:1"
s2 = "tcp://h:2"
s3 = "tcp://h:3"
[domains]
A = { servers = ["s1", "s2"] }
B = { servers = ["s2", "s3"] }
C = { servers = ["s3", "s1"] }
"""


def _write(folder: Path, text: str) -> str:
    path = folder / "t.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.run(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_check_of_the_snowflake(capsys: pytest.CaptureFixture[str], root: Path, reads: Snapshots) -> None:
    file = str(root / "examples" / "snowflake.toml")
    code, out, err = _asked(capsys, "topology", "check", file)
    assert (code, err) == (0, "")
    reads(out)
    code, out, err = _asked(capsys, "topology", "check", file, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert (document["forest"], document["cycle"], document["refused"], document["trees"]) == (True, None, [], 1)
    assert {pair["guarantee"] for pair in document["pairs"]} == {"causal"}
    assert len(document["pairs"]) == 15
    assert document["servers"][0] == {"name": "S1", "address": "tcp://127.0.0.1:7201", "domains": ["A", "E"]}
    assert document["domains"][3]["routers"] == ["S3", "S6"]
    assert document["cost"]["flat"] == 64


def test_check_prints_the_cycle(capsys: pytest.CaptureFixture[str], tmp_path: Path, reads: Snapshots) -> None:
    file = _write(tmp_path, _ring)
    code, out, _ = _asked(capsys, "topology", "check", file)
    assert code == 1
    reads(out)
    code, out, _ = _asked(capsys, "topology", "check", file, "--json")
    document = json.loads(out)
    assert code == 1
    assert (document["forest"], document["cycle"]) == (False, "s3 –C– s1 –A– s2 –B– s3")
    assert (document["pairs"], document["cost"]) == ([], None)


def test_check_refuses_orders(capsys: pytest.CaptureFixture[str], tmp_path: Path, reads: Snapshots) -> None:
    chain = _ring.replace('C = { servers = ["s3", "s1"] }', "").replace('"s3"] }', '"s3"], order = "fifo" }')
    code, out, _ = _asked(capsys, "topology", "check", _write(tmp_path, chain))
    assert code == 1
    reads(out)
    code, out, _ = _asked(capsys, "topology", "check", _write(tmp_path, 'guarantee = "fifo"\n' + chain))
    assert code == 0
    assert out.endswith("ok\n")
    agents = '[agents]\na = { server = "s1", class = "nowhere:A" }\n'
    code, out, _ = _asked(capsys, "topology", "check", _write(tmp_path, 'guarantee = "fifo"\n' + chain + agents))
    assert code == 0
    reads(out)


@pytest.mark.parametrize(
    "text",
    [
        "[servers\n",
        _ring.replace('"s2"] }', '"s2"], order = "magic" }'),
        _ring.replace('"s2"] }', '"s2"], order = "coordinator:member=5" }'),
        "\xff",
    ],
)
def test_unreadable_is_one_line_and_exit_2(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, reads: Snapshots
) -> None:
    path = tmp_path / "t.toml"
    path.write_bytes(text.encode("latin-1"))
    for command in (["topology", "check"], ["simulate", "--topology"]):
        code, out, err = _asked(capsys, *command, str(path))
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        reads(err)


def test_file_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path, reads: Snapshots) -> None:
    for command in ("check", "show"):
        code, _, err = _asked(capsys, "topology", command, str(tmp_path / "none.toml"))
        assert code == 2
        reads(err)


@pytest.mark.parametrize("shape", ["bus", "daisy", "tree", "flat"])
def test_made_files_pass_the_check(shape: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "made.toml")
    assert cli.run(["topology", "make", shape, "--servers", "20", "-o", path]) == 0
    assert cli.run(["topology", "check", path]) == 0
    capsys.readouterr()
    assert cli.run(["topology", "make", shape, "--servers", "20"]) == 0
    assert capsys.readouterr().out == Path(path).read_text(encoding="utf-8")


def test_make_refuses_what_the_check_would(capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    code, out, err = _asked(capsys, "topology", "make", "bus", "--servers", "20", "--order", "vector")
    assert (code, out) == (2, "")
    reads(err)


def test_show_draws(capsys: pytest.CaptureFixture[str], tmp_path: Path, root: Path, reads: Snapshots) -> None:
    file = str(root / "examples" / "snowflake.toml")
    code, out, _ = _asked(capsys, "topology", "show", file)
    assert code == 0
    assert out.startswith("A  pruned  S1* S2 S3*\n")
    picture = tmp_path / "snowflake.svg"
    assert _asked(capsys, "topology", "show", file, "--svg", str(picture))[0] == 0
    assert picture.read_text(encoding="utf-8").startswith("<svg")
    code, _, err = _asked(capsys, "topology", "show", _write(tmp_path, _ring))
    assert code == 0
    reads(err)


def test_simulated_snowflake_is_causal_by_its_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, root: Path
) -> None:
    file, trace = str(root / "examples" / "snowflake.toml"), str(tmp_path / "run.jsonl")
    run = ["simulate", "--topology", file, "--messages", "400", "--multicast", "--trace", trace, "--json"]
    code, out, _ = _asked(capsys, *run)
    document = json.loads(out)
    assert (code, document["processes"], document["undelivered"], document["order"]) == (0, 8, 0, "pruned")
    assert document["hops"]["mean"] > 1
    code, out, _ = _asked(capsys, "verify", trace, "--json")
    verdict = json.loads(out)
    assert code == 0
    assert (verdict["processes"], verdict["messages"], verdict["complete"]) == (8, 400, True)
    assert verdict["deliveries"] == document["deliveries"]
    assert '"kind":"hop"' in Path(trace).read_text(encoding="utf-8")
    first = Path(trace).read_bytes()
    assert _asked(capsys, *run)[0] == 0
    assert Path(trace).read_bytes() == first


def test_simulate_refuses_a_ring_unless_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, reads: Snapshots
) -> None:
    file, trace = _write(tmp_path, _ring.replace("s2", "s4")), str(tmp_path / "run.jsonl")
    run = ["simulate", "--topology", file, "--messages", "2000", "--multicast", "--trace", trace]
    code, _, err = _asked(capsys, *run)
    assert code == 2
    reads(err)
    assert _asked(capsys, *run, "--unchecked")[0] == 0
    assert _asked(capsys, "verify", trace)[0] == 1


def test_orders_of_the_file_or_of_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(tmp_path / "bus.toml")
    assert cli.run(["topology", "make", "bus", "--servers", "6", "--size", "3", "-o", file]) == 0
    path = Path(file)
    path.write_text(path.read_text(encoding="utf-8").replace('"pruned"', '"matrix"', 1), encoding="utf-8")
    run = ["simulate", "--topology", file, "--messages", "50", "--json"]
    assert json.loads(_asked(capsys, *run)[1])["order"] == "matrix, pruned"
    assert json.loads(_asked(capsys, *run, "--order", "updates")[1])["order"] == "updates"


@pytest.mark.parametrize(
    "options",
    [
        ["--processes", "3"],
        ["--loss", "0.1"],
        ["--order", "vector"],
    ],
)
def test_simulate_refuses_what_a_topology_cannot_have(
    options: list[str], capsys: pytest.CaptureFixture[str], root: Path, reads: Snapshots
) -> None:
    code, _, err = _asked(capsys, "simulate", "--topology", str(root / "examples" / "snowflake.toml"), *options)
    assert code == 2
    reads(err)


def test_unchecked_and_separate_trees(capsys: pytest.CaptureFixture[str], tmp_path: Path, reads: Snapshots) -> None:
    assert _asked(capsys, "simulate", "--unchecked")[0] == 2
    apart = _ring.replace('B = { servers = ["s2", "s3"] }\nC = { servers = ["s3", "s1"] }', 'B = { servers = ["s3"] }')
    code, _, err = _asked(capsys, "simulate", "--topology", _write(tmp_path, apart))
    assert code == 2
    reads(err)
