"""The agents of the live part of the demo: letters *walk* from one to the next, and return to their client.

The name of a walk and the number of steps that remain determine its next agent. So it can be computed how many letters
each agent must handle, and a letter that is lost or handled twice is noticed.
"""

from collections.abc import Iterator
from zlib import crc32

from antecede import Agent, Context, Notification


class Letter(Notification):
    walk: str
    left: int
    """The number of steps that remain."""
    agents: int
    home: str


class Home(Notification):
    """The end of a walk, at its client."""

    walk: str


class Tell(Notification):
    """The question how many letters an agent has handled."""


class Told(Notification):
    count: int


class Walker(Agent):
    """Forwards letters, and counts them."""

    count: int = 0

    def on_letter(self, letter: Letter, ctx: Context) -> None:
        self.count += 1
        if letter.left:
            left = letter.left - 1
            ctx.send(next_of(letter.walk, left, letter.agents), Letter(letter.walk, left, letter.agents, letter.home))
        else:
            ctx.send(letter.home, Home(walk=letter.walk))

    def on_tell(self, tell: Tell, ctx: Context) -> None:
        ctx.reply(Told(count=self.count))


def next_of(walk: str, left: int, agents: int) -> str:
    """Return the name of the agent that gets this walk with ``left`` steps to go."""
    return f"walker{crc32(f'{walk}:{left}'.encode()) % agents}"


def agents_of(walk: str, length: int, agents: int) -> Iterator[str]:
    """Yield the agents that handle a walk, one for each step."""
    return (next_of(walk, left, agents) for left in range(length, -1, -1))
