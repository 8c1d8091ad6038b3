"""``pruned``: causal order with the least control information (Jang, Park, Cho, Yoon §4).

Each process keeps **CI**, a list of the messages that may still be in transit. (In the code, CI is called ``log``; it
is not the log of a server.) For each sender k, CI has entries (τ, D). Such an entry means that the τ-th message of k
may be undelivered at the processes in D. A message carries its own τ and the sender's CI. The copy for destination j
also carries the delivery constraints **DC**: the messages of CI that j must have delivered first. **DLV** contains, for
each sender, the τ of the sender's last message that this process has delivered. Information that can be inferred is
removed immediately:

* *just replaced* (S2): after m was sent to j, j is removed from the sets D of all other messages, because j delivers
  these before m. (The paper's line S2 removes i, the sender, from the sets. It must be j.)
* *just delivered* (R4): the receiver adds an entry for the message to its log. The set D of this entry does not
  contain the receiver.
* *already delivered, already replaced* (R5, R6): the CI of a delivered message is merged into the receiver's CI.
  Suppose that only one of these two CIs has an entry for a certain message of sender k. The entry is kept if it is
  newer than all entries of k in the other CI. Otherwise it is dropped, because the other CI has already removed it. If
  both CIs have an entry for the same message, the merged entry has only the destinations that are in both sets D.
* the newest entry of each sender stays, even without destinations (S3, R9), because R5 compares with it.

By rule R1, a message waits until its constraints are met; here, the hold-back queue of :mod:`antecede.orders.stamped`
does this. A message is a duplicate if its τ is not larger than its sender's entry in DLV. If such a message were
accepted, the entry could decrease, and other messages would wait for ever. The paper's rule R8 is left out, because it
never applies after R5. CI equals the log of Kshemkalyani and Singhal's optimal algorithm.

Destination sets are bit masks. The log about one sender is a flat tuple (τ, D, τ′, D′, …), sorted by τ. Such a tuple is
immutable, so the copies of a message share it, and the processes of a simulation share it, too.
"""

from typing import Any, ClassVar

from antecede.messages import COPY, PERSIST, Effects, Message, Packet, Send, Sent
from antecede.orders import pruned_stamp
from antecede.orders.encoding import Reader, Writer
from antecede.orders.pruned_stamp import Control, Log
from antecede.orders.stamped import StampedOrder


def merge_logs(mine: Log, theirs: Log) -> Log:
    """Merge two logs about one sender by the rules R5, R6 and R9 at the top of this file. Return the result."""
    if not mine or mine == theirs:
        return theirs
    if not theirs:
        return mine
    mine_newest, theirs_newest = mine[-2], theirs[-2]
    if mine_newest < theirs[0]:
        return theirs
    if theirs_newest < mine[0]:
        return mine
    newest = max(mine_newest, theirs_newest)
    merged: list[int] = []
    i = j = 0
    while i < len(mine) or j < len(theirs):
        if j == len(theirs) or (i < len(mine) and mine[i] < theirs[j]):
            time, destinations, kept = mine[i], mine[i + 1], mine[i] > theirs_newest
            i += 2
        elif i == len(mine) or theirs[j] < mine[i]:
            time, destinations, kept = theirs[j], theirs[j + 1], theirs[j] > mine_newest
            j += 2
        else:
            time, destinations, kept = mine[i], mine[i + 1] & theirs[j + 1], True
            i += 2
            j += 2
        if kept and (destinations or time == newest):
            merged += (time, destinations)
    return tuple(merged)


