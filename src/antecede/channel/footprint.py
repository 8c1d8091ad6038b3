"""Counts the memory of the letters that a server keeps.

A *place* is where a letter is kept: a mailbox, a timer, the held letters or the dead letters. All mailboxes that
contain a multicast share one Python object. So the memory of a letter, with its envelope, is counted only once, even if
many places contain the letter. A list of destinations that several letters share is counted only once, too.

Adding or removing a letter usually takes constant time. It takes longer if no other kept letter has the same list of
destinations: then the time is proportional to the length of this list.

The sizes in bytes are those of 64-bit CPython. A test compares them with the memory that letters really take.
"""

from collections.abc import Sequence

from antecede.channel.letters import Letter


class Footprint:
    """Counts the letters that a server keeps, and the bytes of their memory."""

    __slots__ = ("_lists", "_multicasts", "bytes", "entries")

    def __init__(self) -> None:
        self.entries = 0
        """The number of kept letters. A letter that is in three mailboxes counts as three."""
        self.bytes = 0
        self._multicasts: dict[int, int] = {}
        """For each letter with several destinations: the number of places that contain it. The key is
        ``id(letter)``."""
        self._lists: dict[int, int] = {}
        """For each list of several destinations: the number of letters in ``_multicasts`` that have this list. The key
        is ``id(letter.to)``."""

    def add(self, letter: Letter) -> None:
        """Count a letter that was put into a mailbox or another place."""
        self.entries += 1
        if len(letter.to) > 1:
            held = self._multicasts.get(id(letter), 0)
            self._multicasts[id(letter)] = held + 1
            if held:
                self.bytes += _entry_bytes
                return
            carried = self._lists.get(id(letter.to), 0)
            self._lists[id(letter.to)] = carried + 1
            if not carried:
                self.bytes += _list_bytes(letter.to)
        self.bytes += _entry_bytes + _envelope_bytes + len(letter.body)

    def remove(self, letter: Letter) -> None:
        """Remove a letter from the count, after it was taken out of a mailbox or another place."""
        self.entries -= 1
        if len(letter.to) > 1:
            held = self._multicasts.pop(id(letter)) - 1
            if held:
                self._multicasts[id(letter)] = held
                self.bytes -= _entry_bytes
                return
            carried = self._lists.pop(id(letter.to)) - 1
            if carried:
                self._lists[id(letter.to)] = carried
            else:
                self.bytes -= _list_bytes(letter.to)
        self.bytes -= _entry_bytes + _envelope_bytes + len(letter.body)


def plain_bytes(letters: Sequence[Letter]) -> int | None:
    """Return the number of bytes that :meth:`Footprint.add` counts for these letters. Return None if a letter has
    several destinations."""
    lengths = [len(letter.body) for letter in letters if len(letter.to) == 1]
    if len(lengths) < len(letters):
        return None
    return sum(lengths) + len(lengths) * (_entry_bytes + _envelope_bytes)


def _list_bytes(to: tuple[str, ...]) -> int:
    return _address_bytes * len(to) + sum(map(len, to))


_entry_bytes = 9
"""The memory of a pointer to a letter in a deque, including its share of the deque's block."""
_envelope_bytes = 560
"""The memory of a letter without the content of its body. It is the sum of the struct, the object headers of the body
and of up to six strings, a tuple with one destination, and 80 characters for all strings together. The strings can be
longer than that, but the length of each string is limited."""
_address_bytes = 64
"""The memory of one address in a list of destinations, without its characters: a pointer in a tuple, and the object
header of a string."""
