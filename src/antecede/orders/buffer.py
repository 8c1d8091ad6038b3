"""``buffer``: causal order with acknowledgements and no stamps (Mattern, Fünfrocken §3).

Every process has one FIFO output buffer and one FIFO input buffer. The output buffer *posts* one message (puts it on
the network), waits until the receiver's input buffer has acknowledged it, and only then posts the next one. The
application continues meanwhile. So a message is already safe at its receiver when a message that depends on it is
posted. This protocol keeps the order by waiting at the sender; :mod:`antecede.orders.matrix` keeps the order by waiting
at the receiver, with stamps. The input buffer first enqueues a message, then acknowledges it. (The paper has the
opposite sequence, but with that sequence a crash after the acknowledgement could lose the message.)

``pipelined`` (footnote 4): a message need not wait for the acknowledgements of earlier messages to the same receiver.
The footnote requires FIFO links, but links may reorder here. Therefore the messages are numbered, and the receiver puts
them in sequence before it acknowledges them. A message to another receiver is posted only when **all** acknowledgements
have arrived. (If the sender waited only for the last acknowledgement, a chain of messages could overtake an earlier
message.)

``multicast``: the paper does not define it. It is not enough to post to all destinations and to wait for all
acknowledgements. For example, A sends one message to B and C. B receives A's message before C does, and sends another
message to C. B's message may reach C before A's message. There are two correct ways:

* ``hold-output``: a destination delivers immediately, but posts nothing until the sender reports that every copy has
  arrived;
* ``hold-delivery``: a destination acknowledges immediately, but delivers this message and later messages only when it
  gets the report.

Without ``pipelined``, copies have no numbers. The order then compares the id of a copy only with the id of the latest
message from the same sender, so it recognises only duplicates of this message. The link drops duplicates of earlier
messages. With ``pipelined`` the order recognises every duplicate.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

from antecede.errors import StampError
from antecede.messages import (
    COPY,
    PERSIST,
    Accept,
    Deliver,
    Effects,
    Message,
    Packet,
    Send,
    Sent,
    Verdict,
    members_of,
)
from antecede.orders.contract import Option, Order, Reason, pack_message, unpack_message
from antecede.orders.encoding import Reader, Writer, number_size

ACK = "ack"
RELEASE = "release"


class Buffer(Order):
    """An order that puts a message on the network only when all destinations have acknowledged the previous message.
    With the option ``pipelined``, messages to the same receiver do not wait for each other."""

    name: ClassVar[str] = "buffer"
    source: ClassVar[str] = "Mattern, Fünfrocken §3"
    guarantees = frozenset({"fifo", "causal"})
    needs: ClassVar[frozenset[str]] = frozenset({"control packets"})
    controls: ClassVar[tuple[str, ...]] = (ACK, RELEASE)
    options: ClassVar[dict[str, Option]] = {
        "pipelined": Option(False, "send to the same receiver without waiting for each acknowledgement (footnote 4)"),
        "multicast": Option(
            "hold-output",
            "what a destination holds until every copy of a multicast has arrived",
            ("hold-output", "hold-delivery"),
        ),
    }

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.pipelined: bool = self.settings["pipelined"]
        self.recognises_repeats = self.pipelined
        self.hold_output: bool = self.settings["multicast"] == "hold-output"
        self.output: deque[Message] = deque()
        self.posted: dict[str, tuple[int, int]] = {}
        """Messages that were posted, but not acknowledged by all destinations: id → (mask of all destinations, mask of
        the destinations that have not acknowledged)."""
        self.unreleased: set[str] = set()
        """The ids of multicasts that have arrived here, but may not have arrived at all their destinations yet."""
        self.input: deque[Message] = deque()
        """Messages that are acknowledged, but not delivered (``hold-delivery`` only). The first one waits until its
        sender reports that all copies have arrived; the others wait for the first one."""
        self.numbers = [0] * members
        self.expected = [1] * members
        self.latest = [""] * members
        self._early: dict[int, Packet] = {}

    # The output buffer.

    def send(self, message: Message) -> Effects:
        effects: Effects = [PERSIST, Sent(message)]
        if message.to:
            self.output.append(message)
            self._post(effects)
        return effects

    def _post(self, effects: Effects) -> None:
        while self.output and self._may_post(self.output[0]):
            message = self.output.popleft()
            self.posted[message.id] = (message.to, message.to)
            for target in members_of(message.to):
                self.numbers[target] += 1
                stamp = self.numbers[target] if self.pipelined else None
                effects.append(Send(Packet(COPY, self.me, target, message, message.id, stamp)))

    def _may_post(self, message: Message) -> bool:
        if self.hold_output and self.unreleased:
            return False
        if not self.posted:
            return True
        alone = message.to & (message.to - 1) == 0
        return self.pipelined and alone and all(to == message.to for to, _ in self.posted.values())

    def _acknowledged(self, packet: Packet) -> tuple[Verdict, Effects]:
        to, waiting = self.posted.get(packet.subject, (0, 0))
        bit = 1 << packet.source
        if not waiting & bit:
            return Verdict.DUPLICATE, []
        effects: Effects = [PERSIST]
        waiting ^= bit
        if waiting:
            self.posted[packet.subject] = (to, waiting)
        else:
            del self.posted[packet.subject]
            if to & (to - 1):
                effects += [Send(self.control(RELEASE, target, packet.subject)) for target in members_of(to)]
            self._post(effects)
        return Verdict.DELIVER, effects

    # The input buffer.

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        if packet.kind == ACK:
            return self._acknowledged(packet)
        if packet.kind == RELEASE:
            return self._released(packet)
        if self.pipelined:
            return self._receive_numbered(packet)
        if packet.subject == self.latest[packet.source]:
            return Verdict.DUPLICATE, []
        effects: Effects = [PERSIST]
        self._get(packet, effects)
        return self._verdict(packet, effects), effects

    def _receive_numbered(self, packet: Packet) -> tuple[Verdict, Effects]:
        source, number = packet.source, packet.stamp
        key = number * self.members + source
        if number < self.expected[source] or key in self._early:
            return Verdict.DUPLICATE, []
        if number > self.expected[source]:
            self._early[key] = packet
            return Verdict.HOLD, []
        effects: Effects = [PERSIST]
        self._get(packet, effects)
        verdict = self._verdict(packet, effects)
        while following := self._early.pop(self.expected[source] * self.members + source, None):
            effects.append(Accept(following))
            self._get(following, effects)
        return verdict, effects

    def _verdict(self, packet: Packet, effects: Effects) -> Verdict:
        """Return the verdict on a copy that was put into the input buffer: HOLD if the copy still waits there,
        otherwise DELIVER. If it waits, add the effect ``Accept``, so that the link acknowledges the copy: the input
        buffer is part of the durable state."""
        if packet.message in self.input:
            effects.append(Accept(packet))
            return Verdict.HOLD
        return Verdict.DELIVER

    def _get(self, packet: Packet, effects: Effects) -> None:
        """Put a message into the input buffer, deliver the messages of the buffer that may be delivered, and
        acknowledge the message."""
        message = packet.message
        assert message is not None
        self.latest[packet.source] = message.id
        self.expected[packet.source] += 1
        if message.to & (message.to - 1):
            self.unreleased.add(message.id)
        self.input.append(message)
        self._deliver(effects)
        effects.append(Send(self.control(ACK, packet.source, message.id)))

    def _deliver(self, effects: Effects) -> None:
        while self.input and (self.hold_output or self.input[0].id not in self.unreleased):
            effects.append(Deliver(self.input.popleft()))

    def _released(self, packet: Packet) -> tuple[Verdict, Effects]:
        if packet.subject not in self.unreleased:
            return Verdict.DUPLICATE, []
        self.unreleased.remove(packet.subject)
        effects: Effects = [PERSIST]
        self._deliver(effects)
        self._post(effects)
        return Verdict.DELIVER, effects

    # Questions of observers.

    def held(self) -> list[Message]:
        return [*self.input, *super().held()]

    def explain_held(self) -> Iterator[tuple[Message, list[Reason]]]:
        for message in self.input:
            first = self.input[0]
            of = "it" if message is first else f"message {first.id}"
            yield message, [(first.source, f"its report that all destinations have {of}")]
        for packet in self._early.values():
            if packet.message is not None:
                missing = f"messages {self.expected[packet.source]} to {packet.stamp - 1} to this member"
                yield packet.message, [(packet.source, missing)]

    def explain_unposted(self) -> list[Reason]:
        waiting = [member for _, mask in self.posted.values() for member in members_of(mask)]
        reasons = [(member, "its acknowledgement of earlier messages") for member in dict.fromkeys(waiting)]
        return reasons or [(self.me, f"the report that all destinations have {id_}") for id_ in sorted(self.unreleased)]

    def unposted(self) -> list[tuple[Message, int]]:
        return [(message, target) for message in self.output for target in members_of(message.to)]

    # Stamps: only ``pipelined`` copies have one, their number on the link.

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        if packet.stamp is not None:
            out.number(packet.stamp)

    def read_stamp(self, kind: str, source: int, data: Reader) -> Any:
        if not self.pipelined or kind != COPY:
            return None
        number = data.ordinal(self.expected[source])
        if source == self.me and number > self.numbers[source]:
            raise StampError(f"copy {number} from ourselves: we sent only {self.numbers[source]} copies to ourselves")
        return number

    def size(self, packet: Packet) -> int:
        return 0 if packet.stamp is None else number_size(packet.stamp)

    # State.

    def held_packets(self) -> list[Packet]:
        return list(self._early.values())

    def dump(self) -> Any:
        width = (self.members + 7) // 8
        return (
            tuple(map(pack_message, self.output)),
            tuple(
                (id_, to.to_bytes(width, "little"), waiting.to_bytes(width, "little"))
                for id_, (to, waiting) in sorted(self.posted.items())
            ),
            tuple(sorted(self.unreleased)),
            tuple(map(pack_message, self.input)),
            tuple(self.numbers),
            tuple(self.expected),
            tuple(self.latest),
        )

    def load(self, state: Any) -> None:
        output, posted, unreleased, inputs, *counts = state
        self.output = deque(map(unpack_message, output))
        self.posted = {
            id_: (int.from_bytes(to, "little"), int.from_bytes(waiting, "little")) for id_, to, waiting in posted
        }
        self.unreleased = set(unreleased)
        self.input = deque(map(unpack_message, inputs))
        self.numbers, self.expected, self.latest = map(list, counts)
