"""The outbox of one object: it uses the order to send messages, and collects the effects of the current step.

It is the only part of an object that sends. It knows neither instances nor locks, and it calls no other part of the
object. The order's ``send`` delivers nothing, because a copy to the object itself travels like any other.
"""

from typing import Any

import msgspec

from antecede.messages import PERSIST, REQUEST, Deliver, Effects, Label, Message, Persist
from antecede.objects.instances import Instance, Local, Stray
from antecede.orders.objects import Objects


class Outbox:
    """The effects of a step, collected in sequence."""

    def __init__(self, me: int, name: str, order: Objects) -> None:
        self.me = me
        self.name = name
        """The beginning of the ids of all messages from here."""
        self.order = order
        self.posted = 0
        """The number of messages sent so far."""
        self._effects: list[Any] = []

    def add(self, *effects: Any) -> None:
        """Add effects, except ``Persist``: ``drain`` adds one for the whole step."""
        self._effects += [effect for effect in effects if type(effect) is not Persist]

    def send(self, to: int, label: Label, content: Any = None) -> None:
        """Send a message between instances."""
        self.posted += 1
        payload = b"" if content is None else msgspec.msgpack.encode(content)
        self.add(*self.order.send(Message(f"{self.name}-{self.posted}", self.me, to, payload, label)))

    def deliver(self, message: Message) -> None:
        """Deliver a message to its instance. A request counts as received from now on (§4.1)."""
        if message.label is None or message.label.type == REQUEST:
            self.order.begin(message)
        self.add(Deliver(message))

    def deliver_to_nobody(self, message: Message, ended: bool) -> None:
        """Deliver a message that no instance receives. ``ended``: the message's instance is not here, so the vector of
        that instance is removed too."""
        label = message.label
        assert label is not None
        if label.type == REQUEST:
            self.order.begin(message)
        if ended:
            self.order.forget(label.instance)
        self.add(Stray(msgspec.structs.replace(message, label=Label(label.type, "")), label))

    def note(self, type_: str, one: Instance) -> None:
        """Record that an instance begins, commits or aborts."""
        self.add(Local(type_, one.id, one.operation, one.parent))

    def drain(self) -> Effects:
        """Return the effects of the step and forget them."""
        effects, self._effects = [PERSIST, *self._effects], []
        return effects
