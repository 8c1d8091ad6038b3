"""The base class of orders in which stamps alone decide when a message is delivered. It holds packets that must wait,
and releases them without a search.

Such an order answers one question about a packet: *which message must be delivered here first?* The answer is a pair
(member, number) that identifies a message, or ``None``. A packet that must wait is stored under this pair. When the
message with this pair is delivered, only the packets stored under the pair are examined again. So the cost of a
delivery depends on the number of packets that it may release, and not on the number of all waiting packets. (The stored
packets are the "wait" of rule R1 in Jang et al. §4.2.)

``number(packet)`` identifies a packet among the packets of its source. A packet is a duplicate if its number is not
larger than the last number delivered from this source, or if a packet with this number is already held.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from antecede.messages import DELIVER, PERSIST, Accept, Deliver, Effects, Message, Packet, Verdict
from antecede.orders.contract import Order, Reason


class StampedOrder(Order):
    """The base class of orders in which the stamp of a packet identifies the messages that must be delivered before
    it."""

    selective: ClassVar[bool] = True

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.delivered = [0] * members
        """The number of the last message delivered here from each member."""
        self._parked: dict[int, list[Packet]] = {}
        self._held: dict[int, Packet] = {}

    @abstractmethod
    def number(self, packet: Packet) -> int:
        """Return the number of a packet: 1 or more, and larger than the number of any earlier packet from its source to
        this member. Numbers may be skipped."""

    @abstractmethod
    def missing(self, packet: Packet) -> tuple[int, int] | None:
        """Return a message that must still be delivered here before this packet, as the pair (sender, number of the
        message). Return ``None`` if there is no such message."""

    def predecessors(self, packet: Packet) -> list[tuple[int, int]]:
        """Return all known messages that must still be delivered before this packet, as pairs (sender, number of the
        message). The result is only used in reports, so the method need not be fast."""
        missing = self.missing(packet)
        return [] if missing is None else [missing]

    def learn(self, packet: Packet) -> None:
        """Add the knowledge in the stamp of a packet to our own knowledge. This method is called when the packet is
        delivered."""

    def check(self, packet: Packet) -> Verdict:
        number = self.number(packet)
        if number <= self.delivered[packet.source] or number * self.members + packet.source in self._held:
            return Verdict.DUPLICATE
        return Verdict.DELIVER if self.missing(packet) is None else Verdict.HOLD

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        number = self.number(packet)
        source = packet.source
        delivered = self.delivered
        if number <= delivered[source]:
            return Verdict.DUPLICATE, []
        members = self.members
        key = number * members + source
        missing = self.missing(packet)
        if missing is not None:
            if key in self._held:
                return Verdict.DUPLICATE, []
            self._held[key] = packet
            self._parked.setdefault(missing[1] * members + missing[0], []).append(packet)
            return Verdict.HOLD, []
        assert packet.message is not None
        delivered[source] = number
        self.learn(packet)
        effects: Effects = [PERSIST, Deliver(packet.message)]
        if key in self._parked:
            self._release(key, effects)
        return DELIVER, effects

    def _release(self, key: int, effects: Effects) -> None:
        """Examine the packets that waited for the message ``key``, which has just been delivered. Deliver those that
        need not wait for another message. Then examine the packets that waited for the delivered ones, and so on."""
        members = self.members
        candidates = self._parked.pop(key)
        for packet in candidates:
            number = self.number(packet)
            if number <= self.delivered[packet.source]:
                # Its sender's forged stamp has overtaken it. Delivering it now would move ``delivered`` backwards.
                del self._held[number * members + packet.source]
                effects.append(Accept(packet))
                continue
            missing = self.missing(packet)
            if missing is not None:
                self._parked.setdefault(missing[1] * members + missing[0], []).append(packet)
                continue
            assert packet.message is not None
            freed = number * members + packet.source
            del self._held[freed]
            self.delivered[packet.source] = number
            self.learn(packet)
            effects.append(Accept(packet))
            effects.append(Deliver(packet.message))
            if freed in self._parked:
                candidates.extend(self._parked.pop(freed))

    def explain_held(self) -> Iterator[tuple[Message, list[Reason]]]:
        for packet in self._held.values():
            if packet.message is not None:
                missing, last = self.predecessors(packet), self.delivered
                reasons = [(k, f"message {number}, the last one delivered is {last[k]}") for k, number in missing]
                yield packet.message, reasons

    def held_packets(self) -> list[Packet]:
        return list(self._held.values())
