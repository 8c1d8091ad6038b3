"""Open a data directory after any failure, and report what was found.

1. Find the newest readable snapshot. The log must have all records after this snapshot. If there is no snapshot, the
   log must have all records from the first one on. Otherwise the directory is refused as corrupt.
2. Follow the chain of commit groups to its end. A snapshot covers only durable records.
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
import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from antecede.errors import CorruptLogError
from antecede.limits import store_group_bytes_max
from antecede.store.directory import (
    FORMAT,
    HEADER_BYTES,
    TEMPORARY,
    Group,
    Identity,
    checked,
    cut_name,
    decode_header,
    group_pattern,
    identity_of,
    named,
    numbered,
    segment_name,
    segment_numbers,
    snapshot_name,
    split_records,
    write_file,
)
from antecede.store.files import Files
from antecede.store.snapshots import Snapshot, check_snapshot

# Walk along the chain of commit groups, and decide what a bad group means. This module changes no file.
#
# A group is good if it matches its checksum and follows the previous group. This means: it contains the number of its
# segment and the checksum of the previous group, and its group number and its first record number are the next ones.
# If the next group is not good, there are exactly three cases:
#
# 1. The segment is full, and the chain continues at the beginning of the next segment. This is checked first.
# 2. The bad group was durable and is damaged now. The proof is a later group, in this or a later segment, that is
#    intact and has the flag **vouches**. The flag means that all earlier groups were synced before the later group
#    was written. A crash cannot damage durable bytes, so the log is corrupt. A :class:`CorruptLogError` is raised,
#    and nothing is removed.
# 3. No later group proves that the bad bytes were on disk. Then they are treated as a torn write: everything after
#    the last good group will be removed. (If all these bytes are zeros, the log simply ends there.) With durability
#    ``disk``, group k+1 is written only after group k is synced. So the bad bytes are the last write before a crash,
#    and this write was never reported as durable. (But damage to the last durable group looks the same, see
#    the notes below.) With durability ``os``, the bad bytes were perhaps never synced.
#
# A segment gets its length before its first group is written, and every group records this length. A segment that is
# shorter than recorded has lost durable bytes. Such a segment is corrupt even if its groups are good. Each segment,
# even one without groups, is at least as long as the segment before it.
#
# The lengths in a bad header cannot be trusted. So the search for a later group (case 2) tests every byte after the
# last good group. Only one group is in memory at a time.


_window_bytes = 1 << 20
_zeros = bytes(_window_bytes)


class Cut(msgspec.Struct, frozen=True):
    """A torn write: the bytes after the last good group, which will be removed."""

    file: str
    offset: int
    bytes: int
    """The length of the torn write in this segment: from ``offset`` to the last byte that is not zero."""
    reason: str
    segments: int
    """The number of later segments in which not all bytes are zero."""
    group: int = 0
    """The group number of the torn group."""

    def __str__(self) -> str:
        more = f" and {self.segments} later segments" if self.segments else ""
        return f"{self.file}: byte {self.offset}: a torn group of {self.bytes} bytes{more} was removed ({self.reason})"


class Tail(msgspec.Struct):
    """The end of the chain of groups: the last good group, and the offset after this group in its segment."""

    segment: int
    offset: int = 0
    group: int = 0
    record: int = 0
    checksum: int = 0
    unsure: int = 0
    """An offset in the segment. The bytes from this offset on were perhaps never synced, because no later group proves
    that they were synced."""
    cut: Cut | None = None
    allocated: int = 0
    """The length of the last segment, as its groups record it."""


class Walk:
    """Iterates over the good groups in some segments of a log. After the iteration, ``tail`` is the end of the chain.

    ``segments`` are one or more segment numbers without gaps. If they begin with segment 1, the first group must be the
    very first group of the log. Otherwise the first group may have any number, because the groups before it may have
    been deleted.
    """

    def __init__(self, files: Files, directory: str, seal: int, segments: list[int]) -> None:
        self.files = files
        self.directory = directory
        self.seal = seal
        self.segments = segments
        self.tail = Tail(segments[0])
        self._anywhere = segments[0] > 1

    def again(self) -> "Walk":
        """Return a new walk from the first segment of this walk to the last segment that this walk has reached."""
        segments = [number for number in self.segments if number <= self.tail.segment]
        return Walk(self.files, self.directory, self.seal, segments)

    def __iter__(self) -> Iterator[tuple[int, Group, bytes]]:
        """Yield the offset, the header and the body of each good group; raise CorruptLogError if a durable group is
        bad."""
        at = 0
        doubted = False
        file = self.files.open(self._path(0))
        try:
            while True:
                found = self._next(file, at)
                if isinstance(found, str):
                    # Perhaps the chain continues in the next segment.
                    if at + 1 < len(self.segments) and self._continues(at + 1):
                        at += 1
                        self.files.close(file)
                        file = self.files.open(self._path(at))
                        self.tail.segment, self.tail.offset = self.segments[at], 0
                        continue
                    corrupt = self._judge(at, found)
                    if corrupt is None:
                        return
                    if doubted:
                        raise corrupt
                    # A server may be writing. A missed group was durable before the later group, which proves this, was
                    # written. We have seen the later group, so the missed group must be there now.
                    doubted = True
                    continue
                doubted = False
                group, body = found
                if group.allocated > self.tail.allocated:
                    self._check_length(file, self._path(at), group.allocated)
                offset = self._advance(group)
                yield offset, group, body
        finally:
            self.files.close(file)

    def _path(self, at: int) -> str:
        return f"{self.directory}/{segment_name(self.segments[at])}"

    def _next(self, file: int, at: int) -> tuple[Group, bytes] | str:
        """Return the header and the body of the next good group, or the reason why there is none."""
        found = read_group(self.files, file, self.tail.offset, self.seal)
        if isinstance(found, str):
            return found
        group, _ = found
        tail = self.tail
        if group.segment != self.segments[at]:
            return f"a group of segment {group.segment}"
        follows = (group.number, group.first, group.previous) == (tail.group + 1, tail.record + 1, tail.checksum)
        if not follows and not self._anywhere:
            return f"group {group.number} does not follow group {tail.group}"
        return found

    def _advance(self, group: Group) -> int:
        tail = self.tail
        offset = tail.offset
        self._anywhere = False
        if group.vouches or offset == 0:
            tail.unsure = offset
        tail.offset = offset + HEADER_BYTES + group.bytes
        tail.group, tail.record, tail.checksum = group.number, group.last, group.checksum
        tail.allocated = group.allocated
        return offset

    def _check_length(self, file: int, path: str, least: int) -> None:
        """Raise CorruptLogError if the file of a segment has fewer than ``least`` bytes: then it has lost bytes."""
        size = self.files.size(file)
        if size < least:
            raise CorruptLogError(path, size, f"the file ends here, but it had at least {least} bytes")

    def _continues(self, at: int) -> bool:
        """Return whether the segment with index ``at`` begins with the group that directly follows the last good
        group."""
        before = self.tail.offset
        try:
            with self.files.opened(self._path(at)) as file:
                self.tail.offset = 0
                return not isinstance(self._next(file, at), str)
        finally:
            self.tail.offset = before

    def _judge(self, at: int, reason: str) -> CorruptLogError | None:
        """Decide what the bytes after the last good group mean. If they show corruption, return the error. If they are
        a torn write, set ``tail.cut`` and return None. If they are all zeros, the log ends here: only return None."""
        if self._anywhere:
            # A segment is deleted only after the next one has a durable group.
            return CorruptLogError(self._path(at), 0, f"expected the oldest group of the log: {reason}")
        begin = self.tail.offset
        held = []
        for later in range(at, len(self.segments)):
            with self.files.opened(self._path(later)) as file:
                bad = decode_header(self.files.read(file, HEADER_BYTES, begin), self.seal)
                recorded = 1 if isinstance(bad, str) else bad.allocated
                self._check_length(file, self._path(later), max(self.tail.allocated, recorded))
                last, witness = self._behind(file, begin, self.segments[later])
            held.append(last)
            if witness is not None:
                offset, group = witness
                where = f"group {group.number} at byte {offset} of {segment_name(self.segments[later])}"
                missing = f"group {self.tail.group + 1} was durable ({where} proves it): {reason}"
                return CorruptLogError(self._path(at), self.tail.offset, missing)
            begin = 0
        if any(held):
            torn = max(held[0] - self.tail.offset, 0)
            self.tail.cut = Cut(
                self._path(at), self.tail.offset, torn, reason, sum(map(bool, held[1:])), self.tail.group + 1
            )
        return None

    def _behind(self, file: int, begin: int, segment: int) -> tuple[int, tuple[int, Group] | None]:
        """Search a segment, from offset ``begin`` on, for the proof that the bad group (the group after the last good
        one) was synced. The proof is a later, intact group with the flag ``VOUCHES``. Return two values. The first is
        the offset after the last byte that is not zero, or 0 if all bytes are zero. The second is the offset and the
        header of the later group, or None if there is no such group. If a later group is found, the search stops
        there."""
        pattern = group_pattern(self.seal)
        last, offset = 0, begin
        while window := self.files.read(file, _window_bytes, offset):
            # Most bytes are zeros, and comparing is the fastest way to skip them.
            if window != _zeros[: len(window)]:
                last = max(last, offset + len(window.rstrip(b"\0")))
                hit = window.find(pattern)
                while hit >= 0:
                    witness = self._witness(file, offset + hit, segment)
                    if witness is not None:
                        return last, witness
                    hit = window.find(pattern, hit + 1)
            if len(window) < _window_bytes:
                break
            # A group may begin within the last bytes of the window.
            offset += _window_bytes - len(pattern) + 1
        return last, None

    def _witness(self, file: int, offset: int, segment: int) -> tuple[int, Group] | None:
        """Check whether the group at this offset is intact and proves that the bad group (the group after the last good
        one) was synced. If so, return the offset and the header of the group at this offset. Otherwise return None."""
        found = read_group(self.files, file, offset, self.seal)
        if isinstance(found, str):
            return None
        group = found[0]
        vouches = group.segment == segment and group.number > self.tail.group and group.vouches
        return (offset, group) if vouches else None


def read_group(files: Files, file: int, offset: int, seal: int) -> tuple[Group, bytes] | str:
    """Return the group at this offset, with its body. If there is no intact group, return the reason."""
    header = files.read(file, HEADER_BYTES, offset)
    group = decode_header(header, seal)
    if isinstance(group, str):
        return group
    if group.bytes > store_group_bytes_max:
        return f"a group of {group.bytes} bytes is longer than any group may be"
    body = files.read(file, group.bytes, offset + HEADER_BYTES)
    if len(body) < group.bytes:
        return f"the file ends within group {group.number}"
    if not checked(header, body):
        return f"group {group.number} does not match its checksum"
    return group, body


def records_after(walk: Walk, after: int, upto: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the records after number ``after``, with their numbers. Stop at the end of the chain. If ``upto`` is given,
    stop after the record with this number."""
    for _, group, body in walk:
        if group.last > after:
            for number, record in enumerate(split_records(group, body), group.first):
                if number > after and (upto is None or number <= upto):
                    yield number, record
        if upto is not None and group.last >= upto:
            return


