"""Dead letters: letters that could not be handled, with the reason; they wait for an operator.

Dead letters are kept in the sequence in which they died, and each has a number in that sequence. One command of an
operator may be about all of them, or about those that fit a :class:`Choice`, and there may be very many. So they are
read in pages (:func:`page_of`). There are limits for the letters on a page, for their bytes, and for the letters that
are examined. A page says up to which number letters were examined, and the next page begins after that number. Pages
stay correct when dead letters before or after them are added or removed.
"""

from collections.abc import Callable, Mapping

import msgspec

from antecede.channel.letters import Letter


class Dead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A letter that its agent could not react to."""

    agent: str
    letter: Letter
    reason: str
    number: int = 0
    """Its place in the sequence of all dead letters of this server, from 1."""
    since_ms: int = 0
    """The server time when it died."""

    @property
    def key(self) -> str:
        """The name by which operators replay or bury this letter."""
        return f"{self.letter.id} {self.agent}"


class Choice(msgspec.Struct, frozen=True):
    """The dead letters that an operator means. A field that is empty, or 0, admits all dead letters."""

    agent: str = ""
    type: str = ""
    reason: str = ""
    """A text that the reason must contain."""
    before_ms: int = 0
    """Only letters that died before this server time."""

    def admits(self, dead: Dead) -> bool:
        """Return whether a dead letter fits all fields."""
        return (
            (not self.agent or dead.agent == self.agent)
            and (not self.type or dead.letter.type == self.type)
            and (not self.reason or self.reason in dead.reason)
            and (not self.before_ms or dead.since_ms < self.before_ms)
        )


class Page(msgspec.Struct):
    """Some of the dead letters that fit a choice."""

    letters: list[Dead]
    upto: int
    """The number of the last letter that was examined."""
    more: bool
    """Whether letters after ``upto`` are left to examine."""


class Range(msgspec.Struct, frozen=True):
    """The part of all dead letters from which a page is taken, and how much the page may hold."""

    after: int = 0
    """Letters up to this number are not examined."""
    last: int = 0
    """Letters after this number are not examined either; 0: there is no such limit."""
    letters_max: int = 1_000
    size_max: int = 1 << 20
    examined_max: int = 20_000


def page_of(
    dead: Mapping[str, Dead], choice: Choice, within: Range, size: Callable[[Dead], int] = lambda dead: 0
) -> Page:
    """Return the next page. ``size``: returns the size of one letter. The sum of the sizes on a page is limited, but
    one letter always fits."""
    page = Page([], within.after, False)
    total = examined = 0
    for one in dead.values():
        if one.number <= within.after:
            continue
        if within.last and one.number > within.last:
            break
        examined += 1
        admitted = choice.admits(one)
        added = size(one) if admitted else 0
        full = page.letters and (len(page.letters) >= within.letters_max or total + added > within.size_max)
        if (admitted and full) or examined > within.examined_max:
            page.more = True
            break
        if admitted:
            total += added
            page.letters.append(one)
        page.upto = one.number
    return page
