"""Vectors of counters whose maximum needs only a few fast operations: packed into one integer, or as an array.

**Packed.** Entry k of a vector is lane k of an integer: 31 bits of value below one guard bit that is always 0. To take
the maximum of two vectors, set all guard bits of the first vector and subtract the second vector. A guard bit that is
still set shows that in its lane the entry of the first vector is at least as large as that of the second. No lane
borrows from the next one. A vector of 3,000 entries is 12 kB, and a maximum takes some microseconds, without any
library.

**As an array.** With thousands of entries numpy, if it is installed, is several times as fast. No vector is changed in
place, so several owners may share one.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

_width = 32
_value = (1 << (_width - 1)) - 1


class Lanes:
    """The arithmetic of vectors with a given number of entries, each from 0 to 2**31 - 1."""

    def __init__(self, entries: int) -> None:
        self._bytes = entries * _width // 8
        self._guards = int.from_bytes((b"\0\0\0\x80") * entries, "little")
        self.zero = 0
        """The vector whose entries are all 0."""

    def entry(self, vector: int, lane: int) -> int:
        """One entry of a vector."""
        return (vector >> (lane * _width)) & _value

    def raised(self, vector: int, lane: int, by: int) -> int:
        """Return the vector with ``by`` added to one entry."""
        return vector + (by << (lane * _width))

    def replaced(self, vector: int, lane: int, value: int) -> int:
        """The vector with another value for one entry."""
        return self.raised(vector, lane, value - self.entry(vector, lane))

    def maximum(self, a: int, b: int) -> int:
        """The larger of the two vectors' entries, lane by lane."""
        at_least = ((a | self._guards) - b) & self._guards
        from_a = at_least - (at_least >> (_width - 1))
        return b ^ ((a ^ b) & from_a)

    def full(self) -> int:
        """The vector whose entries are all the largest possible."""
        return self._guards - (self._guards >> (_width - 1))

    def count_at_least(self, a: int, b: int) -> int:
        """The number of lanes in which the first vector's entry is at least the second's."""
        return (((a | self._guards) - b) & self._guards).bit_count()

    def entries(self, vector: int) -> Sequence[int]:
        """All entries, in order."""
        return memoryview(vector.to_bytes(self._bytes, "little")).cast("I")


class Arrays:
    """The same arithmetic with arrays of numpy. It has only the operations that a walk over a trace needs."""

    def __init__(self, entries: int) -> None:
        self._numpy: Any = import_module("numpy")
        self.zero: Any = self._numpy.zeros(entries, self._numpy.int32)

    def entry(self, vector: Any, lane: int) -> int:
        """One entry of a vector."""
        return int(vector[lane])

    def replaced(self, vector: Any, lane: int, value: int) -> Any:
        """The vector with another value for one entry."""
        changed = vector.copy()
        changed[lane] = value
        return changed

    def maximum(self, a: Any, b: Any) -> Any:
        """The larger of the two vectors' entries, lane by lane."""
        return self._numpy.maximum(a, b)
