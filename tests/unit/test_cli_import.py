"""``antecede import`` as a person or a script meets it; and any bytes, which must never be more than one clear line."""

import io
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antecede import cli
from antecede.errors import AntecedeError
from antecede.trace import read_events
from antecede.trace.foreign import FORMATS, convert, recognised
from helpers.snapshots import Snapshots

_log = 'a {"a":1}\nsends\nb {"a":1,"b":1}\nreceives\n'
_spans = '[{"traceId":"t","id":"1","timestamp":1,"localEndpoint":{"serviceName":"a"}}]'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.log").write_text(_log)
    (tmp_path / "spans.json").write_text(_spans)
    return tmp_path


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.parquet"])
def test_a_trace_is_written(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    assert cli.run(["import", "a.log", "--to", name]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines() == [
        "a.log: read as shiviz by the pattern govector, 2 events",
        "2 events of 2 processes, 1 message",
        "  vector clocks cannot show a late delivery: verify will check the clocks, and find no violation",
        f"2 rows written to {name}",
    ]
    events, (metadata,) = read_events([name])
    assert [e.kind for e in events] == ["send", "deliver"]
    assert "import of shiviz" in metadata.recorded_by
    assert cli.run(["verify", name]) == 0


def test_the_report_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["import", "a.log", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    documented = (Path(__file__).resolve().parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    section = documented.partition("## `antecede import --json`")[2].partition("\n## ")[0]
    assert [key for key in report if f"`{key}`" not in section] == []
    assert (report["to"], report["rows"], report["unlogged"], report["merges"]) == (None, 2, 0, None)
    assert sorted(Path().iterdir()) == [Path("a.log"), Path("spans.json")]


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(_log.encode())))
    assert cli.run(["import", "-"]) == 0
    assert capsys.readouterr().out.startswith("<stdin>: read as shiviz")


def test_remarks_name_the_first_unreadable_lines(capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    Path("a.log").write_text(_log + "nothing\n")
    assert cli.run(["import", "a.log"]) == 0
    out = capsys.readouterr().out
    reads(out)


@pytest.mark.parametrize(
    "arguments",
    [
        "missing.log",
        "*.nothing",
        "empty",
        "junk",
        "junk --format shiviz",
        "junk --format govector",
        "junk --format zipkin",
        "junk --format otlp",
        "junk --format jaeger",
        "junk --format spans",
        "junk --format editing",
        "junk --pattern govector",
        "a.log --pattern (",
        "a.log --pattern x",
        "a.log --pattern (?P<process>.)(?P<kind>.)",
        "a.log --send s --deliver d",
        "a.log --format zipkin --pattern govector",
        "a.log --format nonsense",
        "a.log spans.json",
        "a.log --to out.txt",
        "a.log --to no/such/out.jsonl",
        "ours.jsonl",
        "empty.d",
        "",
    ],
)
def test_one_clear_line_and_exit_2(arguments: str, capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    Path("empty").touch()
    Path("junk").write_bytes(bytes(range(256)) * 9)
    Path("ours.jsonl").write_text('{"process":"a","index":0,"kind":"local"}\n')
    Path("empty.d").mkdir()
    before = set(Path().iterdir())
    assert cli.run(["import", *arguments.split()]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("antecede: ")
    assert said.err.count("\n") == 1
    reads(said.err)
    assert set(Path().iterdir()) == before


@pytest.mark.parametrize(("name", "form"), [("a.log", "shiviz"), ("spans.json", "zipkin")])
def test_verify_points_here(name: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["verify", name]) == 2
    said = capsys.readouterr().err
    assert f"this is {form}: convert it with: antecede import" in said
    assert said.count("\n") == 1


def test_nothing_is_recognised_where_nothing_is() -> None:
    Path("junk").write_bytes(b"\x00\xff")
    assert [recognised(path) for path in ("junk", "missing", ".", "-")] == [None] * 4


_pieces = st.sampled_from(
    [
        *(
            b"{",
            b"}",
            b"[",
            b"]",
            b'"',
            b":",
            b",",
            b"\n",
            b"\\",
            b"\xff",
            b"\x1f\x8b",
            b"0",
            b"1",
            b"-",
            b"e9",
            b"null",
        ),
        *(b'"traceId"', b'"id"', b'"timestamp"', b'"localEndpoint"', b'"serviceName"', b'"resourceSpans"', b'"spans"'),
        *(b'"traceID"', b'"spanID"', b'"data"', b'"txns"', b'"agent"', b'"parents"', b'a {"a":1}', b"TraceID,SpanID,"),
        *(
            _spans.encode(),
            _log.encode(),
            b"ParentID,pod,start\n",
            b"t,1,2,a,5\n",
            b'{"txns":[{"agent":0,"parents":[]}]}',
        ),
    ]
)


@given(st.one_of(st.binary(max_size=200), st.lists(_pieces, max_size=25).map(b"".join)), st.sampled_from(FORMATS))
def test_any_bytes(data: bytes, form: str) -> None:
    Path("any").write_bytes(data)
    for asked in ("auto", form):
        with suppress(AntecedeError):
            report = convert(["any"], "any.jsonl", asked)
            events, _ = read_events(["any.jsonl"])
            assert len(events) == report["rows"] >= report["events"] > 0


def test_a_folder_that_may_not_be_read_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be looked into might hold half of the trace: it is not left out in silence."""
    closed = folder / "closed"
    closed.mkdir()
    scandir = os.scandir

    def refusing(path: str) -> Any:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(closed))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert cli.run(["import", str(folder)]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"antecede: {closed}: cannot be read: Permission denied\n")
