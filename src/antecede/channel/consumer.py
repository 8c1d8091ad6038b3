"""The MessageConsumer: one server's part in one domain (Laumay et al. §5, Fig. 6 and 7).

A MessageConsumer owns the domain's order, a link to every other member, and the *trains* (batches of letters) that
leave in the current *step* (the processing of some inputs, with one log record). When the order delivers a message, the
MessageConsumer passes it to the Channel. The Channel decides whether a letter is for an agent of this server or for the
next domain.

**Bodies are bytes.** A packet is encoded once, with its stamp, when it is first sent. A resend has the same bytes. (If
the stamp were computed again for a resend, it would differ from the first stamp. Then the receiver would wait for ever,
or deliver in a wrong order.)

**Accepting.** The step that accepts a packet also accepts the number of the packet's frame. The record of the step must
contain the accepted packets in the sequence of acceptance. A packet that the order cannot deliver yet is held. A
held packet is neither on disk nor acknowledged, so the peer sends it again after a crash of this server. If the order
recognises a packet as a repeat of an earlier packet, only the state of the link changes. In the record of the step,
such a packet is marked as a repeat, and a replay relies on this mark.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec

from antecede import limits
from antecede.channel.letters import Letter, Past, body_of, decode_train, encode_train
from antecede.errors import AntecedeError, StampError, WireError
from antecede.labels import label_in
from antecede.link import FRESH, Ack, Arrival, Frame, Link
from antecede.messages import COPY, DELIVER, HOLD, PERSIST, Accept, Deliver, Effects, Message, Packet, Send
from antecede.orders import OrderSpec
from antecede.orders.contract import Order, Reason

# Encodes the packets of an order as bytes, and decodes them. Links send the bytes in frames, and the log stores them.
#
# A packet contains its stamp as opaque bytes of limited length, with the name of the order and the version of the
# stamp. So the receiver recognises a packet of another order, or of another version of the order, and does not misread
# it. Nothing from the network is trusted: kinds, members, sizes and stamps are checked by the code that uses them.


class _Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    order: str
    version: int
    kind: str
    subject: str
    stamp: bytes
    source: int = 0
    to: bytes = b""
    payload: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Body)


def encode_packet(order: Order, packet: Packet) -> tuple[bytes, int]:
    """Return the bytes of a packet, and the length of the stamp in them."""
    message, (name, version) = packet.message, order.packet_format
    stamp = order.encode(packet)
    if message is None:
        body = _Body(name, version, packet.kind, packet.subject, stamp)
    else:
        to = message.to.to_bytes((order.members + 7) // 8, "little")
        body = _Body(name, version, COPY, message.id, stamp, message.source, to, message.payload)
    return _encoder.encode(body), len(stamp)


def decode_packet(order: Order, peer: int, data: bytes, recorded: bool = False) -> Packet:
    """Decode a packet that member ``peer`` sent to member ``order.me``. ``recorded``: whether the packet comes from the
    log."""
    try:
        body = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"unreadable packet: {error}") from None
    name, version = order.packet_format
    if body.order != name or body.version != version:
        raise WireError(f"packet of order {body.order} version {body.version}: expected order {name} version {version}")
    if len(body.subject) > limits.message_id_chars_max:
        raise WireError(f"message id of {len(body.subject)} characters: expected at most {limits.message_id_chars_max}")
    message = _message(order, peer, body) if body.kind == COPY else None
    decode = order.decode_recorded if recorded else order.decode
    return Packet(body.kind, peer, order.me, message, body.subject, decode(body.kind, peer, body.stamp))


def _message(order: Order, peer: int, body: _Body) -> Message:
    to = int.from_bytes(body.to, "little")
    if to & ~order.everyone or not to:
        raise StampError("message without destinations, or with a destination that is not a member of the domain")
    source = body.source
    if source != peer or not to >> order.me & 1:
        if not 0 <= source < order.members:
            raise StampError(f"message from member {source}: expected 0 to {order.members - 1}")
        if not order.relays:
            raise StampError(
                f"member {peer} sent a message of member {source} to member {order.me}: with this order, member {peer} "
                "may send only its own messages, and only to their destinations"
            )
    return Message(body.subject, source, to, body.payload)


class Copy(msgspec.Struct, frozen=True, gc=False):
    """A copy of a message for a reader that does not have the domain's order, such as the recorder of a trace. Without
    the order, the stamp cannot be decoded, so only the length of the stamp is stored."""

    subject: str
    source: int
    to: int
    stamp_bytes: int
    payload: bytes


def copy_of(data: bytes) -> Copy | None:
    """Return the copy of a message that a packet contains, or None if the packet is a control packet. The content of
    the packet is not checked here: the server has made the packet itself, or has checked it on acceptance."""
    try:
        body = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"unreadable packet: {error}") from None
    if body.kind != COPY:
        return None
    return Copy(body.subject, body.source, int.from_bytes(body.to, "little"), len(body.stamp), body.payload)


class Taken(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=1):
    """A packet that a step accepted, as the log contains it: everything that a replay needs to process it again."""

    domain: str
    peer: str
    incarnation: int
    number: int
    packet: bytes
    held: bool = False
    """True if the order held the packet before the packet was accepted. Only traces use this."""
    repeat: bool = False
    """True if the order recognised the packet as a repeat. Then only the number of its frame was accepted. A replay
    relies on this mark and does not ask the order. In a replay, the order sees the packets in the sequence of their
    acceptance, not of their arrival. So if two packets have the same number, the order might regard the wrong packet as
    the repeat."""


class SavedConsumer(msgspec.Struct, frozen=True, array_like=True):
    """The durable state of a :class:`MessageConsumer`."""

    sent: int
    order: bytes
    own: bytes
    links: dict[str, bytes]
    generation: int
    lives: dict[str, int] = {}
    """For each peer, the number of its *life* (the time from one start of a server to the next). Each peer sends this
    number when it connects."""


class Outgoing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A frame or an acknowledgement that is to be sent to a peer in a domain."""

    domain: str
    peer: str
    content: Frame | Ack
    unhurried: bool = False
    """True if the peer does not wait for this frame. Such a frame may be delayed, so that it is sent together with
    other frames."""


