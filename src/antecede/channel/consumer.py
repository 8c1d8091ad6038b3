"""A MessageConsumer: one server's part in one domain (Laumay et al. §5, Fig. 6 and 7).

It owns the domain's order, a link to every other member, and the trains that leave in this step. It hands the order's
deliveries to the Channel, which decides whether a letter is for an agent of this server or for the next domain.

**Bodies are bytes.** A packet is encoded once, with its stamp, when it is sent; a resend is the same bytes. (If a stamp
were computed again for a resend, it would differ from the first: the receiver would wait for ever, or deliver in a
wrong order.)

**Accepting.** A frame's number is accepted in the step that accepts its packet. The step's record must contain the
packets that the step accepts, in their sequence. A packet that is only held is neither on disk nor acknowledged, so the
peer sends it again. A packet that the order takes for a repeat changes only the state of the link. The record marks
such a packet, and replay relies on the mark.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice
from math import inf
from typing import Any

import msgspec

from antecede import limits
from antecede.channel.letters import Letter, Past, body_of, couple, uncouple
from antecede.channel.packets import copy_of, decode_packet, encode_packet, unshared_packet
from antecede.errors import AntecedeError, WireError
from antecede.labels import label_in
from antecede.link import FRESH, Ack, Arrival, Frame, Link
from antecede.messages import DELIVER, HOLD, PERSIST, Accept, Deliver, Effects, Message, Packet, Send
from antecede.orders import OrderSpec
from antecede.orders.contract import Order, Reason


class Taken(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=1):
    """A packet that a step accepted: enough to apply it again from the log."""

    domain: str
    peer: str
    incarnation: int
    number: int
    packet: bytes
    held: bool = False
    """Whether the order held the packet before it accepted it; only traces use this."""
    repeat: bool = False
    """Whether the order took it for a repeat, so that only its frame counts. A replay does not ask the order again,
    because the answer might differ: in a replay the order has seen only the packets that are in the log. So of two
    packets with the same number, it might take the other one for the repeat."""


class SavedConsumer(msgspec.Struct, frozen=True, array_like=True):
    """The durable state of a :class:`MessageConsumer`."""

    sent: int
    order: bytes
    own: bytes
    links: dict[str, bytes]
    generation: int
    lives: dict[str, int] = {}
    """For each peer its life at the last hello. The oldest snapshots have no lives."""


class Outgoing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A frame or an acknowledgement for a peer of a domain."""

    domain: str
    peer: str
    content: Frame | Ack
    unhurried: bool = False
    """Whether nothing at the peer waits for the frame. Then it may wait here, to leave with other frames."""


def unshared_frame(one: Outgoing) -> Outgoing:
    """Return a frame in the form for servers whose wire version is lower than 3."""
    frame = one.content
    if isinstance(frame, Ack):
        return one
    body = unshared_packet(frame.body)
    return one if body is frame.body else Outgoing(one.domain, one.peer, msgspec.structs.replace(frame, body=body))


class Traffic:
    """Counts of a domain's traffic at this server since its start, for operators."""

    __slots__ = ("held", "letters_delivered", "letters_sent", "messages_delivered", "messages_sent", "stamp_bytes")

    def __init__(self) -> None:
        self.letters_sent = 0
        self.letters_delivered = 0
        """Letters that the domain's order delivered at this server, to agents here or to be forwarded."""
        self.messages_sent = 0
        """Trains of letters that were sent; each is one message of the domain's order."""
        self.messages_delivered = 0
        self.held = 0
        """Packets that the order held when they came."""
        self.stamp_bytes = 0
        """Bytes of stamps on all copies and control packets that left."""


