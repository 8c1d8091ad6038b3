"""``direct``: causal order by direct predecessors (Prakash, Raynal, Singhal; "PRS" in Jang et al. §6).

Each process keeps one set **before[p]** for each process p. The set contains messages that are known to have been sent
to p. A message is written as a pair: (k, x) is the x-th message of process k. If one message is known to precede
another one, only the later one stays in the set. Everything that we send to p must be delivered there after the
messages in before[p]. A message that is ordered after its direct predecessors is ordered after all its predecessors.

* A message carries all the sets of its sender. After the send, for each destination p, the sender's before[p] contains
  only this message.
* A message may be delivered at process i when all messages in the before[i] of its stamp have been delivered there.
* At delivery, the receiver adds the entries of the stamp to its own sets. Of several entries (k, x) with the same k, it
  keeps only the newest. There is an exception for every other destination p of the message. The receiver adds only the
  message itself to its before[p]. It also removes each entry from this set if the stamp's before[p] has the same
  message, or a later message of the same process.
* **recent**, a part of the stamp, contains the last deliveries of the message's sender s. The receiver notes these
  deliveries in its matrix ``known``, and removes the delivered messages from its own before[s].

In the original, the sender s uses its own before[s] as ``recent``. But this before[s] may contain a message from s to
itself that is still in transit, and receivers would treat this message as delivered. So ``recent`` and before[s] are
separate here.
"""

from typing import Any, ClassVar

from antecede.errors import StampError
from antecede.messages import PERSIST, Effects, Message, Packet, Send, Sent, members_of
from antecede.orders.encoding import Reader, Writer, number_size
from antecede.orders.stamped import StampedOrder

Newest = dict[int, int]
"""A set of messages: for each sender, the number of its newest message in the set. Such a dictionary is never changed
in place, because stamps share it."""


class Predecessors:
    """The stamp of all copies of one message. A stamp is never changed; its size is computed once and cached."""

    __slots__ = ("_size", "before", "recent", "time")

    def __init__(self, time: int, recent: Newest, before: tuple[Newest, ...]) -> None:
        self.time = time
        self.recent = recent
        self.before = before
        self._size = -1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Predecessors) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def key(self) -> tuple[object, ...]:
        """Return a value that is equal for equal stamps."""
        sets = (self.recent, *self.before)
        return (self.time, *(tuple(sorted(newest.items())) for newest in sets))

    def entries(self) -> int:
        return len(self.recent) + sum(map(len, self.before))

    def size(self) -> int:
        if self._size < 0:
            size = number_size(self.time)
            for newest in (self.recent, *self.before):
                size += number_size(len(newest))
                previous = 0
                for k in sorted(newest):
                    size += number_size(k - previous) + number_size(newest[k])
                    previous = k
            self._size = size
        return self._size


class Direct(StampedOrder):
    """Deliver a message after the direct predecessors that its stamp lists."""

    name: ClassVar[str] = "direct"
    source: ClassVar[str] = "Prakash, Raynal, Singhal (in Jang et al. §6)"
    guarantees = frozenset({"fifo", "causal"})

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.time = 0
        self.recent: Newest = {}
        self.before: list[Newest] = [{} for _ in range(members)]
        self.known = [[0] * members for _ in range(members)]
        """known[p][k]: the number of the newest message of k that p is known to have delivered."""

    def send(self, message: Message) -> Effects:
        self.time += 1
        stamp = Predecessors(self.time, self.recent, tuple(self.before))
        for target in members_of(message.to):
            self.before[target] = {self.me: self.time}
        return [PERSIST, Sent(message), *map(Send, self.copies(message, stamp))]

    def number(self, packet: Packet) -> int:
        time: int = packet.stamp.time
        return time

    def missing(self, packet: Packet) -> tuple[int, int] | None:
        # Take the least sender: the sequence of a set from the wire may differ from that of a set made here.
        return min(self.predecessors(packet), default=None)

    def predecessors(self, packet: Packet) -> list[tuple[int, int]]:
        return [(k, time) for k, time in packet.stamp.before[self.me].items() if time > self.delivered[k]]

    def learn(self, packet: Packet) -> None:
        stamp: Predecessors = packet.stamp
        source, me = packet.source, self.me
        assert packet.message is not None
        others = packet.message.to & ~(1 << me)
        for k, time in stamp.recent.items():
            self.known[source][k] = max(self.known[source][k], time)
        for p in range(self.members):
            if p == me:
                continue
            mine, theirs = self.before[p], stamp.before[p]
            if others >> p & 1:
                grown = {k: time for k, time in mine.items() if time > theirs.get(k, 0)}
                grown[source] = max(grown.get(source, 0), stamp.time)
            else:
                grown = dict(mine)
                for k, time in theirs.items():
                    if time > grown.get(k, 0):
                        grown[k] = time
            known = self.known[p]
            self.before[p] = {k: time for k, time in grown.items() if time > known[k]}
        self._remember_delivery(source, stamp)

    def _remember_delivery(self, source: int, stamp: Predecessors) -> None:
        implied = stamp.before[self.me]
        self.recent = {k: time for k, time in self.recent.items() if time > implied.get(k, 0)}
        self.recent[source] = stamp.time
        if source == self.me:
            # Our own message to ourselves is no longer in transit, unless a later one is.
            pending = self.before[self.me].get(self.me, 0)
            if pending <= stamp.time:
                self.before[self.me] = {}

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        stamp: Predecessors = packet.stamp
        out.number(stamp.time)
        for newest in (stamp.recent, *stamp.before):
            out.number(len(newest))
            previous = 0
            for k in sorted(newest):
                out.number(k - previous)
                out.number(newest[k])
                previous = k

    def read_stamp(self, kind: str, source: int, data: Reader) -> Predecessors:
        time = data.ordinal(self.delivered[source], "timestamp")
        if source == self.me and time > self.time:
            raise StampError("stamp counts messages that we never sent")
        sets = [self._read_set(source, time, data) for _ in range(self.members + 1)]
        return Predecessors(time, sets[0], tuple(sets[1:]))

    def _read_set(self, source: int, own: int, data: Reader) -> Newest:
        newest: Newest = {}
        k = 0
        for position in range(data.count(self.members, "entries")):
            step = data.number(self.members)
            k += step
            if k >= self.members or (position and step == 0):
                raise StampError("stamp names unknown members, or one member twice")
            time = data.counter(self.time if k == self.me else self.delivered[k])
            if time == 0 or (k == self.me and time > self.time):
                raise StampError("stamp counts messages that we never sent")
            if k == source and time >= own:
                raise StampError("stamp lists its own message, or a later message of the sender, as a predecessor")
            newest[k] = time
        return newest

    def size(self, packet: Packet) -> int:
        size: int = packet.stamp.size()
        return size

    def dependents(self, packet: Packet) -> int:
        entries: int = packet.stamp.entries()
        return entries

    def paper_bytes(self, packet: Packet) -> int:
        return 6 * self.dependents(packet)

    def dump(self) -> Any:
        sets = tuple(tuple(sorted(newest.items())) for newest in (self.recent, *self.before))
        return (self.time, sets, tuple(map(tuple, self.known)), tuple(self.delivered))

    def load(self, state: Any) -> None:
        self.time, sets, known, delivered = state
        loaded: list[Newest] = [dict(map(tuple, items)) for items in sets]
        self.recent, self.before = loaded[0], loaded[1:]
        self.known = [list(row) for row in known]
        self.delivered = list(delivered)
