"""Folders of traces with symbolic links: whatever the folder names is read, once, or refused by name."""

import json
import os
from pathlib import Path

import pytest

from antecede import cli
from antecede.errors import TraceError
from antecede.trace import trace_files
from antecede.trace.foreign import files_of
from helpers.snapshots import Snapshots

_send = {"process": "a", "index": 0, "kind": "send", "message": "m", "to": ["b"]}
_deliver = {"process": "b", "index": 0, "kind": "deliver", "message": "m"}


def _write(path: Path, *rows: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A trace of which one half lies behind a link to another folder, which links back."""
    _write(tmp_path / "elsewhere" / "deep" / "b.jsonl", _deliver)
    _write(tmp_path / "trace" / "a.jsonl", _send)
    (tmp_path / "trace" / "node2").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "trace" / "again").symlink_to(tmp_path / "elsewhere" / "deep")
    (tmp_path / "elsewhere" / "deep" / "back").symlink_to(tmp_path / "trace")
    return tmp_path / "trace"


def test_a_link_to_a_folder_is_followed_and_a_loop_ends(linked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["verify", str(linked), "--engine", "plain", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["events"], report["deliveries"], report["quarantined"]) == (2, 1, {})
    assert cli.run(["verify", str(linked), "--dry-run", "--json"]) == 0
    listed = [file["file"] for file in json.loads(capsys.readouterr().out)["files"]]
    assert [os.path.basename(name) for name in listed] == ["a.jsonl", "b.jsonl"]
    assert [os.path.basename(name) for name in files_of([str(linked)])] == ["a.jsonl", "b.jsonl"]


def test_spark_reads_the_same_files(linked: Path) -> None:
    pytest.importorskip("pyarrow")
    from antecede.pipeline.read.splits import plan

    given = plan([str(linked)])
    assert given.files == trace_files([str(linked)])[0]
    assert sorted(map(os.path.basename, given.files)) == ["a.jsonl", "b.jsonl"]
    assert sorted(map(os.path.basename, plan([f"file://{linked}"]).files)) == ["a.jsonl", "b.jsonl"]


def test_a_link_that_leads_nowhere_is_refused_by_name(
    linked: Path, capsys: pytest.CaptureFixture[str], reads: Snapshots
) -> None:
    (linked / "node3").symlink_to(linked / "gone")
    for command in (["verify", str(linked)], ["verify", str(linked), "--dry-run"], ["import", str(linked)]):
        assert cli.run(command) == 2
        reads(capsys.readouterr().err)
    with pytest.raises(TraceError) as caught:
        trace_files([linked])
    reads(str(caught.value))


def test_a_link_to_itself_is_refused_by_name(linked: Path, reads: Snapshots) -> None:
    (linked / "self").symlink_to(linked / "self")
    with pytest.raises(TraceError) as caught:
        trace_files([linked])
    reads(str(caught.value))
