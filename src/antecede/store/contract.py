"""What a store offers its owner, whatever is beneath: a log on a disk, or nothing at all.

An owner appends opaque records and learns, by number, up to which of them its log is durable. ``append`` only puts a
record into a list; what gathers while one group is being synced becomes the next group, so that the price of a sync is
shared by as many records as came in the meantime.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from antecede.durations import Durations
from antecede.errors import StoreFailedError
from antecede.store.recovery import Recovered

OnDurable = Callable[[int], None]
"""Called with a rising number: all records up to it are durable. From the commit thread; must not block or raise."""
OnFailed = Callable[[StoreFailedError], None]
"""Called at most once, from the commit thread: nothing more will be durable."""


class Figures:
    """What a log did since it was opened, for operators."""

    def __init__(self) -> None:
        self.commits = Durations()
        """Commit groups, and how long each took: written, and synced if that is what the durability asks for."""
        self.syncs = Durations()
        """Of that, what the disk took to sync."""
        self.snapshot_upto = 0
        """The last record that the newest snapshot covers."""
        self.snapshot_at: float | None = None
        """When that was taken, by the monotonic clock; nothing if it was before the log was opened."""


class Store(Protocol):
    """A log of records numbered 1, 2, 3 … that survive what its durability says.

    ``append`` is for one thread at a time: the owner's, who alone knows in which order things happened. Every other
    method may be called from any thread; all but ``append`` and the properties may block.
    """

    @property
    def incarnation(self) -> int:
        """The random number that tells this data directory from any other, and from itself after a wipe."""
        ...

    @property
    def recovered(self) -> Recovered:
        """What was there when the store was opened."""
        ...

    @property
    def last(self) -> int:
        """The number of the newest record appended."""
        ...

    @property
    def durable(self) -> int:
        """All records up to this number are durable. Without a disk that is every record, already when ``append``
        returns; then ``on_durable`` is never called."""
        ...

    @property
    def closed(self) -> int:
        """All records up to this number are in segments that will not be written any more."""
        ...

    @property
    def pending_bytes(self) -> int:
        """How much was appended and is not yet durable."""
        ...

    @property
    def log_bytes(self) -> int:
        """How much room the log takes on the disk."""
        ...

    @property
    def figures(self) -> Figures:
        """What it did since it was opened."""
        ...

    def shortage(self) -> str:
        """Why there may soon be no room for more records; empty: there is enough. Asking makes the log look again."""
        ...

    def append(self, record: bytes, *, rouse: bool = True) -> int:
        """Accept a record; its number. StoreFullError or DiskFullError if there is no room for it now. An owner that
        does not ``rouse`` the commit thread has to call ``commit_soon`` or ``commit_here`` afterwards."""
        ...

    def commit_soon(self) -> None:
        """Let the commit thread take what was appended."""
        ...

    def commit_here(self) -> None:
        """Make what was appended durable before returning, in the owner's thread and without telling ``on_durable``,
        if nothing else is under way and the disk has been quick; otherwise as ``commit_soon``."""
        ...

    def wait(self, upto: int, timeout: float | None = None) -> bool:
        """Block until all records up to a number are durable; False if the time is over before that."""
        ...

    def snapshot(self, data: bytes | Iterable[bytes], upto: int) -> None:
        """Keep the owner's state after record ``upto``; recovery begins with the newest snapshot."""
        ...

    def release(self, upto: int) -> None:
        """The owner needs no record up to this number for anything but recovery. Not remembered when closed."""
        ...

    def close(self) -> None:
        """Make everything durable that was accepted, and let go of the directory."""
        ...
