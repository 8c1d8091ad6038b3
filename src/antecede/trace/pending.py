"""Find late deliveries with sets of pending messages, in traces with many processes and few messages in transit.

A message is *pending* if it was sent and not yet delivered everywhere. The usual method
(:mod:`antecede.trace.streaming`) uses vectors with an entry for each sender. Most of these entries are about messages
that are not pending any more. Such a message will not be delivered again, so it cannot be late. Therefore this module
stores nothing about it.

Each process keeps a set of the pending messages that it learned of through deliveries. A message *carries* two sets:
the set of its sender at the time of the send, and the pending messages that the sender itself sent earlier. **A
delivery of m at q is late if m is in q's set, and only then.** If the delivery is not late, m and the messages that m
carries are added to q's set.

A set is stored as the bits of one integer. A bit becomes free when its message has been delivered everywhere. When half
of the bits are free, one sweep removes the free bits from all sets. After the sweep, these bits are used for other
messages.

**The walk** is the sequence in which the events are processed. The number of messages that are pending at the same time
depends on the walk. In some traces, one process (for example, an archive) receives all messages. Then few messages are
pending if the walk begins with that process. :meth:`Matched.in_causal_order` is such a walk. In other traces, few
messages are pending if the events are sorted by Lamport clocks. Each event is then processed soon after the events that
happened before it. If the sets would be larger than vectors in both walks, :func:`late_deliveries` returns ``None``.
"""

from itertools import accumulate

from antecede.trace.matched import Matched
from antecede.trace.schema import SEND, Event

_senders_min = 64
"""A trace with fewer processes than this is judged with vectors, which are then small enough."""

_sweep_min = 1_024
"""The smallest number of free bits at which a sweep starts. (A sweep removes the free bits from all sets.) With fewer
free bits, a sweep would cost more time than it saves."""

_sets_per_bit_swept = 4
"""A sweep (the removal of free bits from all sets) starts only if the number of free bits is at least the number of
processes divided by this number."""

_Step = tuple[int, int, int, Event]
"""A send or a delivery that is processed: its Lamport clock, its process, the number of its message, and the event."""


def late_deliveries(trace: Matched) -> list[Event] | None:
    """Return the deliveries that violate causal order. Return ``None`` if a check with vector clocks is faster for this
    trace. Then the caller uses that check."""
    if len(trace.lines) < _senders_min:
        return None
    walk, ends, awaited = _numbered(trace)
    senders = len({process for _, process, _, event in walk if event.kind == SEND})
    if _most_pending(walk, awaited) > senders:
        # In one process clocks rise, so no two steps get as far as comparing events.
        walk.sort()
        # A set has up to two bits for each pending message, a vector 32 for each sender.
        if 2 * _most_pending(walk, awaited) > 32 * senders:
            return None
    return _late(walk, ends, awaited, _Bits(len(trace.lines), len(awaited)))


def _numbered(trace: Matched) -> tuple[list[_Step], list[int], list[int]]:
    """Return three lists. The first list has all deliveries and their sends, in causal order. The second list has the
    last Lamport clock of each process. The third list has one entry for each event of the trace, one process after the
    other. If the event is a send, the entry is the number of deliveries of its message; otherwise it is 0. The number
    of a message is the position of its send in the third list."""
    first = list(accumulate(map(len, trace.lines), initial=0))
    awaited = [0] * first[-1]
    clocks = [0] * len(trace.lines)
    sent = [0] * first[-1]
    walk: list[_Step] = []
    for process, position, event in trace.in_causal_order():
        origin = trace.origins[process][position]
        if origin is not None:
            message = first[origin[0]] + origin[1]
            awaited[message] += 1
            clock = max(clocks[process], sent[message]) + 1
        elif event.kind == SEND:
            message = first[process] + position
            clock = sent[message] = clocks[process] + 1
        else:
            continue
        clocks[process] = clock
        walk.append((clock, process, message, event))
    # An undelivered message would stay pending, and cannot be late.
    return [step for step in walk if awaited[step[2]]], clocks, awaited


def _most_pending(walk: list[_Step], awaited: list[int]) -> int:
    left = awaited.copy()
    pending = most = 0
    for _, _, message, event in walk:
        if event.kind == SEND:
            pending += 1
            if pending > most:
                most = pending
        else:
            left[message] -= 1
            pending -= not left[message]
    return most


class _Bits:
    """Keeps the sets of pending messages: the set of each process, and the set that each message carries. In all sets,
    a message has the same bit."""

    def __init__(self, processes: int, messages: int) -> None:
        self.known = [0] * processes
        """For each process, the set of messages that the process learned of through its deliveries."""
        self.own = [0] * processes
        """For each process, the set of messages that it sent itself."""
        self.bit = [0] * messages
        """For each pending message, an integer with one bit set. The bit represents the message in all sets."""
        self.brings: dict[int, int] = {}
        """For each pending message, the set that its delivery adds: the message itself, and the messages that it
        carries."""
        self._width = 0
        self._free: list[int] = []
        self._done: list[int] = []
        """The bits of messages that were delivered everywhere. Until the next sweep, sets may still contain these
        bits."""
        self._sweep_at = max(_sweep_min, processes // _sets_per_bit_swept)

    def send(self, process: int, message: int) -> None:
        if not self._free:
            if len(self._done) >= self._sweep_at and 2 * len(self._done) >= self._width:
                self._sweep()
            else:
                self._free.append(1 << self._width)
                self._width += 1
        bit = self.bit[message] = self._free.pop()
        self.own[process] |= bit
        self.brings[message] = self.known[process] | self.own[process]

    def forget(self, message: int) -> None:
        """Forget a message that has been delivered everywhere."""
        del self.brings[message]
        self._done.append(self.bit[message])

    def _sweep(self) -> None:
        kept = (1 << self._width) - 1
        for bit in self._done:
            kept ^= bit
        self.known = [bits & kept for bits in self.known]
        self.own = [bits & kept for bits in self.own]
        self.brings = {message: bits & kept for message, bits in self.brings.items()}
        self._free, self._done = self._done, []


def _late(walk: list[_Step], ends: list[int], awaited: list[int], sets: _Bits) -> list[Event]:
    left = awaited.copy()
    late = []
    for clock, process, message, event in walk:
        if event.kind == SEND:
            sets.send(process, message)
        else:
            if sets.known[process] & sets.bit[message]:
                late.append(event)
            else:
                sets.known[process] |= sets.brings[message]
            left[message] -= 1
            if not left[message]:
                sets.forget(message)
        if clock == ends[process]:
            sets.known[process] = sets.own[process] = 0
    return late
