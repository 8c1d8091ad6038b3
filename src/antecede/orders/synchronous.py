"""``synchronous``: computations whose messages can be drawn as vertical arrows (Garg §12.1, §12.4.1's ``synch``).

The events of a message are its send and its deliveries. A multicast is one message. Let m ⇒ m' mean that m and m' are
different messages, and an event of m precedes an event of m' in some process. A computation is synchronous iff ⇒ is
acyclic. The protocol is a rendezvous that uses locks:

* A process has one **lock**. It needs this lock for each send and each delivery, so it works on one message at a time.
  It grants requests for the lock in the order of their arrival.
* To send m, the sender needs its own lock and the locks of all destinations. It acquires them one after the other, in
  ascending order of members, with the packets ``request`` and ``grant``; for its own lock it needs no packets. It
  acquires locks for one message at a time; its later messages wait.
* When the sender has all these locks, the send event takes place (``Sent``), and the copies are sent. Then the sender's
  own lock is free again, unless the sender is itself a destination.
* A destination delivers the copy as soon as the copy arrives. Then the lock of the destination is free again.

**Why it is synchronous.** Let T(m) be the moment of m's send event. At T(m), the sender and all destinations of m are
locked for m. A destination stays locked until it delivers m. While a process is locked for m, it has no event of any
other message, because both a send and a delivery need its lock. So a process has one locked period for each message,
and these periods do not overlap. The period for m contains T(m) and all events of m at that process. If an event of m
precedes an event of m' in a process, the period for m precedes the period for m' in this process, so T(m) < T(m').
Therefore m ⇒ m' implies T(m) < T(m'), and ⇒ is acyclic.

It follows that every process delivers in the order of T, which is total order. It also follows that T(m) < T(m') if
send(m) happened before send(m'). So deliveries are in causal order, and hence in FIFO order.

**Why it does not block.** All senders acquire locks in ascending order. Suppose that a sender waits for the lock of
member k. Then the sender that holds this lock waits only for locks of members above k, or for the delivery of a copy in
transit. So there is no cycle of senders that wait for each other. (A simpler rendezvous, in which the sender blocks
until the receiver is ready, has a deadlock when two processes send to each other: Mattern and Fünfrocken, Fig. 1.)

Links may reorder packets. Requests from p to q are numbered 1, 2, 3 …, and the grant and the copy have the number of
their request. The grant is sent only after the request has arrived, and the copy only after the grant has arrived. So
none of them overtakes another, and no packet is ever held.
"""

from collections import deque
from typing import Any, ClassVar

from antecede.errors import StampError
from antecede.messages import COPY, PERSIST, Deliver, Effects, Message, Packet, Send, Sent, Verdict, members_of
from antecede.orders.contract import PlainOrder, Reason, pack_message, unpack_message
from antecede.orders.encoding import Reader

REQUEST = "request"
GRANT = "grant"


