"""The oracle's verdicts on large traces: one pass over all events, with a vector for each process.

Let V_q be the vector of process q. V_q has an entry for each sender p; p may be q itself. V_q[p] is the number of p's
events that q has learned of. Process q learns of an event when q delivers a message, if the event is the send of this
message or happened before this send. A message carries the vector of its sender, with one change: the sender's own
entry is the number of the sender's events up to and including the send. A delivery sets V_q to the maximum of V_q and
the carried vector. Let m be a message that p sent. **A delivery of m at q is late iff V_q[p] already counts send(m)**
just before this delivery. This is the definition in :mod:`antecede.trace.oracle`.

A send does not change the sender's vector. So a message shares this vector in memory with its sender, and the sender's
own entry is set at the delivery. If a delivery is late, q has already learned of everything that the message carries,
so no maximum is computed. The vector of a message is deleted after the last delivery of the message. The vector of a
process is deleted after the last event of the process. The number of vectors in memory depends on the sequence in which
the events are processed (:mod:`antecede.trace.matched`).

If there are many processes, another method may give the same answer faster. If few messages are *pending* (sent, but
not yet delivered everywhere), sets of pending messages are used (:func:`late_by_sets`). Otherwise, if numpy is
installed, the vectors are arrays (:class:`Lanes`).

**Overtakers** are found in a second pass, and only for messages that were late. In this pass, each message carries a
set of late messages: those on which it depends, and itself if it is late. A set has one bit for each late message. (In
the oracle, the sets contain all messages, not only late ones.) Let m be a message that was late at q. The overtaker of
m is the first message delivered at q that carries m in its set.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from antecede.trace.matched import Matched
from antecede.trace.oracle import certain, judge_merges
from antecede.trace.schema import DELIVER, SEND, Event
from antecede.trace.verdicts import Late, Verdict

_width = 32
_value = (1 << (_width - 1)) - 1


class Lanes:
    """Operations on vectors that are packed into one integer. Every vector has ``entries`` entries, each from 0 to
    2**31 - 1.

    Vectors of counters, stored so that the maximum of two vectors needs only a few fast operations.

    **Packed.** A vector is one integer, divided into lanes of 32 bits. The lower 31 bits of lane k are the value of
    entry k. The highest bit, the guard bit, is always 0. To take the maximum of two vectors, set all guard bits of the
    first vector and subtract the second vector. If the guard bit of a lane is still set, the first vector has the
    larger entry there, or both are equal. No lane borrows from the next one. A vector of 3,000 entries is 12 kB, and a
    maximum takes some microseconds, without any library.

    **As an array.** If numpy is installed, a vector may instead be an array of numpy. With thousands of entries, arrays
    are several times as fast as packed vectors. In both forms no vector is changed in place, so several owners may
    share one vector.
    """

    def __init__(self, entries: int) -> None:
        self._bytes = entries * _width // 8
        self._guards = int.from_bytes((b"\0\0\0\x80") * entries, "little")
        self.zero = 0
        """The vector in which every entry is 0."""

    def entry(self, vector: int, lane: int) -> int:
        """Return the entry of a vector at position ``lane``."""
        return (vector >> (lane * _width)) & _value

    def raised(self, vector: int, lane: int, by: int) -> int:
        """Return the vector with ``by`` added to the entry at position ``lane``."""
        return vector + (by << (lane * _width))

    def replaced(self, vector: int, lane: int, value: int) -> int:
        """Return the vector with ``value`` as the entry at position ``lane``."""
        return self.raised(vector, lane, value - self.entry(vector, lane))

    def maximum(self, a: int, b: int) -> int:
        """Return the vector that has, at each position, the larger entry of the two vectors."""
        at_least = ((a | self._guards) - b) & self._guards
        from_a = at_least - (at_least >> (_width - 1))
        return b ^ ((a ^ b) & from_a)

    def full(self) -> int:
        """Return the vector in which every entry has the largest possible value."""
        return self._guards - (self._guards >> (_width - 1))

    def count_at_least(self, a: int, b: int) -> int:
        """Return the number of positions at which the entry of ``a`` is at least as large as the entry of ``b``."""
        return (((a | self._guards) - b) & self._guards).bit_count()

    def entries(self, vector: int) -> Sequence[int]:
        """Return all entries of a vector, in their order."""
        return memoryview(vector.to_bytes(self._bytes, "little")).cast("I")


class Arrays:
    """Operations on vectors that are arrays of numpy. The class has only the operations of :class:`Lanes` that are
    needed to read the events of a trace one after the other."""

    def __init__(self, entries: int) -> None:
        self._numpy: Any = import_module("numpy")
        self.zero: Any = self._numpy.zeros(entries, self._numpy.int32)

    def entry(self, vector: Any, lane: int) -> int:
        """Return the entry of a vector at position ``lane``."""
        return int(vector[lane])

    def replaced(self, vector: Any, lane: int, value: int) -> Any:
        """Return the vector with ``value`` as the entry at position ``lane``."""
        changed = vector.copy()
        changed[lane] = value
        return changed

    def maximum(self, a: Any, b: Any) -> Any:
        """Return the vector that has, at each position, the larger entry of the two vectors."""
        return self._numpy.maximum(a, b)


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


def late_by_sets(trace: Matched) -> list[Event] | None:
    """Return the deliveries that violate causal order. Return ``None`` if a check with vector clocks is faster for this
    trace. Then the caller uses that check.

    Find late deliveries with sets of pending messages, in traces with many processes and few messages in transit.

    A message is *pending* if it was sent and not yet delivered everywhere. The usual method
    uses vectors with an entry for each sender. Most of these entries are about
    messages that are not pending any more. Such a message will not be delivered again, so it cannot be late. Therefore
    this module stores nothing about it.

    Each process keeps a set of the pending messages that it learned of through deliveries. A message *carries* two
    sets: the set of its sender at the time of the send, and the pending messages that the sender itself sent earlier.
    **A delivery of m at q is late if m is in q's set, and only then.** If the delivery is not late, m and the messages
    that m carries are added to q's set.

    A set is stored as the bits of one integer. A bit becomes free when its message has been delivered everywhere. When
    half of the bits are free, one sweep removes the free bits from all sets. After the sweep, these bits are used for
    other messages.

    **The walk** is the sequence in which the events are processed. The number of messages that are pending at the same
    time depends on the walk. In some traces, one process (for example, an archive) receives all messages. Then few
    messages are pending if the walk begins with that process. :meth:`Matched.in_causal_order` is such a walk. In other
    traces, few messages are pending if the events are sorted by Lamport clocks. Each event is then processed soon after
    the events that happened before it. If the sets would be larger than vectors in both walks, :func:`late_deliveries`
    returns ``None``.
    """
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


_asked_at_once = 8_192
"""The largest number of late messages whose overtakers are found in one pass. In a pass, each message carries a set
that has one bit for each of these late messages."""

_arrays_min = 64
"""The smallest number of processes for which numpy arrays are used as vectors. With fewer processes, vectors that are
packed into one integer are as fast."""


Kind = TypeVar("Kind", Lanes, Arrays)


def judge_large(trace: Matched, orders: Sequence[str], every_overtaker: bool = False) -> Verdict:
    """Return the verdict of :func:`antecede.trace.oracle.judge`, with time and memory suitable for a large trace.

    For causal order, ``overtaken_by`` is set for the first late delivery. With ``every_overtaker``, it is set for all
    late deliveries.
    """
    verdict = Verdict(trace.deliveries, trace.undelivered(), tuple(orders))
    sure = certain(trace)
    if "fifo" in orders:
        verdict.fifo = _fifo(sure)
        verdict.fifo_undecided = 0 if sure is trace else len(_fifo(trace)) - len(verdict.fifo)
    if "causal" in orders:
        late = sorted(map(sure.late, _all_late(sure)))
        verdict.causal_undecided = 0 if sure is trace else len(_all_late(trace)) - len(late)
        asked = late if every_overtaker else late[:1]
        for start in range(0, len(asked), _asked_at_once):
            found = _overtakers(sure, asked[start : start + _asked_at_once])
            late[start : start + len(found)] = found
        verdict.causal = late
    judge_merges(trace, verdict)
    return verdict


def _all_late(trace: Matched) -> list[Event]:
    """Return the late deliveries, by the fastest method for this trace."""
    found = late_by_sets(trace)
    if found is not None:
        return found
    many = len(trace.lines) >= _arrays_min and find_spec("numpy") is not None
    return late_deliveries(trace, Arrays) if many else late_deliveries(trace, Lanes)


def late_deliveries(trace: Matched, kind: type[Kind]) -> list[Event]:
    """Return the deliveries that violate causal order, in a sequence that agrees with happened-before."""
    return [event for _, _, event, _, late in Vectors(trace, kind).walk() if late]


class Vectors(Generic[Kind]):
    """Computes the vectors of a trace in one pass over all events (:meth:`walk`, which can be used only once). A vector
    has one entry, called a *lane*, for each process that sent a delivered message. The entry is a number: how
    many events of this process are known to the owner of the vector."""

    def __init__(self, trace: Matched, kind: type[Kind]) -> None:
        self._trace = trace
        self._awaited = Counter(event.message for line in trace.lines for event in line if event.kind == DELIVER)
        senders = sorted({trace.sends[message or ""][0] for message in self._awaited})
        self.lane_of = {process: lane for lane, process in enumerate(senders)}
        self.lanes: Kind = kind(len(senders))

    def walk(self) -> Iterator[tuple[int, int, Event, Any, bool]]:
        """Yield (process, position, event, vector, late) for each event, in causal order. For a delivery, ``vector`` is
        the vector of its message and ``late`` says whether the delivery is late. For all other events, ``vector`` is
        None and ``late`` is false."""
        trace, awaited, lane_of = self._trace, self._awaited, self.lane_of
        lanes: Kind = self.lanes
        ends = [len(line) - 1 for line in trace.lines]
        known: list[Any] = [lanes.zero] * len(trace.lines)
        carried: dict[str, Any] = {}
        for process, position, event in trace.in_causal_order():
            message = event.message or ""
            if event.kind == DELIVER:
                source, sent = trace.sends[message]
                mine, lane = known[process], lane_of[source]
                vector = lanes.replaced(carried[message], lane, sent + 1)
                late = lanes.entry(mine, lane) > sent
                yield process, position, event, vector, late
                if not late:
                    known[process] = lanes.maximum(mine, vector)
                awaited[message] -= 1
                if not awaited[message]:
                    del carried[message]
            else:
                yield process, position, event, None, False
                if event.kind == SEND and awaited[message]:
                    carried[message] = known[process]
            if position == ends[process]:
                known[process] = lanes.zero


def _overtakers(trace: Matched, late: list[Late]) -> list[Late]:
    """Return copies of these late deliveries. In each copy, ``overtaken_by`` is the first message that overtook the
    late message."""
    bits: dict[str, int] = {}
    asked: dict[str, int] = {}
    for delivery in late:
        bit = bits.setdefault(delivery.message, 1 << len(bits))
        asked[delivery.to] = asked.get(delivery.to, 0) | bit
    waiting = [asked.get(name, 0) for name in trace.names]
    known = [0] * len(trace.lines)
    carried: dict[str, int] = {}
    answers: dict[tuple[str, int], str] = {}
    for process, _, event in trace.in_causal_order():
        message = event.message or ""
        if event.kind == SEND:
            known[process] |= bits.get(message, 0)
            if known[process]:
                carried[message] = known[process]
        elif event.kind == DELIVER:
            brought = carried.get(message, 0)
            known[process] |= brought
            # A delivery does not overtake its own message; the late one comes last and finds nothing waiting.
            overtaken = brought & waiting[process]
            waiting[process] &= ~brought
            while overtaken:
                lowest = overtaken & -overtaken
                answers[trace.names[process], lowest] = message
                overtaken ^= lowest
            if len(answers) == len(late):
                break
    return [replace(delivery, overtaken_by=answers[delivery.to, bits[delivery.message]]) for delivery in late]


def _fifo(trace: Matched) -> list[Late]:
    late: list[Late] = []
    for line, origins in zip(trace.lines, trace.origins, strict=True):
        # For each sender, the sends that were newer than all delivered before, and their places here. The first of them
        # after the send of m overtook m.
        newest: dict[int, list[tuple[int, int]]] = {}
        for position, origin in enumerate(origins):
            if origin is not None:
                source, sent = origin
                own = newest.setdefault(source, [])
                if own and own[-1][0] > sent:
                    place = own[bisect_right(own, (sent, position))][1]
                    late.append(trace.late(line[position], line[place].message or ""))
                else:
                    own.append((sent, position))
    return sorted(late)
