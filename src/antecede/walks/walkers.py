"""Agents that pass walks on, and remember enough to know of any that was lost, repeated or overtaken.

A walk is sent out by a client, goes from walker to walker and comes home. Where it goes next follows from its name
and from how far it has come, so whoever knows the name knows every reaction that it must bring about, and a walker's
count and digest at the end can be computed beforehand. Some walks drop *marks* on their way: multicasts to two other
walkers, which end there.

Each sender numbers what it sends, whomever it is for; a receiver that meets a number not larger than the last one of
that sender has met a duplicate or a message that was overtaken.
"""

from collections.abc import Iterator
from zlib import crc32

import msgspec

from antecede.engine.agents import Agent, Notification
from antecede.engine.context import Context


class Walk(Notification):
    """On its way."""

    walk: str
    left: int
    walkers: int
    home: str
    number: int


class Mark(Notification):
    """Dropped at two other walkers."""

    walk: str
    left: int
    number: int


class Home(Notification):
    """A walk is over."""

    walk: str
    number: int


class Tell(Notification):
    """Asks a walker what it has seen."""


class Told(Notification):
    """What a walker has seen."""

    count: int
    digest: int
    wrong: list[str]


def name_of_walker(number: int) -> str:
    """The agent of the server at this place."""
    return f"walker{number}"


def next_of(walk: str, left: int, walkers: int) -> str:
    """Where a walk goes when that much of it is left."""
    return name_of_walker(crc32(f"{walk}:{left}".encode()) % walkers)


def marks_of(walk: str, left: int, walkers: int) -> tuple[str, ...]:
    """Where a walk drops marks on its way; mostly nowhere."""
    drawn = crc32(f"{walk}:{left}:mark".encode())
    if drawn % 4 or walkers < 2:
        return ()
    first = drawn // 4 % walkers
    return tuple(sorted({name_of_walker(first), name_of_walker((first + 1) % walkers)}))


def digest_of(kind: str, walk: str, left: int) -> int:
    """What one reaction adds to a walker's digest."""
    return crc32(f"{kind}:{walk}:{left}".encode())


def reactions_of(walk: str, length: int, walkers: int) -> Iterator[tuple[str, int]]:
    """All that a walk brings about: the walker, and what the reaction adds to its digest."""
    for left in range(length, -1, -1):
        yield next_of(walk, left, walkers), digest_of("walk", walk, left)
        for walker in marks_of(walk, left, walkers):
            yield walker, digest_of("mark", walk, left)


class Walker(Agent):
    """Passes walks on."""

    count: int = 0
    digest: int = 0
    sent: int = 0
    last: dict[str, int] = msgspec.field(default_factory=dict)
    wrong: list[str] = msgspec.field(default_factory=list)

    def on_walk(self, walk: Walk, ctx: Context) -> None:
        self._met(ctx.sender, walk.number, digest_of("walk", walk.walk, walk.left))
        marked = marks_of(walk.walk, walk.left, walk.walkers)
        if marked:
            ctx.multicast(marked, Mark(walk=walk.walk, left=walk.left, number=self._next()))
        if walk.left:
            left = walk.left - 1
            to = next_of(walk.walk, left, walk.walkers)
            ctx.send(to, Walk(walk.walk, left, walk.walkers, walk.home, self._next()))
        else:
            ctx.send(walk.home, Home(walk=walk.walk, number=self._next()))

    def on_mark(self, mark: Mark, ctx: Context) -> None:
        self._met(ctx.sender, mark.number, digest_of("mark", mark.walk, mark.left))

    def on_tell(self, tell: Tell, ctx: Context) -> None:
        ctx.reply(Told(count=self.count, digest=self.digest, wrong=self.wrong))

    def _next(self) -> int:
        self.sent += 1
        return self.sent

    def _met(self, sender: str, number: int, digest: int) -> None:
        self.count += 1
        self.digest += digest
        last = self.last.get(sender, 0)
        if number <= last and len(self.wrong) < _wrong_max:
            self.wrong.append(f"{number} of {sender} after {last}")
        self.last[sender] = max(last, number)


_wrong_max = 20
