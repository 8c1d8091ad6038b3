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
segments are synced, and ``close`` syncs all.) ``memory`` is a store without a disk: :mod:`antecede.store.memory`.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock, RLock, Thread
from time import monotonic, perf_counter

import msgspec

from antecede.errors import StoreError, StoreFailedError, StoreFullError, UsageError
from antecede.limits import store_commit_here_bytes_max, store_quick_sync_seconds, store_retry_seconds
from antecede.store.contract import Closing, Figures, OnDurable, OnFailed, again
from antecede.store.cuts import forget_cuts
from antecede.store.files import Files
from antecede.store.format import HEADER_BYTES, LENGTH_BYTES, VOUCHES, Group, encode_group, segment_name
from antecede.store.pending import Pending, Waiting
from antecede.store.recovery import Judged, Recovered
from antecede.store.retention import Retention
from antecede.store.segments import Segments
from antecede.store.snapshots import adopt_draft, write_snapshot

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
