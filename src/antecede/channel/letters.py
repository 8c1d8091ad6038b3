"""A letter is a notification on its way between two agents: who sent it, to whom, its type and its bytes.

Letters travel end to end; within a domain they travel in *trains*. All letters that a server sends in one step to the
same next servers of a domain share one message of that domain's order: one stamp, one frame, one record, however many
they are. The server neither delivers nor sends anything else in between, so a train is what its letters would have
been one by one.

An address is the name of an agent of the topology file, or ``name@server`` for one that a client or a running agent
brought into being. Nothing here knows routes, orders or agents' code.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from antecede.errors import WireError


class Letter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A notification with its envelope."""

    id: str
    """End-to-end, unique for ever: server, incarnation, number."""
    source: str
    to: tuple[str, ...]
    type: str
    """The notification's name, as its receiver's handlers know it; never a class to import."""
    body: bytes
    ask: str = ""
    """Not empty: the sender wants an answer that quotes this."""
    answers: str = ""
    """Not empty: the ``ask`` that this answers."""
    replays: str = ""
    """Not empty: the dead letter that this sends again."""
    context: str = ""
    """The span that it was sent in, as a W3C trace context, for those who trace; nothing here reads it."""


_encode = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Letter]).decode


def couple(letters: Iterable[Letter]) -> bytes:
    """Letters as one train."""
    return _encode(list(letters))


def uncouple(train: bytes) -> list[Letter]:
    """The letters of a train from the wire."""
    try:
        return _decode(train)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"unreadable train of letters: {error}") from None
