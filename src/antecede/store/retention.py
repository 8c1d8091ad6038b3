"""Decides which records may be deleted, and when.

The two newest snapshots are kept. So if the newest one is damaged, nothing is lost. A segment is deleted when these
two conditions hold for all its records:

- The *older* of the two newest good snapshots covers the records. So recovery can use this snapshot if the newest
  snapshot is damaged.
- The owner of the log (the server) has released the records. Before that, the owner may need them for another purpose:
  to convert them to a trace.

So no segment is deleted before there are two good snapshots and a release. The snapshot that recovery read completely
is known to be good. The snapshot before it was not read, so it is not known to be good.
"""

from antecede.errors import UsageError
from antecede.store.directory import named
from antecede.store.format import numbered, snapshot_name
from antecede.store.segments import Segments
from antecede.store.snapshots import Snapshot

_kept = 2


class Retention:
    """Deletes the snapshots and segments that an open log no longer needs. Only one thread may use it at a time."""

    def __init__(self, segments: Segments, newest: Snapshot | None) -> None:
        self.segments = segments
        self.released = 0
        self.good = [newest.upto] if newest else []
        """The kept snapshots that are known to be good, oldest first. A snapshot is given by the number of its last
        record."""

    def check(self, upto: int) -> None:
        """Raise UsageError if a new snapshot up to this record would be older than the newest good snapshot. Recovery
        would never use such a snapshot."""
        if self.good and upto < self.good[-1]:
            raise UsageError(f"snapshot up to record {upto}: there is already one up to record {self.good[-1]}")

    def add(self, upto: int) -> int:
        """Add a new snapshot to the good snapshots. Then delete the snapshots and segments that are no longer needed.
        Return the number of deleted segments."""
        self.good = sorted({*self.good, upto})[-_kept:]
        return self._prune()

    def release(self, upto: int) -> int:
        """Release the records up to this number, and delete what is no longer needed; return the number of deleted
        segments."""
        self.released = max(self.released, upto)
        return self._prune()

    def _prune(self) -> int:
        segments = self.segments
        if len(self.good) < _kept:
            return 0
        with named(segments.directory):
            for upto in numbered(segments.files.names(segments.directory), "snapshot"):
                if upto < self.good[0]:
                    segments.files.unlink(f"{segments.directory}/{snapshot_name(upto)}")
            return segments.drop(min(self.released, self.good[0]))
