"""``lamport``: every member queues every message, in the order of logical clocks (Garg §12.3.2).

Garg derives this order from Lamport's mutual exclusion: a send corresponds to a request for the critical section.

* To send m, a member increases its clock, stamps m with the time t, and puts m into its own queue. It sends a copy to
  each destination. To the members that are not destinations, it sends the control packet ``announce``, which contains
  the stamp but not the message.
* A member that receives m or ``announce`` moves its clock beyond t, puts m into its queue at the position (t, sender),
  and returns an ``ack`` to the sender.
* The sender marks m as deliverable when three conditions hold. (1) m is the smallest message in its own queue. (2) All
  other members have acknowledged m. (3) The sender's copy to itself, if there is one, has arrived. Then the sender
  sends ``release`` to all other members.
* A release only **marks** m. When the first message in a member's queue is marked, the member removes this message from
  the queue. If the message is addressed to the member, the member delivers it. So messages are delivered strictly by
  (time, sender). The book prints another rule: *on receiving this notification, the corresponding message is
  delivered*. With this rule, the order is not total, because a smaller message in the queue may still be unmarked
  (1178 of 1500 random runs).

All packets are numbered on their link (``resequence``), because the argument below needs FIFO links. Every member gets
all messages of a sender in sequence. So an ack or a release names a message by its number: the n-th message of its
sender.

**Why no smaller message can come later.** Suppose that q removes m = (t, p), and that m' = (t', r) < m reaches q after
this removal. Before the removal, p had marked m, so r had acknowledged m. After this ack the clock of r is beyond t, so
r sent m' before the ack. Links are FIFO, so m' reached p before the ack. (If r = p, there is no ack, but m' was in p's
queue since its send.) But m was the smallest message in p's queue when p marked it, so p had already removed m'. So r
had released m', and before that, q had acknowledged m'. This means that m' had already reached q: a contradiction.

**Why nothing waits for ever.** Consider the smallest message that is not yet released. As soon as the releases of all
smaller messages have arrived at its sender, it is the smallest message in its sender's queue. After that, it waits only
for its acks and for the sender's copy to itself, and the links deliver these packets.

Every member delivers by (time, sender), so the order is total. If send(m) happened before send(m'), the time of m is
smaller than the time of m', because a member that receives m moves its clock beyond the time of m. So the order is
causal, hence FIFO.

A member acknowledges a copy when it accepts the copy. So the copy is part of the durable state while it waits.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, ClassVar

from antecede.errors import StampError
from antecede.messages import COPY, PERSIST, Deliver, Effects, Message, Packet, Send, Sent
from antecede.orders.contract import Reason, pack_message, unpack_message
from antecede.orders.encoding import Reader
from antecede.orders.resequence import SequencedOrder

ANNOUNCE = "announce"
ACK = "ack"
RELEASE = "release"

Entry = tuple[int, int, int, int, str, Message | None]
"""An entry of the queue: (time, sender, number, own copy, id, message). Each sender numbers its messages 1, 2, 3 …
``own copy`` is the packet number of our copy to ourselves, or 0 if we sent none. ``message`` is None if the message is
not addressed to us. No two entries have the same first three values, so these values alone decide the order."""


class Lamport(SequencedOrder):
    """An order in which every member queues every message, and delivers the messages in the order of (time, sender)."""

    name: ClassVar[str] = "lamport"
    source: ClassVar[str] = "Garg §12.3.2"
    guarantees = frozenset({"fifo", "causal", "total"})
    needs: ClassVar[frozenset[str]] = frozenset({"control packets"})
    controls: ClassVar[tuple[str, ...]] = (ANNOUNCE, ACK, RELEASE)

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.clock = 0
        self.queued = [0] * members
        """For each member: the number of its messages that were put into our queue."""
        self.acked = [0] * members
        """For each member: the number of our messages that it has acknowledged."""
        self.released = [0] * members
        """For each member: the number of its messages that are marked as deliverable."""
        self._queue: list[Entry] = []

    def others(self) -> list[int]:
        return [member for member in range(self.members) if member != self.me]

    def send(self, message: Message) -> Effects:
        effects: Effects = [PERSIST, Sent(message)]
        if not message.to:
            return effects
        me, identity = self.me, message.id
        self.clock += 1
        for target in range(self.members):
            if message.to >> target & 1:
                effects.append(Send(self.next_packet(COPY, target, message, identity, self.clock)))
            elif target != me:
                effects.append(Send(self.next_packet(ANNOUNCE, target, None, identity, self.clock)))
        self.queued[me] += 1
        addressed = message.to >> me & 1
        returning = self.numbered[me] if addressed else 0
        entry = (self.clock, me, self.queued[me], returning, identity, message if addressed else None)
        heappush(self._queue, entry)
        self._advance(effects)
        return effects

    def take(self, packet: Packet, effects: Effects) -> None:
        source = packet.source
        if packet.kind == ACK:
            _, number, time = packet.stamp
            self.acked[source] = max(self.acked[source], number)
            self.clock = max(self.clock, time)
        elif packet.kind == RELEASE:
            _, number = packet.stamp
            self.released[source] = max(self.released[source], number)
        elif source != self.me:
            _, time = packet.stamp
            self.clock = max(self.clock, time) + 1
            self.queued[source] += 1
            heappush(self._queue, (time, source, self.queued[source], 0, packet.subject, packet.message))
            ack = self.next_packet(ACK, source, None, packet.subject, self.queued[source], self.clock)
            effects.append(Send(ack))
        self._advance(effects)

    def _advance(self, effects: Effects) -> None:
        """Remove messages from the head of the queue while they are deliverable, and deliver those that are addressed
        to us. If the head is our own message, and all acknowledgements and our copy to ourselves have arrived, mark
        it as deliverable and send its releases."""
        queue = self._queue
        while queue:
            _, source, number, returning, identity, message = queue[0]
            if source == self.me:
                others = self.others()
                if returning > self.taken[source] or any(self.acked[member] < number for member in others):
                    return
                self.released[source] = number
                for target in others:
                    effects.append(Send(self.next_packet(RELEASE, target, None, identity, number)))
            elif number > self.released[source]:
                return
            heappop(queue)
            if message is not None:
                effects.append(Deliver(message))

    def waits(self, packet: Packet) -> bool:
        # Removal is by (time, sender), so a queued message is still there iff it is not below the head.
        return bool(self._queue) and self._queue[0][:2] <= (packet.stamp[1], packet.source)

    def held(self) -> list[Message]:
        arrived = [
            message
            for _, source, _, returning, _, message in sorted(self._queue)
            if message is not None and (source != self.me or returning <= self.taken[source])
        ]
        return arrived + super().held()

    def explain_held(self) -> Iterator[tuple[Message, list[Reason]]]:
        queue = sorted(self._queue)
        for place, (_, source, number, returning, _, message) in enumerate(queue):
            if message is None or (source == self.me and returning > self.taken[source]):
                continue
            if place:
                yield message, [(queue[0][1], f"its message {queue[0][4]}, which comes before it")]
            elif source == self.me:
                slow = [member for member in self.others() if self.acked[member] < number]
                yield message, [(member, "its acknowledgement") for member in slow]
            else:
                yield message, [(source, "its report that all members have this message")]
        yield from self.explain_early()

    def read_numbers(self, kind: str, source: int, data: Reader) -> tuple[int, ...]:
        if kind in (COPY, ANNOUNCE):
            time = data.counter(self.clock)
            if time == 0 or (source == self.me and (kind == ANNOUNCE or time > self.clock)):
                raise StampError(f"{kind} with time {time} from member {source}: no such message can have been sent")
            return (time,)
        number = data.number()
        known = self.queued[self.me] if kind == ACK else self.queued[source]
        if not 1 <= number <= known or source == self.me:
            expected = f"expected a message number from 1 to {known}, and a sender other than this member"
            raise StampError(f"{kind} of message {number} from member {source}: {expected}")
        return (number, data.counter(self.clock)) if kind == ACK else (number,)

    def dump(self) -> Any:
        queue = [
            (*entry, None if message is None else pack_message(message)) for *entry, message in sorted(self._queue)
        ]
        counts = (tuple(self.queued), tuple(self.acked), tuple(self.released))
        return (self.dump_links(), self.clock, counts, queue)

    def load(self, state: Any) -> None:
        links, self.clock, counts, queue = state
        self.load_links(links)
        self.queued, self.acked, self.released = map(list, counts)
        self._queue = [
            (time, source, number, returning, identity, None if message is None else unpack_message(message))
            for time, source, number, returning, identity, message in queue
        ]
