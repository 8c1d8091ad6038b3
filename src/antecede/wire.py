"""Bytes between processes: what two servers, or a client and a server, say to each other.

A write is one **frame**: four bytes of length, one byte of version, then a list of *parts*. Everything that is ready at
one moment for one connection shares a frame. Parts are typed structs; a reader decodes into nothing else, so nothing
from the wire can become a class, a deep nest or an unbounded list.

**Versions.** The first part on a connection is a hello that says the newest and the oldest version spoken; it travels
in a frame of the oldest, so that whoever shares any version can read it. Both ends then speak the smaller of the two
newest. Version N speaks N − 1 as well; whoever shares none is told so and hung up on. A later version may add fields at
the end of a part, which readers of an earlier one pass over, and which have a default for those who don't send them.

====  ==================================================================================================
1     the first
2     letters and publishes carry the trace context that they were sent in
====  ==================================================================================================

**Temporary clients.** A client whose name begins with :data:`TEMPORARY` is forgotten, with its mailbox, when it says
good-bye for good (a final :class:`Bye`), or has been away for a while. The name alone says so, and not a field of the
hello: names are in the log and in every snapshot already, so that a server knows also after a restart whom to forget,
and nothing of the formats changes. An older server takes such a client for any other.

**Bounds.** A frame longer than its bound, a length that lies, too many parts or entries of a list, bytes that are no
parts: :class:`WireError`, and the connection is closed. MessagePack says how many entries a list has before the first
of them, so a list that is too long is refused before any entry is decoded. Before the hello a frame is short and has
one part. Stamps and letters travel as bytes; whoever they are for checks them. This room knows no sockets.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from antecede import limits
from antecede.errors import WireError

VERSION: Final = 2
"""The newest version that is spoken."""
VERSION_OLDEST: Final = 1

TEMPORARY: Final = "temporary-client."
"""How the names of temporary clients begin."""

_header_bytes: Final = 5
_parts_few: Final = 4


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="part"):
    """Anything that travels."""


class LinkHello(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where one end of the link of one domain stands."""

    domain: str
    source: int
    target: int
    sent: int
    accepted: int
    generation: int
    """How often the domain has begun anew."""
    life: int = 0
    base: int = 0


class ServerHello(Part, frozen=True, array_like=True, gc=False, tag=1):
    """A server's first word to another."""

    version: int
    oldest: int
    epoch: str
    """The hash of the topology: servers that disagree about it must not talk."""
    server: str
    to: str
    token: str
    links: Annotated[list[LinkHello], Meta(max_length=limits.topology_servers_max)]


class PeerFrames(Part, frozen=True, array_like=True, gc=False, tag=2):
    """Frames of one link."""

    domain: str
    source: int
    target: int
    numbers: Annotated[list[int], Meta(max_length=limits.frame_entries_max)]
    bodies: Annotated[list[bytes], Meta(max_length=limits.frame_entries_max)]


class PeerAck(Part, frozen=True, array_like=True, gc=False, tag=3):
    """What one end of a link has accepted."""

    domain: str
    source: int
    target: int
    upto: int
    beyond: bytes


class ClientHello(Part, frozen=True, array_like=True, gc=False, tag=4):
    """A client's first word. Its name is durable, unless it is temporary: it stands for the same mailbox for ever."""

    version: int
    oldest: int
    token: str
    client: str


class Welcome(Part, frozen=True, array_like=True, gc=False, tag=5):
    """A server's answer to a client."""

    version: int
    server: str
    address: str
    last: int
    """The number of the client's last publish that is on disk."""


class Publish(Part, frozen=True, array_like=True, gc=False, tag=6):
    """A client sends, one or several of a type to the same destinations; numbers rise by one."""

    number: int
    """Of the first."""
    to: Annotated[tuple[str, ...], Meta(max_length=limits.publish_to_read_max)]
    type: str
    bodies: Annotated[list[bytes], Meta(max_length=limits.publish_batch_max)]
    ask: bool = False
    answers: str = ""
    replays: str = ""
    context: str = ""
    """The span that it was sent in, as a W3C trace context; since version 2."""


class Accepted(Part, frozen=True, array_like=True, gc=False, tag=7):
    """Every publish up to this number is on disk."""

    upto: int


class Refused(Part, frozen=True, array_like=True, gc=False, tag=8):
    """Publishes that were not taken; nor were any after them. The client numbers those anew, from here."""

    number: int
    count: int
    reason: str
    retry: bool
    """Whether the same publish may be taken later; all after it share its fate."""


class Deliver(Part, frozen=True, array_like=True, gc=False, tag=9):
    """Letters for a client, in sequence, as a train."""

    train: bytes


class Done(Part, frozen=True, array_like=True, gc=False, tag=10):
    """A client has handled these letters, in this sequence."""

    letters: Annotated[list[str], Meta(max_length=limits.done_letters_max)]
    dead: str = ""
    """Not empty: it could not handle the last of them, for this reason."""


class Listen(Part, frozen=True, array_like=True, gc=False, tag=16):
    """From now on letters may be pushed to this connection."""


class Ping(Part, frozen=True, array_like=True, gc=False, tag=11):
    """Are you there?"""


class Pong(Part, frozen=True, array_like=True, gc=False, tag=12):
    """Yes."""


class Bye(Part, frozen=True, array_like=True, gc=False, tag=13):
    """The connection ends, and why."""

    reason: str
    final: bool = False
    """There is no point in trying again."""
    code: str = ""
    """Which rule the other end has broken, in one word for programs; empty: none. Older ends don't send it."""


class Request(Part, frozen=True, array_like=True, gc=False, tag=14):
    """An operator's question to a server (status, dead letters, …)."""

    token: str
    command: str
    arguments: Annotated[list[str], Meta(max_length=limits.request_arguments_max)]


