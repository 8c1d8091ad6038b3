"""The format of the bytes that two servers, or a client and a server, send to each other.

Each write is one **frame**: four bytes of length, one byte of version, then a list of *parts*. The parts of one call of
``send`` share a frame, unless they are too long for one frame. A reader decodes only parts, which are typed structs. So
received bytes cannot become an object of another class, a deeply nested value or an unbounded list.

**Version.** There is one wire version. Each frame contains it, and a frame of another version is refused.

**Temporary clients.** If the name of a client begins with :data:`TEMPORARY`, the server forgets the client and its
mailbox when the client sends a final :class:`Bye`, or after some time without a connection. Only the name shows that a
client is temporary. The log and every snapshot contain the names of clients, so a server still knows after a restart
which clients to forget.

**Bounds.** This module raises :class:`WireError`, and the connection is closed, if the received bytes have one of these
errors: a frame that is too long, a wrong length, more parts or list entries than allowed, or bytes that are not parts.
MessagePack writes the length of a list before its entries, so a list that is too long is refused before any entry is
decoded. Before the hello, a frame must be short and have one part. Stamps and letters are sent as bytes; this module
does not decode them, and their receivers check them. This module does not use sockets.
"""

from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from antecede import limits
from antecede.errors import WireError

VERSION: Final = 7

UNREADABLE: Final = "unreadable"
"""The code of frames that cannot be decoded."""
TEMPORARY: Final = "temporary-client."
"""The beginning of the names of temporary clients."""

_header: Final = Struct(">IB")
_header_bytes: Final = 5
_parts_few: Final = 4


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="part"):
    """Base class of the structs that a frame contains."""


