"""``objects``: order only conflicting operations (Enokido, Higaki, Takizawa: *Protocol for a Group of Objects*).

An *operation instance* is one execution of an operation. One instance sends a message, another receives it, and the
:class:`~antecede.messages.Label` names both. A message m1 **significantly precedes** a message m2 (m1 → m2, §3.2) if
an object sends or receives m1 and later sends m2. Both must happen in one instance, or in two instances of conflicting
operations. Chains count, too: m1 → m2 → m3 implies m1 → m3. Two rules hold at an object that gets both (§3.3, SO):

1. If m1 → m2, then m1 comes first in two cases: both messages go to one instance, or they go to conflicting instances
   and m2 is a request.
2. If two requests both go to several objects, and their operations conflict, they come in the same order everywhere.

In the paper, rule 1 says "m1 or m2 is a request". This can cause a deadlock: a response m2 waits for a request m1, m1
waits for the end of an instance, and this instance waits for m2. So here a response never waits for a request to
another instance.

**Vectors (§4.1), as interpreted here.** An object keeps a vector for each running instance, and one for each operation.
The vector of an instance is the maximum of the receipt vectors RV of all messages that this instance has received and
sent (:mod:`antecede.orders.objects_stamp`). The vector of an operation is the maximum for all its instances. (The paper
has ``V_tj := m.V_j``, which contradicts Table 1.) The vector V of a message is the maximum of the sending instance's
vector and the vectors of all operations that conflict with this instance's operation. A message gets its event number
(tno) from a Lamport clock that ticks at sends. (The paper's number begins with the *instance* number. Then two
nested calls can each precede the other.) Every send is numbered, not only "changing actions": otherwise two sends of
one instance would be unordered. A response has its own number, and its label names its request's instance. So:

    m1 → m2  implies  m1.RV ≤ m2.V, in every entry, and m1.tno < m2.tno.

**Stability (§4.3), as interpreted here.** Messages are numbered on each link. Every copy and ``clock`` packet has the
last number and the sender's time. So an object knows for each k up to which time *all messages from k have arrived*.

* For rule 1, m waits until all messages that each object k sent up to the time m.V[k] have arrived. (The paper waits
  for the *next* message of the same sender, but a predecessor may come from a third object.) Then all predecessors of m
  have arrived, and m waits only for undelivered predecessors. m need not be first in the queue.
* Rule 2 concerns *requests of kind (2)*: they go to several objects, and conflict with some operation. Such a request
  with the time t waits until all messages that were sent up to t have arrived. Then event numbers decide the order.
* Three kinds of messages never wait: requests without conflicts, responses to a call to one object, and commits.

**Clocks.** An object must learn the times of other objects even if it receives no messages from them. For this purpose,
the paper sends a null message after a silence of δ. Here the time is sent when it is needed. With ``clocks=eager``, a
sender sends its time to all objects that do not get a copy. An object that learns of a request of kind (2) sends its
time to the request's destinations. So a decision takes two one-way delays. With ``clocks=asked``, if a message must
wait, its destination asks for the times (packet ``ask``). A decision then takes three delays, but no packets are needed
if no message waits. Servers (``sparing``) use ``eager`` for requests of kind (2) and unlabelled messages, and ``asked``
for the rest. Links handle loss and resends, so no timer is needed. An idle group sends nothing.

**Why nothing waits for ever.** A message first waits for packets with messages and times; the links deliver these. Then
it waits for undelivered messages with smaller event numbers. The message with the smallest number waits for no other.

**Unlabelled messages** are requests between processes, and each process is treated as one endless instance. Significant
order is then causal order. With ``conflicts=all``, multicasts also come in the same order everywhere.

Every message is part of the durable state from its arrival on, even if it waits. ``antecede.objects`` adds instances,
locks and wound–wait. It sets ``defer``: a request is treated as received when its instance begins (:meth:`begin`).
"""

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import Any, ClassVar

