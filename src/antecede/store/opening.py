"""Open a log: lock its directory, check the directory, and remove a torn write if there is one.

Before a torn write is removed, a note about it is written to a file. So even after a crash, the owner of the log (the
server) can see that the write was removed. A corrupt directory is left as it was found.
"""

import logging

from antecede.errors import UsageError
from antecede.store.contract import OnDurable, OnFailed
from antecede.store.cuts import note_cut
from antecede.store.directory import create, lock_directory, named, read_identity, refuse_foreign
from antecede.store.files import Files
from antecede.store.log import LogStore
from antecede.store.recovery import judge, repair
from antecede.store.segments import Segments, Sizes

_logger = logging.getLogger("antecede.store")


def open_log(
    directory: str,
    *,
    durability: str = "disk",
    sizes: Sizes | None = None,
    on_durable: OnDurable | None = None,
    on_failed: OnFailed | None = None,
    files: Files | None = None,
    threaded: bool = True,
) -> LogStore:
    """Open the log in a directory. Create the directory if it does not exist. The attribute ``recovered`` of the
    returned log describes the content that was found."""
    files = files or Files()
    sizes = sizes or Sizes()
    sizes.check()
    if durability not in ("disk", "os"):
        raise UsageError(f"durability {durability!r}: expected 'disk' or 'os' for a log")
    with named(directory):
        refuse_foreign(files, directory)
        lock = lock_directory(files, directory)
        try:
            identity = read_identity(files, directory) or create(files, directory, sizes.first_bytes)
            judged = judge(files, directory, identity)
            judged.recovered = note_cut(files, directory, judged.recovered)
            segments = Segments(files, directory, sizes, judged.starts, judged.tail.segment)
            file, end = repair(files, directory, judged)
            try:
                segments.adopt(file, judged.tail.offset, end)
                for line in (*judged.recovered.unreadable, judged.recovered.cut):
                    if line:
                        _logger.warning("%s", line)
                return LogStore(segments, lock, judged, durability, on_durable, on_failed, threaded)
            except BaseException:
                files.close(file)
                raise
        except BaseException:
            files.close(lock)
            raise