class LinkHello(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of one end of a link between two servers in one domain. A :class:`ServerHello` contains it."""

    domain: str
    source: int
    target: int
    sent: int
    accepted: int
    generation: int
    """The number of times that the domain was reset."""
    life: int = 0
    base: int = 0
    digest: str = ""
    """A hash of the domain's name, its members, its order, and the number of the last topology change that gave the
    domain a new state."""


class ServerHello(Part, frozen=True, array_like=True, gc=False, tag=1):
    """The hello of a server to another server. If the server has no credentials, this is the first part that it sends
    on a connection. If it has credentials, proofs of identity come before this part."""

    epoch: str
    """The hash of the topology. In a restored system, ``~`` and the id of the system follow."""
    server: str
    to: str
    token: str
    links: Annotated[list[LinkHello], Meta(max_length=limits.topology_servers_max)]
    system: str = ""
    """The identity of the whole system; empty before the first change of its topology."""
    change: int = 0
    """The number of the topology change that introduced the present topology of the sender."""
    attempt: str = ""
    """The id of an attempt to change the topology. It is empty if the sender takes part in no attempt."""
    asked: str = ""
    """In a hello that answers another hello: the ``attempt`` of that other hello."""
    known: bool = True
    """In a hello that answers another hello: whether the two servers share a domain, as far as the sender knows."""
    teaches: bool = False
    """In a hello that answers another hello: whether the sender sends a :class:`Lesson` next."""


class PeerFrames(Part, frozen=True, array_like=True, gc=False, tag=2):
    """Numbered packets of one link between two servers. Such a packet is called a frame of the link; it is not a frame
    of the connection."""

    domain: str
    source: int
    target: int
    numbers: Annotated[list[int], Meta(max_length=limits.frame_entries_max)]
    bodies: Annotated[list[bytes], Meta(max_length=limits.frame_entries_max)]


class PeerAck(Part, frozen=True, array_like=True, gc=False, tag=3):
    """An acknowledgement: the numbers of the packets that one end of a link has accepted."""

    domain: str
    source: int
    target: int
    upto: int
    beyond: bytes


class ClientHello(Part, frozen=True, array_like=True, gc=False, tag=4):
    """The hello of a client. If the client has no credentials, this is the first part that it sends on a connection. If
    it has credentials, proofs of identity come before this part. Unless the client is temporary, its name is durable:
    the name always belongs to the same mailbox."""

    token: str
    client: str


class Welcome(Part, frozen=True, array_like=True, gc=False, tag=5):
    """A server's answer to the hello of a client."""

    server: str
    address: str
    last: int
    """The number of the client's last publish that the server has accepted."""


class Publish(Part, frozen=True, array_like=True, gc=False, tag=6):
    """One or more publishes of a client. They have consecutive numbers, the same type and the same destinations."""

    number: int
    """The number of the first publish."""
    to: Annotated[tuple[str, ...], Meta(max_length=limits.publish_to_read_max)]
    type: str
    bodies: Annotated[list[bytes], Meta(max_length=limits.publish_batch_max)]
    ask: bool = False
    context: str = ""
    """The W3C trace context of the span in which the publish was sent. If the notification has a label
    (:mod:`antecede.labels`), the label follows."""
    begun: Annotated[list[tuple[int, str]], Meta(max_length=limits.publish_batch_max)] = []
    """Pairs (position in ``bodies``, id of a letter). Before the publish at this position, the client had begun to
    handle this letter and all earlier letters in the client's mailbox."""


class Accepted(Part, frozen=True, array_like=True, gc=False, tag=7):
    """A server has accepted all publishes of a client up to this number. They are stored with the durability that is
    configured for the server, by default on its disk."""

    upto: int


class Refused(Part, frozen=True, array_like=True, gc=False, tag=8):
    """A server has refused ``count`` publishes of a client, beginning with the publish ``number``. It also skips the
    publishes that the client has already sent after the refused ones. If ``retry`` is true, the client sends the
    refused and the skipped publishes again after a pause. If ``retry`` is false, the client sends only the skipped
    publishes again, with new numbers. In both cases, the next publish that the client sends has the number
    ``number``."""

    number: int
    count: int
    reason: str
    retry: bool
    """Whether the refused publishes may be accepted later."""
    code: str = ""
    """The reason in one word, for programs."""


class Deliver(Part, frozen=True, array_like=True, gc=False, tag=9):
    """Letters for a client, in sequence. They are encoded together as one *train*."""

    train: bytes


class Done(Part, frozen=True, array_like=True, gc=False, tag=10):
    """A client has handled these letters, in this sequence."""

    letters: Annotated[list[str], Meta(max_length=limits.done_letters_max)]
    dead: str = ""
    """The reason why the client could not handle the last of these letters. Empty if the client has handled all of
    them."""


class Listen(Part, frozen=True, array_like=True, gc=False, tag=16):
    """A client is ready for letters: from now on the server may send them on this connection."""


class Ping(Part, frozen=True, array_like=True, gc=False, tag=11):
    """Ask whether the other end is alive."""


class Pong(Part, frozen=True, array_like=True, gc=False, tag=12):
    """The answer to a ping."""


class Bye(Part, frozen=True, array_like=True, gc=False, tag=13):
    """The last part that one end sends on a connection: it closes the connection, with the reason."""

    reason: str
    final: bool = False
    """Whether it is useless for the receiver to connect again. If a temporary client sends True, the server forgets the
    client."""
    code: str = ""
    """The reason in one word, for programs. Usually it is the name of a rule that the receiver has broken. May be
    empty."""
    at: str = ""
    """With the code ``moved``: the address (``tcp://HOST:PORT``) that the receiver must connect to from now on."""


class Request(Part, frozen=True, array_like=True, gc=False, tag=14):
    """An operator's command to a server (status, dead letters, …)."""

    token: str
    command: str
    arguments: Annotated[list[str], Meta(max_length=limits.request_arguments_max)]


class Answer(Part, frozen=True, array_like=True, gc=False, tag=15):
    """The server's answer to a :class:`Request`: a JSON document, or an error."""

    ok: bool
    document: bytes
    code: str = ""
    """The kind of error, in one word for programs, or empty."""


class Introduce(Part, frozen=True, array_like=True, gc=False, tag=17):
    """The first part that a process with credentials sends on a connection. See :mod:`antecede.access.proof`."""

    role: str
    name: str
    to: str
    """The name of the server that must answer. If the name is empty, any server may answer."""
    nonce: Annotated[bytes, Meta(max_length=limits.proof_bytes_max)]


class Challenge(Part, frozen=True, array_like=True, gc=False, tag=18):
    """A server's answer to an :class:`Introduce`. The signature proves the identity of the server."""

    server: str
    nonce: Annotated[bytes, Meta(max_length=limits.proof_bytes_max)]
    signature: Annotated[bytes, Meta(max_length=limits.proof_bytes_max)]


class Proof(Part, frozen=True, array_like=True, gc=False, tag=19):
    """The answer to a :class:`Challenge`. The signature proves the sender's identity. A hello or a request follows."""

    signature: Annotated[bytes, Meta(max_length=limits.proof_bytes_max)]


class Lesson(Part, frozen=True, array_like=True, gc=False, tag=20):
    """The present topology, for a server that has missed changes of the topology. See
    :mod:`antecede.server.learning`."""

    content: Annotated[bytes, Meta(max_length=limits.lesson_bytes_max)]


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
    | Introduce
    | Challenge
    | Proof
    | Lesson
)

