"""The interface of the two kinds of stores: a log on a disk, and a store without a disk.

The owner of a store (usually a server) appends records (any bytes). When records have become durable, the store
notifies the owner. ``append`` only puts a record into a list. Records that arrive while one group is being synced
become the next group, so that many records share the cost of a sync.
"""

from collections.abc import Callable, Iterable
from secrets import randbits
from typing import Protocol, Self

from antecede.durations import Durations
from antecede.errors import StoreError, StoreFailedError, StoreFullError, UsageError
from antecede.store.recovery import Recovered

OnDurable = Callable[[int], None]
"""A function that is called with the number of a record when all records up to this number are durable. The number
rises from call to call. The function runs in the thread that commits, usually the commit thread, and must not block or
raise an error. It is not called for records that ``commit_here`` commits; after ``commit_here``, the owner reads the
number from ``durable``."""
OnFailed = Callable[[StoreFailedError], None]
"""A function that is called when the store has failed, so that no more records become durable. It is called at most
once, in the thread that noticed the failure. This thread may be the owner's thread."""


class Figures:
    """Counters and durations of a log since it was opened. They are shown to operators."""

    def __init__(self) -> None:
        self.commits = Durations()
        """The durations of all commits. A commit writes one group and, with durability ``disk``, syncs it."""
        self.syncs = Durations()
        """The durations of all syncs. Each is a part of the duration of its commit."""
        self.durable_bytes = 0
        """The number of bytes of the records that became durable."""
        self.snapshot_upto = 0
        """The number of the last record that the newest snapshot covers."""
        self.snapshot_at: float | None = None
        """The time of the newest snapshot by the monotonic clock, or None if the snapshot was taken before the log was
        opened."""


class Closing:
    """The base class of stores. A store can be used in a ``with`` statement, which closes the store at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store: make all accepted records durable, and release the directory."""
        raise NotImplementedError


def again(failure: StoreFailedError) -> StoreFailedError:
    """Return a copy of a failure, to raise the failure again. Each copy has its own traceback."""
    error = StoreFailedError(str(failure))
    error.__cause__ = failure.__cause__
    return error


