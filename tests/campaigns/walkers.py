"""Agents (*walkers*) that forward walks, and remember enough to detect a walk that was lost, repeated or overtaken.

A client starts a walk. The walk goes from walker to walker, and returns to the client. The name of the walk and the
number of its remaining steps determine the next walker. So the names of the walks determine the messages that each
walker must handle. The count and the *digest* (a checksum) of these messages can also be computed from the names. At
some steps, the walker also sends a *mark*: a multicast to two walkers, which do not forward it.

Each sender uses one counter to number its messages to all destinations. If a receiver gets a number that is not larger
than the last number from the same sender, the message is a duplicate or was overtaken.
"""

from collections.abc import Iterator
from zlib import crc32

import msgspec

from antecede.engine import Agent, Context, Notification


class Walk(Notification):
    """The message that goes to the next walker of a walk."""

    walk: str
    left: int
    walkers: int
    home: str
    number: int


class Mark(Notification):
    """A message that a walker sends to two walkers at some steps of a walk. It is not forwarded."""

    walk: str
    left: int
    number: int


class Home(Notification):
    """The last message of a walk. It goes back to the client that started the walk."""

    walk: str
    number: int


class Tell(Notification):
    """A request to a walker to send the count and the digest (a checksum) of the messages that it has handled."""


class Told(Notification):
    """The answer to :class:`Tell`: the walker's count and digest, and the errors that the walker has noticed."""

    count: int
    digest: int
    wrong: list[str]


def name_of_walker(number: int) -> str:
    """Return the name of the walker on the server with this number."""
    return f"walker{number}"


def next_of(walk: str, left: int, walkers: int) -> str:
    """Return the name of the next walker of a walk. ``left``: the number of steps that remain when the walk has
    arrived at this walker. ``walkers``: the number of all walkers."""
    return name_of_walker(crc32(f"{walk}:{left}".encode()) % walkers)


def marks_of(walk: str, left: int, walkers: int) -> tuple[str, ...]:
    """Return the names of the walkers that get a mark at one step of a walk. Usually there are none. ``left``: the
    number of steps that remain. ``walkers``: the number of all walkers."""
    drawn = crc32(f"{walk}:{left}:mark".encode())
    if drawn % 4 or walkers < 2:
        return ()
    first = drawn // 4 % walkers
    return tuple(sorted({name_of_walker(first), name_of_walker((first + 1) % walkers)}))


def digest_of(kind: str, walk: str, left: int) -> int:
    """Return the number that a walker adds to its digest (a checksum) when it handles a message. ``kind``: ``walk`` or
    ``mark``."""
    return crc32(f"{kind}:{walk}:{left}".encode())


def reactions_of(walk: str, length: int, walkers: int) -> Iterator[tuple[str, int]]:
    """Yield a pair for each message that a walker must handle because of a walk: the name of the walker, and the number
    that the walker adds to its digest (a checksum)."""
    for left in range(length, -1, -1):
        yield next_of(walk, left, walkers), digest_of("walk", walk, left)
        for walker in marks_of(walk, left, walkers):
            yield walker, digest_of("mark", walk, left)


class Walker(Agent):
    """An agent that forwards walks, and counts the walks and marks that it receives."""

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
            self.wrong.append(f"message {number} from {sender} came after message {last}")
        self.last[sender] = max(last, number)


_wrong_max = 20