def first_record(files: Files, directory: str, seal: int, segment: int) -> int | None:
    """Read the first group of a segment, and return the number of its first record. Return None if the group is not
    intact or belongs to another segment."""
    with files.opened(f"{directory}/{segment_name(segment)}") as file:
        found = read_group(files, file, 0, seal)
    return None if isinstance(found, str) or found[0].segment != segment else found[0].first


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


# Notes about truncations. A truncation removes a torn write from the end of the log during recovery.
#
# A torn write (a write that a crash interrupted) is normal after a power cut. But the log may look the same if a
# group (the records of one write) was durable and was damaged later. Recovery sees the difference only if a later
# group proves that the damaged group was durable. So an operator should see every truncation.
#
# A note is a small file. It is made durable before the torn bytes are removed. The owner of the log (the server)
# deletes the note when the log itself contains a record of the truncation.


def note_cut(files: Files, directory: str, recovered: Recovered) -> Recovered:
    """Write a note about the torn write in ``recovered``, if there is one. (The torn write itself is removed later.)
    Then read all notes in the directory, and return a copy of ``recovered`` with their contents in ``cuts``."""
    cut = recovered.cut
    if cut is not None:
        write_file(files, directory, cut_name(cut.group), msgspec.msgpack.encode(cut))
    return msgspec.structs.replace(recovered, cuts=tuple(_notes(files, directory)))