from antecede.errors import StampError
from antecede.messages import (
    COPY,
    PERSIST,
    REQUEST,
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
from antecede.orders.contract import Option, Order, Reason
from antecede.orders.encoding import Reader, Writer
from antecede.orders.objects_arrivals import Arrivals
from antecede.orders.objects_rules import PLAIN, Rules, Waiting, restored, saved, waiting_for
from antecede.orders.objects_stamp import (
    Stamp,
    Vector,
    entries_of,
    join,
    read_stamp,
    read_time,
    receipt,
    vector_in,
    write_stamp,
    write_time,
)
from antecede.orders.relation import Relation, parse_relation

CLOCK = "clock"
ASK = "ask"
WOUND = "wound"
HEAL = "heal"

Key = tuple[int, int]
"""The key of a message that has arrived: its sender and its number on the link."""


class Objects(Order):
    """Deliver a message after all messages that must come first by rule 1 or 2 at the top of this file."""

    name: ClassVar[str] = "objects"
    source: ClassVar[str] = "Enokido, Higaki, Takizawa §4"
    guarantees = frozenset({"significant"})
    needs: ClassVar[frozenset[str]] = frozenset({"control packets"})
    controls: ClassVar[tuple[str, ...]] = (CLOCK, ASK, WOUND, HEAL)
    options: ClassVar[Mapping[str, Option]] = {
        "conflicts": Option("all", "which operations conflict: all, none, or pairs such as set~set+set~get"),
        "clocks": Option("eager", "send the time with every send, or on request", ("eager", "asked")),
    }

    judge: ClassVar[type[Rules]] = Rules

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.relation: Relation = parse_relation(self.settings["conflicts"])
        self.rules = self.judge(self.relation, members)
        self.eager: bool = self.settings["clocks"] == "eager" and bool(self.relation)
        self.defer = False
        """Whether a request is treated as received when its instance begins, and not when it is delivered."""
        self.clock = 0
        self.no = 0
        self.sent = [0] * members
        """``no``: the number of messages sent. ``sent``: the number of messages sent to each member."""
        self.sent_times = [0] * members
        self.asked = [0] * members
        """``sent_times``: the latest time sent to each member. ``asked``: the latest time that we asked it for."""
        self.sparing = False
        """Whether we send our time only to members that ask. "Clocks" at the top of this file lists the exceptions."""
        self.together = False
        """Whether ``clock`` packets are sent at the end of each step, by :meth:`times`, and not immediately."""
        self._later: dict[int, tuple[int, int]] = {}
        """For each member: our clock time that we must send to it, and the mask ``wanted`` of :meth:`_send_time`."""
        self._copied = [0] * members
        """For each member: our clock time in the last message that this step sent to it, or 0 if there is none."""
        self.arrivals = Arrivals(me, members)
        self.vectors: dict[str, Vector] = {}
        self.seen: dict[str, Vector] = {}
        """The vectors of running instances (``vectors``) and operations (``seen``), defined at the top of this file."""
        self._held: dict[Key, Waiting] = {}
        self._handed: dict[str, Waiting] = {}
        """Delivered requests whose instances have not begun yet, by message id (used only with ``defer``)."""
        self._until: list[list[tuple[int, Key]]] = [[] for _ in range(members)]
        """For each member: pairs (time, key). The message ``key`` waits for the member's messages up to ``time``."""
        self._behind: dict[Key, list[Key]] = {}
        """For each undelivered message: the messages that wait for it."""

    # Sending.

    def send(self, message: Message) -> Effects:
        effects: Effects = [PERSIST, Sent(message)]
        if not message.to:
            return effects
        label = message.label or PLAIN
        vector = self.vector_of(label.by_instance, label.by_operation)
        self.clock += 1
        event, entries = (self.clock, self.no), entries_of(vector)
        self.no += 1
        for target in members_of(message.to):
            self.sent[target] += 1
            self.sent_times[target] = self._copied[target] = self.clock
            if target == self.me:
                self.arrivals.post_own(self.sent[target], self.clock)
            stamp = Stamp(self.sent[target], *event, entries, message.label)
            effects.append(Send(Packet(COPY, self.me, target, message, message.id, stamp)))
        vector[self.me] = event
        self._note(label.by_instance, label.by_operation, vector)
        if self.eager and self.rules.lasts(label):
            wanted = message.to if self.rules.agreed(label, message.to) else 0
            if wanted or not (self.sparing and message.label):
                for target in members_of(self.everyone & ~message.to & ~(1 << self.me)):
                    self._send_time(target, effects, wanted)
        return effects

    def vector_of(self, instance: str, operation: str) -> Vector:
        """Return the vector of a message that this instance sends now."""
        vector = dict(self.vectors.get(instance, {}))
        for other, seen in self.seen.items():
            if self.relation.conflict(operation, other):
                join(vector, seen.items())
        return vector

    def _note(self, instance: str, operation: str, vector: Vector) -> None:
        """Merge a message's vector into the vectors of ``instance`` and ``operation``, which sent or received it."""
        if instance:
            join(self.vectors.setdefault(instance, {}), vector.items())
        if self.relation.matters(operation):
            join(self.seen.setdefault(operation, {}), vector.items())

    def _send_time(self, target: int, effects: Effects, wanted: int = 0) -> None:
        """Send our clock time to ``target``. ``wanted``: the members to which ``target`` should send its own time."""
        self.sent_times[target] = self.clock
        if self.together:
            self._later[target] = (self.clock, self._later.get(target, (0, 0))[1] | wanted)
        else:
            effects.append(Send(self.control(CLOCK, target, "", (self.sent[target], self.clock, wanted))))

    def times(self) -> Effects:
        """End a step: send our time to the members in ``_later``. Skip a member if it already gets the needed time in a
        message of this step, except if this member must send its own time to others."""
        later, self._later = self._later, {}
        # What a step sends must not depend on earlier ones except by the durable state.
        copied, self._copied = self._copied, [0] * self.members
        effects: Effects = []
        for target, (time, wanted) in later.items():
            if wanted or copied[target] < time:
                self.sent_times[target] = self.clock
                effects.append(Send(self.control(CLOCK, target, "", (self.sent[target], self.clock, wanted))))
        return effects

    # What instances do.

    def begin(self, message: Message) -> None:
        """Treat a delivered request as received now, because its instance begins. Without ``defer``, do nothing."""
        waiting = self._handed.pop(message.id, None)
        if waiting is not None:  # Two messages with one id are a forgery; the second must not stop us.
            self._note(waiting.label.instance, waiting.label.operation, receipt(waiting.source, waiting.stamp))

    def forget(self, instance: str) -> None:
        """Forget an instance that has ended: it sends and receives nothing more."""
        self.vectors.pop(instance, None)

    # Receiving.

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        if packet.kind == CLOCK:
            return self._receive_time(packet)
        if packet.kind == ASK:
            return self._answer(packet)
        if packet.kind in (WOUND, HEAL):
            return Verdict.DELIVER, []
        key = (packet.source, packet.stamp.number)
        if not self.arrivals.is_new(*key):
            return Verdict.DUPLICATE, []
        effects: Effects = [PERSIST]
        self._take(key, packet, effects)
        if key in self._held:
            effects.append(Accept(packet))
            return Verdict.HOLD, effects
        return Verdict.DELIVER, effects

    def _take(self, key: Key, packet: Packet, effects: Effects) -> None:
        source, stamp, message = packet.source, packet.stamp, packet.message
        assert message is not None
        self.clock = max(self.clock, stamp.clock)
        if self.eager and self.rules.agreed(stamp.label or PLAIN, message.to):
            self._send_times(message.to, stamp.clock, effects)
        waiting = waiting_for(source, message, stamp)
        at_once = self.sparing and self.rules.free(waiting.label)
        if at_once:
            self._deliver(waiting, effects)
        else:
            self._held[key] = waiting
        if self.arrivals.take(*key, stamp.clock):
            self._resume(source, effects)
        if not at_once:
            self._try([key], effects)

    def _send_times(self, to: int, time: int, effects: Effects) -> bool:
        """Send our time to the destinations of a request. Skip those to which we have already sent ``time`` or a later
        time. ``to``: a mask of the destinations. Return whether a time was sent."""
        outdated = [t for t in members_of(to & ~(1 << self.me)) if self.sent_times[t] < time]
        for target in outdated:
            self._send_time(target, effects)
        return bool(outdated)

    def _receive_time(self, packet: Packet) -> tuple[Verdict, Effects]:
        """Process a packet with the sender's time."""
        source = packet.source
        count, time, wanted = packet.stamp
        effects: Effects = [PERSIST]
        later = time > self.clock
        self.clock = max(self.clock, time)
        fresh, further = self.arrivals.receive_time(source, count, time)
        if further:
            self._resume(source, effects)
        any_sent = self._send_times(wanted, time, effects)
        return (Verdict.DELIVER, effects) if later or fresh or any_sent else (Verdict.DUPLICATE, [])

    def _answer(self, packet: Packet) -> tuple[Verdict, Effects]:
        """Answer a member that waits until our clock reaches a certain time. Send nothing if we have
        already sent that time, or a later one, to this member."""
        (time,) = packet.stamp
        self.clock = max(self.clock, time)
        effects: Effects = [PERSIST]
        if self.sent_times[packet.source] >= time:
            return Verdict.DUPLICATE, []
        self._send_time(packet.source, effects)
        return Verdict.DELIVER, effects

    def _resume(self, member: int, effects: Effects) -> None:
        """Examine again the messages that waited for this member's time."""
        waiting = self._until[member]
        if member == self.me:
            ready, waiting[:] = [key for _, key in waiting], []
        else:
            ready = []
            while waiting and waiting[0][0] <= self.arrivals.known[member]:
                ready.append(heappop(waiting)[1])
        self._try(ready, effects)

    # Deciding.

    def _try(self, keys: list[Key], effects: Effects) -> None:
        """Try to deliver these messages. After each delivery, try the messages that waited for the delivered one."""
        keys = sorted(keys, key=self._event_of)
        for key in keys:
            waiting = self._held.get(key)
            if waiting is None or self._lacks(key, waiting, effects):
                continue
            del self._held[key]
            self._deliver(waiting, effects)
            keys.extend(sorted(self._behind.pop(key, ()), key=self._event_of))

    def _event_of(self, key: Key) -> tuple[int, int, int]:
        waiting = self._held.get(key)
        return waiting.event if waiting is not None else (0, 0, 0)

    def _deliver(self, waiting: Waiting, effects: Effects) -> None:
        label = waiting.label
        if self.defer and label.type == REQUEST:
            self._handed[waiting.message.id] = waiting
        else:
            self._note(label.instance, label.operation, receipt(waiting.source, waiting.stamp))
        effects.append(Deliver(waiting.message))

    def _lacks(self, key: Key, waiting: Waiting, effects: Effects) -> bool:
        """Return whether a message must still wait. If so, record what it waits for, and ask for missing times."""
        missing = [needed for needed in self.rules.needed(waiting) if not self.arrivals.reached(*needed)]
        if missing:
            member, time = missing[0]
            heappush(self._until[member], (time, key))
            if self._asks(waiting):
                self._ask(missing, effects)
            return True
        if self.rules.free(waiting.label):
            return False
        for other, earlier in self._held.items():
            if other != key and self.rules.before(earlier, waiting):
                self._behind.setdefault(other, []).append(key)
                return True
        return False

    def _asks(self, waiting: Waiting) -> bool:
        """Return whether we must ask for the times that a message waits for. Otherwise, members send them unasked."""
        if not (self.eager and self.sparing):
            return not self.eager
        return waiting.stamp.label is not None and not self.rules.agreed(waiting.label, waiting.message.to)

    def _ask(self, missing: list[tuple[int, int]], effects: Effects) -> None:
        for member, time in missing:
            if member != self.me and self.asked[member] < time:
                self.asked[member] = time
                effects.append(Send(self.control(ASK, member, "", (time,))))

    # Questions of observers.

    def held(self) -> list[Message]:
        return [waiting.message for waiting in sorted(self._held.values(), key=lambda waiting: waiting.event)]

    def explain_held(self) -> Iterator[tuple[Message, list[Reason]]]:
        for waiting in sorted(self._held.values(), key=lambda waiting: waiting.event):
            missing = [needed for needed in self.rules.needed(waiting) if not self.arrivals.reached(*needed)]
            reasons = [(member, f"all its messages up to its time {time}") for member, time in missing]
            if not missing:
                earlier = [other for other in self._held.values() if self.rules.before(other, waiting)]
                reasons = [(other.source, f"its message {other.message.id}, which precedes it") for other in earlier]
            yield waiting.message, reasons

    # Stamps.

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        if packet.kind == COPY:
            write_stamp(packet.stamp, out)
        elif packet.kind == CLOCK:
            write_time(packet.stamp, self.members, out)
        elif packet.kind == ASK:
            out.number(packet.stamp[0])

    def read_stamp(self, kind: str, source: int, data: Reader) -> Any:
        if kind == COPY:
            stamp = read_stamp(data, source, self.arrivals.whole[source], self.clock)
            if source == self.me and (stamp.number > self.sent[source] or stamp.clock > self.clock):
                raise StampError(f"copy {stamp.number} with time {stamp.clock} from ourselves: we never sent it")
            if any(member == self.me and clock > self.clock for member, clock, _ in stamp.vector):
                raise StampError("vector of a stamp counts messages that we never sent")
            return stamp
        if source == self.me:
            raise StampError(f"packet {kind!r} from ourselves: expected it only from other members")
        if kind in (WOUND, HEAL):
            return None
        if kind == ASK:
            return (data.counter(self.clock),)
        return read_time(data, self.arrivals.whole[source], self.clock)

    def dependents(self, packet: Packet) -> int:
        return len(packet.stamp.vector) if packet.kind == COPY else 0

    def paper_bytes(self, packet: Packet) -> int:
        """Return the stamp size in the paper (§4.2): n + 1 event numbers of 10 bytes, n sequence numbers of 4 bytes."""
        return self.members * 14 + 10 if packet.kind == COPY else 0

    # State.

    def dump(self) -> Any:
        """Return the durable state. It includes the sequence of held messages and what each of them waits for. Both
        decide which message is delivered first, and a replay must decide in the same way."""
        waits = {key: (False, member, time) for member, heap in enumerate(self._until) for time, key in heap}
        waits |= {key: (True, *other) for other, behind in self._behind.items() for key in behind}
        return (
            self.clock,
            self.no,
            (self.sent, self.sent_times, self.asked),
            self.arrivals.dump(),
            [(instance, entries_of(vector)) for instance, vector in sorted(self.vectors.items())],
            [(operation, entries_of(vector)) for operation, vector in sorted(self.seen.items())],
            [saved(waiting) for waiting in self._held.values()],
            [saved(waiting) for _, waiting in sorted(self._handed.items())],
            [waits[key] for key in self._held],
        )

    def load(self, state: Any) -> None:
        self.clock, self.no, counts, arrivals, vectors, seen, held, handed, waits = state
        self.sent, self.sent_times, self.asked = map(list, counts)
        self.arrivals.load(arrivals)
        self.vectors = {instance: vector_in(vector) for instance, vector in vectors}
        self.seen = {operation: vector_in(vector) for operation, vector in seen}
        for waiting in map(restored, held):
            self._held[waiting.source, waiting.stamp.number] = waiting
        self._handed = {waiting.message.id: waiting for waiting in map(restored, handed)}
        for key, (behind, one, other) in zip(self._held, waits, strict=True):
            if behind:
                self._behind.setdefault((one, other), []).append(key)
            else:
                heappush(self._until[one], (other, key))
