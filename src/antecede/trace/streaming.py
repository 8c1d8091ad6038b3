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
not yet delivered everywhere), sets of pending messages are used (:mod:`antecede.trace.pending`). Otherwise, if numpy is
installed, the vectors are arrays (:mod:`antecede.trace.lanes`).

**Overtakers** are found in a second pass, and only for messages that were late. In this pass, each message carries a
set of late messages: those on which it depends, and itself if it is late. A set has one bit for each late message. (In
the oracle, the sets contain all messages, not only late ones.) Let m be a message that was late at q. The overtaker of
m is the first message delivered at q that carries m in its set.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from antecede.trace import pending
from antecede.trace.assumed import certain
from antecede.trace.lanes import Arrays, Lanes
from antecede.trace.matched import Matched
from antecede.trace.oracle import judge_merges
from antecede.trace.schema import DELIVER, SEND, Event
from antecede.trace.verdicts import Late, Verdict

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
    found = pending.late_deliveries(trace)
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
