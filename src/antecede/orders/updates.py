"""``updates``: a matrix clock that sends only its changes (Laumay et al. §3, appendix A).

Entry (k, l) of the matrix is the number of messages that k has sent to l, as far as we know. For each entry we also
store two values: the local *state* (the value of a counter) at which the entry last changed, and the *node* from which
we learned the entry. A stamp for j has our own sequence number on the link to j. It also has the entries that changed
since our last stamp for j, except those that we learned from j.

The printed appendix must be corrected or made precise in four places. There is a test for each of them:

* The set of entries is computed with the *old* value of ``Node[j].state``. This value is overwritten only afterwards.
  (In the sequence that the paper prints, no entry is ever newer than this value, so every stamp is empty.)
* ``State`` starts at 1 and ``Node`` at 0. (If both start at 0, the entries of the first events are never newer than
  ``Node[j].state``.)
* The stamp contains the sequence number. A message is deliverable when it is the next on its link, and v ≤ delivered[k]
  for every other entry (k, me, v) of its stamp. A stamp contains only the changes since the previous stamp on the link.
  So even on a FIFO link, a message must wait while an earlier message of the link is held (received, but not yet
  delivered).
* When a message from j is delivered, the entries of its stamp are merged first. After that, entry (j, me) gets the
  sequence number of the message as its value, with our current state and node j.

When a multicast is sent, the entries of all its destinations are increased in one state, before any copy is stamped.

An entry that we learned from j is not sent back to j, because j knows it. This is safe even if the entry counts
messages from another member to j, because j has already delivered these messages. There is one exception: entry (j, j),
which counts j's messages to itself. j counts these messages when it sends them, so perhaps it has not delivered them
yet. Our message to j must be delivered after them, so its stamp contains entry (j, j).
"""

from typing import Any, ClassVar

from antecede.errors import StampError
from antecede.messages import COPY, PERSIST, Effects, Message, Packet, Send, Sent, members_of
from antecede.orders.encoding import Reader, Writer, number_size
from antecede.orders.stamped import StampedOrder

Entry = tuple[int, int, int]
"""An entry of the matrix, (line, column, value): member ``line`` has sent ``value`` messages to member ``column``."""


class Updates(StampedOrder):
    """An order with a matrix clock: it counts the messages that each member has sent to each member. The stamp of a
    message contains the counts that have changed. These counts show which messages to the receiver were sent earlier.
    The receiver delivers these earlier messages first. It delivers the messages of each link in sequence."""

    name: ClassVar[str] = "updates"
    source: ClassVar[str] = "Laumay et al. §3, appendix A"
    guarantees = frozenset({"fifo", "causal"})

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.state = 1
        self.stamped = [0] * members
        """For each member j, the value of our counter ``state`` when we made the last stamp for j (``Node[j].state`` in
        the paper)."""
        self.entries: dict[int, tuple[int, int, int]] = {}
        """The entries of the matrix. The key is line · n + column, where n is the number of members; the value is
        (value, state, node). The entry that changed last is at the end."""

    def _set(self, key: int, value: int, node: int) -> None:
        # Re-inserting moves the key to the end: the dictionary stays sorted by state.
        self.entries.pop(key, None)
        self.entries[key] = (value, self.state, node)

    def _value(self, key: int) -> int:
        entry = self.entries.get(key)
        return entry[0] if entry else 0

    def send(self, message: Message) -> Effects:
        line = self.me * self.members
        targets = list(members_of(message.to))
        for target in targets:
            self._set(line + target, self._value(line + target) + 1, target)
        effects: Effects = [PERSIST, Sent(message)]
        for target in targets:
            stamp = (self._value(line + target), self._changes(target))
            self.stamped[target] = self.state
            effects.append(Send(Packet(COPY, self.me, target, message, message.id, stamp)))
        self.state += 1
        return effects

    def _changes(self, target: int) -> tuple[Entry, ...]:
        since = self.stamped[target]
        to_itself = target * self.members + target if target != self.me else -1
        changes = []
        for key, (value, state, node) in reversed(self.entries.items()):
            if state <= since:
                break
            if node != target or key == to_itself:
                changes.append((*divmod(key, self.members), value))
        return tuple(sorted(changes))

    def number(self, packet: Packet) -> int:
        number: int = packet.stamp[0]
        return number

    def missing(self, packet: Packet) -> tuple[int, int] | None:
        number, changes = packet.stamp
        if number - 1 > self.delivered[packet.source]:
            return packet.source, number - 1
        me, delivered = self.me, self.delivered
        for line, column, value in changes:
            if column == me and value > delivered[line]:
                return line, value
        return None

    def predecessors(self, packet: Packet) -> list[tuple[int, int]]:
        number, changes = packet.stamp
        before = [(packet.source, number - 1)]
        before += [(line, value) for line, column, value in changes if column == self.me]
        return [(k, count) for k, count in before if count > self.delivered[k]]

    def learn(self, packet: Packet) -> None:
        number, changes = packet.stamp
        for line, column, value in changes:
            key = line * self.members + column
            if self._value(key) < value:
                self._set(key, value, packet.source)
        if packet.source != self.me:
            self._set(packet.source * self.members + self.me, number, packet.source)

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        number, changes = packet.stamp
        out.number(number)
        out.number(len(changes))
        last = 0
        for line, column, value in changes:
            place = line * self.members + column
            out.number(place - last)
            out.number(value)
            last = place

    def read_stamp(self, kind: str, source: int, data: Reader) -> tuple[int, tuple[Entry, ...]]:
        number = data.ordinal(self.delivered[source])
        if source == self.me and number > self._value(self.me * self.members + self.me):
            raise StampError("stamp counts messages that we never sent")
        places = self.members**2
        changes: list[Entry] = []
        place = 0
        for position in range(data.count(places, "entries")):
            step = data.number(places)
            place += step
            if place >= places or (position and step == 0):
                raise StampError("entries of a stamp name unknown members, or are not in ascending order")
            line, column = divmod(place, self.members)
            value = data.counter(self._value(place))
            if value == 0 or (line == self.me and value > self._value(place)):
                raise StampError("entry of a stamp is 0, or counts messages that we never sent")
            if line == source and column == self.me:
                raise StampError("stamp counts the sender's messages to us twice: in its number and in an entry")
            changes.append((line, column, value))
        return number, tuple(changes)

    def size(self, packet: Packet) -> int:
        number, changes = packet.stamp
        size = number_size(number) + number_size(len(changes))
        last = 0
        for line, column, value in changes:
            place = line * self.members + column
            size += number_size(place - last) + number_size(value)
            last = place
        return size

    def dependents(self, packet: Packet) -> int:
        return 1 + len(packet.stamp[1])

    def paper_bytes(self, packet: Packet) -> int:
        return 4 + 8 * len(packet.stamp[1])

    def dump(self) -> Any:
        entries = tuple((key, *entry) for key, entry in self.entries.items())
        return (self.state, tuple(self.stamped), entries, tuple(self.delivered))

    def load(self, state: Any) -> None:
        self.state, stamped, entries, delivered = state
        self.stamped = list(stamped)
        self.entries = {key: (value, when, node) for key, value, when, node in entries}
        self.delivered = list(delivered)
