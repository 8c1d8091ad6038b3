"""The interface of all ordering protocols. They all answer one question: *when may a message be delivered?*

An order is the part of one process that answers this question. It does nothing else. It has no I/O, no clock and no
randomness:

* ``send(message)`` — the application sends a message. The order stamps the message and returns the packets to send.
* ``receive(packet)`` — the network hands over a packet. The network hands over each packet at most once, and the
  packets may come in any sequence. The order answers with a verdict (``DELIVER``, ``HOLD``, ``DUPLICATE``) and with
  effects (see :mod:`antecede.messages`).
* ``tick(now)`` — time has passed. Only orders that *need* timers do anything.

**Every order works on links that reorder.** If an order needs FIFO links, it numbers its own packets. The link below
the order sends lost packets again, and drops duplicates. As an additional protection, an order with counters still
answers ``DUPLICATE`` to a packet that arrives again.

**What survives a crash.** ``snapshot()`` returns the durable state. A packet that is only *held* is not in this state:
the packet was not acknowledged, so after a crash the link delivers it again. ``clone()`` copies the whole state,
including the held packets.

**Stamps** belong to the order. On the wire they are bytes (``encode``/``decode``). ``decode`` checks every stamp. It
raises :class:`StampError` if a stamp is too long, or contains an unknown member, a counter of a message that we never
sent, or a counter that jumps too far. ``size`` is ``len(encode())``. ``dependents`` and ``paper_bytes`` measure a stamp
in the same way as the papers.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import msgspec

from antecede import limits
from antecede.errors import OrderError, SnapshotError, StampError
from antecede.messages import COPY, Effects, Message, Packet, Verdict, members_of
from antecede.orders.encoding import Reader, RecordedReader, Writer, number_size


def pack_message(message: Message) -> tuple[str, int, bytes, bytes]:
    """Return a message, without its label, as plain values for ``dump``. The bit mask of its destinations becomes
    bytes, because a number in a snapshot has at most 64 bits."""
    return (
        message.id,
        message.source,
        message.to.to_bytes((message.to.bit_length() + 7) // 8, "little"),
        message.payload,
    )


def unpack_message(values: Any) -> Message:
    """Return the message that ``pack_message`` turned into these values."""
    id_, source, to, payload = values
    return Message(id_, source, int.from_bytes(to, "little"), payload)


Reason = tuple[int, str]
"""The reason why a message waits: a member, and a text that says what is missing from this member (messages, an
acknowledgement, a lock …)."""


class Option(msgspec.Struct, frozen=True):
    """One setting of an order; its default value determines its type."""

    default: bool | int | str
    help: str
    choices: tuple[str, ...] = ()

    def parse(self, name: str, value: object) -> bool | int | str:
        """Return ``value`` converted to the type of this option. The value was given in code, in a scenario or on the
        command line. ``name``: the name of the option, for errors. Raise OrderError if the value is not valid."""
        kind = type(self.default)
        if self.choices and value not in self.choices:
            raise OrderError(f"{name}={value}: expected one of {', '.join(self.choices)}")
        if kind is bool:
            booleans = {"true": True, "yes": True, "1": True, "": True, "false": False, "no": False, "0": False}
            parsed = booleans.get(str(value).lower())
            if parsed is None:
                raise OrderError(f"{name}={value}: expected true or false")
            return parsed
        if kind is int:
            text = str(value)
            if not (text.isascii() and text.isdecimal() and len(text) <= 9):
                raise OrderError(f"{name}={text[:20]}: expected a whole number of at most nine digits")
            return int(text)
        return str(value)


class Order(ABC):
    """One member's part of an ordering protocol."""

    name: ClassVar[str]
    source: ClassVar[str]
    """The paper and section of the protocol."""
    guarantees: frozenset[str]
    """The guarantees of the order: some of ``fifo``, ``causal``, ``total``, ``synchronous``, ``significant``. An option
    may change them."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """The needs of the order: some of ``broadcast`` (it supports only broadcasts), ``timers``, ``control packets``."""
    controls: ClassVar[tuple[str, ...]] = ()
    """The kinds of control packets that the order sends."""
    selective: ClassVar[bool] = False
    """Whether the order implements ``check``. A program can then find out which messages are deliverable, and choose
    one of them."""
    accepts_own: ClassVar[bool] = False
    """Whether the order immediately accepts every packet that this member sends to itself, even if the message must
    wait. Such a packet need not be encoded: the order's durable state already contains what must survive a crash."""
    relays: ClassVar[bool] = False
    """Whether members forward copies for others. A copy may then come from a member that did not send the message, and
    may pass through a member that is not a destination."""
    recognises_repeats: bool = True
    """Whether the order itself answers ``DUPLICATE`` to a packet that arrives again. If not, the link must drop such a
    packet."""
    options: ClassVar[Mapping[str, Option]] = {}
    stamp_version: ClassVar[int] = 1

    def __init__(self, me: int, members: int, **options: object) -> None:
        if not 1 <= members <= limits.members_max:
            raise OrderError(f"{members} members: expected 1 to {limits.members_max}")
        if not 0 <= me < members:
            raise OrderError(f"member {me}: expected 0 to {members - 1}")
        unknown = sorted(set(options) - set(self.options))
        if unknown:
            known = ", ".join(self.options) or "none"
            raise OrderError(f"order {self.name} has no option {unknown[0]} (it has: {known})")
        self.packet_format = (self.name, self.stamp_version)
        """The order's name and the version of its stamps. Every packet has both, so that a member notices a packet of
        another order."""
        self.me = me
        self.members = members
        self.everyone = (1 << members) - 1
        self.settings: dict[str, Any] = {
            name: option.parse(name, options.get(name, option.default)) for name, option in self.options.items()
        }

    # Decisions of the order.

    @abstractmethod
    def send(self, message: Message) -> Effects:
        """Send ``message`` from the application; its source is this member."""

    @abstractmethod
    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        """Process a packet from the network; its target is this member."""

    def check(self, packet: Packet) -> Verdict:
        """Return the verdict that ``receive`` would give now, without accepting the packet (``selective`` orders
        only)."""
        raise OrderError(f"order {self.name} cannot judge a packet without accepting it")

    def tick(self, now: float) -> Effects:
        """Do everything that is due at the time ``now`` (see ``deadline``); return the effects."""
        return []

    def deadline(self) -> float | None:
        """Return the time at which ``tick`` must be called next, or None if it need not be called."""
        return None

    # Questions of observers.

    def held(self) -> list[Message]:
        """Return the messages that have arrived here and are held. They include the messages of ``held_packets``."""
        return [packet.message for packet in self.held_packets() if packet.message is not None]

    def unposted(self) -> list[tuple[Message, int]]:
        """Return the copies that have not left this member yet, although its application has sent the messages. A copy
        is a pair (message, target)."""
        return []

    def explain_held(self) -> Iterator[tuple[Message, list[Reason]]]:
        """Yield each message of ``held`` with the reasons why it waits, as far as this order knows them. The texts are
        for people. An order need not implement this."""
        for message in self.held():
            yield message, []

    def explain_unposted(self) -> list[Reason]:
        """Return what the first message of ``unposted`` waits for, as far as this order knows."""
        return []

    def past(self, packet: Packet) -> tuple[int, ...] | None:
        """Return one number for each member: the number of the member's newest message that causally precedes the
        packet's message. The number for the sender of the packet's message is the number of that message itself.
        Messages that do not affect deliveries here may be ignored. Return None if the stamp does not contain these
        numbers."""
        return None

    # Stamps.

    @abstractmethod
    def write_stamp(self, packet: Packet, out: Writer) -> None:
        """Append the packet's stamp to ``out``."""

    @abstractmethod
    def read_stamp(self, kind: str, source: int, data: Reader) -> Any:
        """Read and validate a stamp that ``source`` sent to this member."""

    def size(self, packet: Packet) -> int:
        """Return the length of the encoded stamp. A subclass may compute the length without encoding, which is
        faster."""
        return len(self.encode(packet))

    def encode(self, packet: Packet) -> bytes:
        """Return the packet's stamp as bytes."""
        out = Writer()
        self.write_stamp(packet, out)
        return out.bytes()

    def decode(self, kind: str, source: int, data: bytes) -> Any:
        """Return a stamp from the wire; raise :class:`StampError` if no correct member can have sent it."""
        if len(data) > limits.stamp_bytes_max:
            raise StampError(f"stamp of {len(data)} bytes: expected at most {limits.stamp_bytes_max}")
        if kind != COPY and kind not in self.controls:
            raise StampError(f"order {self.name} has no packets of kind {kind!r}")
        return self._read(kind, source, Reader(data, self.members))

    def decode_recorded(self, kind: str, source: int, data: bytes) -> Any:
        """Return a stamp that was stored in the log. It is checked less strictly, see :class:`RecordedReader`."""
        return self._read(kind, source, RecordedReader(data, self.members))

    def _read(self, kind: str, source: int, reader: Reader) -> Any:
        stamp = self.read_stamp(kind, source, reader)
        reader.finish()
        return stamp

    def is_unhurried(self, packet: Packet) -> bool:
        """Return whether a packet from this member may be sent later, because nothing at its destination waits for
        it."""
        return False

    def dependents(self, packet: Packet) -> int:
        """Return the number of dependencies that the stamp names, counted as in Jang et al. §6 (0 without stamps)."""
        return 0

    def paper_bytes(self, packet: Packet) -> int:
        """Return the stamp's size as in Jang et al. §6.2: 4 bytes per timestamp, 2 per process id."""
        return 0

    # State.

    @abstractmethod
    def dump(self) -> Any:
        """Return the durable state as plain values (numbers, strings, bytes, tuples, lists)."""

    @abstractmethod
    def load(self, state: Any) -> None:
        """Load the state from ``dump`` into a new order."""

    def held_packets(self) -> list[Packet]:
        """Return the held packets that ``dump`` does not contain. After a crash, the link delivers them again."""
        return []

    def hold_again(self, packet: Packet) -> None:
        """Hold ``packet`` in this new clone. The packet is one of the ``held_packets`` of the original order."""
        verdict, _ = self.receive(packet)
        assert verdict is Verdict.HOLD, (verdict, packet)

    def snapshot(self) -> bytes:
        """Return the durable state as bytes."""
        return msgspec.msgpack.encode((self.name, self.members, self.me, self.dump()))

    def restore(self, snapshot: bytes) -> None:
        """Load the state of a snapshot into a new order."""
        try:
            name, members, me, state = msgspec.msgpack.decode(snapshot, type=tuple[str, int, int, Any])
            if (name, members, me) != (self.name, self.members, self.me):
                raise SnapshotError(
                    f"snapshot of order {name!r}, member {me} of {members}: "
                    f"expected order {self.name!r}, member {self.me} of {self.members}"
                )
            self.load(state)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, TypeError, LookupError) as error:
            raise SnapshotError(f"unreadable snapshot of order {self.name}: {error}") from error

    def clone(self) -> Self:
        """Return an independent order with the same state, held packets included."""
        clone = type(self)(self.me, self.members, **self.settings)
        clone.load(self.dump())
        for packet in self.held_packets():
            clone.hold_again(packet)
        return clone

    # Small helpers that every order uses.

    def copies(self, message: Message, stamp: Any) -> list[Packet]:
        """Return one copy for each destination, all with the same stamp."""
        return [Packet(COPY, self.me, target, message, message.id, stamp) for target in members_of(message.to)]

    def control(self, kind: str, target: int, subject: str = "", stamp: Any = None) -> Packet:
        """Return a control packet from this member."""
        return Packet(kind, self.me, target, None, subject, stamp)


class PlainOrder(Order):
    """An order whose stamps are tuples of whole numbers, written one after the other.

    An order that uses control packets (a coordinator, a token, votes, locks) needs little data in each packet: a
    sequence number, a timestamp, a count. Each order reads and validates these numbers itself, because only the order
    knows which numbers a correct peer can have sent.
    """

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        for number in packet.stamp:
            out.number(number)

    def size(self, packet: Packet) -> int:
        return sum(map(number_size, packet.stamp))

    def paper_bytes(self, packet: Packet) -> int:
        return 4 * len(packet.stamp)