class MessageConsumer:
    """One server in one domain."""

    train_letters_max = limits.train_letters_max
    """How many letters may share one message of the order."""
    own_at_once = True
    """Whether packets to this member itself arrive in the step that sends them."""

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
        """How often this domain was reset."""
        self.deliver = deliver
        self._places = {name: position for position, name in enumerate(members)}
        self._bits = {name: 1 << position for position, name in enumerate(members)}
        self.trains: list[tuple[int, list[Letter], list[int]]] = []
        """The trains of this step: (mask of members, letters, [approximate bytes, number of destinations of all
        letters])."""
        self._copies_max: float = inf
        self._held: dict[int, tuple[Packet, str, int, bytes]] = {}
        """Packets that the order holds: identity → (packet, peer, frame number, bytes)."""
        self.own = Link(incarnation, resend_after)
        """The link for packets of the order to this member itself. They do not travel, but a packet may have to wait,
        and must survive a crash."""
        self._loop: deque[Frame | Packet] = deque()
        self._taking_own = False
        self.taken: list[Any] = []
        """The list that gets accepted packets."""
        self.outgoing: list[Outgoing] = []
        self.tells_past = False
        """Whether ``past`` must be set at each delivery."""
        self.past: Past | None = None
        """The past of the train that is being delivered; None: the order does not know it."""
        self._packet: Packet | None = None

    def share_lists(self) -> None:
        """From now on, write each list of destinations once per train, and limit the number of destinations of a
        train's letters."""
        self._copies_max = limits.train_copies_max

    # Sending.

    def enqueue(self, targets: tuple[str, ...], letter: Letter) -> None:
        """Put a letter on the train of this step to these members."""
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
        """Put letters to the same destinations on the train of this step, one after the other, many at a time if they
        fit."""
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
        """Stamp the trains of this step, in the sequence in which they were begun; return whether there were any."""
        trains, self.trains = self.trains, []
        traffic = self.traffic
        shares = self._copies_max < inf
        for mask, letters, sums in trains:
            self.sent += 1
            traffic.messages_sent += 1
            traffic.letters_sent += len(letters)
            message = Message(
                f"{self.me}.{self.sent}", self.me, mask, couple(letters, shares and sums[1] > len(letters))
            )
            self.perform(self.order.send(message), now)
        return bool(trains)

    # Receiving.

    def receive(self, peer: str, frame: Frame, now: float, recorded: bool = False) -> Arrival:
        """Process a frame from a peer. ``recorded``: it comes from the log."""
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
        """Process a packet from the log."""
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
        """Carry out the effects of an order. ``Persist`` needs nothing here, because the gate lets nothing leave before
        the step is durable. ``Sent`` needs nothing either."""
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
        """Receive the packets that the order sent to this member itself, and the further packets that these cause."""
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
        """Return (members, train) for trains of this server that a member has not acknowledged, or that have not left
        yet."""
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

    def begin_anew(self, generation: int) -> None:
        """Start again in this domain: forget the state of its order and of all its links."""
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
        """Return the first ``count`` held messages: their senders, their content, what each waits for according to the
        order, and the missing frames of each link."""
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
        """Return the number of copies that were sent here but that the order does not let leave yet, and what the first
        of them waits for."""
        copies = len(self.order.unposted())
        return {"copies": copies, "waits_for": self._named(self.order.explain_unposted()) if copies else []}

    def in_transit(self) -> str:
        """Return what was sent and has not arrived, or arrived and was not delivered; empty: nothing."""
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
        """Return the durable state."""
        links = {peer: link.snapshot() for peer, link in self.links.items()}
        lives = {peer: link.peer_life for peer, link in self.links.items()}
        return SavedConsumer(self.sent, self.order.snapshot(), self.own.snapshot(), links, self.generation, lives)

    def load(self, saved: SavedConsumer, now: float) -> None:
        """Load the state from ``dump`` into a new consumer. Packets from this member to itself that were waiting are
        received again."""
        self.sent, self.generation = saved.sent, saved.generation
        self.order.restore(saved.order)
        for peer, link in saved.links.items():
            self.links[peer].restore(link, now)
            self.links[peer].peer_life = saved.lives.get(peer, 0)
        self.own.restore(saved.own, now)
        self._loop += self.own.tick(now)
        self._take_own(now)


def _contents(train: bytes) -> dict[str, Any]:
    """Return the number of letters in a train, and the first of them."""
    try:
        letters = uncouple(train)
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
