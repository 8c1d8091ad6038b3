"""The memory of letters that a server keeps: in a mailbox, as dead letters, in a timer.

A *place* is where a letter is kept: a mailbox, a timer, or among the held or the dead letters. The memory of a letter,
with its envelope, is counted only once, even if many places contain it: a multicast is one object in many mailboxes. A
list of destinations that several letters share is counted only once, too. Adding and removing a letter takes constant
time, except for the first letter with a new list.

The figures are those of CPython on 64 bits. A test compares them with the memory that letters really take.
"""

from collections.abc import Sequence

from antecede.channel.letters import Letter


class Footprint:
    """Counts the letters that are kept, and their bytes."""

    __slots__ = ("_lists", "_multicasts", "bytes", "entries")

    def __init__(self) -> None:
        self.entries = 0
        """The number of letters, counted once per place that contains them."""
        self.bytes = 0
        self._multicasts: dict[int, int] = {}
        """For each letter with several destinations, by identity, how many places contain it."""
        self._lists: dict[int, int] = {}
        """For each list of several destinations, by identity, how many of the letters in ``_multicasts`` carry it."""

    def add(self, letter: Letter) -> None:
        """Count a letter that one more place contains."""
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
        """Remove a letter from the count, for one place that no longer contains it."""
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
    """Return the bytes that ``add`` would count for these letters if each has one destination; otherwise None."""
    lengths = [len(letter.body) for letter in letters if len(letter.to) == 1]
    if len(lengths) < len(letters):
        return None
    return sum(lengths) + len(lengths) * (_entry_bytes + _envelope_bytes)


def _list_bytes(to: tuple[str, ...]) -> int:
    return _address_bytes * len(to) + sum(map(len, to))


_entry_bytes = 9
"""A pointer in a deque, with its part of the deque's block."""
_envelope_bytes = 560
"""A letter without its body: the struct, the object headers of its body and of up to six strings, a tuple with one
destination, and 80 characters in all strings together; the length of each string is limited."""
_address_bytes = 64
"""A pointer in a tuple, and the object header of a string."""
