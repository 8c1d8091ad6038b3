"""``antecede import --map`` warns of what ``verify`` could not check, and of likely mistakes in the mapping."""

import json
from pathlib import Path
from typing import Any

import pytest

from antecede import cli
from antecede.trace import read_events, verify
from antecede.trace.foreign import Mapping, convert_mapped
from helpers.snapshots import Snapshots

_options = ["--map", "process=p,kind=k,message=m,to=t", "--send", "s", "--deliver", "d"]
_mapping = Mapping(map={"process": "p", "kind": "k", "message": "m", "to": "t"}, send="s", deliver="d")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _send(process: str, message: str, **more: Any) -> dict[str, Any]:
    return {"p": process, "k": "s", "m": message} | more


def _deliver(process: str, message: str, **more: Any) -> dict[str, Any]:
    return {"p": process, "k": "d", "m": message} | more


def _write(*records: dict[str, Any], name: str = "log.jsonl") -> None:
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records))


def _out(capsys: pytest.CaptureFixture[str], *options: str, code: int = 0) -> str:
    assert cli.run(["import", "log.jsonl", *_options, *options]) == code
    said = capsys.readouterr()
    return said.out if code == 0 else said.err


def test_destinations_that_are_no_processes_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _write(_send("a", "1", t="b+c"), _send("a", "2", t="b"), _deliver("b", "1"), _deliver("c", "1"), _deliver("b", "2"))
    assert _out(capsys).splitlines()[2:7] == [
        "  2 deliveries are at a process that the send does not name: not checked by verify. The first:",
        "    log.jsonl:3: b delivers 1, which was sent to b+c (log.jsonl:1)",
        "    log.jsonl:4: c delivers 1, which was sent to b+c (log.jsonl:1)",
        "    1 send names 'b+c', and no record is a delivery there",
        "  names in 'to' seem to be separated by '+': give --separator '+'",
    ]
    # The advice helps, and a saved mapping keeps it.
    assert "does not name" not in _out(capsys, "--separator", "+", "--save-mapping", "kept.toml")
    assert 'separator = "+"' in Path("kept.toml").read_text()
    report = convert_mapped(["log.jsonl"], Mapping(map=_mapping.map, send="s", deliver="d", separator="+"))
    assert (report["not_addressed"], report["unknown_to"], report["separator"]) == (0, {}, None)


def test_a_message_that_nobody_delivers_is_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    _write(_send("a", "1", t="b"), _send("a", "2", t="gone"), _deliver("b", "1"))
    assert len(_out(capsys).splitlines()) == 3
    assert convert_mapped(["log.jsonl"], _mapping)["unknown_to"] == {"gone": 1}


def test_ids_sent_again_are_not_also_called_not_addressed() -> None:
    _write(_send("a", "1", t="x"), _send("a", "1", t="y"), _deliver("b", "1"))
    report = convert_mapped(["log.jsonl"], _mapping)
    assert (report["sent_again"], report["not_addressed"], report["orphans"]) == (1, 0, 0)


def test_deliveries_without_a_send_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _write(_send("a", "1", t="b"), _deliver("b", "1"), _deliver("b", "g1"))
    assert _out(capsys).splitlines()[2:4] == [
        "  1 delivery has no send: not checked by verify; is a file missing? The first:",
        "    log.jsonl:3: b delivers g1",
    ]


def test_a_field_for_destinations_that_no_send_has_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    _write(_send("a", "1", dest="b"), _deliver("b", "1"))
    assert _out(capsys).splitlines()[2:5] == [
        "  1 send without destinations: unknown",
        "    log.jsonl:1: no to: the record has no t",
        "  no send has the field that is mapped to the column to; fields: p, k, m, dest",
    ]


