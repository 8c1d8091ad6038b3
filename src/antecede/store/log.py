"""The write-ahead log of a server: it numbers records, and a thread makes them durable.

The commit thread takes the oldest records that fit into one group, writes the group with one call, syncs it, and then
notifies the owner (the server). Meanwhile, other records wait. So, with the durability ``disk``, **group k+1 is written
only after group k is synced**. Recovery relies on this: if a group exists, all earlier groups were complete. (The
method ``commit_here`` commits in the owner's thread, without a notification. The owner then reads ``durable``.)

A failed write or sync is final. The kernel may have dropped the bytes and marked them as written, so the log can
neither try again nor continue. From then on, ``append``, ``snapshot``, ``adopt_snapshot`` and ``release`` raise an
error. ``wait`` also raises an error if its record is not durable. To find out what is durable, open the log again.

The setting *durability* decides what is synced. With ``disk``, every group is synced. With ``os``, groups are only
given to the kernel, so they survive a kill of the process, but not a power cut. (Even with ``os``, snapshots and full
segments are synced, and ``close`` syncs all.) ``memory`` is a store without a disk: :mod:`antecede.store.contract`.
"""

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate, chain, takewhile
from threading import Lock, RLock, Thread
from time import monotonic, perf_counter

import msgspec

from antecede.errors import DiskFullError, NoDescriptorError, StoreError, StoreFailedError, StoreFullError, UsageError
from antecede.limits import (
    store_commit_here_bytes_max,
    store_group_bytes_max,
    store_log_bytes_max,
    store_pending_bytes_max,
    store_quick_sync_seconds,
    store_retry_seconds,
    store_segment_bytes,
    store_segment_bytes_first,
)
from antecede.store.contract import Closing, Figures, OnDurable, OnFailed, again
from antecede.store.directory import (
    HEADER_BYTES,
    LENGTH_BYTES,
    VOUCHES,
    Group,
    Identity,
    allocate_segment,
    create,
    encode_group,
    lock_directory,
    named,
    numbered,
    read_identity,
    refuse_foreign,
    segment_name,
    snapshot_name,
    write_identity,
)
from antecede.store.files import NO_DESCRIPTOR, NO_ROOM, Files
from antecede.store.recovery import Judged, Recovered, Tail, forget_cuts, judge, note_cut, repair
from antecede.store.snapshots import Snapshot, adopt_draft, write_snapshot

# The segments of an open log: the current segment, a spare segment, and old segments until they are released.
#
# The spare segment is allocated before the current segment is full, so a full disk is noticed *before* a record is
# accepted. A record is *pending* if it is accepted, but not written yet. While the spare segment exists, all pending
# records fit into it, so accepted records can always be written. If the spare segment cannot be allocated, only
# records that fit into the rest of the current segment are accepted.
#
# The first segment is small, and each segment has twice the size of the previous one, up to the full size. If a new
# record and the pending records together would not fit into the spare segment, the spare segment is made longer
# before the record is accepted. This is possible because nothing was written to the spare segment yet. So the length
# of a segment does not change after its first group is written. No segment is shorter than the one before it.
#
# Each group contains the checksum of the group before it, so the groups form a chain. A segment may be deleted when
# all its records are released and the next segment has a durable group. Recovery can then begin the chain at this
# group.


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


# Records that were appended and are not yet written, and threads that wait until records are durable.