class Answer(Part, frozen=True, array_like=True, gc=False, tag=15):
    """The server's answer: a JSON document, or what was wrong."""

    ok: bool
    document: bytes


AnyPart = (
    ServerHello
    | PeerFrames
    | PeerAck
    | ClientHello
    | Welcome
    | Publish
    | Accepted
    | Refused
    | Deliver
    | Done
    | Listen
    | Ping
    | Pong
    | Bye
    | Request
    | Answer
)

_encode = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Annotated[list[AnyPart], Meta(max_length=limits.frame_parts_max)]).decode
_decode_one: Final = msgspec.msgpack.Decoder(Annotated[list[AnyPart], Meta(max_length=1)]).decode


def frame(parts: Iterable[Part], version: int = VERSION) -> bytes:
    """Parts as one frame."""
    return _framed([_encode(part) for part in parts], version)


def frames(parts: Sequence[Part], version: int = VERSION) -> list[bytes]:
    """Parts as frames of bearable length: a new one is begun where the last has enough."""
    if 0 < len(parts) <= _parts_few:
        # A list of parts is what a frame holds, and is encoded in one go.
        body = _encode(parts)
        if len(body) <= limits.frame_bytes_wanted:
            return [b"".join([(len(body) + 1).to_bytes(4, "big"), version.to_bytes(1, "big"), body])]
    found: list[bytes] = []
    pieces: list[bytes] = []
    size = 0
    for part in parts:
        piece = _encode(part)
        if pieces and (size + len(piece) > limits.frame_bytes_wanted or len(pieces) >= limits.frame_parts_max):
            found.append(_framed(pieces, version))
            pieces, size = [], 0
        pieces.append(piece)
        size += len(piece)
    if pieces:
        found.append(_framed(pieces, version))
    return found


def _framed(pieces: list[bytes], version: int) -> bytes:
    count = len(pieces)
    # The head of a MessagePack array; its elements follow as they are.
    head = bytes([0x90 | count]) if count < 16 else b"\xdd" + count.to_bytes(4, "big")
    length = len(head) + sum(map(len, pieces))
    if length > limits.frame_bytes_max:
        raise WireError(f"frame of {length} bytes: expected at most {limits.frame_bytes_max}")
    return b"".join([(length + 1).to_bytes(4, "big"), version.to_bytes(1, "big"), head, *pieces])


class Unframer:
    """Turns a stream of bytes back into parts, whatever the pieces in which it comes.

    It begins as a stranger's: short frames, one part in each, and one frame at a time, since the first may change what
    the next is allowed. ``trust`` makes it read longer frames, and all that are complete together.
    """

    __slots__ = ("_bytes_max", "_trusted", "pending")

    def __init__(self) -> None:
        self._bytes_max = limits.hello_bytes_max
        self.pending = bytearray()
        """What is kept of frames that are not complete, or that ``more`` will return."""
        self._trusted = False

    def trust(self, bytes_max: int = limits.frame_bytes_max) -> None:
        """From now on read frames up to this length, with many parts."""
        self._bytes_max = bytes_max
        self._trusted = True

    def feed(self, data: bytes) -> list[AnyPart]:
        """Take bytes, and return the parts that are complete. ``more`` has those that are left, if this is a stranger's
        (or was one when this was called)."""
        pending = self.pending
        if not pending and len(data) > _header_bytes and data[4] == VERSION and self._trusted:
            # One whole frame, as nearly all reads of a quiet connection are.
            length = int.from_bytes(data[:4], "big")
            if length + 4 == len(data) and length <= self._bytes_max + 1:
                return _parts(data[_header_bytes:], _decode)
        pending += data
        return self.more()

    def more(self) -> list[AnyPart]:
        """Return the parts of the next frames that are complete; nothing if none is."""
        pending = self.pending
        if not pending:
            return []
        parts: list[AnyPart] = []
        start, size = 0, len(pending)
        with memoryview(pending) as view:
            while size - start >= _header_bytes and (self._trusted or not start):
                length = int.from_bytes(view[start : start + 4], "big")
                if not 1 <= length <= self._bytes_max + 1:
                    raise WireError(
                        f"frame of {length} bytes announced: expected 1 to {self._bytes_max + 1}", "frame-length"
                    )
                version = view[start + 4]
                if not VERSION_OLDEST <= version <= VERSION:
                    raise WireError(
                        f"frame of wire version {version}: this end speaks {VERSION_OLDEST} to {VERSION}", "version"
                    )
                end = start + 4 + length
                if size < end:
                    break
                with view[start + _header_bytes : end] as body:
                    found = _parts(body, _decode if self._trusted else _decode_one)
                if not found and not self._trusted:
                    raise WireError("frame without a part where a hello was expected", "hello-expected")
                parts += found
                start = end
        if start:
            del pending[:start]
        return parts


def _parts(body: bytes | memoryview, decode: Callable[[bytes | memoryview], list[AnyPart]]) -> list[AnyPart]:
    try:
        return decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"unreadable frame: {error}", "unreadable") from None


def is_temporary(client: str) -> bool:
    """Return whether a client of that name (or address) is forgotten when it has gone."""
    return client.startswith(TEMPORARY)


def agree(newest: int, oldest: int) -> int:
    """The version to speak with an end that speaks ``oldest`` to ``newest``."""
    version = min(newest, VERSION)
    if version < oldest or version < VERSION_OLDEST:
        raise WireError(
            f"the other end speaks wire versions {oldest} to {newest}, this one {VERSION_OLDEST} to {VERSION}",
            "version",
        )
    return version
