"""FIFO links on top of links that reorder packets: all packets of a link are numbered, and are processed in the
sequence of their numbers.

Several protocols of Garg §12.3 assume FIFO channels. An order for such a protocol numbers *all* its packets from one
member to another, both copies and control packets, as 1, 2, 3 … This number is the first number of the stamp. A packet
that arrives out of sequence is held, and not acknowledged, until all packets with smaller numbers have been processed.
A packet is a duplicate if its number was already processed or is already held. So ``take(packet)``, the method of the
protocol, is called exactly once for each packet, in sequence.

After ``take`` has processed a copy, the message may still have to wait in the protocol's own queue (``waits``). Then
the verdict on the copy is ``HOLD``. But the step has the effect ``Accept``, so the link acknowledges the packet: the
protocol's queue is part of the durable state.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from antecede.errors import StampError
from antecede.messages import COPY, PERSIST, Accept, Effects, Message, Packet, Verdict
from antecede.orders.contract import PlainOrder, Reason
from antecede.orders.encoding import Reader


class SequencedOrder(PlainOrder):
    """The base class of orders that must process the packets of each link exactly once and in sequence."""

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.numbered = [0] * members
        """For each member, the number of the last packet that we sent to it."""
        self.taken = [0] * members
        """For each member, the number of its last packet that was processed here."""
        self._early: dict[tuple[int, int], Packet] = {}

    @abstractmethod
    def take(self, packet: Packet, effects: Effects) -> None:
        """Handle a packet. All earlier packets of the same link have already been processed."""

    def waits(self, packet: Packet) -> bool:
        """Return whether the message of a processed copy still waits in the protocol's own queue."""
        return False

    @abstractmethod
    def read_numbers(self, kind: str, source: int, data: Reader) -> tuple[int, ...]:
        """Read and validate the numbers that follow the packet's number in a stamp."""

    def next_packet(self, kind: str, target: int, message: Message | None, subject: str, *numbers: int) -> Packet:
        """Create the next packet on the link to ``target``."""
        self.numbered[target] += 1
        return Packet(kind, self.me, target, message, subject, (self.numbered[target], *numbers))

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        source = packet.source
        number: int = packet.stamp[0]
        taken = self.taken[source]
        if number <= taken or (source, number) in self._early:
            return Verdict.DUPLICATE, []
        if number > taken + 1:
            self._early[source, number] = packet
            return Verdict.HOLD, []
        effects: Effects = [PERSIST]
        self.taken[source] = number
        self.take(packet, effects)
        self.resume(source, effects)
        if packet.kind == COPY and self.waits(packet):
            effects.append(Accept(packet))
            return Verdict.HOLD, effects
        return Verdict.DELIVER, effects

    def resume(self, source: int, effects: Effects) -> None:
        """Handle the held packets from ``source`` that are now next in the sequence."""
        while self._early and (packet := self._early.pop((source, self.taken[source] + 1), None)):
            self.taken[source] += 1
            effects.append(Accept(packet))
            self.take(packet, effects)

    def explain_early(self) -> Iterator[tuple[Message, list[Reason]]]:
        """Yield pairs: a message that is held because it arrived out of sequence, and the reasons (missing packets)."""
        for packet in self.held_packets():
            if packet.message is not None:
                taken = self.taken[packet.source]
                reason = f"packets {taken + 1} to {packet.stamp[0] - 1} of its link"
                yield packet.message, [(packet.source, reason)]

    def held_packets(self) -> list[Packet]:
        return [self._early[key] for key in sorted(self._early)]

    def read_stamp(self, kind: str, source: int, data: Reader) -> tuple[int, ...]:
        number = data.ordinal(self.taken[source])
        if source == self.me and number > self.numbered[source]:
            raise StampError(
                f"packet {number} from ourselves: the last packet that we sent to ourselves is {self.numbered[source]}"
            )
        return (number, *self.read_numbers(kind, source, data))

    def dump_links(self) -> Any:
        """Return the last packet numbers of all links, for the durable state."""
        return (tuple(self.numbered), tuple(self.taken))

    def load_links(self, state: Any) -> None:
        self.numbered, self.taken = map(list, state)