class Synchronous(PlainOrder):
    """An order in which the sender of a message locks itself and all destinations before it sends the message."""

    name: ClassVar[str] = "synchronous"
    source: ClassVar[str] = "Garg §12.1, §12.4.1"
    guarantees = frozenset({"fifo", "causal", "total", "synchronous"})
    needs: ClassVar[frozenset[str]] = frozenset({"control packets"})
    controls: ClassVar[tuple[str, ...]] = (REQUEST, GRANT)

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.asked = [0] * members
        """The number of our last request to each other member. The entry for ourselves is the number of our last copy
        to ourselves."""
        self.granted = [0] * members
        """For each member, the number of our last request that this member granted."""
        self.requested = [0] * members
        """The number of the last request that arrived here from each member."""
        self.delivered = [0] * members
        """The number of the last copy that was delivered here from each member."""
        self._messages: deque[Message] = deque()
        """Our messages whose send event has not taken place yet. Locks are acquired for the first of them only."""
        self._locked = 0
        """The members whose locks we hold for the first message in ``_messages``, as a bit mask."""
        self._turns: deque[tuple[int, str]] = deque()
        """The queue for our own lock. An entry has a member, and the id of the message for which the member needs the
        lock. The first member in the queue has the lock, the others wait."""

    def send(self, message: Message) -> Effects:
        effects: Effects = [PERSIST]
        self._messages.append(message)
        if len(self._messages) == 1:
            self._ask(effects)
        return effects

    def needed(self, message: Message) -> int:
        """Return the members whose locks a message needs, as a bit mask."""
        return message.to | 1 << self.me

    def following(self, missing: int) -> int:
        """Return the member whose lock must be acquired next. ``missing`` is the bit mask of the members whose locks
        are still needed. All members must acquire locks in the same order."""
        return next(members_of(missing))

    def _ask(self, effects: Effects) -> None:
        """Acquire the missing locks for our first message. When we have them all, perform the send and continue with
        the next message. Stop when a lock is not free yet or must be granted by another member."""
        while self._messages:
            message = self._messages[0]
            missing = self.needed(message) & ~self._locked
            if missing:
                following = self.following(missing)
                if following != self.me:
                    self.asked[following] += 1
                    effects.append(Send(self.control(REQUEST, following, message.id, (self.asked[following],))))
                    return
                self._turns.append((self.me, message.id))
                if len(self._turns) > 1:
                    return
                self._locked |= 1 << self.me
                continue
            self._rendezvous(effects)

    def _rendezvous(self, effects: Effects) -> None:
        """Perform the send of our first message. We must hold all locks that the message needs."""
        message = self._messages.popleft()
        self._locked = 0
        effects.append(Sent(message))
        if message.to >> self.me & 1:
            self.asked[self.me] += 1
        for target in members_of(message.to):
            effects.append(Send(Packet(COPY, self.me, target, message, message.id, (self.asked[target],))))
        if self.needed(message) & ~message.to:
            self._unlock(effects)

    def _unlock(self, effects: Effects) -> bool:
        """Take our own lock from the member that has it. If other requests wait in the queue, give the lock to the
        first of them. Return whether we ourselves have the lock now."""
        self._turns.popleft()
        if not self._turns:
            return False
        member, subject = self._turns[0]
        if member == self.me:
            self._locked |= 1 << self.me
            return True
        effects.append(Send(self.control(GRANT, member, subject, (self.requested[member],))))
        return False

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        source = packet.source
        (number,) = packet.stamp
        last = {COPY: self.delivered, REQUEST: self.requested, GRANT: self.granted}[packet.kind]
        if number <= last[source]:
            return Verdict.DUPLICATE, []
        last[source] = number
        effects: Effects = [PERSIST]
        if packet.kind == REQUEST:
            self._turns.append((source, packet.subject))
            if len(self._turns) == 1:
                effects.append(Send(self.control(GRANT, source, packet.subject, (number,))))
            return Verdict.DELIVER, effects
        if packet.kind == GRANT:
            self._locked |= 1 << source
            self._ask(effects)
            return Verdict.DELIVER, effects
        assert packet.message is not None
        effects.append(Deliver(packet.message))
        if self._unlock(effects):
            self._ask(effects)
        return Verdict.DELIVER, effects

    def unposted(self) -> list[tuple[Message, int]]:
        return [(message, target) for message in self._messages for target in members_of(message.to)]

    def explain_unposted(self) -> list[Reason]:
        missing = self.needed(self._messages[0]) & ~self._locked if self._messages else 0
        return [(self.following(missing), "its lock")] if missing else []

    def read_stamp(self, kind: str, source: int, data: Reader) -> tuple[int, ...]:
        number = data.number()
        if kind == REQUEST:
            known = 0 if source == self.me else self.requested[source] + 1
        elif kind == GRANT:
            known = 0 if source == self.me else self.asked[source]
        elif source == self.me:
            known = self.asked[source]
        elif self._turns and self._turns[0][0] == source:
            known = self.delivered[source] + 1
        else:
            known = self.delivered[source]
        if not 1 <= number <= known:
            raise StampError(f"{kind} {number} from member {source}: the number must not be 0 or larger than {known}")
        return (number,)

    def dump(self) -> Any:
        counts = (tuple(self.asked), tuple(self.granted), tuple(self.requested), tuple(self.delivered))
        locked = self._locked.to_bytes((self._locked.bit_length() + 7) // 8, "little")
        return (counts, [pack_message(message) for message in self._messages], locked, list(self._turns))

    def load(self, state: Any) -> None:
        counts, messages, locked, turns = state
        self.asked, self.granted, self.requested, self.delivered = map(list, counts)
        self._messages = deque(map(unpack_message, messages))
        self._locked = int.from_bytes(locked, "little")
        self._turns = deque((member, subject) for member, subject in turns)
