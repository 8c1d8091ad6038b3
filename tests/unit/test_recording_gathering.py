"""Servers' directories as one trace: found where they are, read as a consistent cut, while everything moves."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antecede.cli import run
from antecede.errors import StoreError, TraceError
from antecede.live.application import plan_of
from antecede.recording import segments
from antecede.recording.converting import convert
from antecede.recording.segments import Recording, begin, gathered
from antecede.server import AgentServer, Published
from antecede.store import Sizes, open_log
from antecede.topology import parse_topology
from antecede.trace import DELIVER, LOCAL, SEND, Event, Metadata, read_events, write_trace

_topology = parse_topology("""
[servers]
s1 = "tcp://127.0.0.1:7101"
s2 = "tcp://127.0.0.1:7102"
[domains]
A = { servers = ["s1", "s2"] }
""")
_sizes = Sizes(segment_bytes=128 * 1024, group_bytes_max=32 * 1024, pending_bytes_max=32 * 1024, log_bytes_max=1 << 30)


def _written(directory: Path, server: str, publishes: int) -> None:
    directory.parent.mkdir(exist_ok=True)
    with open_log(str(directory), sizes=_sizes) as log:
        machine = AgentServer(server, plan_of(_topology), log.incarnation)
        log.append(machine.begin(_topology.epoch))
        for number in range(1, publishes + 1):
            given = Published("c", number, (f"c@{server}",), "Word", b"x" * 1000)
            record = machine.step([given], 0.0, 0).record
            assert record is not None
            log.wait(log.append(record))
    begin(str(directory))


def _rows(*paths: str | Path) -> list[Event]:
    with gathered([str(path) for path in paths]) as files:
        return sorted(read_events(files)[0], key=lambda row: (row.process, row.index))


def test_found_at_below_and_by_pattern_each_once(tmp_path: Path) -> None:
    _written(tmp_path / "data" / "s1", "s1", 3)
    _written(tmp_path / "data" / "s2", "s2", 2)
    other = [Event("x", 0, SEND, "m", ("y",))]
    write_trace(tmp_path / "data" / "other.jsonl", other)
    write_trace(tmp_path / "far.jsonl", [Event("y", 0, DELIVER, "m")])
    whole = _rows(tmp_path / "data")
    assert [(row.process, row.index) for row in whole] == [
        *(("c@s1", k) for k in range(3)),
        *(("c@s2", k) for k in range(2)),
        ("x", 0),
    ]
    assert _rows(tmp_path / "data" / "s1", tmp_path / "data" / "s2") == whole[:5]
    assert _rows(tmp_path / "data" / "s*") == whole[:5]
    assert _rows(tmp_path / "data", tmp_path / "data" / "s1", tmp_path / "far.jsonl") == [
        *whole,
        *_rows(tmp_path / "far.jsonl"),
    ]


def test_a_server_that_cannot_be_read_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for server in ("s1", "s2"):
        _written(tmp_path / server, server, 3)
    closed = str(tmp_path / "s2")

    def denied(real: Any) -> Any:
        def look(path: Any) -> Any:
            if path == closed:
                raise PermissionError(13, "Permission denied", closed)
            return real(path)

        return look

    monkeypatch.setattr(os, "scandir", denied(os.scandir))
    assert run(["verify", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"antecede: {closed}: cannot be read: Permission denied\n"
    monkeypatch.setattr(os, "listdir", denied(os.listdir))
    with pytest.raises(TraceError, match="Permission denied"), gathered([closed]):
        pass


def test_nothing_temporary_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _written(tmp_path / "s1", "s1", 3)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    with gathered([str(tmp_path / "s1")]) as files:
        assert files
        assert all(str(scratch) in file for file in files)
    assert not list(scratch.iterdir())


class _Scripted:
    """A recording whose rows come when the test says."""

    def __init__(self, name: str, *readings: list[Event]) -> None:
        self.directory = name
        self.pieces: list[Any] = []
        self.metadata = Metadata()
        self._readings = list(readings)

    def rows(self) -> Iterator[Event]:
        return iter(self._readings.pop(0))


def test_a_delivery_ahead_of_its_send_waits_for_it(tmp_path: Path) -> None:
    # While b's log was read, a committed m and b delivered it; then somebody else's n arrived at b.
    a = _Scripted("a", [], [Event("a", 0, SEND, "m", ("b",))])
    b = _Scripted("b", [Event("b", 0, DELIVER, "m")], [Event("b", 1, DELIVER, "n"), Event("b", 2, SEND, "o", ("a",))])
    recordings: Any = [a, b]
    events, _ = read_events(segments._spill(recordings, str(tmp_path)))
    assert sorted((row.process, row.index, row.kind, row.message) for row in events) == [
        ("a", 0, SEND, "m"),
        ("b", 0, DELIVER, "m"),
        ("b", 1, LOCAL, None),
        ("b", 2, SEND, "o"),
    ]


def test_a_segment_that_goes_meanwhile_is_read_where_it_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    directory = tmp_path / "s1"
    _written(directory, "s1", 500)
    whole = _rows(directory)
    tries = 0

    def moving(place: str) -> Recording:
        nonlocal tries
        recording = Recording(place)
        tries += 1
        if tries == 1:
            convert(place)
            os.unlink(f"{place}/segment-000000000001.log")
        return recording

    monkeypatch.setattr(segments, "Recording", moving)
    assert _rows(directory) == whole
    assert tries == 2
    # One that is simply gone is an error, and not tried for ever.
    for name in os.listdir(directory / "trace"):
        os.unlink(directory / "trace" / name)
    with pytest.raises(StoreError, match="ran without --trace"):
        _rows(directory)


def test_options_that_cannot_be_meant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(_topology.text())
    for arguments in (
        ["up", str(file), "--trace"],
        ["up", str(file), "--trace", "--data", str(tmp_path / "data"), "--durability", "memory"],
        ["serve", str(file), "--server", "s1", "--trace", "--durability", "memory"],
    ):
        assert run(arguments) == 2
        assert "--trace" in capsys.readouterr().err
