"""Stamps as bytes: numbers of variable length, and raw bytes.

Each byte of a number contains seven of its bits, the low bits first. The high bit of the byte is 1 if more bytes
follow. A reader never reads beyond its bytes and accepts only the shortest form of a number, so that each stamp has
exactly one encoding. It raises :class:`StampError` for anything that our own writer cannot have written.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

from antecede import limits
from antecede.errors import StampError

_number_bytes_max: Final = 9


def number_size(value: int) -> int:
    """Return how many bytes ``value`` takes when it is encoded."""
    if value < 0x80:
        return 1
    return 2 if value < 0x4000 else (value.bit_length() + 6) // 7


class Writer:
    """A writer that appends numbers and raw bytes to a stamp."""

    __slots__ = ("_out",)

    def __init__(self) -> None:
        self._out = bytearray()

    def number(self, value: int) -> None:
        out = self._out
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)

    def numbers(self, values: list[int]) -> None:
        """Append several numbers."""
        if values and max(values) <= 0x7F:
            self._out += bytes(values)
            return
        for value in values:
            self.number(value)

    def raw(self, data: bytes) -> None:
        self._out += data

    def bytes(self) -> bytes:
        return bytes(self._out)


class Reader:
    """A reader of numbers and raw bytes in a stamp. It validates what it reads."""

    __slots__ = ("_at", "_data", "members")

    recorded: ClassVar[bool] = False
    """Whether the stamp comes from the log; see :class:`RecordedReader`."""

    def __init__(self, data: bytes, members: int) -> None:
        self._data = data
        self._at = 0
        self.members = members

    def number(self, maximum: int = limits.counter_max) -> int:
        at = self._at
        if at < len(self._data):
            # Nearly all of them take one byte.
            value = self._data[at]
            if value <= 0x7F and value <= maximum:
                self._at = at + 1
                return value
        return self._long_number(maximum)

    def numbers(self, count: int) -> Sequence[int]:
        """Read the next ``count`` numbers."""
        at = self._at
        several = self._data[at : at + count]
        if len(several) == count and several.isascii():
            # One byte each, as nearly always.
            self._at = at + count
            return several
        return [self.number() for _ in range(count)]

    def _long_number(self, maximum: int) -> int:
        value = 0
        for position in range(_number_bytes_max):
            if self._at >= len(self._data):
                raise StampError("stamp ends within a number")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << (7 * position)
            if byte < 0x80:
                if byte == 0 and position:
                    raise StampError("a number in a stamp has more bytes than necessary")
                if value > maximum:
                    raise StampError(f"number {value} in a stamp: expected at most {maximum}")
                return value
        raise StampError("number of more than 63 bits in a stamp")

    def count(self, maximum: int, what: str) -> int:
        """Read the number of entries that follow. Raise if this number is larger than ``maximum``. Each entry needs at
        least one byte, so also raise if the number is larger than the number of remaining bytes. ``what`` names the
        entries in the error message."""
        value = self.number()
        if value > maximum or value > len(self._data) - self._at:
            raise StampError(
                f"stamp announces {value} {what}, then {len(self._data) - self._at} bytes follow: "
                f"expected at most {maximum} {what}, and at least one byte for each"
            )
        return value

    def member(self) -> int:
        value = self.number()
        if value >= self.members:
            raise StampError(f"member {value} in a stamp: expected 0 to {self.members - 1}")
        return value

    def counter(self, known: int) -> int:
        """Read a counter. ``known``: the last known value of this counter. Raise if the counter is larger than
        ``known`` + ``limits.counter_jump_max``."""
        value = self.number()
        if value > known + limits.counter_jump_max:
            raise StampError(f"counter {value} in a stamp: expected at most {known} + {limits.counter_jump_max}")
        return value

    def ordinal(self, known: int, what: str = "sequence number") -> int:
        """Read a counter that starts at 1, such as the number of a message. Raise if it is 0, or if :meth:`counter`
        refuses it. ``known``: as for :meth:`counter`. ``what`` names the counter in the error message."""
        value = self.counter(known)
        if value == 0:
            raise StampError(f"{what} 0 in a stamp: expected 1 or more")
        return value

    def raw(self, length: int) -> bytes:
        if length > len(self._data) - self._at:
            raise StampError("stamp ends within a field")
        self._at += length
        return self._data[self._at - length : self._at]

    def finish(self) -> None:
        if self._at != len(self._data):
            raise StampError(f"{len(self._data) - self._at} extra bytes at the end of a stamp")


class RecordedReader(Reader):
    """A reader of a stamp from the log. It does not compare counters with their last known values.

    The stamp was compared with the state when its packet arrived. If the packet was then held, other packets may have
    arrived and been delivered while it waited. Their records come before its record in the log. So when a recovery
    reads the stamp, the state is newer than it was at the arrival of the packet. The stamp of a faulty member may
    contradict this newer state. The stamp is accepted nevertheless, because it was accepted when it arrived. Otherwise
    the log could not be replayed.
    """

    __slots__ = ()

    recorded: ClassVar[bool] = True

    def counter(self, known: int) -> int:
        return self.number()
