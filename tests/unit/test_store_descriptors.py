"""A process without a free file descriptor: the log treats it like a full disk, and goes on when there is one again."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antecede.errors import NoDescriptorError, StoreFailedError
from antecede.store import Files, LogStore, Sizes, open_log

_small = Sizes(segment_bytes=2048, group_bytes_max=256, pending_bytes_max=1024, log_bytes_max=64 * 2048)


class FewFiles(Files):
    """No file can be opened while ``used_up``."""

    used_up = 0
    """The error number; 0: all is well."""

    def _check(self) -> None:
        if self.used_up:
            raise OSError(self.used_up, "Too many open files")

    def create(self, path: str) -> int:
        self._check()
        return super().create(path)

    def open(self, path: str, write: bool = False) -> int:
        self._check()
        return super().open(path, write)

    def sync_directory(self, directory: str) -> None:
        self._check()
        super().sync_directory(directory)

    def names(self, directory: str) -> list[str]:
        self._check()
        return super().names(directory)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_the_next_segment_is_tried_again(tmp_path: Path, number: int) -> None:
    files, failed = FewFiles(), []
    options: dict[str, Any] = {"files": files, "threaded": False, "on_failed": failed.append}
    with open_log(str(tmp_path / "data"), sizes=_small, **options) as log:
        log.wait(log.append(bytes(100)))
        files.used_up = number
        with pytest.raises(NoDescriptorError, match="no file descriptor for the next segment: Too many open files"):
            _fill(log)
        accepted = log.last
        assert accepted > 10, "the segment that was allocated is used without a further descriptor"
        assert "no file descriptor" in log.shortage()
        with pytest.raises(NoDescriptorError, match="no file descriptor for a snapshot"):
            log.snapshot(b"state", log.last)
        files.used_up = 0
        _until(lambda: _commits(log))
        for _ in range(100):
            log.wait(log.append(bytes(100)))
        log.snapshot(b"state", log.last)
        assert log.shortage() == ""
    assert not failed
    with open_log(str(tmp_path / "data"), sizes=_small) as log:
        assert log.recovered.last == accepted + 100


def _fill(log: LogStore) -> None:
    """Append records until one is refused."""
    for _ in range(1_000):
        log.wait(log.append(bytes(100)))


def _commits(log: LogStore) -> bool:
    shortage = log.shortage()
    log.commit()
    return not shortage


def _until(true: Callable[[], bool]) -> None:
    for _ in range(1_000_000):
        if true():
            return
    raise AssertionError("in vain")


def test_a_snapshot_that_cannot_sync_the_log_is_no_failure_of_it(tmp_path: Path) -> None:
    files = FewFiles()
    with open_log(str(tmp_path / "data"), sizes=_small, files=files, durability="os") as log:
        log.wait(log.append(b"one"))
        files.used_up = errno.EMFILE
        with pytest.raises(NoDescriptorError):
            log.snapshot(b"state", 1)
        files.used_up = 0
        log.wait(log.append(b"two"))
        log.snapshot(b"state", 2)


def test_any_other_error_is_final(tmp_path: Path) -> None:
    files = FewFiles()
    with open_log(str(tmp_path / "data"), sizes=_small, files=files, threaded=False) as log:
        files.used_up = errno.EIO
        with pytest.raises(StoreFailedError):
            _fill(log)
