"""Open a data directory after any failure, and report what was found.

1. Find the newest readable snapshot. The log must have all records after this snapshot. If there is no snapshot, the
   log must have all records from the first one on. Otherwise the directory is refused as corrupt.
2. Follow the chain of commit groups to its end (:mod:`antecede.store.walk`). A snapshot covers only durable records.
   So if the log ends before the last record of the snapshot, it has lost durable records, and is refused.
3. Remove a torn write. All segments after the end of the chain are deleted. In the segment where the chain ends, the
   bytes after the chain are filled with zeros. The length of this segment does not change, because a segment that is
   too short is treated as corrupt.
4. **Write the last groups again** and sync. Perhaps these groups are not on the disk yet. After a kill, they may be
   only in the kernel's memory. After a failed sync, the kernel may treat them as written, although they are not. The
   server will act on these groups now, so they must be durable first.

The directory is checked before anything is written, so a corrupt directory is left exactly as it was found.
"""

import errno
from collections.abc import Iterator

import msgspec

from antecede.errors import CorruptLogError
from antecede.store.directory import segment_numbers
from antecede.store.files import Files
from antecede.store.format import TEMPORARY, Identity, numbered, segment_name, snapshot_name
from antecede.store.snapshots import Snapshot, check_snapshot
from antecede.store.walk import Cut, Tail, Walk, first_record, records_after

_piece_bytes = 1 << 20


class Recovered(msgspec.Struct, frozen=True):
    """The content of a data directory when it was opened."""

    incarnation: int
    snapshot: Snapshot | None = None
    first: int = 1
    """The number of the oldest record that the log still has; ``last`` + 1 if the log has no records."""
    last: int = 0
    """The number of the newest record; the next record gets the next number."""
    cut: Cut | None = None
    cuts: tuple[Cut, ...] = ()
    """All removed torn writes that the owner of the log (the server) has not recorded yet, oldest first."""
    unreadable: tuple[str, ...] = ()
    """One error message for each damaged snapshot that is newer than ``snapshot``."""
    walk: Walk | None = None

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Return an iterator over the records after the snapshot, with their numbers. Only one group is in memory at a
        time.

        This method may be called several times, as long as no segment was deleted.
        """
        covered = self.snapshot.upto if self.snapshot else 0
        if self.walk is None or covered >= self.last:
            return iter(())
        return records_after(self.walk.again(), covered, self.last)


class Judged(msgspec.Struct):
    """The result of ``judge``: the contents of a data directory that was checked but not changed."""

    identity: Identity
    recovered: Recovered
    tail: Tail
    starts: dict[int, int]
    """The key is the number of a segment that begins with an intact group. The value is the number of the segment's
    first record."""
    segments: list[int]


def judge(files: Files, directory: str, identity: Identity) -> Judged:
    """Check a data directory without changing it; raise CorruptLogError if durable data is missing or damaged."""
    segments = segment_numbers(files, directory)
    starts = {}
    for number in segments:
        first = first_record(files, directory, identity.seal, number)
        if first is not None:
            starts[number] = first
    oldest = 1 if segments[0] == 1 else starts.get(segments[0])
    if oldest is None:
        raise CorruptLogError(
            f"{directory}/{segment_name(segments[0])}", 0, "expected the oldest group of the log: no intact group here"
        )
    snapshot, unreadable = _newest(files, directory, identity.seal, oldest)
    walk = Walk(files, directory, identity.seal, _needed(segments, starts, snapshot))
    for _ in walk:
        pass
    tail = walk.tail
    if snapshot and snapshot.upto > tail.record:
        where = f"the log ends with record {tail.record}, but a snapshot was taken after record {snapshot.upto}"
        raise CorruptLogError(f"{directory}/{segment_name(tail.segment)}", tail.offset, where)
    starts = {number: first for number, first in starts.items() if number <= tail.segment}
    recovered = Recovered(identity.incarnation, snapshot, oldest, tail.record, tail.cut, (), tuple(unreadable), walk)
    return Judged(identity, recovered, tail, starts, segments)


def repair(files: Files, directory: str, judged: Judged) -> tuple[int, int]:
    """Remove a torn write and make the rest durable. Return the last segment as an open file, and its length."""
    tail = judged.tail
    for number in reversed([number for number in judged.segments if number > tail.segment]):
        # One at a time, newest first, so that a crash in between leaves no gap.
        files.unlink(f"{directory}/{segment_name(number)}")
        files.sync_directory(directory)
    _tidy(files, directory, judged.recovered)
    file = files.open(f"{directory}/{segment_name(tail.segment)}", write=True)
    try:
        if tail.cut:
            _erase(files, file, tail.offset, tail.offset + tail.cut.bytes)
        for offset in range(tail.unsure, tail.offset, _piece_bytes):
            piece = files.read(file, min(_piece_bytes, tail.offset - offset), offset)
            files.write(file, [piece], offset)
        size = files.size(file)
        try:
            # Even if it is long enough: a copy may have holes.
            files.allocate(file, size)
        except OSError as error:
            # Reading continues; the next segment will report that the disk is full.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        files.fsync(file)
        return file, size
    except OSError:
        files.close(file)
        raise


def _erase(files: Files, file: int, begin: int, end: int) -> None:
    for offset in range(begin, end, _piece_bytes):
        files.write(file, [bytes(min(_piece_bytes, end - offset))], offset)
    files.fsync(file)


def _newest(files: Files, directory: str, seal: int, oldest: int) -> tuple[Snapshot | None, list[str]]:
    """Return the newest readable snapshot, or None if no snapshot is readable. Also return one error message for each
    damaged snapshot that is newer. ``oldest``: the number of the log's first record. Raise CorruptLogError if earlier
    records were deleted and no readable snapshot covers them all."""
    unreadable: list[str] = []
    for upto in reversed(numbered(files.names(directory), "snapshot")):
        try:
            snapshot = check_snapshot(files, directory, seal, upto)
        except CorruptLogError as error:
            unreadable.append(str(error))
            continue
        if snapshot.upto + 1 < oldest:
            break
        return snapshot, unreadable
    if oldest > 1:
        reason = f"; {unreadable[0]}" if unreadable else ""
        path = f"{directory}/{snapshot_name(oldest - 1)}"
        raise CorruptLogError(
            path, 0, f"the log begins with record {oldest}, but no snapshot covers the records before it{reason}"
        )
    return None, unreadable


def _needed(segments: list[int], starts: dict[int, int], snapshot: Snapshot | None) -> list[int]:
    """Return the segments that recovery must read: the segment that contains the last record of the snapshot, and all
    later segments. Return all segments if there is no snapshot, or if no segment contains this record."""
    if snapshot is None:
        return segments
    begin = segments[0]
    for number in segments:
        # Not the segment that begins just after it: an empty log still needs the last group, to continue from it.
        if starts.get(number, snapshot.upto + 1) <= snapshot.upto:
            begin = number
    return [number for number in segments if number >= begin]


def _tidy(files: Files, directory: str, recovered: Recovered) -> None:
    """Remove unfinished files. Rename damaged snapshots to ``*.bad``, so that they are not counted as snapshots."""
    for name in files.names(directory):
        if name.endswith(TEMPORARY):
            files.unlink(f"{directory}/{name}")
    newest = recovered.snapshot.upto if recovered.snapshot else -1
    for upto in numbered(files.names(directory), "snapshot"):
        if upto > newest:
            path = f"{directory}/{snapshot_name(upto)}"
            files.rename(path, path + ".bad")
    files.sync_directory(directory)
