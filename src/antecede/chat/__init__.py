"""A chat (Garg §12.4.1): the application of the tutorial, in which causal order matters to people.

A room is an agent that only keeps the list of its members. The client of a person sends each line directly to all other
members, as one message. So no server puts the messages of a room into a sequence. An answer must not appear before its
question. Only causal order ensures this: the application has no code for it.
"""

from importlib.resources import files

from antecede.engine.agents import Agent, Notification
from antecede.engine.context import Context

__all__ = ["TOPOLOGY", "Join", "Leave", "Members", "Room", "Said"]

TOPOLOGY = files("antecede.samples").joinpath("chat/chat.toml").read_text(encoding="utf-8")
"""Four servers in two domains; s3 is the router between them."""


class Join(Notification):
    """The sender joins a room."""


class Leave(Notification):
    """The sender leaves a room."""


class Members(Notification):
    """The members of a room, from now on."""

    names: tuple[str, ...]


class Said(Notification):
    """Something that a member said."""

    by: str
    text: str

    def label(self) -> str:
        """Return the text for traces and diagrams."""
        return f"{self.by}: {self.text}"[:80]


class Room(Agent):
    """A room of the chat. It keeps the list of its members, and sends every change of the list to all members."""

    members: tuple[str, ...] = ()

    def on_join(self, join: Join, ctx: Context) -> None:
        self.members = tuple(sorted({*self.members, ctx.sender}))
        ctx.multicast(self.members, Members(names=self.members))

    def on_leave(self, leave: Leave, ctx: Context) -> None:
        self.members = tuple(name for name in self.members if name != ctx.sender)
        if self.members:
            ctx.multicast(self.members, Members(names=self.members))
