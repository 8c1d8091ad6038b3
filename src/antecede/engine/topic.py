"""A topic: a built-in agent that holds its subscribers and passes on whatever it is sent, as one multicast.

Declare it like any agent: ``news = { server = "s1", class = "antecede:Topic" }``. Subscribing is a message like any
other, so it is ordered like any other: what was published before a subscription, causally, does not reach it.
"""

from antecede.channel.letters import Letter
from antecede.engine.agents import Agent, Notification
from antecede.engine.context import Context


class Subscribe(Notification):
    """Whoever sends this gets what the topic gets from now on."""


class Unsubscribe(Notification):
    """Whoever sends this gets nothing more."""


class Topic(Agent):
    """Holds its subscribers and multicasts to them."""

    subscribers: tuple[str, ...] = ()

    def on_subscribe(self, notification: Subscribe, ctx: Context) -> None:
        if ctx.sender not in self.subscribers:
            self.subscribers = tuple(sorted([*self.subscribers, ctx.sender]))

    def on_unsubscribe(self, notification: Unsubscribe, ctx: Context) -> None:
        self.subscribers = tuple(name for name in self.subscribers if name != ctx.sender)

    def otherwise(self, letter: Letter, ctx: Context) -> None:
        """Pass it on, whatever it is."""
        ctx.forward(self.subscribers, letter)
