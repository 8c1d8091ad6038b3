"""Letters of this server that come back to it through a total order, and the letters that must wait for them.

A letter from this server may have destinations on this server, and also destinations that it reaches through a domain
with a total order. Such a letter is called an *own letter*. This server also sends the own letter to itself through the
total order. When the own letter comes back, this server delivers it here and sends it into other domains. Until then,
the own letter is *away*, and nothing outside of the domain may depend on it. Otherwise a later letter that stays on
this server, or an answer through another domain, could arrive before the own letter. There are three kinds of later
letters:

1. A letter that this server sends **only into that domain** leaves immediately, because the domain's order keeps the
   sequence. There is one exception: if a letter of kind 3 waits, the letter of kind 1 waits behind it.
2. A letter that stays on this server waits until all own letters that left earlier are back.
3. Any other letter waits in the same way. While it waits, every later letter waits behind it.

Letters that this server only forwards do not wait. If they come from another domain, they do not depend on own letters
that are away. If they come from the same domain and depend on own letters, the domain's order delivers these own
letters first.

A letter that would come back through a second domain is of kind 3, and waits. So own letters are away in only one
domain at a time, and no two letters wait for each other.

When a letter waits, the reaction or the publish that sent it is already committed. So waiting letters are part of the
durable state.
"""

from collections import deque

import msgspec

from antecede.channel.letters import Letter


class SavedReturns(msgspec.Struct, frozen=True, array_like=True):
    """The durable state of :class:`Returns`. Each field has the meaning of the attribute with the same name in that
    class."""

    left: int
    domain: str
    away: dict[str, tuple[int, Letter]]
    waiting: list[tuple[int, bool, Letter]]


class Returns:
    """Letters of this server that are on their way back to it through a total order (*own letters*), and the letters
    that wait for them."""

    def __init__(self) -> None:
        self.left = 0
        """The number of own letters that were sent through the total order so far. Letters that are already back are
        included."""
        self.domain = ""
        """The domain with the total order through which the letters in ``away`` come back."""
        self.away: dict[str, tuple[int, Letter]] = {}
        """The own letters that are not back yet, oldest first. The key is the id of the letter. The value is a pair:
        the number of the letter (the first own letter that left has number 1), and the letter."""
        self.waiting: deque[tuple[int, bool, Letter]] = deque()
        """For each waiting letter: the number of the last own letter for which it waits, whether the waiting letter
        stays on this server, and the waiting letter."""
        self._blocked = False
        """True if at least one letter in ``waiting`` goes to other servers. Every later letter must wait behind such a
        letter."""

    def admits(self, domains: list[str]) -> bool:
        """Return whether a letter may be sent now, without waiting. ``domains``: the domains into which the letter is
        sent. The list is empty if the letter stays on this server."""
        return not self.away or (not self._blocked and domains == [self.domain])

    def leave(self, domain: str, letter: Letter) -> None:
        """Record that one of the own letters leaves, and will come back through ``domain``."""
        assert not self.away or domain == self.domain, "own letters are away in one domain at a time"
        self.left += 1
        self.domain = domain
        self.away[letter.id] = (self.left, letter)

    def wait(self, stays: bool, letter: Letter) -> None:
        """Let a letter wait until all own letters that have left so far are back. ``stays``: whether the letter stays
        on this server."""
        self.waiting.append((self.left, stays, letter))
        self._blocked = self._blocked or not stays

    def back(self, letter: str) -> None:
        """Record that the own letter with the id ``letter`` is back."""
        self.away.pop(letter, None)

    def next(self) -> Letter | None:
        """Remove and return the first waiting letter, if all own letters for which it waits are back. Return None if
        one of these own letters is not back yet, or if no letter waits. The caller must send the letter before the next
        call."""
        if not self.waiting:
            return None
        if self.away and next(iter(self.away.values()))[0] <= self.waiting[0][0]:
            return None
        letter = self.waiting.popleft()[2]
        self._blocked = any(not stays for _, stays, _ in self.waiting) if self._blocked else False
        return letter

    def wait_again(self) -> None:
        """Let all waiting letters also wait for the own letter that has just left."""
        self.waiting = deque((self.left, stays, letter) for _, stays, letter in self.waiting)

    def dump(self) -> SavedReturns:
        """Return the durable state, for a snapshot."""
        return SavedReturns(self.left, self.domain, dict(self.away), list(self.waiting))

    def load(self, saved: SavedReturns) -> None:
        """Replace the state by one that ``dump`` returned."""
        self.left, self.domain = saved.left, saved.domain
        self.away = dict(saved.away)
        self.waiting = deque(saved.waiting)
        self._blocked = any(not stays for _, stays, _ in saved.waiting)
