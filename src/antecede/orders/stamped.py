"""Shared code of all orders that decide by stamps alone: it holds packets, and releases them without a search.

Such an order answers one question about a packet: *which message must be delivered here first?* The answer is a pair
(member, number), or nothing. A packet that must wait is stored under the first such pair that is missing. When that
message is delivered, only the packets stored under it are examined again. So the cost of a delivery depends only on the
packets that it may release, however many are waiting (the "wait" of rule R1 in Jang et al. §4.2 is this queue).

``number(packet)`` identifies a packet among those of its source. A number that is not newer than the last one delivered
from this source, or that is already held, is a duplicate.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from antecede.messages import DELIVER, PERSIST, Accept, Deliver, Effects, Message, Packet, Verdict
from antecede.orders.contract import Order, Reason


class StampedOrder(Order):
    """An order whose stamps name the messages that must come first."""

    selective: ClassVar[bool] = True

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.delivered = [0] * members
        """The number of the last message delivered here from each member."""
        self._parked: dict[int, list[Packet]] = {}
        self._held: dict[int, Packet] = {}

    @abstractmethod
    def number(self, packet: Packet) -> int:
        """Return the number of a packet: 1 or more, and larger than that of any earlier packet from its source to this
        member. Numbers may be skipped."""

    @abstractmethod
    def missing(self, packet: Packet) -> tuple[int, int] | None:
        """Return (member, number) of a message that must still be delivered here before this packet, or None if there
        is no such message."""

    def predecessors(self, packet: Packet) -> list[tuple[int, int]]:
        """Return (member, number) of all known messages that must still be delivered before this packet. This is only
        for reports, and need not be fast."""
        missing = self.missing(packet)
        return [] if missing is None else [missing]

    def learn(self, packet: Packet) -> None:
        """Add the knowledge in the stamp to our own, because the packet is delivered now."""

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
        """Deliver the packets that waited for the delivered message ``key``, if nothing else is missing. Then deliver
        the packets that waited for these packets, and so on."""
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
