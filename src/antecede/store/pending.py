"""Records that were appended and are not yet written, and threads that wait until records are durable."""

from collections import deque
from itertools import accumulate, takewhile
from threading import Lock

from antecede.store.format import LENGTH_BYTES


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
