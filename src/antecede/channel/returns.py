"""Own letters that are on their way through a total order back to this server, and what must wait for them.

A letter for agents both here and there goes through a total order to this server too, and to further domains only when
it is back, as if another member had sent it. Until then nothing outside of that domain may follow from it, or it could
come round and be there first: a later letter that stays on this server, or an answer through another domain. So

* what this server's agents send **into that domain alone** leaves at once: the domain itself puts it in order;
* what stays on this server waits until those own letters are back that left before it;
* anything else waits likewise, and all that is sent after it waits behind it.

Letters that are passing through do not wait. Outside of that domain nothing follows from an own letter that is away,
and what comes by that domain and follows from it, comes after it. For the same reason only one domain at a time has
own letters away, so nobody waits in a circle.

Letters that wait here were sent by a committed reaction or publish, and are part of the durable state.
"""

from collections import deque

import msgspec

from antecede.channel.letters import Letter


class SavedReturns(msgspec.Struct, frozen=True, array_like=True):
    """The durable state of :class:`Returns`; its fields are explained there."""

    left: int
    domain: str
    away: dict[str, tuple[int, Letter]]
    waiting: list[tuple[int, bool, Letter]]


class Returns:
    """Which own letters are away, and what waits until they are back."""

    def __init__(self) -> None:
        self.left = 0
        """How many own letters ever left to come back."""
        self.domain = ""
        """By which the letters come back that are away."""
        self.away: dict[str, tuple[int, Letter]] = {}
        """By id, each with its number, in the sequence in which they left."""
        self.waiting: deque[tuple[int, bool, Letter]] = deque()
        """(the last number that it waits for, whether it stays on this server, letter)."""
        self._blocked = False
        """Something waits that all after it must wait behind."""

    def admits(self, domains: list[str]) -> bool:
        """Whether a letter that enters these domains (none: it stays here) may leave at once."""
        return not self.away or (not self._blocked and domains == [self.domain])

    def leave(self, domain: str, letter: Letter) -> None:
        """An own letter leaves, to come back."""
        assert not self.away or domain == self.domain, "own letters are away in one domain at a time"
        self.left += 1
        self.domain = domain
        self.away[letter.id] = (self.left, letter)

    def wait(self, stays: bool, letter: Letter) -> None:
        """Let a letter wait for all that are away now."""
        self.waiting.append((self.left, stays, letter))
        self._blocked = self._blocked or not stays

    def back(self, letter: str) -> None:
        """An own letter is back."""
        self.away.pop(letter, None)

    def next(self) -> Letter | None:
        """A letter that waits no longer, if there is one; to be sent before the next is asked for."""
        if not self.waiting:
            return None
        if self.away and next(iter(self.away.values()))[0] <= self.waiting[0][0]:
            return None
        letter = self.waiting.popleft()[2]
        self._blocked = any(not stays for _, stays, _ in self.waiting) if self._blocked else False
        return letter

    def wait_anew(self) -> None:
        """A letter that had waited is away now itself: those behind it wait for it, too."""
        self.waiting = deque((self.left, stays, letter) for _, stays, letter in self.waiting)

    def dump(self) -> SavedReturns:
        """Return the durable state."""
        return SavedReturns(self.left, self.domain, dict(self.away), list(self.waiting))

    def load(self, saved: SavedReturns) -> None:
        """Become the state that ``dump`` gave."""
        self.left, self.domain = saved.left, saved.domain
        self.away = dict(saved.away)
        self.waiting = deque(saved.waiting)
        self._blocked = any(not stays for _, stays, _ in saved.waiting)
