"""Limits for the number of events per second. Each limit is a *bucket*: units are added to it at a constant rate, and
callers take units out of it. The bucket can hold as many units as are added in one second. But even the smallest bucket
can hold 1 unit."""


class Bucket:
    """A bucket that lets its callers take ``rate`` units per second on average. It can hold ``rate`` units, or 1 unit
    if ``rate`` is smaller than 1. While the bucket contains more than 0 units, a caller may take any amount, even more
    than the bucket contains. If the level is then 0 or negative, the next callers must wait until it is above 0
    again."""

    __slots__ = ("_filled_at", "_level", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._level = max(1.0, rate)
        self._filled_at: float | None = None

    def holds(self, now: float) -> bool:
        """Add the units for the time up to ``now``. Return whether the bucket contains more than 0 units. If so, the
        next caller may take any amount."""
        if self._filled_at is not None and now > self._filled_at:
            self._level = min(max(1.0, self.rate), self._level + (now - self._filled_at) * self.rate)
        self._filled_at = now
        return self._level > 0

    def take(self, amount: float) -> None:
        """Take this amount out of the bucket. If the amount is larger than the content, the bucket's level becomes
        negative. Then the next callers must wait until the level is above 0 again."""
        self._level -= amount


class Rate:
    """The rate limits of one identity: how many messages or requests, and how many bytes, it may send per second."""

    __slots__ = ("_bytes", "_count")

    def __init__(self, count: float | None, size: float | None) -> None:
        self._count = None if count is None else Bucket(count)
        self._bytes = None if size is None else Bucket(size)

    def take(self, count: int, size: int, now: float) -> str:
        """Count ``count`` messages or requests with ``size`` bytes in total, and return an empty string. If the
        identity has already reached a limit, count nothing, and return a text that describes this limit."""
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
    """Limits how often each network address may connect. Only a limited number of addresses is remembered."""

    def __init__(self, rate: float, addresses_max: int) -> None:
        self._rate = rate
        self._addresses_max = addresses_max
        self._buckets: dict[str, Bucket] = {}

    def take(self, address: str, now: float) -> bool:
        """Count one attempt of this address and return True. Return False, and count nothing, if the address has
        reached its limit."""
        bucket = self._buckets.pop(address, None) or Bucket(self._rate)
        self._buckets[address] = bucket
        if len(self._buckets) > self._addresses_max:
            del self._buckets[next(iter(self._buckets))]
        if not bucket.holds(now):
            return False
        bucket.take(1)
        return True