class Pending:
    """A queue of records between two threads: the thread of the log's owner (the server) adds records, and the thread
    that commits takes the records of one group at a time."""

    def __init__(self, group_bytes_max: int) -> None:
        self._group_bytes_max = group_bytes_max
        self.queue: deque[bytes] = deque()
        """The appended records. Appending is atomic and needs no lock."""
        self._rest: list[bytes] = []
        """Records that were taken from the queue but did not fit into the last group."""

    def __bool__(self) -> bool:
        return bool(self.queue or self._rest)

    def take(self) -> tuple[list[bytes], int]:
        """Take as many records as fit into one group, oldest first. Return these records and their total size in bytes,
        including their length fields."""
        pull, count = self.queue.popleft, len(self.queue)
        if count == 1 and not self._rest:
            # No record is larger than a group.
            record = pull()
            return [record], len(record) + LENGTH_BYTES
        records = [pull() for _ in range(count)]
        if self._rest:
            records = self._rest + records
            self._rest = []
        size = sum(map(len, records)) + LENGTH_BYTES * len(records)
        most = self._group_bytes_max
        if size > most:
            ends = accumulate(len(record) + LENGTH_BYTES for record in records)
            count = sum(1 for _ in takewhile(lambda end: end <= most, ends))
            self._rest = records[count:]
            records = records[:count]
            size = sum(map(len, records)) + LENGTH_BYTES * len(records)
        return records, size

    def clear(self) -> None:
        """Forget all records."""
        self.queue.clear()
        self._rest = []


