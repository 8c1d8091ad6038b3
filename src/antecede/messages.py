"""The basic types: what an application sends, what travels, and what a protocol step requests.

Inside one order, a process is a small integer, its *member number*. A set of processes is a bit mask, so that union,
difference and membership are one operation each, for any number of members. Packages of higher layers use the names of
processes.

A protocol step turns one input into a list of **effects**, to be carried out in the sequence of the list:

=============  ========================================================================================
``Persist``    the rest of this list, and the state after the step, must be durable before the packets
               of the step leave. A crash loses exactly what no ``Persist`` covered.
``Sent``       the application's send takes place now (a synchronous order decides when that is).
``Send``       hand this packet to the network.
``Accept``     a packet that was held is now part of the protocol's durable state: the link below may
               acknowledge it. (A packet with the verdict ``DELIVER`` is accepted without this effect.)
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
    """The role of a message for the operations that send and receive it, for an order based on conflicts.
    Not the label for people (:mod:`antecede.labels`)."""

    type: str
    """``request``, ``response``, ``commit`` or ``abort``."""
    operation: str
    """The operation of the instance that receives the message."""
    instance: str = ""
    """The instance that receives the message; empty if this instance receives only this message."""
    by_operation: str = ""
    """The operation of the instance that sends the message."""
    by_instance: str = ""
    """The instance that sends the message; empty if this instance sends only this message."""
    several: bool = False
    """On a response: the call went to several objects, so other responses to the instance may precede this one."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An application's message: the envelope that travels end to end."""

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
    """The message itself, on copies."""
    subject: str
    """The id of the message that this packet concerns, or empty."""
    stamp: Any
    """The order's own control information, opaque to all other code. It is hashable, so that the explorer can compare
    packets."""


COPY = "copy"


class Verdict(Enum):
    """An order's decision about a packet."""

    DELIVER = "deliver"
    """Accepted; a copy reaches the application in this step."""
    HOLD = "hold"
    """Not deliverable yet: the order keeps the packet and delivers its message later."""
    DUPLICATE = "duplicate"
    """Seen before; nothing changed."""


DELIVER: Final = Verdict.DELIVER
HOLD: Final = Verdict.HOLD
"""The usual verdicts as constants, because finding a member of an enumeration takes as long as ten other
instructions."""


class Persist(msgspec.Struct, frozen=True, gc=False):
    """Make the step durable before its packets leave."""


class Sent(msgspec.Struct, frozen=True, gc=False):
    """The send event of this message takes place now."""

    message: Message


class Send(msgspec.Struct, frozen=True, gc=False):
    """Hand this packet to the network."""

    packet: Packet


class Accept(msgspec.Struct, frozen=True, gc=False):
    """This packet, which was held, is part of the durable state from now on."""

    packet: Packet


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Hand this message to the application."""

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
