"""Letters as a snapshot keeps them: each letter once, however many mailboxes hold it.

A multicast is one letter in many mailboxes. A snapshot numbers the letters, and whatever holds a letter keeps its
number; so a mailbox entry takes a few bytes, and after a restart the mailboxes share the letter as they did before.
Names (senders, destinations, types) and lists of destinations are numbered in the same way.

The table is stored by columns, which Python builds and reads several times faster than one object per letter.
"""

from typing import Annotated

import msgspec

from antecede.channel.letters import Letter
from antecede.errors import SnapshotError

Position = Annotated[int, msgspec.Meta(ge=0)]
"""A place in a column of a table, from 0."""


class SavedLetters(msgspec.Struct, frozen=True):
    """A table of letters. Position ``n`` of each column but the last belongs to letter ``n``."""

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

    Equal letters get the same number, also if they are different objects: the same state gives the same snapshot.
    """

    def __init__(self) -> None:
        self._letters: list[Letter] = []
        self._by_object: dict[int, int] = {}
        self._by_id: dict[str, int] = {}

    def position(self, letter: Letter) -> int:
        """Return the number of a letter, which must stay in use until the table is saved."""
        known = self._by_object.get(id(letter))
        if known is not None:
            return known
        position = self._by_id.setdefault(letter.id, len(self._letters))
        if position == len(self._letters) or self._letters[position] != letter:
            # Ids come from peers too, so two letters with one id may still differ.
            position = len(self._letters)
            self._letters.append(letter)
        self._by_object[id(letter)] = position
        return position

    def saved(self) -> SavedLetters:
        """Return the table of all letters that were numbered."""
        letters = self._letters
        names: dict[str, int] = {}
        lists: dict[tuple[str, ...], int] = {}
        columns: tuple[list[int], list[int], list[int]] = ([], [], [])
        for letter in letters:
            columns[0].append(names.setdefault(letter.source, len(names)))
            columns[1].append(lists.setdefault(letter.to, len(lists)))
            columns[2].append(names.setdefault(letter.type, len(names)))
        return SavedLetters(
            # Numbering the destinations adds names, so it must come before the names are listed.
            lists=[[names.setdefault(name, len(names)) for name in to] for to in lists],
            names=list(names),
            ids=[letter.id for letter in letters],
            sources=columns[0],
            to=columns[1],
            types=columns[2],
            bodies=[letter.body for letter in letters],
            marks=[
                (position, letter.ask, letter.answers, letter.replays, letter.context)
                for position, letter in enumerate(letters)
                if letter.ask or letter.answers or letter.replays or letter.context
            ],
        )
