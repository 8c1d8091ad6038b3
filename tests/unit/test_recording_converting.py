"""Closed segments become Parquet, each row once, whatever happens to the process that does it."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from antecede import Notification
from antecede.errors import StoreError, TraceError
from antecede.live import ServerRuntime
from antecede.live.application import plan_of
from antecede.recording.converting import Orphaned, convert
from antecede.recording.segments import Recording, begin, gathered, pieces_in
from antecede.server import AgentServer, Published, pieces_of
from antecede.store import Files, LogStore, Sizes, closed_segments, open_log
from antecede.topology import parse_topology
from antecede.trace import Event, read_events
from antecede.trace import verify as judge_files
from helpers.ports import free_ports
from helpers.recordings import project_directory

pytest.importorskip("pyarrow")


_topology = parse_topology(f"""
[servers]
s1 = "tcp://127.0.0.1:{free_ports(1)[0]}"
s2 = "tcp://127.0.0.1:1"
[domains]
A = {{ servers = ["s1", "s2"] }}
""")


class _Word(Notification):
    text: str


_sizes = Sizes(segment_bytes=128 * 1024, group_bytes_max=32 * 1024, pending_bytes_max=32 * 1024, log_bytes_max=1 << 30)
_server_sizes = Sizes(segment_bytes=600_000, group_bytes_max=256_000, pending_bytes_max=256_000)


def _written(directory: str, publishes: int) -> None:
    with open_log(directory, sizes=_sizes) as log:
        server = AgentServer("s1", plan_of(_topology), log.incarnation)
        log.append(server.begin(_topology.epoch))
        for number in range(1, publishes + 1):
            # Two clients by turns, so that there is more than one index to remember.
            given = Published(f"c{number % 2}", (number + 1) // 2, ("c0@s1",), "Word", b"x" * 1000)
            _append(log, server.step([given], 0.0, 0).record)
    begin(directory)


def _append(log: LogStore, record: bytes | None) -> None:
    assert record is not None
    for piece in pieces_of(record):
        log.wait(log.append(piece))


def _rows(directory: str) -> list[Event]:
    """All rows, from Parquet and from the log, in the order in which they are read."""
    with gathered([directory]) as paths:
        return _sorted(read_events(paths)[0])


def _sorted(rows: Any) -> list[Event]:
    return sorted(rows, key=lambda row: (row.process, row.index))


class _Crash(BaseException):
    """Not an error that anybody may handle."""


class _CrashingFiles(Files):
    """The process dies at its n-th change of the disk, before or after it."""

    def __init__(self, at: int) -> None:
        self.left = at

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise _Crash

    def fsync(self, file: int) -> None:
        self._step()
        super().fsync(file)

    def rename(self, old: str, new: str) -> None:
        self._step()
        super().rename(old, new)

    def sync_directory(self, path: str) -> None:
        self._step()
        super().sync_directory(path)

    def unlink(self, path: str) -> None:
        self._step()
        super().unlink(path)


def test_converted_and_not_converted_are_the_same_rows(tmp_path: Path) -> None:
    directory = str(tmp_path / "s1")
    _written(directory, 500)
    whole = list(project_directory(directory))
    ends = closed_segments(directory)
    assert len(ends) > 2
    assert convert(directory) == len(ends)
    assert [piece.upto for piece in pieces_in(directory)] == ends
    assert convert(directory) == 0
    rest = list(Recording(directory).rows())
    assert 0 < len(rest) < len(whole)
    assert _rows(directory) == _sorted(whole)


def test_a_crash_at_any_step_costs_and_doubles_nothing(tmp_path: Path) -> None:
    steps = 0
    while True:
        directory = str(tmp_path / f"s{steps}")
        _written(directory, 300)
        whole = _sorted(project_directory(directory))
        files = _CrashingFiles(steps)
        try:
            convert(directory, files=files)
            break
        except _Crash:
            pass
        # Whoever looks right after the crash sees every row once; and so does whoever looks when it was made up for.
        assert _rows(directory) == whole
        convert(directory)
        assert [piece.upto for piece in pieces_in(directory)] == closed_segments(directory)
        assert _rows(directory) == whole
        assert not [name for name in os.listdir(f"{directory}/trace") if name.endswith(".new")]
        steps += 1
    assert steps > 5


def test_killed_processes_leave_what_the_next_one_finishes(tmp_path: Path) -> None:
    directory = str(tmp_path / "s1")
    _written(directory, 1500)
    whole = _sorted(project_directory(directory))
    command = [sys.executable, "-m", "antecede.recording.converting", directory]
    started = time.monotonic()
    assert subprocess.run(command, check=False).returncode == 0
    seconds = time.monotonic() - started
    for piece in pieces_in(directory):
        os.unlink(piece.path)
    dice = random.Random(4)
    for _ in range(4):
        process = subprocess.Popen(command)
        time.sleep(dice.uniform(0.4, 1.0) * seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert _rows(directory) == whole
    assert subprocess.run(command, check=False).returncode == 0
    assert [piece.upto for piece in pieces_in(directory)] == closed_segments(directory)
    assert _rows(directory) == whole


def test_a_record_across_two_segments_is_the_next_ones(tmp_path: Path) -> None:
    directory = str(tmp_path / "s1")
    with open_log(directory, sizes=Sizes(22 << 20, 10 << 20, 10 << 20)) as log:
        server = AgentServer("s1", plan_of(_topology), log.incarnation)
        log.append(server.begin(_topology.epoch))
        for step in range(5):
            bodies = [Published("c", 12 * step + k + 1, ("c@s1",), "Word", bytes(1_000_000)) for k in range(12)]
            _append(log, server.step(list(bodies), 0.0, 0).record)
    begin(directory)
    whole = _sorted(project_directory(directory))
    assert len(whole) == 60
    ends = closed_segments(directory)
    convert(directory)
    assert [piece.upto for piece in pieces_in(directory)] != ends, "no record was cut: this tests nothing"
    assert _rows(directory) == whole


def test_only_one_at_a_time(tmp_path: Path) -> None:
    directory = str(tmp_path / "s1")
    _written(directory, 300)
    lock = Files().lock(f"{directory}/trace/lock", b"1\n")
    with pytest.raises(BlockingIOError):
        convert(directory)
    command = [sys.executable, "-m", "antecede.recording.converting", directory]
    assert subprocess.run(command, check=False).returncode == 75
    os.close(lock)
    assert convert(directory) > 0


def test_it_ends_when_nobody_wants_it_any_more(tmp_path: Path) -> None:
    directory = str(tmp_path / "s1")
    _written(directory, 300)
    with pytest.raises(Orphaned):
        convert(directory, wanted=lambda: False)
    assert not pieces_in(directory)


def test_a_piece_that_lies_is_refused(tmp_path: Path) -> None:
    directory = str(tmp_path / "s1")
    _written(directory, 300)
    convert(directory)
    last = pieces_in(directory)[-1]
    os.rename(last.path, last.path.replace(f"{last.upto:020d}", f"{last.upto + 1:020d}"))
    with pytest.raises(TraceError, match="but its name has another number"):
        Recording(directory)
    os.unlink(pieces_in(directory)[-1].path)
    Path(last.path).write_bytes(b"PAR1 no more")
    with pytest.raises(TraceError, match="cannot find the last record of this file"):
        Recording(directory)


def _serve(directory: str, more_than: int = 0, **options: Any) -> tuple[int, int]:
    """Run a server in this process, with a client that sends to itself until the oldest segment is dropped and, if it
    records, more than so many records are converted. Return the number of messages, and of records converted."""

    async def main() -> tuple[int, int]:
        server = ServerRuntime(_topology, "s1", directory, sizes=_server_sizes, agents={}, **options)
        await server.start()
        recorder, sent = server.recorder, 0
        async with asyncio.timeout(300), server.bus("c") as bus:
            while (recorder is not None and recorder.converted <= more_than) or os.path.exists(_oldest(directory)):
                for _ in range(100):
                    bus.send("c@s1", _Word(text="x" * 900))
                sent += 100
                await bus.drain()
                await asyncio.sleep(0.02)
                while recorder is not None and recorder.status()["segments_behind"]:
                    await asyncio.sleep(0.02)
        assert recorder is None or not server.operations.status()["trace"]["trouble"]
        await server.stop()
        return sent, 0 if recorder is None else recorder.converted

    return asyncio.run(main())


def _oldest(directory: str) -> str:
    return f"{directory}/segment-000000000001.log"


def test_a_server_drops_segments_only_when_they_are_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antecede.limits.snapshot_log_bytes", 200_000)
    directory = str(tmp_path / "s1")
    sent, converted = _serve(directory, trace=True)
    with gathered([directory]) as paths:
        report = judge_files(paths)
    assert report["complete"]
    assert report["messages"] == sent
    # The trace goes on without being asked to, and nothing is missing between the two lives.
    again, _ = _serve(directory, more_than=converted)
    with gathered([directory]) as paths:
        report = judge_files(paths)
    assert report["complete"]
    assert report["messages"] == sent + again


def test_a_conversion_that_fails_is_told_and_holds_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antecede.limits.snapshot_log_bytes", 200_000)
    monkeypatch.setattr("antecede.limits.trace_retry_seconds", 0.01)
    directory = str(tmp_path / "s1")

    async def main() -> None:
        server = ServerRuntime(_topology, "s1", directory, sizes=_server_sizes, agents={}, trace=True)
        assert server.recorder is not None
        await server.start()
        monkeypatch.setattr("antecede.recording.segments.CONVERTER", "antecede.live.no_such_module")
        async with asyncio.timeout(300), server.bus("c") as bus:
            for _ in range(1000):
                await bus.send("c@s1", _Word(text="x" * 900))
            while not server.recorder.trouble:
                await asyncio.sleep(0.05)
            assert "no_such_module" in server.operations.status()["trace"]["trouble"]
            assert os.path.exists(_oldest(directory))
            monkeypatch.setattr("antecede.recording.segments.CONVERTER", "antecede.recording.converting")
            while server.recorder.trouble or not server.recorder.converted:
                await asyncio.sleep(0.05)
        await server.stop()

    asyncio.run(main())
    with gathered([directory]) as paths:
        assert judge_files(paths)["messages"] == 1000


def test_what_cannot_be_recorded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antecede.limits.snapshot_log_bytes", 100_000)
    directory = str(tmp_path / "s1")
    _serve(directory)
    with pytest.raises(StoreError, match="ran without --trace"):
        _serve(directory, trace=True)
    with pytest.raises(StoreError, match="ran without --trace"), gathered([directory]):
        pass
    other = str(tmp_path / "other")
    _serve(other, trace=True)
    for name in os.listdir(other):
        if name != "trace":
            os.unlink(f"{other}/{name}")
    with pytest.raises(StoreError, match="an older log was put here"):
        _serve(other)
