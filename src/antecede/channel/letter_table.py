"""Letters in a snapshot: each letter is stored only once, even if many mailboxes contain it.

A multicast is one letter in many mailboxes. In a snapshot, each letter has a number, and a mailbox contains only the
numbers of its letters. So a mailbox entry takes a few bytes, and after a restart the mailboxes share the letter as
before. Names (senders, destinations, types) and lists of destinations have numbers in the same way.

The table is stored by columns. Python builds and reads columns several times faster than one object per letter.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Annotated, TypeVar

import msgspec

from antecede.channel.letters import Letter
from antecede.errors import SnapshotError

Position = Annotated[int, msgspec.Meta(ge=0)]
"""The index of a value in a column of :class:`SavedLetters`, from 0."""
_Value = TypeVar("_Value")


class SavedLetters(msgspec.Struct, frozen=True):
    """A table of letters in a snapshot. Letter ``n`` has the values at position ``n`` of the columns from ``ids`` to
    ``bodies``."""

    names: list[str]
    lists: list[list[Position]]
    """Lists of destinations. Each destination is a position in ``names``."""
    ids: list[str]
    sources: list[Position]
    """The sender of each letter, as a position in ``names``."""
    to: list[Position]
    """The destinations of each letter, as a position in ``lists``."""
    types: list[Position]
    """The type of each letter, as a position in ``names``."""
    bodies: list[bytes]
    marks: list[tuple[Position, str, str, str, str]]
    """The optional fields of letters. For each letter that uses at least one of them: the position of the letter, and
    its ``ask``, ``answers``, ``replays`` and ``context``."""

    def letters(self) -> list[Letter]:
        """Return the letters of the table. Letters with the same destinations share one list."""
        if len({len(self.ids), len(self.sources), len(self.to), len(self.types), len(self.bodies)}) > 1:
            raise SnapshotError("table of letters: the columns have different lengths")
        try:
            name = self.names.__getitem__
            lists = [tuple(map(name, positions)) for positions in self.lists]
            to = map(lists.__getitem__, self.to)
            letters = list(map(Letter, self.ids, map(name, self.sources), to, map(name, self.types), self.bodies))
            for position, ask, answers, replays, context in self.marks:
                plain = letters[position]
                letters[position] = Letter(
                    plain.id, plain.source, plain.to, plain.type, plain.body, ask, answers, replays, context
                )
        except IndexError:
            raise SnapshotError("table of letters: a position is beyond the end of the column it refers to") from None
        return letters


class LetterTable:
    """Gives letters their numbers while a snapshot is made.

    Equal multicasts get the same number, even if they are different Python objects, so that equal states give equal
    snapshots. A letter with one destination is kept only once on a server, so it is not compared with other letters.
    """

    def __init__(self) -> None:
        self._letters: list[Letter] = []
        self._by_object: dict[int, int] = {}
        self._by_id: dict[str, int] = {}

    def positions(self, letters: Collection[Letter]) -> Sequence[int]:
        """Return the number of each letter. Keep the letters in memory until you call ``saved``, because the table
        recognises them by ``id(letter)``."""
        first = len(self._letters)
        if all(map(_one.__eq__, map(len, map(_to, letters)))):
            self._letters += letters
            return range(first, len(self._letters))
        return [self.position(letter) for letter in letters]

    def position(self, letter: Letter) -> int:
        """Return the number of a letter. A new letter gets the next free number."""
        known = self._by_object.get(id(letter))
        if known is not None:
            return known
        position = len(self._letters)
        if len(letter.to) > 1:
            position = self._by_id.setdefault(letter.id, position)
            self._by_object[id(letter)] = position
        if position == len(self._letters):
            self._letters.append(letter)
        elif self._letters[position] != letter:
            # Ids come from peers too, so two letters with one id may still differ.
            self._by_object[id(letter)] = position = len(self._letters)
            self._letters.append(letter)
        return position

    def saved(self) -> SavedLetters:
        """Return a table with all letters that have a number."""
        letters = self._letters
        sources, types, to = (list(map(get, letters)) for get in (_source, _type, _to))
        lists = _numbered(to)
        names = _numbered(chain(sources, types, chain.from_iterable(lists)))
        return SavedLetters(
            names=list(names),
            lists=[[names[name] for name in destinations] for destinations in lists],
            ids=list(map(_id, letters)),
            sources=list(map(names.__getitem__, sources)),
            to=list(map(lists.__getitem__, to)),
            types=list(map(names.__getitem__, types)),
            bodies=list(map(_body, letters)),
            marks=[
                (position, letter.ask, letter.answers, letter.replays, letter.context)
                for position, letter in enumerate(letters)
                if letter.ask or letter.answers or letter.replays or letter.context
            ],
        )


def _numbered(values: Iterable[_Value]) -> dict[_Value, int]:
    """Return a number for each different value: 0 for the first value, 1 for the next different value, and so on."""
    return {value: number for number, value in enumerate(dict.fromkeys(values))}


_one = 1
_id, _source, _to, _type, _body = map(attrgetter, ("id", "source", "to", "type", "body"))
