"""Limits of rate. A bucket fills at a constant rate. It holds at most the amount that it gets in one second, but can
always hold 1."""


class Bucket:
    """Permits at most ``rate`` units per second on average. It holds at most ``rate`` units (at least 1). While
    anything is left, any amount may be taken; if it is more than what is left, the next callers must wait."""

    __slots__ = ("_filled_at", "_level", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._level = max(1.0, rate)
        self._filled_at: float | None = None

    def holds(self, now: float) -> bool:
        """Return whether anything is left. The next amount taken may be larger than what is left."""
        if self._filled_at is not None and now > self._filled_at:
            self._level = min(max(1.0, self.rate), self._level + (now - self._filled_at) * self.rate)
        self._filled_at = now
        return self._level > 0

    def take(self, amount: float) -> None:
        """Take this amount out. If it is more than the bucket holds, the next callers must wait until the missing
        amount has been filled in."""
        self._level -= amount


class Rate:
    """The limits of one identity: a number of publishes or requests per second, and a number of bytes per second."""

    __slots__ = ("_bytes", "_count")

    def __init__(self, count: float | None, size: float | None) -> None:
        self._count = None if count is None else Bucket(count)
        self._bytes = None if size is None else Bucket(size)

    def take(self, count: int, size: int, now: float) -> str:
        """Count this amount, and return an empty text. If a limit is already exceeded, count nothing and return the
        limit in words."""
        if self._count is not None and not self._count.holds(now):
            return f"more than {self._count.rate:g} per second"
        if self._bytes is not None and not self._bytes.holds(now):
            return f"more than {self._bytes.rate:g} bytes per second"
        if self._count is not None:
            self._count.take(count)
        if self._bytes is not None:
            self._bytes.take(size)
        return ""


class Attempts:
    """Limits how often each network address may try something; remembers a bounded number of addresses."""

    def __init__(self, rate: float, addresses_max: int) -> None:
        self._rate = rate
        self._addresses_max = addresses_max
        self._buckets: dict[str, Bucket] = {}

    def take(self, address: str, now: float) -> bool:
        """Count one attempt; return False if the address has exceeded its rate."""
        bucket = self._buckets.pop(address, None) or Bucket(self._rate)
        self._buckets[address] = bucket
        if len(self._buckets) > self._addresses_max:
            del self._buckets[next(iter(self._buckets))]
        if not bucket.holds(now):
            return False
        bucket.take(1)
        return True
