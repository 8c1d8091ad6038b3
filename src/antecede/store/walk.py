"""Walk along the chain of commit groups, and decide what a bad group means. This module changes no file.

A group is good if it matches its checksum and follows the previous group. This means: it contains the number of its
segment and the checksum of the previous group, and its group number and its first record number are the next ones.
If the next group is not good, there are exactly three cases:

1. The segment is full, and the chain continues at the beginning of the next segment. This is checked first.
2. The bad group was durable and is damaged now. The proof is a later group, in this or a later segment, that is intact
   and has the flag **vouches**. The flag means that all earlier groups were synced before the later group was written.
   A crash cannot damage durable bytes, so the log is corrupt. A :class:`CorruptLogError` is raised, and nothing is
   removed.
3. No later group proves that the bad bytes were on disk. Then they are treated as a torn write: everything after the
   last good group will be removed. (If all these bytes are zeros, the log simply ends there.) With durability ``disk``,
   group k+1 is written only after group k is synced. So the bad bytes are the last write before a crash, and this write
   was never reported as durable. (But damage to the last durable group looks the same; see
   :mod:`antecede.store.cuts`.) With durability ``os``, the bad bytes were perhaps never synced.

A segment gets its length before its first group is written, and every group records this length. A segment that is
shorter than recorded has lost durable bytes. Such a segment is corrupt even if its groups are good. Each segment, even
one without groups, is at least as long as the segment before it.

The lengths in a bad header cannot be trusted. So the search for a later group (case 2) tests every byte after the last
good group. Only one group is in memory at a time.
"""

from collections.abc import Iterator

import msgspec

from antecede.errors import CorruptLogError
from antecede.limits import store_group_bytes_max
from antecede.store.files import Files
from antecede.store.format import (
    HEADER_BYTES,
    Group,
    checked,
    decode_header,
    group_pattern,
    segment_name,
    split_records,
)

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
