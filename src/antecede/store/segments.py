"""The segments of an open log: the current segment, a spare segment, and old segments until they are released.

The spare segment is allocated before the current segment is full, so a full disk is noticed *before* a record is
accepted. A record is *pending* if it is accepted, but not written yet. While the spare segment exists, all pending
records fit into it, so accepted records can always be written. If the spare segment cannot be allocated, only records
that fit into the rest of the current segment are accepted.

The first segment is small, and each segment has twice the size of the previous one, up to the full size. If a new
record and the pending records together would not fit into the spare segment, the spare segment is made longer before
the record is accepted. This is possible because nothing was written to the spare segment yet. So the length
of a segment does not change after its first group is written. No segment is shorter than the one before it.

Each group contains the checksum of the group before it, so the groups form a chain. A segment may be deleted when all
its records are released and the next segment has a durable group. Recovery can then begin the chain at this group.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import msgspec

from antecede.errors import DiskFullError, NoDescriptorError, StoreFullError, UsageError
from antecede.limits import (
    store_group_bytes_max,
    store_log_bytes_max,
    store_pending_bytes_max,
    store_segment_bytes,
    store_segment_bytes_first,
)
from antecede.store.directory import allocate_segment, named
from antecede.store.files import NO_DESCRIPTOR, NO_ROOM, Files
from antecede.store.format import HEADER_BYTES, segment_name


class Sizes(msgspec.Struct, frozen=True):
    """The sizes and limits of a log, its segments and its groups."""

    segment_bytes: int = store_segment_bytes
    group_bytes_max: int = store_group_bytes_max
    pending_bytes_max: int = store_pending_bytes_max
    log_bytes_max: int = store_log_bytes_max
    segment_bytes_first: int = store_segment_bytes_first

    @property
    def first_bytes(self) -> int:
        """The size of the first segment."""
        return min(self.segment_bytes_first, self.segment_bytes)

    @property
    def headers_bytes_max(self) -> int:
        """The largest number of bytes that the group headers need when all pending records are written. Each group
        takes as many records as fit, so two consecutive groups together are larger than ``group_bytes_max``. This
        limits the number of groups."""
        return (2 * self.pending_bytes_max // self.group_bytes_max + 2) * HEADER_BYTES

    def check(self) -> None:
        """Raise UsageError if, with these sizes, an accepted record might not fit into a segment."""
        if not 0 < self.group_bytes_max <= store_group_bytes_max:
            raise UsageError(f"group_bytes_max must be from 1 to {store_group_bytes_max}, not {self.group_bytes_max}")
        if self.pending_bytes_max < self.group_bytes_max:
            raise UsageError("pending_bytes_max must be at least group_bytes_max")
        if self.pending_bytes_max + self.headers_bytes_max > self.segment_bytes:
            raise UsageError(
                f"segment_bytes must be at least {self.pending_bytes_max + self.headers_bytes_max} "
                f"(pending_bytes_max and the headers of the groups), not {self.segment_bytes}"
            )
        if self.log_bytes_max < 2 * self.segment_bytes:
            raise UsageError(f"log_bytes_max must be at least {2 * self.segment_bytes}, the size of two segments")


class Segments:
    """The segment files of an open log. Only one thread at a time may write. While it writes, another thread may call
    ``drop``."""

    def __init__(self, files: Files, directory: str, sizes: Sizes, starts: dict[int, int], current: int) -> None:
        self.files = files
        self.directory = directory
        self.sizes = sizes
        self.current = current
        self.spare = False
        """Whether the segment after the current one is allocated."""
        self.end = self.left = 0
        """``end``: the length of the current segment. ``left``: how many bytes of this segment are not written yet."""
        self._file = -1
        self._next = -1
        """The open file of the segment after the current one; -1 if it is not allocated."""
        self._next_bytes = 0
        self._next_room = 0
        """The largest number of bytes of records that may be pending (accepted, but not written yet) while the spare
        segment exists."""
        self._lock = Lock()
        self._starts = starts
        """For each segment that has a durable group: the number of the segment → the number of its first record. The
        oldest segment comes first."""
        self._lengths: dict[int, int] = {}
        self.total_bytes = 0
        """The size of all segments, including the spare segment."""

    def adopt(self, file: int, offset: int, end: int) -> None:
        """Continue to write in the last segment, which recovery left open as ``file``. The next group is written at
        ``offset``. The segment has ``end`` bytes."""
        self._file, self.end, self.left = file, end, end - offset
        for number in {*self._starts, self.current}:
            with self.files.opened(self._path(number)) as other:
                self._lengths[number] = self.files.size(other)
        self.total_bytes = sum(self._lengths.values())

    def room(self) -> int:
        """Return how many bytes of records may be pending at the same time, not counting group headers."""
        return self._next_room if self.spare else self._room_in(self.left)

    def _room_in(self, size: int) -> int:
        return min(self.sizes.pending_bytes_max, size - self.sizes.headers_bytes_max)

    def prepare(self) -> None:
        """Allocate the spare segment, unless it exists. Raise StoreFullError if there is no space or no file
        descriptor."""
        if self.spare:
            return
        # Twice the size of the current one, but never shorter, even if a previous process had larger segments.
        size = max(self.end, self.sizes.first_bytes, min(2 * self.end, self.sizes.segment_bytes))
        with self._allocating(size):
            allocate_segment(self.files, self.directory, self.current + 1, size)
            # Kept open from now on, so that switching to it needs no further descriptor.
            self._next = self.files.open(self._path(self.current + 1), write=True)
        self.spare, self._next_bytes, self._next_room = True, size, self._room_in(size)

    def extend(self, pending: int) -> bool:
        """Make the spare segment longer, so that ``pending`` bytes of records fit into it. Do nothing if they fit
        already, or if the limits do not allow it. Return whether the segment was made longer."""
        sizes, before = self.sizes, self._next_bytes
        needed = pending + sizes.headers_bytes_max
        if not self.spare or pending > sizes.pending_bytes_max or not before < needed <= sizes.segment_bytes:
            return False
        size = min(max(2 * needed, 2 * before), sizes.segment_bytes)
        with self._allocating(size - before):
            try:
                self.files.allocate(self._next, size)
            except OSError:
                # Otherwise the space that it got before the disk was full would be lost.
                self.files.truncate(self._next, before)
                raise
            self.files.fsync(self._next)
        self._next_bytes, self._next_room = size, self._room_in(size)
        return True

    @contextmanager
    def _allocating(self, more: int) -> Iterator[None]:
        """Return a context manager. The body of the ``with`` statement allocates ``more`` bytes for the spare segment.
        After the body, ``more`` is added to the recorded sizes. Raise StoreFullError if there is no space or no file
        descriptor."""
        if self.total_bytes + more > self.sizes.log_bytes_max:
            raise StoreFullError(
                f"{self.directory}: the log is full: {self.total_bytes} bytes in segments that are not released, "
                f"log_bytes_max is {self.sizes.log_bytes_max}"
            )
        try:
            yield
        except OSError as error:
            if error.errno in NO_ROOM:
                raise DiskFullError(f"{self.directory}: no space for the next segment: {error.strerror}") from error
            if error.errno in NO_DESCRIPTOR:
                why = f"no file descriptor for the next segment: {error.strerror}"
                raise NoDescriptorError(f"{self.directory}: {why}") from error
            raise
        with self._lock:
            self._lengths[self.current + 1] = self._lengths.get(self.current + 1, 0) + more
            self.total_bytes += more

    def turn(self) -> None:
        """Make the current segment durable, close it, and continue in the next segment."""
        assert self.spare, "a record was accepted without space for it"
        self.files.fdatasync(self._file)
        self.files.close(self._file)
        self._file, self._next = self._next, -1
        self.current += 1
        self.end = self.left = self._next_bytes
        self.spare = False

    def write(self, buffers: list[bytes], size: int) -> None:
        """Write the next bytes of the current segment."""
        self.files.write(self._file, buffers, self.end - self.left)
        self.left -= size

    def sync(self) -> None:
        """Sync the current segment: make all its written bytes durable."""
        self.files.fdatasync(self._file)

    def sync_from_outside(self) -> None:
        """Sync the current segment from a thread that does not write to it. This method opens the segment's file a
        second time. Raise a StoreError if the file cannot be opened."""
        path = self._path(self.current)
        with named(path):
            file = self.files.open(path, write=True)
        try:
            self.files.fdatasync(file)
        finally:
            self.files.close(file)

    def began(self, record: int) -> None:
        """Remember ``record`` as the first record of the current segment, because this segment has a durable group now.
        Later calls for the same segment do nothing."""
        if self.current not in self._starts:
            with self._lock:
                self._starts[self.current] = record

    def drop(self, floor: int) -> int:
        """Delete the segments that contain no record after number ``floor``, but never the newest segment. Return the
        number of deleted segments."""
        dropped = 0
        while True:
            with self._lock:
                numbers = sorted(self._starts)
                if len(numbers) < 2 or self._starts[numbers[1]] - 1 > floor:
                    return dropped
                oldest = numbers[0]
                del self._starts[oldest]
                self.total_bytes -= self._lengths.pop(oldest)
            # One at a time, oldest first, so that a crash in between leaves no gap.
            self.files.unlink(self._path(oldest))
            self.files.sync_directory(self.directory)
            dropped += 1

    def closed(self) -> int:
        """Find the newest segment that has a durable group. Return the number of the last record before this
        segment (even if that record was deleted), or 0 if there was no earlier record."""
        with self._lock:
            return max(self._starts.values(), default=1) - 1

    def close(self) -> None:
        """Close the open files; this may be called in any state."""
        file, following, self._file, self._next = self._file, self._next, -1, -1
        try:
            if file >= 0:
                self.files.close(file)
        finally:
            if following >= 0:
                self.files.close(following)

    def _path(self, number: int) -> str:
        return f"{self.directory}/{segment_name(number)}"