def forget_cuts(files: Files, directory: str) -> None:
    """Delete all notes about truncations."""
    for group in numbered(files.names(directory), "cut"):
        files.unlink(f"{directory}/{cut_name(group)}")
    files.sync_directory(directory)


def _notes(files: Files, directory: str) -> list[Cut]:
    notes = []
    for group in numbered(files.names(directory), "cut"):
        path = f"{directory}/{cut_name(group)}"
        try:
            with files.opened(path) as file:
                notes.append(msgspec.msgpack.decode(files.read(file, 1 << 16, 0), type=Cut))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            notes.append(Cut(path, 0, 0, "the note about it is unreadable", 0, group))
    return notes


# Report what a data directory contains, and whether it is intact. Nothing is changed, and the directory is not
# locked.
#
# The report is based on all segments and all snapshots, but recovery reads only those that it needs. If a server has
# the directory open, the group that the server is writing at this moment may look like a torn group.


Visit = Callable[[int, Group, Iterator[bytes]], None]
"""A function that is called for each good group, with the group's offset in its segment, its header and its records."""


def inspect_log(directory: str, visit: Visit | None = None, files: Files | None = None) -> dict[str, Any]:
    """Return a report on a data directory. Raise StoreError if the directory has no identity or cannot be read."""
    files = files or Files()
    with named(directory):
        names = files.names(directory)
        identity = identity_of(files, directory)
        report: dict[str, Any] = {
            "directory": directory,
            "format": FORMAT,
            "incarnation": f"{identity.incarnation:016x}",
            "segments": [],
            "snapshots": [_snapshot(files, directory, identity.seal, upto) for upto in numbered(names, "snapshot")],
        }
        torn = corrupt = None
        try:
            walk = Walk(files, directory, identity.seal, segment_numbers(files, directory))
            report["segments"] = [_segment(files, directory, number) for number in walk.segments]
            _walk(walk, {row["number"]: row for row in report["segments"]}, visit)
            torn = walk.tail.cut and msgspec.structs.asdict(walk.tail.cut)
        except CorruptLogError as error:
            corrupt = {"file": error.file, "offset": error.offset, "reason": error.reason}
        used = [row for row in report["segments"] if row["groups"]]
        for total in ("groups", "records", "record_bytes"):
            report[total] = sum(row[total] for row in used)
        report["first"] = used[0]["first"] if used else 1
        report["last"] = used[-1]["last"] if used else 0
        report["torn"], report["corrupt"] = torn, corrupt
        return report


