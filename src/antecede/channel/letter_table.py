"""Letters in a snapshot: each letter is stored once, however many mailboxes contain it.

A multicast is one letter in many mailboxes. A snapshot numbers the letters, and stores only the number in each mailbox.
So a mailbox entry takes a few bytes, and after a restart the mailboxes share the letter as they did before. Names
(senders, destinations, types) and lists of destinations are numbered in the same way.

The table is stored by columns, which Python builds and reads several times faster than one object per letter.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Annotated, TypeVar

import msgspec

from antecede.channel.letters import Letter
from antecede.errors import SnapshotError

Position = Annotated[int, msgspec.Meta(ge=0)]
"""A place in a column of a table, from 0."""
_Value = TypeVar("_Value")


class SavedLetters(msgspec.Struct, frozen=True):
    """A table of letters. Position ``n`` of each column from ``ids`` to ``bodies`` belongs to letter ``n``."""

    names: list[str]
    lists: list[list[Position]]
    """Lists of destinations, as positions in ``names``."""
    ids: list[str]
    sources: list[Position]
    """Positions in ``names``."""
    to: list[Position]
    """Positions in ``lists``."""
    types: list[Position]
    """Positions in ``names``."""
    bodies: list[bytes]
    marks: list[tuple[Position, str, str, str, str]]
    """For each letter that has any of these: its position, ``ask``, ``answers``, ``replays`` and ``context``."""

    def letters(self) -> list[Letter]:
        """Return the letters; those with the same destinations share one list."""
        if len({len(self.ids), len(self.sources), len(self.to), len(self.types), len(self.bodies)}) > 1:
            raise SnapshotError("letters: columns of different lengths")
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
            raise SnapshotError("letters: a position beyond the end of its column") from None
        return letters


class LetterTable:
    """Numbers letters, for a snapshot that is being made.

    Equal multicasts get the same number, even if they are different objects, so that equal states give equal snapshots.
    A letter with one destination is in one place only, and is not compared with others.
    """

    def __init__(self) -> None:
        self._letters: list[Letter] = []
        self._by_object: dict[int, int] = {}
        self._by_id: dict[str, int] = {}

    def positions(self, letters: Collection[Letter]) -> Sequence[int]:
        """Return the numbers of letters. The letters must stay in memory until the table is saved."""
        first = len(self._letters)
        if all(map(_one.__eq__, map(len, map(_to, letters)))):
            self._letters += letters
            return range(first, len(self._letters))
        return [self.position(letter) for letter in letters]

    def position(self, letter: Letter) -> int:
        """Return the number of one letter."""
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
        """Return the table of all letters that were numbered."""
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
    """Number different values from 0, in the sequence in which they come."""
    return {value: number for number, value in enumerate(dict.fromkeys(values))}


_one = 1
_id, _source, _to, _type, _body = map(attrgetter, ("id", "source", "to", "type", "body"))
