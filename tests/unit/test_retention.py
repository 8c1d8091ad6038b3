"""Retention of trace and log by age and size: the oldest goes first, and nothing that is still needed."""

import os
from pathlib import Path

import pytest

from antecede import limits
from antecede.cli import run
from antecede.cli.options import Serving, check_serving, seconds, size
from antecede.errors import UsageError
from antecede.live.logs import ServerLog
from antecede.live.recorder import Keep, prune_trace, releasable, superfluous
from antecede.recording.segments import piece_name, pieces_in
from antecede.store import Sizes, closed_segments, open_log

_day = 86_400.0


@pytest.mark.parametrize(
    ("age", "most", "expected"),
    [
        (None, None, 0),
        (3 * _day, None, 0),
        (3 * _day - 1, None, 1),
        (1.5 * _day, None, 2),
        (0.0, None, 3),
        (None, 60, 0),
        (None, 59, 1),
        (None, 30, 2),
        (None, 29, 3),
        (2.5 * _day, 30, 2),
    ],
)
def test_the_oldest_beyond_a_limit(age: float | None, most: int | None, expected: int) -> None:
    # The last entries: length, access, change of the content, change of the file.
    files = [os.stat_result((0,) * 6 + (size, 0, day * _day, 0)) for size, day in ((10, 1), (20, 2), (30, 3))]
    assert superfluous(files, 4 * _day, age, most) == expected


def _trace(folder: Path, now: float) -> list[int]:
    (folder / "trace").mkdir()
    for number in range(1, 6):
        path = folder / "trace" / piece_name(number * 100)
        path.write_bytes(bytes(1_000))
        os.utime(path, (now, now - (6 - number) * _day))
    return [100, 200, 300, 400, 500]


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (Keep(trace_seconds=3.5 * _day), [300, 400, 500]),
        (Keep(trace_bytes=2_500), [300, 400, 500]),
        # The newest file says where the trace continues: it stays whatever the limits are, and does not count.
        (Keep(trace_seconds=0.0, trace_bytes=0), [500]),
        (Keep(), [100, 200, 300, 400, 500]),
    ],
)
def test_files_of_a_trace(tmp_path: Path, keep: Keep, left: list[int]) -> None:
    now = 1_700_000_000.0
    before = _trace(tmp_path, now)
    assert prune_trace(str(tmp_path), keep, now) == len(before) - len(left)
    assert [piece.upto for piece in pieces_in(str(tmp_path))] == left
    assert prune_trace(str(tmp_path), keep, now) == 0


def test_the_log_is_kept_for_longer_but_never_less_than_needed(tmp_path: Path) -> None:
    small = Sizes(segment_bytes=65_536, group_bytes_max=16_384, pending_bytes_max=32_768, log_bytes_max=1 << 24)
    directory = str(tmp_path / "s1")
    with open_log(directory, sizes=small) as store:
        for _ in range(40):
            store.wait(store.append(bytes(9_000)))
        ends = closed_segments(directory)
        assert len(ends) >= 3
        now = 1_700_000_000.0
        for place, path in enumerate(sorted(Path(directory).glob("segment-*.log"))):
            os.utime(path, (now, now - (10 - place) * _day))
        assert releasable(directory, 40, Keep(), now) == 40, "without limits everything may go"
        assert releasable(directory, 40, Keep(log_seconds=8.5 * _day), now) == ends[1]
        assert releasable(directory, ends[0] - 1, Keep(log_seconds=8.5 * _day), now) == ends[0] - 1
        assert releasable(directory, 40, Keep(log_seconds=30 * _day), now) == 0
        assert releasable(directory, 40, Keep(log_bytes=small.segment_bytes), now) == ends[-2]
        assert releasable(directory, 40, Keep(log_bytes=0), now) == min(40, ends[-1])
        # What is released is deleted only if two snapshots cover it.
        store.release(releasable(directory, 40, Keep(log_seconds=8.5 * _day), now))
        assert closed_segments(directory) == ends
        for upto in (39, 40):
            store.snapshot(b"state", upto)
        assert closed_segments(directory) == ends[2:]


def test_kept_segments_take_at_most_half_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Sizes(segment_bytes=65_536, group_bytes_max=16_384, pending_bytes_max=32_768, log_bytes_max=1 << 24)
    directory = str(tmp_path / "s1")
    with open_log(directory, sizes=small) as store:
        for _ in range(40):
            store.wait(store.append(bytes(9_000)))
    ends = closed_segments(directory)
    monkeypatch.setattr(limits, "store_log_bytes_max", 4 * small.segment_bytes)
    assert releasable(directory, 40, Keep(log_bytes=10**12), 1e10) == ends[-3]


def test_an_error_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from antecede.live.recorder import Recorder

    recorder = Recorder.__new__(Recorder)
    recorder._directory, recorder._keep = str(tmp_path), Keep(trace_bytes=0)
    recorder._log = ServerLog("s1")
    (tmp_path / "trace").write_text("not a folder")
    recorder.prune(0.0)
    _trace_folder = tmp_path / "other"
    _trace_folder.mkdir()
    recorder._directory = str(_trace_folder)
    _trace(_trace_folder, 0.0)
    recorder.prune(0.0)
    assert [piece.upto for piece in pieces_in(str(_trace_folder))] == [500]


def test_amounts() -> None:
    assert seconds("--x", "30d") == 30 * _day
    assert seconds("--x", "90 m") == 5_400
    assert size("--x", "20GB") == 20_000_000_000
    options = Serving("disk", *[None] * 6, True, True, "1d", None, None, "5MB", "json")
    assert check_serving(options) == Keep(trace_seconds=_day, log_bytes=5_000_000)
    words = "--durability disk --insecure --trace --keep-trace 1d --keep-log-size 5MB --log json"
    assert options.arguments() == words.split()
    for keep in (options._replace(trace=False), options._replace(trace=False, keep_trace=None, keep_trace_size="1GB")):
        with pytest.raises(UsageError, match="there is no trace without --trace"):
            check_serving(keep)
    for text in ("", "30", "d", "-1d", "1.5d", "30 days", "9" * 13 + "d"):
        with pytest.raises(UsageError, match="--x"):
            seconds("--x", text)


def test_a_wrong_amount_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology = tmp_path / "one.toml"
    topology.write_text('[servers]\ns1 = "tcp://127.0.0.1:7101"\n[domains]\nA = { servers = ["s1"] }\n')
    assert run(["up", str(topology), "--keep-trace", "soon"]) == 2
    assert capsys.readouterr().err == "antecede: --keep-trace soon: expected a time such as 30d, 12h, 90m or 60s\n"