class Store(Protocol):
    """A log of records with the numbers 1, 2, 3 … Its durability decides which failures the records survive.

    Only the owner's thread may call ``append``, because only the owner knows the sequence of events. Every other method
    may be called from any thread. The properties never block. ``append`` waits for the disk only if there is not enough
    space for the pending records; then it tries to make a segment longer. The other methods may block.
    """

    @property
    def incarnation(self) -> int:
        """The random number that identifies this data directory. A directory that was emptied gets a new number."""
        ...

    @property
    def recovered(self) -> Recovered:
        """The content of the store when it was opened."""
        ...

    @property
    def last(self) -> int:
        """The number of the newest record appended."""
        ...

    @property
    def durable(self) -> int:
        """The number up to which all records are durable. Without a disk, every record is durable when ``append``
        returns, and ``on_durable`` is never called."""
        ...

    @property
    def closed(self) -> int:
        """The number up to which all records are in complete segments. Nothing more will be written to these
        segments."""
        ...

    @property
    def pending_bytes(self) -> int:
        """The number of bytes that were appended and are not yet durable."""
        ...

    @property
    def log_bytes(self) -> int:
        """The disk space of the log, in bytes."""
        ...

    @property
    def figures(self) -> Figures:
        """The figures of the store since it was opened."""
        ...

    @property
    def full(self) -> StoreFullError | None:
        """The reason why the last check found no space for the next segment; None if it found space. Reading this
        property does not start a new check."""
        ...

    def shortage(self) -> str:
        """Return the reason why there may soon be no space for more records, or an empty string if the last check found
        space. If the last check found no space, this call lets the commit thread check again, but not too often."""
        ...

    def append(self, record: bytes, *, wake: bool = True) -> int:
        """Accept a record; return its number. Raise StoreFullError or DiskFullError if there is no space for it now. If
        ``wake`` is false, the commit thread is not woken, so the caller must call ``commit_soon`` or ``commit_here``
        afterwards."""
        ...

    def commit_soon(self) -> None:
        """Let the commit thread commit the appended records."""
        ...

    def commit_here(self) -> None:
        """Make the appended records durable in the owner's thread, before this call returns. ``on_durable`` is not
        called for them. But in each of these cases, do the same as ``commit_soon``: a commit is running; recent syncs
        were slow; many bytes are pending; the pending bytes do not fit into the segment; there is no spare segment; the
        commit thread must check for space."""
        ...

    def wait(self, upto: int, timeout: float | None = None) -> bool:
        """Block until all records up to number ``upto`` are durable; return False if this takes longer than ``timeout``
        seconds."""
        ...

    def snapshot(self, data: bytes | Iterable[bytes], upto: int) -> None:
        """Write a snapshot: ``data`` is the owner's state after record ``upto``. Recovery begins with the newest
        snapshot."""
        ...

    def adopt_snapshot(self, draft: str, upto: int) -> None:
        """Give a snapshot its final name, after another process has written it to the file ``draft``
        (:func:`antecede.store.write_draft`)."""
        ...

    def release(self, upto: int) -> None:
        """Allow the store to delete the records up to this number, as soon as recovery does not need them. The
        permission is valid until the store is closed."""
        ...

    @property
    def unvouched(self) -> bool:
        """Whether the last group with records still lacks a proof that it was durable. A later group gives this proof.
        Without the proof, damage to the group looks like a torn write."""
        ...

    def vouch(self) -> None:
        """Let the commit thread write a group without records (a *witness*). The witness proves that all earlier groups
        were durable when it was written. If records are appended before the thread writes, the thread writes only the
        group of these records. With durability ``disk``, that group proves the same."""
        ...

    def copied(self) -> None:
        """Give up the files and the lock, and accept nothing more: this process is a copy (by ``os.fork``) of the
        owner's process."""
        ...

    def forget_cuts(self) -> None:
        """Delete the notes about truncations. Call this when the owner has recorded everything that is in
        ``recovered.cuts``."""
        ...

    def close(self) -> None:
        """Make all accepted records durable, and release the directory."""
        ...


# A store without a disk. It only numbers records, and does not keep them. The server's state is only in its memory.
#
# Each record is treated as durable as soon as ``append`` returns. So no record ever waits to become durable, and the
# store has no thread.


class MemoryStore(Closing):
    """A store for servers that need no durability; see :class:`antecede.store.contract.Store`."""

    durability = "memory"
    pending_bytes = 0
    log_bytes = 0
    closed = 0
    unvouched = False
    full = None

    def __init__(self) -> None:
        self.incarnation = randbits(64)
        self.recovered = Recovered(self.incarnation)
        self.figures = Figures()
        self.last = 0
        self._closed = False

    @property
    def durable(self) -> int:
        return self.last

    def shortage(self) -> str:
        return ""

    def append(self, record: bytes, *, wake: bool = True) -> int:
        if self._closed:
            raise StoreError("the log is closed")
        self.last += 1
        return self.last

    def commit_soon(self) -> None:
        return

    def commit_here(self) -> None:
        return

    def wait(self, upto: int, timeout: float | None = None) -> bool:
        if upto > self.last:
            raise UsageError(f"record {upto} was never appended; the last is {self.last}")
        return True

    def snapshot(self, data: bytes | Iterable[bytes], upto: int) -> None:
        self.wait(upto)

    def vouch(self) -> None:
        return

    def forget_cuts(self) -> None:
        return

    def adopt_snapshot(self, draft: str, upto: int) -> None:
        raise StoreError("a store with durability 'memory' has no data directory, so it cannot adopt a snapshot")

    def release(self, upto: int) -> None:
        return

    def copied(self) -> None:
        self._closed = True

    def close(self) -> None:
        self._closed = True
