"""``antecede import --file-pattern``: fields of records from the names of their files."""

from pathlib import Path

import pytest

from antecede import cli
from antecede.trace import read_events
from antecede.trace.foreign import Mapping, convert_mapped, pairs_of, read_mapping
from helpers.snapshots import Snapshots


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_name_of_a_file_names_the_process(capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    Path("logs").mkdir()
    Path("logs/node-a.log").write_text("sent 1 to b\nsent 2 to b\n")
    Path("logs/node-b.log").write_text("received 2\nreceived 1\n")
    lines = "(?P<kind>sent|received) (?P<message>.)( to (?P<to>.))?"
    options = ["--pattern", lines, "--send", "sent", "--deliver", "received"]
    named = ["--file-pattern", "node-(?P<process>.)"]
    assert cli.run(["import", "logs", "--to", "out.jsonl", "--save-mapping", "kept.toml", *options, *named]) == 0
    events = read_events(["out.jsonl"])[0]
    assert sorted((e.process, e.index, e.kind, e.message) for e in events) == [
        ("a", 0, "send", "1"),
        ("a", 1, "send", "2"),
        ("b", 0, "deliver", "2"),
        ("b", 1, "deliver", "1"),
    ]
    assert read_mapping("kept.toml").file_pattern == named[1]
    capsys.readouterr()
    # A file with another name is not left out silently.
    Path("logs/other.log").write_text("sent 3 to b\n")
    assert cli.run(["import", "logs", "--mapping", "kept.toml"]) == 2
    reads(capsys.readouterr().err)


def test_a_record_overrides_the_name_of_its_file() -> None:
    mapping = Mapping(
        map=pairs_of(["kind=event,message=id"]), file_pattern="(?P<process>log)", send="sent", deliver="got"
    )
    Path("log.jsonl").write_text('{"event": "sent", "id": 1}\n{"event": "got", "id": 1, "process": "q"}\n')
    convert_mapped(["log.jsonl"], mapping, "out.jsonl")
    events = read_events(["out.jsonl"])[0]
    assert sorted((event.process, event.kind) for event in events) == [("log", "send"), ("q", "deliver")]
