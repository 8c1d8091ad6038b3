"""Restored data directories: what was in a log fits into a new one."""

from pathlib import Path

import pytest

from antecede.errors import StoreFullError
from antecede.store import Files, LogStore, Sizes, open_log, read_records
from antecede.store.copying import write_directory

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
