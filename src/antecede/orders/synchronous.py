"""``synchronous``: computations whose messages can be drawn as vertical arrows (Garg §12.1, §12.4.1's ``synch``).

Let m ⇒ m' mean that an event of m precedes one of m' ≠ m in some process (a multicast is one message; its send and its
deliveries are its events). A computation is synchronous iff ⇒ is acyclic. The protocol is a rendezvous under locks:

* A process takes part in one message at a time: it has one **lock**. Requests for it queue, first come, first served.
* To send m to D, the sender acquires the locks of D and its own, one after the other in ascending member order, by
  ``request`` and ``grant`` (its own without packets). It does so for one message at a time; later ones wait.
* When it has them all, the send event takes place (``Sent``) and the copies leave. The sender's own lock is free again,
  unless it is a destination itself.
* A destination delivers the copy as soon as it arrives; then its lock is free again.

**Why it is synchronous.** Let T(m) be the moment of m's send event. At T(m) all processes of m are locked for m, and a
destination stays locked until it delivers m. While a process is locked for m, it has no event of any other message,
because both a send and a delivery need its lock. So the periods in which a process is locked for different messages are
disjoint, and the period for m contains T(m) and all events of m at that process. If an event of m precedes one of m' in
a process, the period for m precedes the period for m' there, so T(m) < T(m'). Hence ⇒ is contained in the order of T,
and acyclic.

It follows that every process delivers in the order of T, which is total order; and that send(m) happened before
send(m') implies T(m) < T(m'), which makes deliveries causal, hence FIFO.

**Why it does not block.** All senders acquire locks in ascending order. So a sender that waits for the lock of k waits
for a holder that waits only for locks above k, or for a copy in transit. (The obvious rendezvous, block until the
receiver is ready, deadlocks when two processes send to each other: Mattern and Fünfrocken, Fig. 1.)

Links may reorder: requests from p to q are numbered 1, 2, 3 …; grant and copy repeat the number. Each of the three is
sent only after the previous one has arrived, so none overtakes another. Nothing is ever held.
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
    """A rendezvous of sender and destinations for each message."""

    name: ClassVar[str] = "synchronous"
    source: ClassVar[str] = "Garg §12.1, §12.4.1"
    guarantees = frozenset({"fifo", "causal", "total", "synchronous"})
    needs: ClassVar[frozenset[str]] = frozenset({"control packets"})
    controls: ClassVar[tuple[str, ...]] = (REQUEST, GRANT)

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.asked = [0] * members
        """The number of our last request to each other member. At our own index: the number of our last copy to
        ourselves."""
        self.granted = [0] * members
        """The number of the last granted request from here to each member."""
        self.requested = [0] * members
        """The number of the last request that arrived here from each member."""
        self.delivered = [0] * members
        """The number of the last copy that was delivered here from each member."""
        self._messages: deque[Message] = deque()
        """Our messages whose send has not taken place; locks are acquired for the first of them."""
        self._locked = 0
        """The members whose locks we hold for the first waiting message, as a bit mask."""
        self._turns: deque[tuple[int, str]] = deque()
        """The members that want our own lock, each with its message's id: the first has the lock, the others wait."""

    def send(self, message: Message) -> Effects:
        effects: Effects = [PERSIST]
        self._messages.append(message)
        if len(self._messages) == 1:
            self._ask(effects)
        return effects

    def needed(self, message: Message) -> int:
        """Return the members whose locks a message needs, as a mask."""
        return message.to | 1 << self.me

    def following(self, missing: int) -> int:
        """Return the member whose lock to acquire next. All members must acquire locks in the same order."""
        return next(members_of(missing))

    def _ask(self, effects: Effects) -> None:
        """Acquire the missing locks for our first message. When all are acquired, perform the send and continue with
        the next message. Stop when a lock must be waited for."""
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
        """Perform the send, since all locks are held."""
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
        """Take our own lock from the member that has it, and give it to the next member that waits; return whether this
        next member is us."""
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
            raise StampError(f"{kind} {number} from member {source}: expected a number, 1 to {known} (1 to 0: none)")
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
