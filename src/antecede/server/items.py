"""What a step's record keeps: its inputs, in the sequence in which they were taken.

The machine is deterministic. To take the same inputs again from the same state is to arrive at the same state, with the
same stamps on the same frames. So a record holds what came in (a packet of a peer, a client's publish, what became of a
reaction, a timer that fired) and nothing that follows from it. All items of one record were one step: what they sent
was stamped together, at its end.
"""

from typing import Final

import msgspec

from antecede.channel import Taken
from antecede.engine import Reaction
from antecede.errors import StoreError


class Published(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=2):
    """A client sent; its own number makes a repeated publish recognisable."""

    client: str
    number: int
    to: tuple[str, ...]
    type: str
    body: bytes
    ask: bool = False
    answers: str = ""
    replays: str = ""


class Reacted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=3):
    """An agent (or a client) has reacted to its next letters."""

    agent: str
    reactions: tuple[Reaction, ...]
    state: bytes | None
    clock_ms: int
    """The wall clock when the step was taken, from which its timers count."""


class Fired(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=4):
    """Timers whose time has come."""

    timers: tuple[int, ...]


class Forgot(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=5):
    """An operator let a link begin anew."""

    domain: str
    peer: str


class Buried(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=6):
    """An operator removed a dead letter, after replaying it or for good."""

    key: str


Item = Taken | Published | Reacted | Fired | Forgot | Buried

encode_record = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Item]).decode


def decode_record(record: bytes) -> list[Item]:
    """The items of a record from the log."""
    try:
        return _decode(record)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"unreadable record in the log: {error}") from None