class Pruned(StampedOrder):
    """An order in which a stamp contains constraints: the messages that the receiver must deliver first."""

    name: ClassVar[str] = "pruned"
    source: ClassVar[str] = "Jang et al. §4"
    guarantees = frozenset({"fifo", "causal"})

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.time = 0
        self.log: list[Log] = [()] * members

    def send(self, message: Message) -> Effects:
        self.time = time = self.time + 1  # S1
        to, me, id_ = message.to, self.me, message.id
        constraints = self._replace(to)  # S2, S3
        log = self.log
        control = Control(time, tuple(log))
        effects: Effects = [PERSIST, Sent(message)]
        remaining = to
        while remaining:  # S4
            bit = remaining & -remaining
            remaining ^= bit
            stamp = (control, tuple(constraints[bit]) if bit in constraints else ())
            effects.append(Send(Packet(COPY, me, bit.bit_length() - 1, message, id_, stamp)))
        own = log[me]
        log[me] = (*(own[:-2] if own and not own[-1] else own), time, to)  # S5, with S3 of the next send
        return effects

    def _replace(self, to: int) -> dict[int, list[int]]:
        """Prepare the send of a message to the members ``to`` (S2, S3). Remove these members from the destinations of
        all messages in the log, because they deliver those messages before the new one. Return the delivery constraints
        of each destination that has constraints. A key is a bit mask with the bit of the destination. A value is a list
        (k, τ, k′, τ′, …): the destination must first have delivered the τ-th message of member k, and so on."""
        constraints: dict[int, list[int]] = {}
        for k, log in enumerate(self.log):
            if not log or (not log[1] & to if len(log) == 2 else not any(mask & to for mask in log[1::2])):
                continue
            kept: list[int] = []
            newest = log[-2]
            for at in range(0, len(log), 2):
                time, destinations = log[at], log[at + 1]
                hit = destinations & to
                destinations ^= hit
                while hit:
                    bit = hit & -hit
                    hit ^= bit
                    constraints.setdefault(bit, []).extend((k, time))
                if destinations or time == newest:
                    kept += (time, destinations)
            self.log[k] = tuple(kept)
        return constraints

    def number(self, packet: Packet) -> int:
        time: int = packet.stamp[0].time
        return time

    def missing(self, packet: Packet) -> tuple[int, int] | None:
        constraints = packet.stamp[1]  # R1
        if not constraints:
            return None
        delivered = self.delivered
        for at in range(0, len(constraints), 2):
            if constraints[at + 1] > delivered[constraints[at]]:
                return constraints[at], constraints[at + 1]
        return None

    def predecessors(self, packet: Packet) -> list[tuple[int, int]]:
        constraints = packet.stamp[1]
        pairs = zip(constraints[::2], constraints[1::2], strict=True)
        return [(k, time) for k, time in pairs if time > self.delivered[k]]

    def past(self, packet: Packet) -> tuple[int, ...]:
        # The newest entry of each sender is never pruned.
        counts = [log[-2] if log else 0 for log in packet.stamp[0].log]
        counts[packet.source] = packet.stamp[0].time
        return tuple(counts)

    def learn(self, packet: Packet) -> None:
        control: Control = packet.stamp[0]
        assert packet.message is not None
        log = self.log
        source = packet.source
        for k, theirs in enumerate(control.log):
            if k == source or not theirs:
                continue
            mine = log[k]
            if mine is theirs:
                continue
            if len(mine) == 2 and len(theirs) == 2:
                # Nearly all of them have one entry each. If the result equals one side, sharing that side's tuple makes
                # the next comparison a single instruction.
                time, to = mine
                their_time, their_to = theirs
                if time < their_time:
                    log[k] = theirs
                elif time == their_time:
                    both = to & their_to
                    if both == their_to:
                        log[k] = theirs
                    elif both != to:
                        log[k] = (time, both)
            else:
                log[k] = merge_logs(mine, theirs)
        theirs = control.log[source]
        older = theirs[:-2] if theirs and not theirs[-1] else theirs
        own = (*older, control.time, packet.message.to & ~(1 << self.me))  # R4
        mine = log[source]
        log[source] = own if not mine or mine[-2] < own[0] else merge_logs(mine, own)

    def encode(self, packet: Packet) -> bytes:
        control, constraints = packet.stamp
        return (None if constraints else pruned_stamp.brief(control)) or super().encode(packet)

    def decode(self, kind: str, source: int, data: bytes) -> Any:
        if kind == COPY:
            control = pruned_stamp.read_brief(source, self.me, self.time, self.log, data)
            if control is not None:
                return control, ()
        return super().decode(kind, source, data)

    def decode_recorded(self, kind: str, source: int, data: bytes) -> Any:
        # The known timestamps only grow, so a stamp that was right when it arrived is right later, too.
        return self.decode(kind, source, data)

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        control, constraints = packet.stamp
        control.write(out)
        pruned_stamp.write_constraints(control, constraints, out)

    def read_stamp(self, kind: str, source: int, data: Reader) -> tuple[Control, tuple[int, ...]]:
        known = [log[-2] if log else 0 for log in self.log]
        known[self.me] = self.time
        control = pruned_stamp.read_control(source, self.me, known, data)
        return control, pruned_stamp.read_constraints(control, data)

    def size(self, packet: Packet) -> int:
        control, constraints = packet.stamp
        size: int = control.size() + pruned_stamp.constraints_size(control, constraints)
        return size

    def dependents(self, packet: Packet) -> int:
        control, constraints = packet.stamp
        dependents: int = control.dependents() + len(constraints) // 2
        return dependents

    def paper_bytes(self, packet: Packet) -> int:
        control, constraints = packet.stamp
        paper_bytes: int = control.paper_bytes() + 3 * len(constraints)
        return paper_bytes

    def dump(self) -> Any:
        # Masks of many members exceed 64 bits, which the snapshot's encoding cannot hold as numbers.
        width = (self.members + 7) // 8
        logs = tuple(
            tuple(value.to_bytes(width, "little") if at & 1 else value for at, value in enumerate(log))
            for log in self.log
        )
        return (self.time, logs, tuple(self.delivered))

    def load(self, state: Any) -> None:
        self.time, logs, delivered = state
        self.log = [
            tuple(int.from_bytes(value, "little") if at & 1 else value for at, value in enumerate(log)) for log in logs
        ]
        self.delivered = list(delivered)
