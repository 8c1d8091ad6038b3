"""Dead letters: letters that could not be handled. Each is kept, with the reason, until an operator decides about it.

Dead letters are kept in the sequence in which they died, and each has a number in that sequence. A command of an
operator applies to all dead letters, or to those that fit a :class:`Choice`. There may be very many dead letters, so
they are read in pages (:func:`page_of`). There are limits for the number of letters on a page, for their bytes, and for
the number of letters that are examined. A page contains the number of the last letter that was examined, and the next
page begins after that number. So pages stay correct when dead letters before or after them are added or removed.
"""

from collections.abc import Callable, Mapping

import msgspec

from antecede.channel.letters import Letter


class Dead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A letter to which its agent could not react, with the reason."""

    agent: str
    letter: Letter
    reason: str
    number: int = 0
    """The position of this letter in the sequence of all dead letters of this server, from 1."""
    since_ms: int = 0
    """The server time at which the letter died, in milliseconds."""

    @property
    def key(self) -> str:
        """The name that operators use to replay or delete (bury) this letter."""
        return f"{self.letter.id} {self.agent}"


class Choice(msgspec.Struct, frozen=True):
    """The conditions with which an operator selects dead letters. A field that is empty or 0 is not a condition."""

    agent: str = ""
    type: str = ""
    reason: str = ""
    """A text that must occur in the reason of the dead letter."""
    before_ms: int = 0
    """The dead letter must have died before this server time, in milliseconds."""

    def admits(self, dead: Dead) -> bool:
        """Return whether a dead letter meets all conditions."""
        return (
            (not self.agent or dead.agent == self.agent)
            and (not self.type or dead.letter.type == self.type)
            and (not self.reason or self.reason in dead.reason)
            and (not self.before_ms or dead.since_ms < self.before_ms)
        )


class Page(msgspec.Struct):
    """One page of the dead letters that fit a :class:`Choice`."""

    letters: list[Dead]
    upto: int
    """The number of the last dead letter that was examined. The next page begins after it."""
    more: bool
    """Whether there are dead letters after ``upto`` that must still be examined."""


class Range(msgspec.Struct, frozen=True):
    """The dead letters that are examined for one page, and how much the page may contain."""

    after: int = 0
    """Only dead letters with a larger number than this are examined."""
    last: int = 0
    """Dead letters with a larger number than this are not examined. If this field is 0, there is no such limit."""
    letters_max: int = 1_000
    size_max: int = 1 << 20
    examined_max: int = 20_000


def page_of(
    dead: Mapping[str, Dead], choice: Choice, within: Range, size: Callable[[Dead], int] = lambda dead: 0
) -> Page:
    """Return the next page of the dead letters that fit ``choice``. ``size`` returns the size of one dead letter. The
    sum of the sizes on a page is limited. But the first letter of a page may be larger than this limit, so that a page
    is never empty because of a large letter."""
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
