"""The basic types: the messages of an application, the packets between processes, and the effects of a protocol step.

Inside one order, a process is a small integer, its *member number*. A set of processes is a bit mask, so that union,
difference and membership are one operation each, for any number of members. Packages of higher layers use the names of
processes.

A protocol step turns one input into a list of **effects**, to be carried out in the sequence of the list:

=============  ========================================================================================
``Persist``    the rest of this list, and the state after the step, must be durable before the packets
               of the step leave. After a crash, everything that a ``Persist`` made durable is still
               there, and everything else is lost.
``Sent``       the application's send takes place now. (A synchronous order may delay this moment.)
``Send``       hand this packet to the network.
``Accept``     a packet that was held is now part of the protocol's durable state. So the link that brought
               the packet may acknowledge it. (A packet with the verdict ``DELIVER`` is accepted without
               this effect.)
``Deliver``    hand this message to the application.
=============  ========================================================================================
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, Final

import msgspec

REQUEST = "request"
RESPONSE = "response"
COMMIT = "commit"
ABORT = "abort"


class Label(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The role of a message between two operation instances, for an order that is based on conflicts of operations.
    (:mod:`antecede.labels` is about other labels: texts for people.)"""

    type: str
    """``request``, ``response``, ``commit`` or ``abort``."""
    operation: str
    """The operation of the instance that receives the message."""
    instance: str = ""
    """The name of the instance that receives the message. The name shows which messages belong to the same instance.
    So it may be empty if the instance receives and sends no other message."""
    by_operation: str = ""
    """The operation of the instance that sends the message."""
    by_instance: str = ""
    """The name of the instance that sends the message. Like ``instance``, it may be empty if the instance receives and
    sends no other message."""
    several: bool = False
    """For a response: whether it may have to wait for other messages to the same instance. This is possible if the
    call went to several objects, or failed."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message of the application, from its sender to all its destinations. Packets carry it."""

    id: str
    source: int
    to: int
    """Destinations, as a bit mask of member numbers."""
    payload: bytes = b""
    label: Label | None = None
    """The role of the message; only the order ``objects`` uses it."""


class Packet(msgspec.Struct, frozen=True, gc=False):
    """A packet from one member of an order to another member (or to itself)."""

    kind: str
    """``copy`` for an application's message, else the name of a control packet."""
    source: int
    target: int
    message: Message | None
    """The application's message, if ``kind`` is ``copy``; otherwise None."""
    subject: str
    """The id of the message that this packet concerns. If the packet concerns a root (:mod:`antecede.objects.roots`),
    it is the name of this root. Otherwise it is empty."""
    stamp: Any
    """The order's own control information, opaque to all other code. It is hashable, so that the explorer can compare
    packets."""


COPY = "copy"


class Verdict(Enum):
    """An order's decision about a packet."""

    DELIVER = "deliver"
    """The packet is accepted. If the packet contains a message of the application, the message is delivered in this
    step."""
    HOLD = "hold"
    """The packet is not deliverable yet: the order keeps the packet and delivers its message later."""
    DUPLICATE = "duplicate"
    """The packet changes nothing, because it was received before or came too late."""


DELIVER: Final = Verdict.DELIVER
HOLD: Final = Verdict.HOLD
"""The two usual verdicts as constants. They save time: to look up ``Verdict.HOLD`` takes as long as ten other
instructions."""


class Persist(msgspec.Struct, frozen=True, gc=False):
    """An effect: make the step durable before its packets leave."""


class Sent(msgspec.Struct, frozen=True, gc=False):
    """An effect: the application's send of this message takes place now."""

    message: Message


class Send(msgspec.Struct, frozen=True, gc=False):
    """An effect: hand this packet to the network."""

    packet: Packet


class Accept(msgspec.Struct, frozen=True, gc=False):
    """An effect: this packet was held, and is part of the durable state from now on. So it may be acknowledged."""

    packet: Packet


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """An effect: hand this message to the application."""

    message: Message


Effect = Persist | Sent | Send | Accept | Deliver
Effects = list[Effect]

PERSIST = Persist()


def mask_of(members: Iterable[int]) -> int:
    """Return the bit mask of a set of member numbers."""
    mask = 0
    for member in members:
        mask |= 1 << member
    return mask


def members_of(mask: int) -> Iterator[int]:
    """Return the member numbers in a bit mask, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
