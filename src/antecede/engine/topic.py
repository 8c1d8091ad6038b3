"""A topic: a built-in agent that forwards each received letter to all its subscribers, as one multicast.

Declare a topic like any agent: ``news = { server = "s1", class = "antecede:Topic" }``. A subscription is a message, and
is ordered like every other message: a publication that causally precedes a subscription does not reach the subscriber.
"""

from typing import ClassVar

from antecede.channel.letters import Letter
from antecede.engine.agents import Agent, Notification
from antecede.engine.context import Context


class Subscribe(Notification):
    """Subscribe the sender to the topic from now on."""


class Unsubscribe(Notification):
    """Unsubscribe the sender from the topic."""


class Topic(Agent):
    """An agent that forwards each received letter to all its subscribers, as one multicast."""

    _unlimited: ClassVar = True

    subscribers: tuple[str, ...] = ()

    def on_subscribe(self, notification: Subscribe, ctx: Context) -> None:
        if ctx.sender not in self.subscribers:
            self.subscribers = tuple(sorted([*self.subscribers, ctx.sender]))

    def on_unsubscribe(self, notification: Unsubscribe, ctx: Context) -> None:
        self.subscribers = tuple(name for name in self.subscribers if name != ctx.sender)

    def otherwise(self, letter: Letter, ctx: Context) -> None:
        """Forward a letter to all subscribers. Subscriptions and unsubscriptions do not come to this method."""
        ctx.forward(self.subscribers, letter)
