"""``vector``: causal order for broadcasts only, with one counter per process (Garg problem 12.4).

If every message goes to all members, the matrix of :mod:`antecede.orders.matrix` has equal columns, so one number per
sender is enough. A broadcast from j with vector V may be delivered at i when V[j] = (delivered from j) + 1 and V[k] ≤
(delivered from k) for every other k. A message to only some members would be counted in V as well, and the other
members would wait for it forever. So every message must go to all members except the sender, and may also go to the
sender. Any other message is refused before it is sent.

If a sender is not among the destinations of its own broadcast, the broadcast counts as delivered at the sender
immediately. If a sender is among the destinations, its own copy may still be in transit. ``due`` lists the numbers of
these broadcasts, and messages that depend on such a broadcast wait for it.
"""

from typing import Any, ClassVar

from antecede.errors import BroadcastOnlyError, StampError
from antecede.messages import PERSIST, Effects, Message, Packet, Send, Sent
from antecede.orders.encoding import Reader, Writer, number_size
from antecede.orders.stamped import StampedOrder

Vector_ = tuple[int, ...]


class Vector(StampedOrder):
    """An order for broadcasts. A member delivers a broadcast only after the earlier broadcasts of the same sender, and
    after the broadcasts that the sender delivered before it sent this one."""

    name: ClassVar[str] = "vector"
    source: ClassVar[str] = "Garg problem 12.4"
    guarantees = frozenset({"fifo", "causal"})
    needs: ClassVar[frozenset[str]] = frozenset({"broadcast"})

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.sent = 0
        self.due: list[int] = []
        """The numbers of our own broadcasts that also go to ourselves, and that we have not delivered yet. The numbers
        are ascending."""

    def send(self, message: Message) -> Effects:
        if message.to | 1 << self.me != self.everyone:
            raise BroadcastOnlyError(f"order vector supports broadcasts only: {message.id} is not for all members")
        self.sent += 1
        stamp = list(self.delivered)
        stamp[self.me] = self.sent
        if message.to >> self.me & 1:
            self.due.append(self.sent)
        elif not self.due:
            self.delivered[self.me] = self.sent
        return [PERSIST, Sent(message), *map(Send, self.copies(message, tuple(stamp)))]

    def number(self, packet: Packet) -> int:
        number: int = packet.stamp[packet.source]
        return number

    def missing(self, packet: Packet) -> tuple[int, int] | None:
        stamp, source, me = packet.stamp, packet.source, self.me
        for k, count in enumerate(stamp):
            if k == me:
                limit = count - 1 if source == me else count
                before = [number for number in self.due if number <= limit]
                if before:
                    return me, before[-1]
            elif k == source:
                if count - 1 > self.delivered[k]:
                    return k, count - 1
            elif count > self.delivered[k]:
                return k, count
        return None

    def predecessors(self, packet: Packet) -> list[tuple[int, int]]:
        me, source = self.me, packet.source
        found = []
        for k, count in enumerate(packet.stamp):
            last = count - 1 if k == source else count
            if k == me:
                found += [(me, number) for number in self.due if number <= last]
            elif last > self.delivered[k]:
                found.append((k, last))
        return found

    def learn(self, packet: Packet) -> None:
        if packet.source == self.me:
            self.due.remove(self.number(packet))
            self.delivered[self.me] = self.due[0] - 1 if self.due else self.sent

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        for count in packet.stamp:
            out.number(count)

    def read_stamp(self, kind: str, source: int, data: Reader) -> Vector_:
        stamp = tuple(data.counter(known) for known in self.delivered)
        if stamp[source] == 0:
            raise StampError("stamp does not count its own message")
        if stamp[self.me] > self.sent:
            raise StampError("stamp counts messages that we never sent")
        if source == self.me and stamp[source] > self.delivered[source] and stamp[source] not in self.due:
            raise StampError(f"broadcast {stamp[source]} from ourselves: we did not send this broadcast to ourselves")
        return stamp

    def size(self, packet: Packet) -> int:
        return sum(map(number_size, packet.stamp))

    def dependents(self, packet: Packet) -> int:
        return self.members

    def paper_bytes(self, packet: Packet) -> int:
        return 4 * self.members

    def dump(self) -> Any:
        return (self.sent, tuple(self.due), tuple(self.delivered))

    def load(self, state: Any) -> None:
        self.sent, due, delivered = state
        self.due = list(due)
        self.delivered = list(delivered)
