"""A set of numbers that needs only a few bytes if the numbers are added nearly in sequence. A link uses such a set for
the numbers of its frames."""

from collections.abc import Iterator, Sequence


class Numbers:
    """A set of positive numbers that are added nearly in sequence. It contains all numbers from 1 to ``upto``. The bit
    map ``beyond`` shows which larger numbers it contains; the lowest bit stands for ``upto + 1``."""

    __slots__ = ("beyond", "upto")

    def __init__(self, upto: int = 0, beyond: int = 0) -> None:
        self.upto = upto
        self.beyond = beyond
        if beyond & 1:
            self._advance()

    def __contains__(self, number: int) -> bool:
        return number <= self.upto or bool(self.beyond >> (number - self.upto - 1) & 1)

    @property
    def largest(self) -> int:
        """The largest number in the set, or 0."""
        return self.upto + self.beyond.bit_length()

    def add(self, number: int) -> None:
        """Add one number that is not in the set."""
        if number == self.upto + 1 and not self.beyond:
            self.upto = number
            return
        self.beyond |= 1 << (number - self.upto - 1)
        if self.beyond & 1:
            self._advance()

    def merge(self, upto: int, beyond: int) -> Sequence[int]:
        """Add all numbers of another set, given by its ``upto`` and ``beyond``. Return the numbers that are new to this
        set. The result may also contain some numbers that this set already had."""
        if not beyond and not self.beyond:
            fresh, self.upto = range(self.upto + 1, upto + 1), max(self.upto, upto)
            return fresh
        shift = upto - self.upto
        if shift < 0:
            # An acknowledgement that was overtaken by a later one can still contain numbers beyond it.
            beyond >>= -shift
            shift = 0
        known = self.beyond >> shift
        found = list(range(self.upto + 1, self.upto + shift + 1))
        self.upto += shift
        found.extend(self.upto + 1 + position for position in _ones(beyond & ~known))
        self.beyond = known | beyond
        if self.beyond & 1:
            self._advance()
        return found

    def _advance(self) -> None:
        """Increase ``upto`` as long as the next number is in the set."""
        run = (~self.beyond & (self.beyond + 1)).bit_length() - 1
        self.beyond >>= run
        self.upto += run


def _ones(bits: int) -> Iterator[int]:
    """Yield the positions of all bits that are 1 in a bit map, in ascending order. The time is proportional to the
    length of the map."""
    text = bin(bits)[:1:-1]
    position = text.find("1")
    while position >= 0:
        yield position
        position = text.find("1", position + 1)
