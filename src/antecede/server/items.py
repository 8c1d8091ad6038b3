"""What a step's record keeps: its inputs, in the sequence in which they were taken.

The machine is deterministic. To take the same inputs again from the same state is to arrive at the same state, with the
same stamps on the same frames. So a record holds what came in (a packet of a peer, a client's publish, what became of a
reaction, a timer that fired, whom a link met) and nothing that follows from it. All items of one record were one step:
what they sent was stamped together, at its end.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from antecede.channel import Letter, Taken
from antecede.engine import Reaction
from antecede.errors import StoreError
from antecede.limits import record_piece_bytes_max
from antecede.objects.replicas import Row


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
    context: str = ""
    """The span that it was sent in, as a W3C trace context; empty: none."""
    source: str = ""
    """Not empty: whom it is from, if not from the client itself. So a dead letter keeps its sender."""
    asked: str = ""
    """Not empty: what an answer to it quotes, if not this publish."""
    deadline_ms: int = 0
    """The wall clock at which a call that this is must have ended."""


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
    """An operator let a domain begin anew, because one of its members lost its data."""

    domain: str
    generation: int
    """How often the domain has begun anew; members of different generations do not talk."""
    again: tuple[tuple[tuple[str, ...], bytes], ...] = ()
    """Trains that nobody had acknowledged, with the members to send them to once more."""


class Buried(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=6):
    """An operator removed a dead letter, after replaying it or for good."""

    key: str


class PublishedMany(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=7):
    """A client sent several of one type to the same destinations, one after the other; their numbers rise by one."""

    client: str
    number: int
    """Of the first."""
    to: tuple[str, ...]
    type: str
    bodies: list[bytes]
    context: str = ""


class Met(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=8):
    """A peer said for the first time which incarnation it is, and which life of that. From now on another incarnation
    means that it lost data, and another life that began with fewer frames sent than we have, that it was set back."""

    domain: str
    peer: str
    incarnation: int
    life: int = 0


class Began(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=9):
    """The first item of a log: whose it is, and under which topology."""

    server: str
    epoch: str


class Enacted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=10):
    """What the objects of this server did in this step. It follows from the other items and from the objects' code,
    which those who read a log need not have."""

    rows: list[Row]
    clock_ms: int


class Expired(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=11):
    """The time of some calls was up."""

    clock_ms: int


class Related(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=12):
    """Which operations of each object conflict, from now on."""

    conflicts: dict[str, list[list[str]]]


class Left(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=13):
    """A temporary client is gone for good: the number of its last publish is forgotten."""

    client: str


Item = (
    Taken
    | Published
    | Reacted
    | Fired
    | Forgot
    | Buried
    | PublishedMany
    | Met
    | Began
    | Enacted
    | Expired
    | Related
    | Left
)

encode_record = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Item]).decode


def decode_record(record: bytes) -> list[Item]:
    """The items of a record from the log."""
    try:
        return _decode(record)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"unreadable record in the log: {error}") from None


def sent_again(letter: Letter, client: str, number: int, to: tuple[str, ...]) -> Published:
    """A dead letter as a new one. It comes from whom it came from, with the question that it asked."""
    published = Published(client, number, to, letter.type, letter.body, replays=letter.id)
    return msgspec.structs.replace(published, source=letter.source, asked=letter.ask)


def pieces_of(record: bytes) -> list[bytes]:
    """A record as the log takes it: whole, or in pieces if it is too long. No piece can be taken for a record."""
    if len(record) <= record_piece_bytes_max:
        return [record]
    cuts = range(0, len(record), record_piece_bytes_max)
    last = cuts[-1]
    return [
        _piece + (b"L" if at == last else b"F" if at == 0 else b"M") + record[at : at + record_piece_bytes_max]
        for at in cuts
    ]


def joined(stored: Iterable[bytes]) -> Iterator[bytes]:
    """The records of a log. One whose last piece is missing never took place: nothing that it did had left."""
    pieces: list[bytes] = []
    for one in stored:
        if one[:1] != _piece:
            pieces = []
            yield one
            continue
        if one[1:2] == b"F":
            pieces = []
        pieces.append(one[2:])
        if one[1:2] == b"L":
            yield b"".join(pieces)
            pieces = []


_piece: Final = b"\xc1"
"""The one byte that begins nothing in MessagePack."""
