"""``matrix``: causal order by a matrix of counts (Raynal, Schiper, Toueg; Garg §12.2, Fig. 12.2 and 12.4).

M[j][k] at a process is the number of messages that j has sent to k, as far as this process knows. To send a message, a
process first increases its counts for *all* destinations, and only then makes the stamp. (Garg's ``multicast`` in Fig.
12.4 is a loop of single sends. So the stamp of a copy does not count the copies that the loop sends later, and causal
order is broken.) A message from j with matrix W may be delivered at i when

* W[j][i] = (delivered from j) + 1, and
* W[k][i] ≤ (delivered from k) for every other k.

Here "delivered from j" is the number of messages from j that i has delivered. W is merged into M only at this delivery.
Garg does not count deliveries separately: he uses column i of M. But M[i][i] includes a message from i to itself as
soon as this message is sent. With the rule of Fig. 12.2, the message therefore waits for ever. With the ``<=`` of
Fig. 12.4, a duplicate of the message is also delivered. So this module counts deliveries in a separate vector.

**Rows are shared, never copied.** Only process j changes row j, and its counts only grow. So of two different versions
of row j, the one with the greater total is newer, and all its entries are equal or greater. Therefore a matrix is a
list of immutable rows, a stamp consists of references to n rows, and a merge of n² counters needs only n comparisons.
"""

from operator import gt
from typing import Any, ClassVar

from antecede.errors import StampError
from antecede.messages import PERSIST, Effects, Message, Packet, Send, Sent, members_of
from antecede.orders.encoding import Reader, Writer, number_size
from antecede.orders.stamped import StampedOrder

Row = tuple[int, ...]
"""A row of the matrix: the counts of one sender for all members, then their total, then the size of their encoding in
bytes."""


def _row(counts: list[int]) -> Row:
    total = sum(counts)
    return (*counts, total, sum(map(number_size, counts)))


class Matrix(StampedOrder):
    """An order in which the stamp of a message counts the earlier messages from each member to each member. We deliver
    a message as soon as we have delivered all other messages to us that its stamp counts."""

    name: ClassVar[str] = "matrix"
    source: ClassVar[str] = "Garg §12.2 (RST)"
    guarantees = frozenset({"fifo", "causal"})

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.rows: list[Row] = [_row([0] * members)] * members

    def send(self, message: Message) -> Effects:
        counts = list(self.rows[self.me][: self.members])
        for target in members_of(message.to):
            counts[target] += 1
        self.rows[self.me] = _row(counts)
        return [PERSIST, Sent(message), *map(Send, self.copies(message, tuple(self.rows)))]

    def number(self, packet: Packet) -> int:
        count: int = packet.stamp[packet.source][self.me]
        return count

    def missing(self, packet: Packet) -> tuple[int, int] | None:
        me = self.me
        counted = [row[me] for row in packet.stamp]
        counted[packet.source] -= 1
        delivered = self.delivered
        if any(map(gt, counted, delivered)):
            return next((k, count) for k, count in enumerate(counted) if count > delivered[k])
        return None

    def predecessors(self, packet: Packet) -> list[tuple[int, int]]:
        counted = [row[self.me] for row in packet.stamp]
        counted[packet.source] -= 1
        return [(k, count) for k, count in enumerate(counted) if count > self.delivered[k]]

    def past(self, packet: Packet) -> tuple[int, ...]:
        return tuple(row[self.me] for row in packet.stamp)

    def learn(self, packet: Packet) -> None:
        total = self.members
        self.rows = [
            mine if mine[total] >= theirs[total] else theirs
            for mine, theirs in zip(self.rows, packet.stamp, strict=True)
        ]

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        for row in packet.stamp:
            for count in row[: self.members]:
                out.number(count)

    def read_stamp(self, kind: str, source: int, data: Reader) -> tuple[Row, ...]:
        rows = []
        for k, mine in enumerate(self.rows):
            counts = [data.counter(known) for known in mine[: self.members]]
            theirs = _row(counts)
            newer, older = (theirs, mine) if theirs[self.members] > mine[self.members] else (mine, theirs)
            if any(map(gt, older[: self.members], newer)) and not data.recorded:
                raise StampError(f"row {k} of a stamp contradicts the counts of member {k} in an earlier stamp")
            if k == self.me and newer is theirs:
                raise StampError("stamp counts messages that we never sent")
            rows.append(theirs)
        if rows[source][self.me] == 0:
            raise StampError("stamp does not count its own message")
        return tuple(rows)

    def size(self, packet: Packet) -> int:
        size: int = sum([row[-1] for row in packet.stamp])
        return size

    def dependents(self, packet: Packet) -> int:
        return self.members**2

    def paper_bytes(self, packet: Packet) -> int:
        return 4 * self.members**2

    def dump(self) -> Any:
        return (tuple(row[: self.members] for row in self.rows), tuple(self.delivered))

    def load(self, state: Any) -> None:
        rows, delivered = state
        self.rows = [_row(list(row)) for row in rows]
        self.delivered = list(delivered)
