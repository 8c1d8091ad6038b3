"""A chat (Garg §12.4.1): the application of the tutorial. It shows why causal order matters to people.

A room is an agent that only keeps the list of its members. The client of a person sends each line directly to all other
members, as one message. So no server puts the messages of a room into a sequence. An answer must not appear before its
question. Only causal order ensures this: the chat itself has no code that sorts messages.
"""

from antecede import Agent, Context, Notification


class Join(Notification):
    """A message to a room: the sender joins the room."""


class Leave(Notification):
    """A message to a room: the sender leaves the room."""


class Members(Notification):
    """The new list of members, which a room sends to its members after each change."""

    names: tuple[str, ...]


class Said(Notification):
    """A line of text from one member to the other members of a room."""

    by: str
    text: str

    def label(self) -> str:
        """Return the text that traces and diagrams show for this line."""
        return f"{self.by}: {self.text}"[:80]


class Room(Agent):
    """A room of the chat. It keeps the list of its members, and sends the new list to all members after each change."""

    members: tuple[str, ...] = ()

    def on_join(self, join: Join, ctx: Context) -> None:
        self.members = tuple(sorted({*self.members, ctx.sender}))
        ctx.multicast(self.members, Members(names=self.members))

    def on_leave(self, leave: Leave, ctx: Context) -> None:
        self.members = tuple(name for name in self.members if name != ctx.sender)
        if self.members:
            ctx.multicast(self.members, Members(names=self.members))
