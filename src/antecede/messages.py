"""The words of the house: what an application sends, what travels, and what a protocol step asks for.

A process inside one order is a small integer, its *member number*; a set of processes is a bit mask, so that union,
difference and membership are one machine operation however many there are. Names of processes belong to the rooms
above.

A protocol step turns one input into a list of **effects**, to be carried out in that order:

=============  ========================================================================================
``Persist``    what follows in this list, and the state that the step left behind, must be durable
               before the next effect is carried out. A crash loses exactly what no ``Persist`` covered.
``Sent``       the application's send takes place now (a synchronous order decides when that is).
``Send``       hand this packet to the network.
``Accept``     a packet that was held is now part of the protocol's durable state: the link below may
               acknowledge it. (A packet whose verdict was ``DELIVER`` is accepted without saying so.)
``Deliver``    hand this message to the application.
=============  ========================================================================================
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

import msgspec

REQUEST = "request"
RESPONSE = "response"
COMMIT = "commit"
ABORT = "abort"


class Label(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a message is to the operations that send and receive it, for an order that goes by conflicts."""

    type: str
    """``request``, ``response``, ``commit`` or ``abort``."""
    operation: str
    """The operation of the instance that receives it."""
    instance: str = ""
    """The instance that receives it; empty for one that this message begins and ends."""
    by_operation: str = ""
    """The operation of the instance that sends it."""
    by_instance: str = ""
    """The instance that sends it; empty for one that sends nothing else."""
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
    """Only the order ``objects`` looks at it."""


class Packet(msgspec.Struct, frozen=True, gc=False):
    """What one member of an order hands to the network for one other member (or for itself)."""

    kind: str
    """``copy`` for an application's message, else the name of a control packet."""
    source: int
    target: int
    message: Message | None
    """The message itself, on copies."""
    subject: str
    """The id of the message that this packet is about; empty for none."""
    stamp: Any
    """The order's own control information, opaque to everybody else. It is hashable, so that the explorer can tell
    packets apart."""


COPY = "copy"


class Verdict(Enum):
    """What an order says of a packet that it was handed."""

    DELIVER = "deliver"
    """Taken; a copy reaches the application in this very step."""
    HOLD = "hold"
    """Not yet: the order keeps it and will say when."""
    DUPLICATE = "duplicate"
    """Seen before; nothing changed."""


class Persist(msgspec.Struct, frozen=True, gc=False):
    """Make the step durable before going on."""


class Sent(msgspec.Struct, frozen=True, gc=False):
    """The send event of this message takes place now."""

    message: Message


class Send(msgspec.Struct, frozen=True, gc=False):
    """Hand this packet to the network."""

    packet: Packet


class Accept(msgspec.Struct, frozen=True, gc=False):
    """This packet, held until now, is part of the durable state."""

    packet: Packet


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Hand this message to the application."""

    message: Message


Effect = Persist | Sent | Send | Accept | Deliver
Effects = list[Effect]

PERSIST = Persist()


def mask_of(members: Iterable[int]) -> int:
    """The bit mask of a set of member numbers."""
    mask = 0
    for member in members:
        mask |= 1 << member
    return mask


def members_of(mask: int) -> Iterator[int]:
    """The member numbers in a bit mask, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
