"""The limits for data that a server keeps without needing it: the converted trace, and old segments of the log.

There may be a limit of age, a limit of size, or both. Files beyond a limit are deleted, the oldest first. The newest
file of the trace is never deleted, because the trace continues from it. Segments of the log are not deleted here. They
are only released, and the store deletes them when recovery does not need them (:mod:`antecede.store.log`).
A log without limits keeps only the segments that are needed. If a limit is set for the log, the log also keeps
segments that are no longer needed, up to this limit. The limit of size is then at most half of the log's maximal size
(``store_log_bytes_max``).
"""

import os
from collections.abc import Sequence

import msgspec

from antecede import limits
from antecede.recording.segments import FOLDER, pieces_in
from antecede.store import closed_segments
from antecede.store.directory import named, numbered, segment_name
from antecede.store.files import Files


class Keep(msgspec.Struct, frozen=True):
    """The limits of age (in seconds) and size (in bytes) of the trace and of the log. A limit of None has no effect. If
    the trace has no limit, all of it is kept. If both limits of the log are None, the log keeps only the segments that
    are needed. Otherwise it also keeps segments that are no longer needed, up to this age and size."""

    trace_seconds: float | None = None
    trace_bytes: int | None = None
    log_seconds: float | None = None
    log_bytes: int | None = None

    @property
    def bounds_trace(self) -> bool:
        """Whether old files of the trace are deleted, because the trace has a limit of age or size."""
        return self.trace_seconds is not None or self.trace_bytes is not None

    @property
    def extends_log(self) -> bool:
        """Whether segments of the log are kept for longer than they are needed."""
        return self.log_seconds is not None or self.log_bytes is not None


KEEP_NEEDED = Keep()


def superfluous(files: Sequence[os.stat_result], now: float, seconds: float | None, size: int | None) -> int:
    """Return how many files must be deleted, the oldest first. Afterwards, no remaining file is older than ``seconds``,
    and the remaining files together have at most ``size`` bytes. A limit of None has no effect. ``files``: all files,
    the oldest first."""
    total = 0
    for place in range(len(files) - 1, -1, -1):
        total += files[place].st_size
        if (size is not None and total > size) or (seconds is not None and now - files[place].st_mtime > seconds):
            return place + 1
    return 0


def prune_trace(directory: str, keep: Keep, now: float) -> int:
    """Delete files of the trace that exceed the limits; return the number of deleted files. ``now``: seconds since
    1970."""
    with named(directory):
        # The newest one has the place where the trace continues.
        pieces = pieces_in(directory)[:-1]
        count = superfluous([os.stat(piece.path) for piece in pieces], now, keep.trace_seconds, keep.trace_bytes)
        for piece in pieces[:count]:
            os.unlink(piece.path)
        if count:
            Files().sync_directory(f"{directory}/{FOLDER}")
        return count


def releasable(directory: str, upto: int, keep: Keep, now: float) -> int:
    """Return the number of the last record that may be released. This is ``upto``, or less if ``keep`` requires that
    more segments are kept."""
    if not keep.extends_log:
        return upto
    with named(directory):
        ends = closed_segments(directory)
        numbers = numbered(os.listdir(directory), "segment")[: len(ends)]
        files = [os.stat(f"{directory}/{segment_name(number)}") for number in numbers]
        most = limits.store_log_bytes_max // 2
        if keep.log_bytes is not None:
            most = min(most, keep.log_bytes)
        count = superfluous(files, now, keep.log_seconds, most)
        return min(upto, ends[count - 1] if count else 0)
