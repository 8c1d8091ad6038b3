"""The interface of all stores: of a log on a disk, and of a store without a disk.

An owner appends records (any bytes), and is notified of the number up to which all records are durable. ``append`` only
puts a record into a list. Records that arrive while one group is being synced become the next group, so that many
records share the cost of a sync.
"""

from collections.abc import Callable, Iterable
from typing import Protocol, Self

from antecede.durations import Durations
from antecede.errors import StoreFailedError, StoreFullError
from antecede.store.recovery import Recovered

OnDurable = Callable[[int], None]
"""A function that is called with a rising number: all records up to it are durable. It runs in the thread that commits
them, usually the commit thread, and must not block or raise. It is not called for the records that ``commit_here``
commits: the owner finds them in ``durable`` when that call returns."""
OnFailed = Callable[[StoreFailedError], None]
"""A function that is called when the store has failed: nothing more will be durable. It is called at most once, in the
thread that noticed the failure; this may be the owner's thread."""


class Figures:
    """Figures of a log since it was opened, for operators."""

    def __init__(self) -> None:
        self.commits = Durations()
        """The number of commit groups, and the time to write each of them and, if the durability requires it, to sync
        it."""
        self.syncs = Durations()
        """The part of each commit's time that the disk took to sync."""
        self.durable_bytes = 0
        """The bytes of the records that became durable."""
        self.snapshot_upto = 0
        """The number of the last record that the newest snapshot covers."""
        self.snapshot_at: float | None = None
        """The time of the newest snapshot by the monotonic clock; None if it was taken before the log was opened."""


class Closing:
    """Closes itself at the end of a ``with`` statement."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """See :class:`Store`."""
        raise NotImplementedError


def again(failure: StoreFailedError) -> StoreFailedError:
    """Return a copy of a failure, to raise the failure again. Each copy has its own traceback."""
    error = StoreFailedError(str(failure))
    error.__cause__ = failure.__cause__
    return error


class Store(Protocol):
    """A log of records with the numbers 1, 2, 3 … Its durability decides which failures the records survive.

    ``append`` is for one thread at a time: the owner's, since only the owner knows the sequence of events. Every other
    method may be called from any thread. The properties never block. ``append`` waits for the disk only if the pending
    records would exceed the space for them: then it tries to make a segment longer. The other methods may block.
    """

    @property
    def incarnation(self) -> int:
        """The random number that identifies this data directory. If the directory is emptied, it gets another
        number."""
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
        """All records up to this number are durable. Without a disk, every record is durable when ``append`` returns,
        and ``on_durable`` is never called."""
        ...

    @property
    def closed(self) -> int:
        """All records up to this number are in segments that will not be written any more."""
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
        """The last known reason of a ``shortage``, without a new check; None: there was space when the last group was
        written."""
        ...

    def shortage(self) -> str:
        """Return why there may soon be no space for more records, or an empty string. The call makes the log check
        again."""
        ...

    def append(self, record: bytes, *, rouse: bool = True) -> int:
        """Accept a record; return its number. Raise StoreFullError or DiskFullError if there is no space for it now.
        With ``rouse=False`` the caller must call ``commit_soon`` or ``commit_here`` afterwards."""
        ...

    def commit_soon(self) -> None:
        """Let the commit thread commit the appended records."""
        ...

    def commit_here(self) -> None:
        """Make the appended records durable in the owner's thread, before the call returns, without calling
        ``on_durable``. This requires that no commit is running, the disk has been fast and the records are few;
        otherwise do the same as ``commit_soon``."""
        ...

    def wait(self, upto: int, timeout: float | None = None) -> bool:
        """Block until all records up to a number are durable; return False if the time is over before that."""
        ...

    def snapshot(self, data: bytes | Iterable[bytes], upto: int) -> None:
        """Keep the owner's state after record ``upto``; recovery begins with the newest snapshot."""
        ...

    def adopt_snapshot(self, draft: str, upto: int) -> None:
        """Keep a snapshot that another process has written (:func:`antecede.store.write_draft`)."""
        ...

    def release(self, upto: int) -> None:
        """Declare that the owner needs the records up to this number for recovery only. The store does not remember
        this after closing."""
        ...

    @property
    def unvouched(self) -> bool:
        """Whether no later group vouches for the last records, that is, proves that they were durable. Without such a
        proof, damage to their group looks like a torn write."""
        ...

    def vouch(self) -> None:
        """Let the commit thread write a group without records, unless records come first. Either group vouches for all
        groups before it: it proves that they were durable when it was written."""
        ...

    def forget_cuts(self) -> None:
        """Delete the notes about truncations. Call this when the owner has recorded everything that is in
        ``recovered.cuts``."""
        ...

    def close(self) -> None:
        """Make all accepted records durable, and release the directory."""
        ...