def _walk(walk: Walk, rows: dict[int, dict[str, Any]], visit: Visit | None) -> None:
    for offset, group, body in walk:
        row = rows[group.segment]
        if not row["groups"]:
            row["first"] = group.first
        row["groups"] += 1
        row["records"] += group.records
        row["record_bytes"] += group.bytes - 4 * group.records
        row["last"] = group.last
        row["used_bytes"] = walk.tail.offset
        if visit:
            visit(offset, group, split_records(group, body))


def _segment(files: Files, directory: str, number: int) -> dict[str, Any]:
    path = f"{directory}/{segment_name(number)}"
    with files.opened(path) as file:
        size = files.size(file)
    row = dict.fromkeys(("used_bytes", "groups", "records", "record_bytes"), 0)
    return {"file": os.path.basename(path), "number": number, "bytes": size, **row, "first": None, "last": None}


def _snapshot(files: Files, directory: str, seal: int, upto: int) -> dict[str, Any]:
    row: dict[str, Any] = {"file": snapshot_name(upto), "upto": upto, "parts": 0, "bytes": 0, "damage": None}
    try:
        for part in check_snapshot(files, directory, seal, upto).parts():
            row["parts"] += 1
            row["bytes"] += len(part)
    except CorruptLogError as error:
        row["damage"] = f"byte {error.offset}: {error.reason}"
    return row