class Waiting:
    """The threads that wait for durable records. Each thread waits until all records up to a given number are durable.
    A caller of any method must hold the log's lock."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Lock]] = []

    def add(self, upto: int) -> Lock:
        """Return a lock that is already acquired. A thread waits by acquiring this lock a second time. ``wake``
        releases the lock when the records up to this number are durable, or when they can never become durable."""
        woken = Lock()
        woken.acquire()
        self._waiting.append((upto, woken))
        return woken

    def remove(self, woken: Lock) -> None:
        """Forget a lock that ``add`` returned. The thread with this lock has stopped waiting."""
        self._waiting = [pair for pair in self._waiting if pair[1] is not woken]

    def wake(self, upto: int | None = None) -> None:
        """Wake the threads that wait for this record or an earlier one; if ``upto`` is None, wake all threads."""
        if not self._waiting:
            return
        for wanted, woken in self._waiting:
            if upto is None or wanted <= upto:
                woken.release()
        self._waiting = [] if upto is None else [pair for pair in self._waiting if pair[0] > upto]


# Decides which records may be deleted, and when.
#
# The two newest snapshots are kept. So if the newest one is damaged, nothing is lost. A segment is deleted when these
# two conditions hold for all its records:
#
# - The *older* of the two newest good snapshots covers the records. So recovery can use this snapshot if the newest
#   snapshot is damaged.
# - The owner of the log (the server) has released the records. Before that, the owner may need them for another
#   purpose: to convert them to a trace.
#
# So no segment is deleted before there are two good snapshots and a release. The snapshot that recovery read
# completely is known to be good. The snapshot before it was not read, so it is not known to be good.


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


_logger = logging.getLogger("antecede.store")
_shut = -1
"""The value of ``_accepted_bytes_max`` for a log that accepts nothing more."""


class LogStore(Closing):
    """A log in a data directory; see :class:`antecede.store.contract.Store`. Use :func:`antecede.store.open_log`. With
    ``threaded=False`` there is no commit thread. Then the log commits only when its owner calls ``commit`` or ``wait``.
    Simulations and tests use this, to examine what happens between any two steps."""

    # An object with more than 30 attributes outside of slots has slower methods.
    __slots__ = ("_accepted_bytes", "_accepted_bytes_max", "_asleep", "_look", "_sure", "_vouch", "durable", "last")

    def __init__(
        self,
        segments: Segments,
        lock: int,
        judged: Judged,
        durability: str,
        on_durable: OnDurable | None,
        on_failed: OnFailed | None,
        threaded: bool,
    ) -> None:
        self._segments = segments
        self._directory_lock = lock
        self._identity = judged.identity
        self.recovered: Recovered = judged.recovered
        self.durability = durability
        self.figures = Figures()
        if judged.recovered.snapshot is not None:
            self.figures.snapshot_upto = judged.recovered.snapshot.upto
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._previous = msgspec.structs.replace(judged.tail)
        """The number, the last record and the checksum of the newest group. The next group continues from these."""
        self._sure = True
        """Whether everything written so far is synced. If so, the next group gets the flag ``VOUCHES``."""
        self._record_bytes_max = segments.sizes.group_bytes_max - LENGTH_BYTES
        self._here_bytes_max = min(store_commit_here_bytes_max, segments.sizes.group_bytes_max)

        # Written by the appending thread only, without a lock: a record goes into a queue with two atomic ends. Both
        # sides count bytes from the beginning, so that neither changes the other's number.
        self._pending = Pending(segments.sizes.group_bytes_max)
        self._queue = self._pending.queue
        self.last = judged.tail.record
        self._accepted_bytes = 0

        # Written by the commit thread only.
        self.durable = judged.tail.record

        self._lock = Lock()
        """The lock for the attributes below. It is held for a few instructions only."""
        self._accepted_bytes_max = 0
        self._asleep = False
        self._closed = False
        self._failure: StoreFailedError | None = None
        self.full: StoreFullError | None = None
        self.unvouched = False
        self._vouch = False
        """Whether ``vouch`` was called after the newest group was written."""
        self._look = False
        """Whether the commit thread must try again to allocate the next segment."""
        self._look_after = 0.0
        self._waiting = Waiting()

        self._wake = Lock()
        self._wake.acquire()
        self._turn = RLock()  # Held by the thread that commits: the commit thread, or the owner's.
        self._slow_share = 0.0
        """The approximate share of slow syncs among all syncs. Recent syncs have more weight than older ones."""
        self._maintenance = Lock()
        """Lets only one of these tasks run at a time: writing a snapshot, releasing records, closing the log."""
        self._kept = Retention(segments, judged.recovered.snapshot)
        self._prepare()
        self._thread: Thread | None = None
        if threaded:
            self._thread = Thread(target=self._run, name="antecede-commit", daemon=True)
            self._thread.start()

    @property
    def incarnation(self) -> int:
        return self._identity.incarnation

    @property
    def closed(self) -> int:
        return self._segments.closed()

    @property
    def pending_bytes(self) -> int:
        return max(0, self._accepted_bytes - self.figures.durable_bytes)

    @property
    def log_bytes(self) -> int:
        return self._segments.total_bytes

    def shortage(self) -> str:
        if self.full is None:
            return ""
        with self._lock:
            if self.full is not None:
                self._ask_for_room()
            return str(self.full or "")

    def append(self, record: bytes, *, wake: bool = True) -> int:
        size = len(record)
        accepted = self._accepted_bytes + size + LENGTH_BYTES
        if accepted > self._accepted_bytes_max or size > self._record_bytes_max:
            self._make_room(accepted, size)
        self._accepted_bytes = accepted
        self.last = number = self.last + 1
        self._queue.append(record)
        # The commit thread sets ``_asleep`` and then checks the queue once more. So either it sees this record, or we
        # see the flag.
        if self._asleep and wake:
            self.commit_soon()
        return number

    def commit_soon(self) -> None:
        # Without a pending record, nothing need be done: what else the thread does, it is woken for.
        if self._asleep and self._accepted_bytes != self.figures.durable_bytes:
            with self._lock:
                self._wake_thread()

    def commit_here(self) -> None:
        segments, pending = self._segments, self._accepted_bytes - self.figures.durable_bytes
        if not pending:
            return
        # All of it in one group, because nothing would wake the thread for the rest.
        small = pending <= self._here_bytes_max and segments.spare and HEADER_BYTES + pending <= segments.left
        quiet = self._asleep and not self._look and self._slow_share < 0.5
        if small and quiet and self._turn.acquire(False):
            # Waking the thread, committing there and notifying the owner takes about as long as the sync itself.
            try:
                self._commit(notify=False)
            finally:
                self._turn.release()
        else:
            self.commit_soon()

    def wait(self, upto: int, timeout: float | None = None) -> bool:
        if self._thread is None:
            while self.durable < upto and self.commit():
                pass
        with self._lock:
            if self.durable >= upto:
                return True
            if self._failure:
                raise again(self._failure)
            if upto > self.last:
                raise UsageError(f"record {upto} was never appended; the last is {self.last}")
            if self._closed:
                raise UsageError(f"record {upto} is not durable, and the log is closed")
            woken = self._waiting.add(upto)
            self._wake_thread()
        if not woken.acquire(timeout=-1 if timeout is None else timeout):
            with self._lock:
                self._waiting.remove(woken)
        if self.durable >= upto:
            return True
        if self._failure:
            raise again(self._failure)
        return False

    def snapshot(self, data: bytes | Iterable[bytes], upto: int) -> None:
        self._keep(upto, lambda files, directory, seal: write_snapshot(files, directory, seal, upto, data))

    def adopt_snapshot(self, draft: str, upto: int) -> None:
        self._keep(upto, lambda files, directory, seal: adopt_draft(files, directory, seal, upto, draft))

    def _keep(self, upto: int, write: Callable[[Files, str, int], None]) -> None:
        with self._maintenance:
            self._check_open()
            self._kept.check(upto)
            # First make these records durable: recovery refuses a log that ends before its snapshot.
            self.wait(upto)
            if self.durability != "disk":
                try:
                    self._segments.sync_from_outside()
                except OSError as error:
                    self._fail(error)
                    self._check_open()
            write(self._segments.files, self._segments.directory, self._identity.seal)
            self._look_again(self._kept.add(upto))
            self.figures.snapshot_upto, self.figures.snapshot_at = upto, monotonic()

    def vouch(self) -> None:
        with self._lock:
            self._vouch = True
            self._wake_thread()

    def forget_cuts(self) -> None:
        forget_cuts(self._segments.files, self._segments.directory)

    def release(self, upto: int) -> None:
        with self._maintenance:
            self._check_open()
            self._look_again(self._kept.release(upto))

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._accepted_bytes_max = _shut
            self._wake_thread()
        if self._thread is not None:
            self._thread.join()
        # A snapshot that another thread is writing is completed first.
        with self._maintenance:
            try:
                while self.commit():
                    pass
                if self._failure is None:
                    self._finish()
            finally:
                self._waiting.wake()
                with suppress(OSError):
                    self._segments.close()
                self._segments.files.close(self._directory_lock)

    def copied(self) -> None:
        # Threads of the other process may have held these when it forked.
        self._lock, self._turn, self._maintenance = Lock(), RLock(), Lock()
        self._failure = StoreFailedError(f"{self._segments.directory}: the log belongs to the process that has forked")
        self._closed, self._accepted_bytes_max = True, _shut
        self._segments.close()
        self._segments.files.close(self._directory_lock)

    def commit(self) -> bool:
        """Commit pending records as the next group. Return False if there was nothing to do, or if the log has failed
        before. The commit thread calls this. If the log has no commit thread, its owner calls this."""
        with self._turn:
            return self._commit(notify=True)

    def _commit(self, *, notify: bool) -> bool:
        if self._failure:
            return False
        # An empty list, if a record was refused.
        records, size = self._pending.take()
        if not (records or self._look or self._vouch):
            return False
        try:
            if records:
                self._write(records, size)
                if notify and self._on_durable:
                    self._on_durable(self.durable)
            elif self._vouch:
                self._write_witness()
            self._vouch = False
            if self._look or not self._segments.spare:
                self._prepare()
        except Exception as error:
            # This includes a callback that raises: its owner would never act on the durable records.
            self._fail(error)
        return True

    def _run(self) -> None:
        while True:
            if self.commit():
                continue
            with self._lock:
                if self._closed or self._failure:
                    return
                self._asleep = True
                if self._pending or self._look or self._vouch:
                    self._asleep = False
                    continue
            self._wake.acquire()

    def _write(self, records: list[bytes], size: int) -> None:
        segments, whole = self._segments, HEADER_BYTES + size
        if whole > segments.left:
            segments.turn()
            self._sure = True
        before, count = self._previous, len(records)
        flags, number, first = VOUCHES if self._sure else 0, before.group + 1, before.record + 1
        group = Group(segments.current, number, first, count, size, before.checksum, flags, 0, segments.end)
        header, body, checksum = encode_group(group, self._identity.seal, records)
        begun = perf_counter()
        segments.write([header, body], whole)
        written = perf_counter()
        self._sure = sure = self.durability == "disk"
        if sure:
            segments.sync()
        ended, figures = perf_counter(), self.figures
        figures.commits.add(ended - begun)
        if sure:
            seconds = ended - written
            figures.syncs.add(seconds)
            self._slow_share += ((seconds > store_quick_sync_seconds) - self._slow_share) / 8
        segments.began(first)
        self.unvouched = count > 0
        last = first + count - 1
        before.group, before.record, before.checksum = number, last, checksum
        with self._lock:
            self.durable = last
            figures.durable_bytes += size
            self._admit()
            self._waiting.wake(last)

    def _prepare(self) -> None:
        """Allocate the next segment. If there is no space, set ``full``. If ``full`` is already set and ``_look`` is
        not set, do not try to allocate."""
        full: StoreFullError | None = None
        if self.full is None or self._look:
            try:
                self._segments.prepare()
            except StoreFullError as error:
                full = error
                if self.full is None:
                    _logger.warning("%s", error)
            with self._lock:
                self.full = full
                self._look = False
                self._look_after = monotonic() + store_retry_seconds
        with self._lock:
            self._admit()

    def _admit(self) -> None:
        """Compute how many bytes ``append`` may accept in total. The caller must hold the lock."""
        if self._accepted_bytes_max != _shut:
            self._accepted_bytes_max = self.figures.durable_bytes + self._segments.room()

    def _make_room(self, accepted: int, size: int) -> None:
        """Make the next segment longer, so that a new record fits. Raise an error if the log cannot accept the record.
        (The method waits for the disk. It is needed only a few times, until the segments have their full size.)"""
        with self._turn:
            pending = accepted - self.figures.durable_bytes
            if not (self._failure or self._closed or self.full or size > self._record_bytes_max):
                try:
                    longer = self._segments.extend(pending)
                except StoreFullError as error:
                    with self._lock:
                        self.full, self._look_after = error, monotonic() + store_retry_seconds
                    raise
                except OSError as error:
                    self._fail(error)
                    longer = False
                if longer:
                    with self._lock:
                        self._admit()
        if accepted > self._accepted_bytes_max or size > self._record_bytes_max:
            with self._lock:
                raise self._refusal(size)

    def _refusal(self, size: int) -> StoreError:
        """Return the error for a refused record of this size. The caller must hold the lock."""
        if self._failure:
            return again(self._failure)
        if self._closed:
            return StoreError(f"{self._segments.directory}: the log is closed")
        if size > self._record_bytes_max:
            return StoreError(f"a record of {size} bytes: at most {self._record_bytes_max}")
        if self.full is None:
            return StoreFullError(
                f"{self._segments.directory}: {self.pending_bytes} bytes are not yet written, and no more may wait"
            )
        self._ask_for_room()
        return type(self.full)(str(self.full))

    def _ask_for_room(self) -> None:
        """Let the commit thread check for space, unless it did so a short time ago. The caller must hold the lock."""
        if monotonic() >= self._look_after and not self._look:
            self._look = True
            self._wake_thread()

    def _fail(self, error: Exception) -> None:
        """Mark the log as failed, and notify the owner. From now on, no more records become durable."""
        reason = getattr(error, "strerror", None) or repr(error)
        failure = StoreFailedError(
            f"{self._segments.directory}/{segment_name(self._segments.current)}: {reason}; "
            f"records up to {self.durable} are durable, open the log again to continue"
        )
        failure.__cause__ = error
        with self._lock:
            if self._failure:
                return
            self._failure = failure
            self._accepted_bytes_max = _shut
            self._pending.clear()
            self._waiting.wake()
        _logger.error("%s", failure)
        if self._on_failed:
            self._on_failed(failure)

    def _check_open(self) -> None:
        if self._failure:
            raise again(self._failure)
        if self._closed:
            raise StoreError(f"{self._segments.directory}: the log is closed")

    def _look_again(self, dropped: int) -> None:
        """Let the commit thread check for space, if the log is full and segments were deleted. ``dropped``: the number
        of deleted segments."""
        with self._lock:
            if dropped and self.full:
                self._look = True
                self._wake_thread()

    def _wake_thread(self) -> None:
        """Wake the commit thread if it sleeps. The caller must hold the lock."""
        if self._asleep:
            self._asleep = False
            self._wake.release()

    def _write_witness(self) -> None:
        """Write an empty group, to prove that all earlier groups were synced. The loss of this group is harmless."""
        if not self._sure:
            self._segments.sync()
            self._sure = True
        if self.unvouched and (self._segments.left >= HEADER_BYTES or self._segments.spare):
            self._write([], 0)

    def _finish(self) -> None:
        """Make everything durable, and write a witness (an empty group). The witness proves that all earlier groups
        were on disk. So damage after a clean close is never mistaken for a torn write."""
        try:
            self._write_witness()
            self._segments.sync()
        except OSError as error:
            self._fail(error)
            self._check_open()


# Write the data directory of a restored server: records with their old numbers, and a snapshot.
#
# The directory gets a new identity. The file with the identity is written last, so an unfinished directory is not
# treated as a data directory. Before this file is written, the directory is checked in the same way as in recovery.
#
# The log may begin with any record, if the snapshot covers the records before it. The records are put into new
# groups, because each group contains the seal of its directory (a random number). The new groups fill the segments
# differently, so the new log may be larger than the old one. Therefore the size limit of a log is not applied here.
# The server that opens the directory applies the limit to later records. Recovery requires a group at the beginning
# of the oldest segment, unless this is segment 1. So the first segment is made large enough for the oldest record,
# whatever the size of this record.


_group_bytes = 1 << 20
"""The maximum size of all records of a group together. A group with only one record may be larger than this."""


def write_directory(
    files: Files,
    directory: str,
    incarnation: int,
    first: int,
    records: Iterable[bytes],
    state: bytes,
    sizes: Sizes | None = None,
) -> int:
    """Fill an empty data directory with records and a snapshot; return the number of the last record. ``first`` is the
    number of the oldest record. ``state`` is the snapshot after the last record. At least one record is required."""
    sizes = msgspec.structs.replace(sizes or Sizes(), log_bytes_max=sys.maxsize)
    records = iter(records)
    oldest = next(records)
    segment_bytes = max(sizes.first_bytes, HEADER_BYTES + LENGTH_BYTES + len(oldest))
    group_bytes = min(_group_bytes, sizes.group_bytes_max, segment_bytes - HEADER_BYTES)
    with named(directory):
        identity = Identity(incarnation, files.random_bits(64))
        with _begun(files, directory, identity, first, sizes, segment_bytes) as log:
            for record in chain([oldest], records):
                if log.pending_bytes + len(record) + LENGTH_BYTES > group_bytes:
                    log.commit()
                log.append(record)
            log.snapshot(state, log.last)
        judge(files, directory, identity)
        write_identity(files, directory, identity)
        return log.last


def _begun(files: Files, directory: str, identity: Identity, first: int, sizes: Sizes, segment_bytes: int) -> LogStore:
    """Return a log without records. The number of its first record will be ``first``, and the size of its first segment
    is ``segment_bytes``."""
    # Only the very first segment must begin with record 1.
    number = 1 if first == 1 else 2
    allocate_segment(files, directory, number, segment_bytes)
    segments = Segments(files, directory, sizes, {}, number)
    segments.adopt(files.open(f"{directory}/{segment_name(number)}", write=True), 0, segment_bytes)
    judged = Judged(identity, Recovered(identity.incarnation), Tail(number, record=first - 1), {}, [number])
    return LogStore(segments, lock_directory(files, directory), judged, "os", None, None, threaded=False)


# Open a log: lock its directory, check the directory, and remove a torn write if there is one.
#
# Before a torn write is removed, a note about it is written to a file. So even after a crash, the owner of the log
# (the server) can see that the write was removed. A corrupt directory is left as it was found.


_opening_logger = logging.getLogger("antecede.store")


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
                        _opening_logger.warning("%s", line)
                return LogStore(segments, lock, judged, durability, on_durable, on_failed, threaded)
            except BaseException:
                files.close(file)
                raise
        except BaseException:
            files.close(lock)
            raise