def test_a_misspelled_column_is_named(capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    _write(_send("a", "1"), _deliver("b", "1"))
    given = ["--map", "process=p,kind=k,mesage=m", "--send", "s", "--deliver", "d"]
    assert cli.run(["import", "log.jsonl", *given]) == 2
    reads(capsys.readouterr().err)


@pytest.mark.parametrize(
    "line",
    [
        "[15/Nov/2026:10:00:00] a s 1, 2, 3",
        "2026-03-01 10:00:00,100 INFO  checkout  sent order-17 to billing,shipping",
        "{a} s 1",
    ],
)
def test_lines_of_text_are_neither_json_nor_a_table(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("log.jsonl").write_text(line + "\n")
    assert "log.jsonl: neither JSON nor a table: for lines of text give --pattern" in _out(capsys, code=2)


def test_a_header_with_a_time_in_it_is_still_a_header() -> None:
    Path("log.csv").write_text("p,k,m,t,since 10:00\na,s,1,b,\nb,d,1,,\n")
    assert convert_mapped(["log.csv"], _mapping)["files"][0]["format"] == "csv"


def test_a_time_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    _write(_send("a", "1", t="b", at="noon"), _deliver("b", "1"), _send("a", "2", t="b", at=1), _deliver("b", "2"))
    _write(*({"at": 1} | json.loads(line) for line in Path("log.jsonl").read_text().splitlines()))
    out = _out(capsys, "--map", "time=at", "--index", "time")
    reads(out)
    _write(*({"at": 1} | record for record in (_send("a", "1"), _deliver("b", "1"))), _send("a", "2"))
    assert "    log.jsonl:3: --index time: no time: the record has no at\n" in _out(
        capsys, "--map", "time=at", "--index", "time"
    )
    assert "log.jsonl:1: --index: no number: the record has no seq" in _out(capsys, "--index", "seq", code=2)


def test_a_failed_import_says_that_the_old_trace_is_still_there(capsys: pytest.CaptureFixture[str]) -> None:
    _write(_send("a", "1", t="b"), _deliver("b", "1"))
    assert "was not written" not in _out(capsys, "--to", "out.jsonl", "--others", "wrong", code=2)
    _out(capsys, "--to", "out.jsonl")
    before = Path("out.jsonl").read_bytes()
    _write(_send("a", "1", t="b"))
    assert _out(capsys, "--to", "out.jsonl", code=2).endswith(
        "; out.jsonl was not written and still has its earlier content\n"
    )
    assert Path("out.jsonl").read_bytes() == before


def test_the_trace_of_an_earlier_import_is_not_a_source(capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    Path("logs").mkdir()
    _write(_send("a", "1", t="b"), _deliver("b", "1"), name="logs/log.jsonl")
    for _ in range(2):
        report = convert_mapped(["logs"], _mapping, "logs/out.jsonl")
        assert [file["file"] for file in report["files"]] == ["logs/log.jsonl"]
    assert cli.run(["import", "logs/out.jsonl", *_options, "--to", "logs/out.jsonl"]) == 2
    reads(capsys.readouterr().err)
    Path("logs/log.jsonl").unlink()
    assert cli.run(["import", "logs", *_options, "--to", "logs/out.jsonl"]) == 2
    reads(capsys.readouterr().err)


def test_a_preview_shows_each_process_and_kind_of_each_file() -> None:
    _write(*(_send("a", str(number), t="b") for number in range(30)), name="a.jsonl")
    _write(*(_deliver("b", str(number)) for number in range(30)), name="b.jsonl")
    report = convert_mapped(["a.jsonl", "b.jsonl"], _mapping, preview=True)
    assert [event["at"] for event in report["preview"]] == ["a.jsonl:1", "a.jsonl:2", "b.jsonl:1", "b.jsonl:2"]


def test_a_preview_without_kinds_has_no_heading_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    Path("log.txt").write_text("a: sending m1\nb: got m1\n")
    given = ["--pattern", r"^(?P<process>\w): .*(?P<message>m\d)", "--send", "sending", "--deliver", "got"]
    assert cli.run(["import", "log.txt", *given, "--preview", "--save-mapping", "kept.toml"]) == 0
    assert "kinds:" not in capsys.readouterr().out
    assert "[map]" not in Path("kept.toml").read_text()


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_each_row_has_its_place_in_the_log(name: str) -> None:
    _write(_send("a", "1", t="b"), {"x": 1}, _deliver("b", "1"))
    convert_mapped(["log.jsonl"], _mapping, name)
    assert [event.extra for event in read_events([name])[0]] == [{"source": "log.jsonl:1"}, {"source": "log.jsonl:3"}]
    # A column of that name which the user maps is kept.
    convert_mapped(["log.jsonl"], Mapping(map=_mapping.map | {"source": "k"}, send="s", deliver="d"), name)
    assert [event.extra for event in read_events([name])[0]] == [{"source": "s"}, {"source": "d"}]


@pytest.mark.parametrize(("newest_first", "wanted"), [(False, (1, 0, 0)), (True, (0, 1, 2))])
def test_equal_times_prove_nothing_in_a_log_with_the_newest_line_first(
    newest_first: bool, wanted: tuple[int, int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """b received both messages within one second."""
    sent = [_send("a", "1", at=1), _send("a", "2", at=2)]
    received = [_send("b", "3", at=4), _deliver("b", "2", at=5), _deliver("b", "1", at=5)]
    _write(*sent, *received) if not newest_first else _write(*received[1:], received[0], *reversed(sent))
    out = _out(capsys, "--map", "time=at", "--index", "time", "--to", "t.jsonl")
    report = verify(["t.jsonl"])["orders"]["fifo"]
    rows = "  2 rows at assumed positions: a delivery that is late only because of such rows is undecided\n"
    assert (report["late"], report["undecided"], 2 * (rows in out)) == wanted
