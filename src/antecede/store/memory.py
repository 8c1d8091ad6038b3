"""A store without a disk. It only numbers records, and does not keep them. The server's state is only in its memory.

Each record is treated as durable as soon as ``append`` returns. So no record ever waits to become durable, and the
store has no thread.
"""

from collections.abc import Iterable
from secrets import randbits

from antecede.errors import StoreError, UsageError
from antecede.store.contract import Closing, Figures
from antecede.store.recovery import Recovered


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