_encode = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Annotated[list[AnyPart], Meta(max_length=limits.frame_parts_max)]).decode
_decode_one: Final = msgspec.msgpack.Decoder(Annotated[list[AnyPart], Meta(max_length=1)]).decode


def frame(parts: Iterable[Part]) -> bytes:
    """Return parts as one frame. Raise :class:`WireError` if the frame would be too long."""
    return _framed([_encode(part) for part in parts])


def frames(parts: Sequence[Part]) -> list[bytes]:
    """Return parts as frames of moderate length. A new frame begins when the current frame has the largest allowed
    number of parts, or would become too long with the next part."""
    if 0 < len(parts) <= _parts_few:
        # The content of a frame is a list of parts, which is encoded in one call.
        body = _encode(parts)
        if len(body) <= limits.frame_bytes_wanted:
            return [_header.pack(len(body) + 1, VERSION) + body]
    found: list[bytes] = []
    pieces: list[bytes] = []
    size = 0
    for part in parts:
        piece = _encode(part)
        if pieces and (size + len(piece) > limits.frame_bytes_wanted or len(pieces) >= limits.frame_parts_max):
            found.append(_framed(pieces))
            pieces, size = [], 0
        pieces.append(piece)
        size += len(piece)
    if pieces:
        found.append(_framed(pieces))
    return found


def _framed(pieces: list[bytes]) -> bytes:
    count = len(pieces)
    # The head of a MessagePack array; its elements follow as they are.
    head = bytes([0x90 | count]) if count < 16 else b"\xdd" + count.to_bytes(4, "big")
    length = len(head) + sum(map(len, pieces))
    if length > limits.frame_bytes_max:
        raise WireError(f"frame of {length} bytes: expected at most {limits.frame_bytes_max}")
    return b"".join([(length + 1).to_bytes(4, "big"), VERSION.to_bytes(1, "big"), head, *pieces])


class Unframer:
    """A reader that turns a stream of bytes back into parts. The stream may arrive in any pieces.

    Before ``trust`` is called, the other end is not identified. During this time, a frame must be short and have one
    part, and each call reads only one frame, because this frame may change what is allowed in the next frame. After
    ``trust``, frames may be longer and have many parts, and one call reads all complete frames.
    """

    __slots__ = ("_bytes_max", "_trusted", "pending")

    def __init__(self) -> None:
        self._bytes_max = limits.hello_bytes_max
        self.pending = bytearray()
        """The received bytes that are not decoded yet: an incomplete frame, or frames that ``more`` will decode."""
        self._trusted = False

    def trust(self, bytes_max: int = limits.frame_bytes_max) -> None:
        """Read frames of up to ``bytes_max`` bytes, with many parts, from now on."""
        self._bytes_max = bytes_max
        self._trusted = True

    def feed(self, data: bytes) -> list[AnyPart]:
        """Add received bytes, and return the parts of all complete frames. Before ``trust`` is called, return only the
        part of the first complete frame. To get the part of the next frame, call :meth:`more`."""
        pending = self.pending
        if self._trusted and not pending and len(data) > _header_bytes:
            # One whole frame, as in nearly all reads of a quiet connection.
            length, version = _header.unpack_from(data)
            if length + 4 == len(data) and version == VERSION and length <= self._bytes_max + 1:
                return _parts(data[_header_bytes:], _decode)
        pending += data
        return self.more()

    def more(self) -> list[AnyPart]:
        """Return the parts of all complete frames, and remove these frames from ``pending``. Before ``trust`` is
        called, return and remove only the first complete frame."""
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
                if version != VERSION:
                    raise WireError(f"frame of wire version {version}: this end supports only {VERSION}", "version")
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
        raise WireError(f"unreadable frame: {error}", UNREADABLE) from None


def is_temporary(client: str) -> bool:
    """Return whether a client is temporary, so that servers forget it when it has left. ``client``: its name or
    address."""
    return client.startswith(TEMPORARY)
