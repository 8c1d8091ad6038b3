"""Late deliveries by sets of pending messages: for traces of many processes with few messages on their way.

A vector has an entry for each sender, though most of what it says is settled: once a message is delivered everywhere,
nobody asks about it any more. So each process keeps the set of those *pending* messages, sent and not yet delivered
everywhere, whose sends its deliveries have brought into its past. **A delivery of m at q is late iff m is in q's set.**
Otherwise q's set gains m and what m carries: the sender's set and its own earlier sends.

A set is the bits of one integer. A bit is used again after its message has been delivered everywhere; before that it is
taken out of all sets at once, whenever half of the bits are of that sort.

**The walk** is in the order of Lamport's clock: each event as soon as all that happened before it. This keeps few
messages pending, far fewer than a walk that lets one process lead. Where they are too many all the same (a vector
would be smaller), there is no answer from here.
"""

from collections import Counter

from antecede.trace.matched import Matched
from antecede.trace.schema import DELIVER, SEND, Event

_senders_min = 64
"""Below so many senders a vector is small."""

_sweep_min = 1_024
"""Bits that are swept at once, at least: a sweep looks at all sets."""


def late_deliveries(trace: Matched) -> list[Event] | None:
    """Return the deliveries that violate causal order; ``None`` if vectors are the better way for this trace."""
    if len(trace.lines) < _senders_min:
        return None
    awaited = Counter(event.message for line in trace.lines for event in line if event.kind == DELIVER)
    walk, ends = _by_lamport(trace, awaited)
    senders = len({trace.sends[message or ""][0] for message in awaited})
    # A set has up to two bits for each pending message, a vector 32 for each sender.
    if 2 * _most_pending(walk, awaited) > 32 * senders:
        return None
    return _late(walk, ends, awaited, _Bits(len(trace.lines)))


def _by_lamport(trace: Matched, awaited: Counter[str | None]) -> tuple[list[tuple[int, int, Event]], list[int]]:
    """Sends and deliveries as (Lamport's clock, process, event), in that order; and each process's last clock."""
    clocks = [0] * len(trace.lines)
    sent: dict[str | None, int] = {}
    walk: list[tuple[int, int, Event]] = []
    for process, _, event in trace.in_causal_order():
        if event.kind == DELIVER:
            clock = max(clocks[process], sent[event.message]) + 1
        elif event.kind == SEND and awaited[event.message]:
            clock = sent[event.message] = clocks[process] + 1
        else:
            continue
        clocks[process] = clock
        walk.append((clock, process, event))
    # In one process clocks rise, so no two entries get as far as comparing events.
    walk.sort()
    return walk, clocks


def _most_pending(walk: list[tuple[int, int, Event]], awaited: Counter[str | None]) -> int:
    left = dict(awaited)
    pending = most = 0
    for _, _, event in walk:
        if event.kind == SEND:
            pending += 1
            most = max(most, pending)
        else:
            left[event.message] -= 1
            pending -= not left[event.message]
    return most


class _Bits:
    """The sets of all processes and messages, and which bit stands for which message."""

    def __init__(self, processes: int) -> None:
        self.known = [0] * processes
        """What deliveries have brought."""
        self.own = [0] * processes
        """A process's own sends."""
        self.bit: dict[str | None, int] = {}
        """By pending message, the set that holds it alone."""
        self.brings: dict[str | None, int] = {}
        """By pending message, the set that a delivery of it brings: the message and what it carries."""
        self._place: dict[str | None, int] = {}
        self._width = 0
        self._free: list[int] = []
        self._done: list[int] = []
        """Bits of messages that were delivered everywhere, which may still be in sets."""

    def send(self, process: int, message: str | None) -> None:
        if not self._free and len(self._done) >= _sweep_min and 2 * len(self._done) >= self._width:
            self._sweep()
        if not self._free:
            self._free.append(self._width)
            self._width += 1
        place = self._place[message] = self._free.pop()
        bit = self.bit[message] = 1 << place
        self.own[process] |= bit
        self.brings[message] = self.known[process] | self.own[process]

    def forget(self, message: str | None) -> None:
        """A message has been delivered everywhere."""
        del self.brings[message], self.bit[message]
        self._done.append(self._place.pop(message))

    def _sweep(self) -> None:
        kept = (1 << self._width) - 1
        for bit in self._done:
            kept ^= 1 << bit
        self.known = [bits & kept for bits in self.known]
        self.own = [bits & kept for bits in self.own]
        self.brings = {message: bits & kept for message, bits in self.brings.items()}
        self._free, self._done = self._done, []


def _late(
    walk: list[tuple[int, int, Event]], ends: list[int], awaited: Counter[str | None], sets: _Bits
) -> list[Event]:
    late = []
    for clock, process, event in walk:
        message = event.message
        if event.kind == SEND:
            sets.send(process, message)
        else:
            if sets.known[process] & sets.bit[message]:
                late.append(event)
            else:
                sets.known[process] |= sets.brings[message]
            awaited[message] -= 1
            if not awaited[message]:
                sets.forget(message)
        if clock == ends[process]:
            sets.known[process] = sets.own[process] = 0
    return late
