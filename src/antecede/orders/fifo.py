"""``none`` and ``fifo``: the two baselines for every other order (Garg §12.1).

``none`` delivers every message on arrival. ``fifo`` numbers the messages from each sender to each destination, and a
receiver delivers the messages of one sender in the sequence of their numbers. Suppose that a process sends two messages
to one destination. Let s1 and s2 be the sends, and r1 and r2 the receipts. If s1 comes before s2, then r2 does not come
before r1 (s1 ≺ s2 ⇒ ¬(r2 ≺ r1)).
Each copy of a multicast gets the next number of its link, so the copies may have different numbers.
"""

from typing import Any, ClassVar

from antecede.errors import StampError
from antecede.messages import COPY, PERSIST, Deliver, Effects, Message, Packet, Send, Sent, Verdict, members_of
from antecede.orders.contract import Order
from antecede.orders.encoding import Reader, Writer, number_size
from antecede.orders.stamped import StampedOrder


class NoOrder(Order):
    """Deliver on arrival. Nothing is remembered or held, and duplicates are not detected."""

    name: ClassVar[str] = "none"
    source: ClassVar[str] = "Garg §12.1"
    guarantees = frozenset[str]()
    selective: ClassVar[bool] = True
    recognises_repeats = False

    def send(self, message: Message) -> Effects:
        return [PERSIST, Sent(message), *map(Send, self.copies(message, None))]

    def check(self, packet: Packet) -> Verdict:
        return Verdict.DELIVER

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        assert packet.message is not None
        return Verdict.DELIVER, [PERSIST, Deliver(packet.message)]

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        pass

    def read_stamp(self, kind: str, source: int, data: Reader) -> Any:
        return None

    def size(self, packet: Packet) -> int:
        return 0

    def dump(self) -> Any:
        return ()

    def load(self, state: Any) -> None:
        pass


class Fifo(StampedOrder):
    """Deliver the messages of one sender in the sequence in which they were sent to us."""

    name: ClassVar[str] = "fifo"
    source: ClassVar[str] = "Garg §12.1"
    guarantees = frozenset({"fifo"})

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.sent = [0] * members

    def send(self, message: Message) -> Effects:
        effects: Effects = [PERSIST, Sent(message)]
        for target in members_of(message.to):
            self.sent[target] += 1
            effects.append(Send(Packet(COPY, self.me, target, message, message.id, self.sent[target])))
        return effects

    def number(self, packet: Packet) -> int:
        stamp: int = packet.stamp
        return stamp

    def missing(self, packet: Packet) -> tuple[int, int] | None:
        previous = packet.stamp - 1
        return None if previous == self.delivered[packet.source] else (packet.source, previous)

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        out.number(packet.stamp)

    def read_stamp(self, kind: str, source: int, data: Reader) -> int:
        number = data.ordinal(self.delivered[source])
        if source == self.me and number > self.sent[self.me]:
            raise StampError("stamp counts messages that we never sent")
        return number

    def size(self, packet: Packet) -> int:
        return number_size(packet.stamp)

    def dependents(self, packet: Packet) -> int:
        return 1

    def paper_bytes(self, packet: Packet) -> int:
        return 4

    def dump(self) -> Any:
        return (tuple(self.sent), tuple(self.delivered))

    def load(self, state: Any) -> None:
        self.sent, self.delivered = map(list, state)
