"""Restored data directories: what was in a log fits into a new one."""

from pathlib import Path

import pytest

from antecede.errors import CorruptLogError, StoreFullError
from antecede.limits import store_segment_bytes_first
from antecede.store import Files, LogStore, Sizes, open_log, read_records, write_directory

SMALL = Sizes(segment_bytes=8192, group_bytes_max=2048, pending_bytes_max=4096, log_bytes_max=4 * 8192)


def _fill(log: LogStore) -> None:
    while True:
        log.append(bytes(500))
        log.commit()


def test_a_full_log_is_copied_with_one_more_record(tmp_path: Path) -> None:
    """The larger groups of the copy leave more space unused at the end of a segment, so the copy has one segment
    more."""
    old, new = str(tmp_path / "old"), tmp_path / "new"
    with open_log(old, sizes=SMALL, durability="os", threaded=False) as log:
        with pytest.raises(StoreFullError):
            _fill(log)
        assert log.log_bytes == SMALL.log_bytes_max
    records = [record for _, record in read_records(old)]
    new.mkdir()
    assert write_directory(Files(), str(new), 7, 1, [*records, b"begin"], b"state", SMALL) == len(records) + 1
    assert [record for _, record in read_records(str(new))] == [*records, b"begin"]
    with open_log(str(new), sizes=SMALL, threaded=False) as log:
        assert log.log_bytes > SMALL.log_bytes_max
        assert log.recovered.snapshot is not None
        assert log.recovered.snapshot.data() == b"state"
        assert (log.incarnation, log.last) == (7, len(records) + 1)
        # It is full like any other log of this size, up to the end of its last segment.
        assert "the log is full" in log.shortage()
        log.append(b"next")
        with pytest.raises(StoreFullError, match="the log is full"):
            _fill(log)
        # When the owner does not need the old records any more, there is space again.
        log.release(log.last)
        log.snapshot(b"later", log.last)
        log.commit()
        assert log.shortage() == ""
        log.append(b"again")


@pytest.mark.parametrize("size", [100, 500, 1_000_000, store_segment_bytes_first, 3 * store_segment_bytes_first])
@pytest.mark.parametrize("first", [1, 5_000])
def test_the_first_group_is_in_the_first_segment(tmp_path: Path, size: int, first: int) -> None:
    """With many small records, or with one that is longer than a first segment."""
    records = [bytes([number % 256]) * size for number in range(max(3, 2 * store_segment_bytes_first // size))]
    last = write_directory(Files(), str(tmp_path), 7, first, records, b"state")
    with open_log(str(tmp_path), threaded=False) as log:
        assert (log.last, log.recovered.first) == (last, first)
        assert log.recovered.snapshot is not None
    assert [record for _, record in read_records(str(tmp_path))] == records


def test_a_directory_that_recovery_would_refuse_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antecede.store.log.HEADER_BYTES", 0)
    with pytest.raises(CorruptLogError):
        write_directory(Files(), str(tmp_path), 7, 5_000, [bytes(100)] * 20_000, b"state")
    assert not (tmp_path / "identity").exists()
