"""Letters of this server that come back to it through a total order, and the letters that must wait for them.

A letter may be for agents on this server and also for servers that it reaches through a domain with a total order. Such
an *own letter* goes through that order to this server, too. Further domains get the letter only when it is back, as if
another member had sent it. Until then it is *away*, and nothing outside of that domain may depend on it: a later letter
that stays on this server, or an answer through another domain, could arrive before it. There are three kinds of later
letters:

* a letter from this server's agents **into that domain alone** leaves at once, since the domain itself puts it in
  order, unless a letter of the third kind waits;
* a letter that stays on this server waits until all own letters that left before it are back;
* any other letter waits in the same way, and every letter that is sent after it waits behind it.

Letters that are only forwarded here do not wait. Outside of that domain nothing depends on an own letter that is away.
Messages in that domain that depend on it are delivered here after it. A letter that would come back through a second
domain is of the third kind, and waits. So own letters are away in one domain at a time, and no two letters wait for
each other.

Letters that wait here were sent by a committed reaction or publish, and are part of the durable state.
"""

from collections import deque

import msgspec

from antecede.channel.letters import Letter


class SavedReturns(msgspec.Struct, frozen=True, array_like=True):
    """The durable state of :class:`Returns`; see there for the fields."""

    left: int
    domain: str
    away: dict[str, tuple[int, Letter]]
    waiting: list[tuple[int, bool, Letter]]


class Returns:
    """The own letters that are away, and the letters that wait until they are back."""

    def __init__(self) -> None:
        self.left = 0
        """The number of letters sent so far that this server must get back through a total order."""
        self.domain = ""
        """The domain through which the letters that are away come back."""
        self.away: dict[str, tuple[int, Letter]] = {}
        """The letters that are away, by id, each with its number, in the sequence in which they left."""
        self.waiting: deque[tuple[int, bool, Letter]] = deque()
        """Letters that wait: (number of the last own letter to wait for, whether it stays on this server, letter)."""
        self._blocked = False
        """Whether a letter of the third kind waits, so that every later letter must wait behind it."""

    def admits(self, domains: list[str]) -> bool:
        """Return whether a letter may leave at once. ``domains``: the domains that it enters; empty if it stays
        here."""
        return not self.away or (not self._blocked and domains == [self.domain])

    def leave(self, domain: str, letter: Letter) -> None:
        """Record that an own letter leaves and will come back."""
        assert not self.away or domain == self.domain, "own letters are away in one domain at a time"
        self.left += 1
        self.domain = domain
        self.away[letter.id] = (self.left, letter)

    def wait(self, stays: bool, letter: Letter) -> None:
        """Let a letter wait for all letters that are away now."""
        self.waiting.append((self.left, stays, letter))
        self._blocked = self._blocked or not stays

    def back(self, letter: str) -> None:
        """Record that an own letter is back."""
        self.away.pop(letter, None)

    def next(self) -> Letter | None:
        """Return a letter that need not wait any longer, or None; send it before you ask for the next."""
        if not self.waiting:
            return None
        if self.away and next(iter(self.away.values()))[0] <= self.waiting[0][0]:
            return None
        letter = self.waiting.popleft()[2]
        self._blocked = any(not stays for _, stays, _ in self.waiting) if self._blocked else False
        return letter

    def wait_anew(self) -> None:
        """Let the waiting letters also wait for the letter that has just left."""
        self.waiting = deque((self.left, stays, letter) for _, stays, letter in self.waiting)

    def dump(self) -> SavedReturns:
        """Return the durable state."""
        return SavedReturns(self.left, self.domain, dict(self.away), list(self.waiting))

    def load(self, saved: SavedReturns) -> None:
        """Load the state from ``dump``."""
        self.left, self.domain = saved.left, saved.domain
        self.away = dict(saved.away)
        self.waiting = deque(saved.waiting)
        self._blocked = any(not stays for _, stays, _ in saved.waiting)