class Traffic:
    """Counters of one domain's traffic at this server, for operators. They begin at 0 when the server starts."""

    __slots__ = ("held", "letters_delivered", "letters_sent", "messages_delivered", "messages_sent", "stamp_bytes")

    def __init__(self) -> None:
        self.letters_sent = 0
        self.letters_delivered = 0
        """The number of letters that the domain's order delivered at this server: letters for agents here, and letters
        to forward."""
        self.messages_sent = 0
        """The number of trains that were sent. A train contains one or several letters, and is one message of the
        domain's order."""
        self.messages_delivered = 0
        self.held = 0
        """The number of packets that the order had to hold, because it could not deliver them when they came."""
        self.stamp_bytes = 0
        """The total size of the stamps on all packets to other members: on copies of messages and on control
        packets."""


class MessageConsumer:
    """One server's part in one domain. It sends and receives the domain's messages through the domain's order."""

    train_letters_max = limits.train_letters_max
    """The maximum number of letters in one train. A train is one message of the order."""
    own_at_once = True
    """True if a packet from this member to itself can arrive in the same step in which it is sent."""

    def __init__(
        self,
        domain: str,
        members: tuple[str, ...],
        me: str,
        spec: OrderSpec,
        incarnation: int,
        deliver: Callable[[str, bytes, int], None],
        resend_after: float = limits.link_resend_first_seconds,
    ) -> None:
        self.domain = domain
        self.members = members
        self.me = members.index(me)
        self.spec = spec
        self.order: Order = spec.create(self.me, len(members))
        self.links = {peer: Link(incarnation, resend_after) for peer in members if peer != me}
        self.sent = 0
        self.traffic = Traffic()
        self.generation = 0
        """The number of times that this domain was reset."""
        self.deliver = deliver
        self._places = {name: position for position, name in enumerate(members)}
        self._bits = {name: 1 << position for position, name in enumerate(members)}
        self.trains: list[tuple[int, list[Letter], list[int]]] = []
        """The trains of this step, each as (bit mask of the destination members, letters, sums). The two sums are the
        approximate bytes of all letters, and the number of destinations of all letters."""
        self._copies_max = limits.train_copies_max
        self._held: dict[int, tuple[Packet, str, int, bytes]] = {}
        """The packets that the order holds. A key is ``id(packet)``. A value is (packet, peer, frame number, encoded
        packet)."""
        self.own = Link(incarnation, resend_after)
        """The link for packets from this member to itself. These packets do not go through the network. But a packet
        may have to wait, and then it must survive a crash."""
        self._loop: deque[Frame | Packet] = deque()
        self._taking_own = False
        self.taken: list[Any] = []
        """The list to which each accepted packet is appended, for the record of the step."""
        self.outgoing: list[Outgoing] = []
        self.tells_past = False
        """True if ``past`` must be set before each delivery."""
        self.past: Past | None = None
        """The past of the train that is being delivered: the messages on which the train depends. It is None if these
        messages are not known."""
        self._packet: Packet | None = None

    # Sending.

    def enqueue(self, targets: tuple[str, ...], letter: Letter) -> None:
        """Put a letter on a train (a batch of letters) to these members: on the last train of this step if possible,
        otherwise on a new one."""
        mask = 0
        for target in targets:
            mask |= self._bits[target]
        size, copies = len(letter.body) + 64, len(letter.to)
        if self.trains and self.trains[-1][0] == mask:
            _, letters, sums = self.trains[-1]
            if (
                len(letters) < self.train_letters_max
                and sums[0] + size <= limits.train_bytes_max
                and sums[1] + copies <= self._copies_max
            ):
                letters.append(letter)
                sums[0] += size
                sums[1] += copies
                return
        self.trains.append((mask, [letter], [size, copies]))

    def enqueue_many(self, targets: tuple[str, ...], letters: list[Letter]) -> None:
        """Put several letters on trains of this step, in this sequence. All these letters go to the members
        ``targets``. This is faster than one call of ``enqueue`` per letter."""
        for start in range(0, len(letters), _piece_letters):
            piece = letters[start : start + _piece_letters]
            self.enqueue(targets, piece[0])
            _, train, sums = self.trains[-1]
            rest = piece[1:]
            size = sum(map(len, map(body_of, rest))) + 64 * len(rest)
            copies = len(piece[0].to) * len(rest)
            if (
                len(train) + len(rest) <= self.train_letters_max
                and sums[0] + size <= limits.train_bytes_max
                and sums[1] + copies <= self._copies_max
            ):
                train += rest
                sums[0] += size
                sums[1] += copies
            else:
                for letter in rest:
                    self.enqueue(targets, letter)

    def flush(self, now: float) -> bool:
        """Stamp and send the trains (groups of letters) of this step, in the sequence of their creation. Return whether
        there were any trains."""
        trains, self.trains = self.trains, []
        traffic = self.traffic
        for mask, letters, _ in trains:
            self.sent += 1
            traffic.messages_sent += 1
            traffic.letters_sent += len(letters)
            message = Message(f"{self.me}.{self.sent}", self.me, mask, encode_train(letters))
            self.perform(self.order.send(message), now)
        return bool(trains)

    # Receiving.

    def receive(self, peer: str, frame: Frame, now: float, recorded: bool = False) -> Arrival:
        """Process a frame from a peer. ``recorded``: whether the frame comes from the log."""
        link = self.links.get(peer) or self.own
        arrival = link.receive(frame)
        if arrival is FRESH:
            try:
                packet = decode_packet(self.order, self._places[peer], frame.body, recorded)
            except AntecedeError:
                link.refuse(frame.number)
                raise
            verdict, effects = self.order.receive(packet)
            if verdict is DELIVER:
                self._accept(peer, frame.number, frame.body)
            elif verdict is HOLD:
                self.traffic.held += 1
                self._held[id(packet)] = (packet, peer, frame.number, frame.body)
            else:
                self._accept(peer, frame.number, frame.body, repeat=not effects)
            self._packet = packet
            self.perform(effects, now)
        return arrival

    def receive_again(self, taken: Taken, now: float) -> Arrival:
        """Process a packet that a replay reads from the log."""
        frame = Frame(taken.incarnation, 0, taken.number, taken.packet)
        if not taken.repeat:
            return self.receive(taken.peer, frame, now, recorded=True)
        arrival = self.links[taken.peer].receive(frame)
        if arrival is FRESH:
            self._accept(taken.peer, taken.number, taken.packet, repeat=True)
        return arrival

    def _accept(self, peer: str, number: int, body: bytes, held: bool = False, repeat: bool = False) -> None:
        link = self.links.get(peer)
        if link is None:
            # The log already contains the cause of this packet, so nothing needs to be recorded or sent.
            self.own.accept(number)
            ack = self.own.ack()
            assert ack is not None
            self.own.on_ack(ack, 0.0)
            return
        link.accept(number)
        self.taken.append(Taken(self.domain, peer, link.peer, number, body, held, repeat))

    def perform(self, effects: Effects, now: float) -> None:
        """Carry out the effects that an order requests. ``Persist`` needs no action here, because all output of a step
        leaves only when the step is durable. ``Sent`` needs no action, either."""
        for effect in effects:
            if effect is PERSIST:
                continue
            kind = type(effect)
            if kind is Deliver:
                message = effect.message  # type: ignore[union-attr]
                self.traffic.messages_delivered += 1
                if self.tells_past:
                    self.past = self._past_of(message)
                self.deliver(self.domain, message.payload, message.source)
            elif kind is Send:
                packet = effect.packet  # type: ignore[union-attr]
                if packet.target == self.me:
                    self._send_to_itself(packet, now)
                else:
                    self._send(packet, now)
            elif kind is Accept:
                held = self._held.pop(id(effect.packet), None)  # type: ignore[union-attr]
                self._packet = effect.packet  # type: ignore[union-attr]
                if held is not None:
                    self._accept(held[1], held[2], held[3], held=True)
        if self._loop and not self._taking_own:
            self._take_own(now)

    def _send(self, packet: Packet, now: float) -> None:
        order, peer = self.order, self.members[packet.target]
        body, stamp_bytes = encode_packet(order, packet)
        link = self.links[peer]
        frame = link.send(body, now)
        self.traffic.stamp_bytes += stamp_bytes
        if frame.number <= link.admitted:
            self.outgoing.append(Outgoing(self.domain, peer, frame, order.is_unhurried(packet)))

    def _send_to_itself(self, packet: Packet, now: float) -> None:
        if self.own_at_once and self.order.accepts_own:
            self._loop.append(packet)
        else:
            self._loop.append(self.own.send(encode_packet(self.order, packet)[0], now))

    def _past_of(self, message: Message) -> Past | None:
        packet = self._packet
        if packet is None or packet.message is not message or message.source == self.me:
            return None
        counts = self.order.past(packet)
        return None if counts is None else Past(self.domain, packet.source, counts)

    def _take_own(self, now: float) -> None:
        """Receive the packets that the order sent to this member itself. If these cause further packets to this member,
        receive them as well."""
        self._taking_own = True
        try:
            while self._loop:
                own = self._loop.popleft()
                if isinstance(own, Frame):
                    self.receive(self.members[self.me], own, now)
                    continue
                verdict, effects = self.order.receive(own)
                self.traffic.held += verdict is HOLD
                self.perform(effects, now)
        finally:
            self._taking_own = False

    # Reset.

    def unsettled(self) -> tuple[tuple[tuple[str, ...], bytes], ...]:
        """Return the trains that this server must send after a reset of the domain. These are trains that have not left
        yet, and trains that were sent but not acknowledged. The trains of other members that this server forwarded are
        included. Each result is a pair (members to send to, train)."""
        trains: list[tuple[tuple[str, ...], bytes]] = []
        detours: set[str] = set()
        for peer, link in self.links.items():
            for body in link.bodies():
                copy = copy_of(body)
                if copy is None:
                    continue
                if copy.to & self._bits[peer]:
                    trains.append(((peer,), copy.payload))
                elif copy.source == self.me and copy.subject not in detours:
                    # In transit through another member, which will not forward it any more.
                    detours.add(copy.subject)
                    trains.append((self._names(copy.to), copy.payload))
        trains += [(self._names(1 << target), message.payload) for message, target in self.order.unposted()]
        return tuple(trains)

    def begin_again(self, generation: int) -> None:
        """Reset this consumer: forget the state of the domain's order and of all links."""
        self.generation = generation
        self.order = self.spec.create(self.me, len(self.members))
        for link in (*self.links.values(), self.own):
            link.forget()
        self.sent = 0
        self._held.clear()
        self._loop.clear()
        self.outgoing = []

    def _names(self, mask: int) -> tuple[str, ...]:
        return tuple(name for name, bit in self._bits.items() if mask & bit)

    # State.

    def waiting(self, count: int) -> list[dict[str, Any]]:
        """Return one description for each of the first ``count`` messages that the order holds. A description has the
        sender and the content of the message, the reasons why the order holds it, and the missing frames of each
        link."""
        missing = {peer: link.missing() for peer, link in self.links.items() if link.pending}
        frames = {packet.subject: number for packet, _, number, _ in self._held.values() if packet.message is not None}
        return [
            {
                "message": message.id,
                "from": self.members[message.source],
                "letters": _contents(message.payload),
                "waits_for": self._named(reasons),
                "frame": frames.get(message.id),
                "missing": missing,
            }
            for message, reasons in islice(self.order.explain_held(), count)
        ]

    def leaving(self) -> dict[str, Any]:
        """Return how many copies of this server's messages wait, because the order does not allow them to leave yet.
        Also return the reasons why the first of these copies waits."""
        copies = len(self.order.unposted())
        return {"copies": copies, "waits_for": self._named(self.order.explain_unposted()) if copies else []}

    def in_transit(self) -> str:
        """Describe the first unfinished work that is found: frames that are not acknowledged, received frames that are
        held, or messages that have not left yet. Return an empty string if all work is finished."""
        for peer, link in (*self.links.items(), ("itself", self.own)):
            if link.unacknowledged:
                return f"{link.unacknowledged} frames to {peer} are not acknowledged"
            if link.pending:
                return f"{link.pending} frames from {peer} are held"
        unposted = len(self.order.unposted())
        return f"{unposted} messages have not left" if unposted or self.trains else ""

    def _named(self, reasons: list[Reason]) -> list[dict[str, str]]:
        return [{"server": self.members[member], "what": what} for member, what in reasons[:_reasons_max]]

    def dump(self) -> SavedConsumer:
        """Return the durable state of this consumer."""
        links = {peer: link.snapshot() for peer, link in self.links.items()}
        lives = {peer: link.peer_life for peer, link in self.links.items()}
        return SavedConsumer(self.sent, self.order.snapshot(), self.own.snapshot(), links, self.generation, lives)

    def load(self, saved: SavedConsumer, now: float) -> None:
        """Load the result of ``dump`` into a new consumer. If packets from this member to itself were waiting, receive
        them again."""
        self.sent, self.generation = saved.sent, saved.generation
        self.order.restore(saved.order)
        for peer, link in saved.links.items():
            self.links[peer].restore(link, now)
            self.links[peer].peer_life = saved.lives.get(peer, 0)
        self.own.restore(saved.own, now)
        self._loop += self.own.tick(now)
        self._take_own(now)


def _contents(train: bytes) -> dict[str, Any]:
    """Return the number of letters in a train, and a description of the first letter."""
    try:
        letters = decode_train(train)
    except WireError:
        return {"count": 0}
    if not letters:
        return {"count": 0, "first": None}
    first = letters[0]
    label = label_in(first.context)
    shown = {"id": first.id, "type": first.type, "label": label, "to": list(first.to[:8])}
    return {"count": len(letters), "first": shown}


_reasons_max = 16
_piece_letters = 128
