"""The content of a step's record: its inputs, in the sequence in which they were taken.

The machine is deterministic: the same inputs from the same state lead to the same state, with the same stamps on the
same frames. So a record holds only the inputs (a packet of a peer, a client's publish, the outcome of a reaction, a
timer that fired, a peer's identity) and nothing that follows from them. All items of one record were one step: their
messages were stamped together, at its end.
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
    """A client's publish; the client's own number identifies a repeated publish."""

    client: str
    number: int
    to: tuple[str, ...]
    type: str
    body: bytes
    ask: bool = False
    answers: str = ""
    replays: str = ""
    context: str = ""
    """The span in which it was sent, as a W3C trace context, or empty."""
    source: str = ""
    """The original sender, if it is not the client itself. So a replayed dead letter keeps its sender."""
    asked: str = ""
    """The id that an answer to it quotes, if not this publish."""
    deadline_ms: int = 0
    """For a call: the wall clock by which it must have ended."""


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
    """An operator reset a domain, because one of its members lost its data."""

    domain: str
    generation: int
    """How often the domain was reset; members of different generations do not connect."""
    again: tuple[tuple[tuple[str, ...], bytes], ...] = ()
    """Unacknowledged trains, with the members to send them to again."""


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
    """A peer's incarnation and life were learned. From now on, another incarnation means that the peer lost data, and
    another life that began with fewer frames than we have means that it was restored from a backup."""

    domain: str
    peer: str
    incarnation: int
    life: int = 0


class Began(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=9):
    """The first item of a log: its server and its topology."""

    server: str
    epoch: str


class Enacted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=10):
    """The actions of this server's objects in this step. They follow from the other items and the objects' code, which
    readers of a log need not have."""

    rows: list[Row]
    clock_ms: int


class Expired(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=11):
    """Calls whose time limit has passed."""

    clock_ms: int


class Related(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=12):
    """The conflicting operations of each object, from now on."""

    conflicts: dict[str, list[list[str]]]


class Left(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=13):
    """A temporary client is gone for good: the number of its last publish is forgotten."""

    client: str


class Ruled(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=14):
    """The rules of objects that this server follows from now on; a log without it follows version 1."""

    rules: int


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
    | Ruled
)

encode_record = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Item]).decode


def decode_record(record: bytes) -> list[Item]:
    """The items of a record from the log."""
    try:
        return _decode(record)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"unreadable record in the log: {error}") from None


def enacted_items(conflicts: dict[str, list[list[str]]] | None, rows: list[Row], clock_ms: int) -> list[Item]:
    """Return the items about objects for a step's record: their actions, and before those new conflicts."""
    items: list[Item] = [] if conflicts is None else [Related(conflicts)]
    return [*items, Enacted(rows, clock_ms)] if rows else items


def sent_again(letter: Letter, client: str, number: int, to: tuple[str, ...]) -> Published:
    """Return a dead letter as a new one, with its original sender and its question."""
    published = Published(client, number, to, letter.type, letter.body, replays=letter.id)
    return msgspec.structs.replace(published, source=letter.source, asked=letter.ask)


def pieces_of(record: bytes) -> list[bytes]:
    """Return a record for the log: as a whole, or in pieces if it is too long. No piece can be mistaken for a
    record."""
    if len(record) <= record_piece_bytes_max:
        return [record]
    cuts = range(0, len(record), record_piece_bytes_max)
    last = cuts[-1]
    return [
        _piece + (b"L" if at == last else b"F" if at == 0 else b"M") + record[at : at + record_piece_bytes_max]
        for at in cuts
    ]


def joined(stored: Iterable[bytes]) -> Iterator[bytes]:
    """Return the records of a log. A record whose last piece is missing never happened: none of its effects had
    left."""
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
"""The one byte that no MessagePack value starts with."""
