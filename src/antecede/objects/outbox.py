"""The outbox of one object: it sends messages by means of the ordering protocol, and collects the effects of the
current step.

The outbox is the only part of an object that sends messages. It knows neither instances nor locks, and it calls no
other part of the object. Sending never delivers a message: even a copy to the object itself first travels as a packet.
"""

from typing import Any

import msgspec

from antecede.messages import PERSIST, REQUEST, Deliver, Effects, Label, Message, Persist
from antecede.objects.instances import Instance, Local, Stray
from antecede.orders.objects import Objects


class Outbox:
    """The part of an object that sends messages and collects the effects of the current step, in sequence."""

    def __init__(self, me: int, name: str, order: Objects) -> None:
        self.me = me
        self.name = name
        """The prefix of all message ids that this object creates."""
        self.order = order
        self.posted = 0
        """The number of messages sent so far."""
        self._effects: list[Any] = []

    def add(self, *effects: Any) -> None:
        """Add effects, but leave out ``Persist``, because ``drain`` adds one ``Persist`` for the whole step."""
        self._effects += [effect for effect in effects if type(effect) is not Persist]

    def send(self, to: int, label: Label, content: Any = None) -> None:
        """Send a message. ``to``: the members that get the message, as a bit mask. ``label``: the label of the message,
        with the names of the sending and the receiving instance."""
        self.posted += 1
        payload = b"" if content is None else msgspec.msgpack.encode(content)
        self.add(*self.order.send(Message(f"{self.name}-{self.posted}", self.me, to, payload, label)))

    def deliver(self, message: Message) -> None:
        """Deliver a message to its instance. If the message is a request or has no label, the order treats it as
        received from now on (§4.1 of Enokido, Higaki, Takizawa)."""
        if message.label is None or message.label.type == REQUEST:
            self.order.begin(message)
        self.add(Deliver(message))

    def deliver_to_nobody(self, message: Message, ended: bool) -> None:
        """Record the delivery of a message that is not given to any instance. ``ended``: whether the receiving instance
        (it is named in the label) has ended here or never began here. If so, remove the vector of this instance."""
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
        """Return a ``Persist`` and the effects of the step, and forget these effects."""
        effects, self._effects = [PERSIST, *self._effects], []
        return effects
