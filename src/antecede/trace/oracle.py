"""The plain oracle: it derives every verdict directly from the definition of happened-before.

Happened-before is the least transitive relation with two properties (Mattern, Fünfrocken §2). An event comes after the
earlier events of its process, and a delivery comes after its send. For each process we keep one set: the **messages
whose sends happened before the next event of this process**. The messages are numbered, and the set is a bit mask in
one integer:

* A send adds its message to the set of its process. The message carries the resulting set.
* A delivery adds the set that its message carries to the set of its process.

A delivery of m at q is **late** iff q has already delivered a message m′ with send(m) → send(m′). This is true iff a
message that q delivered earlier carried a set that contains m. The set of q itself is not used for this test: if q sent
m to itself, the set of q always contains m, even if the delivery is not late. Under FIFO order, the delivery of m is
late iff q has already delivered a message that the sender of m sent after m. *Needless delay* is defined at
:func:`needless_delays`.

An import may have assumed the positions of some rows. Such positions prove nothing, so all orders are judged without
them (:mod:`antecede.trace.assumed`). Deliveries that are late only if the assumed positions are right are counted as
*undecided*.

Each set has one bit per message, so the cost is quadratic in the number of messages. This is fast enough for traces of
about ten thousand messages. The oracle is the reference for all other engines. :mod:`antecede.trace.streaming` gives
the same verdicts on large traces.

The given events must be well formed (:mod:`antecede.trace.quarantine` ensures this for traces from outside).
"""

from collections.abc import Iterable, Sequence

import msgspec

from antecede.trace.assumed import certain
from antecede.trace.matched import Matched, match
from antecede.trace.schema import ARRIVE, DELIVER, SEND, Event
from antecede.trace.total_order import agree_pairwise, cycle_in
from antecede.trace.verdicts import ORDERS, Late, Verdict


def judge(events: Iterable[Event] | Matched, orders: Sequence[str] = ORDERS) -> Verdict:
    """Return the verdict on events. The events must be well formed, but may be given in any sequence."""
    trace = events if isinstance(events, Matched) else match(events)
    verdict = Verdict(trace.deliveries, trace.undelivered(), tuple(orders))
    sure = certain(trace)
    if "causal" in orders:
        verdict.causal = _causal(sure)
        verdict.causal_undecided = 0 if sure is trace else len(_causal(trace)) - len(verdict.causal)
    if "fifo" in orders:
        verdict.fifo = _fifo(sure)
        verdict.fifo_undecided = 0 if sure is trace else len(_fifo(trace)) - len(verdict.fifo)
    judge_merges(trace, verdict)
    return verdict


def pasts(trace: Matched) -> tuple[dict[str, int], dict[str, int]]:
    """Return two tables with messages as keys. The first table contains the bit of each message. The second table
    contains the set that each message carries: the message itself, and all messages whose sends happened before its
    send."""
    bits: dict[str, int] = {}
    carried: dict[str, int] = {}
    past = [0] * len(trace.lines)
    for process, _, event in trace.in_causal_order():
        if event.kind == SEND:
            message = event.message
            assert message is not None
            bit = bits[message] = 1 << len(bits)
            past[process] |= bit
            carried[message] = past[process]
        elif event.kind == DELIVER:
            assert event.message is not None
            past[process] |= carried[event.message]
    return bits, carried


def _causal(trace: Matched) -> list[Late]:
    bits, carried = pasts(trace)
    late = []
    for line in trace.lines:
        received = 0
        for event in line:
            if event.kind == DELIVER:
                message = event.message
                assert message is not None
                bit = bits[message]
                if received & bit:
                    first = next(e.message for e in line if e.kind == DELIVER and carried[e.message or ""] & bit)
                    late.append(trace.late(event, first or ""))
                received |= carried[message]
    return sorted(late)


def _fifo(trace: Matched) -> list[Late]:
    late = []
    for line in trace.lines:
        newest: dict[int, int] = {}
        for event in line:
            if event.kind == DELIVER:
                source, sent = trace.sends[event.message or ""]
                if sent < newest.get(source, -1):
                    deliveries = (e.message or "" for e in line if e.kind == DELIVER)
                    first = next(m for m in deliveries if (source, sent) < trace.sends[m] < (source + 1, 0))
                    late.append(trace.late(event, first))
                else:
                    newest[source] = sent
    return sorted(late)


def judge_merges(trace: Matched, verdict: Verdict) -> None:
    """Judge total and synchronous order, if requested, and set the results in ``verdict``. Rows with an assumed
    position are not used."""
    if "total" in verdict.orders:
        sequences = [[e.message or "" for e in line if e.kind == DELIVER and not e.assumed] for line in trace.lines]
        verdict.cycle = cycle_in(sequences)
        verdict.pairwise = verdict.cycle is None or agree_pairwise(sequences)
    if "synchronous" in verdict.orders and verdict.deliveries:
        both = (SEND, DELIVER)
        sequences = [[e.message or "" for e in line if e.kind in both and not e.assumed] for line in trace.lines]
        verdict.crown = cycle_in(sequences)


class Delay(msgspec.Struct, frozen=True, order=True):
    """A message that a process delivered later than necessary, or never. :func:`needless_delays` has the exact
    definition."""

    process: str
    arrive_index: int
    message: str
    deliver_index: int | None
    """The index of the delivery; ``None`` if the message was never delivered, although it could have been."""


def needless_delays(events: Iterable[Event] | Matched) -> list[Delay]:
    """Return the messages that were delivered later than causal order requires, or not at all. The trace must have
    ``arrive`` rows.

    Let m and m′ be messages to a process q. If send(m′) happened before send(m), m′ is a *predecessor* of m at q. The
    message m is *deliverable* as soon as m has arrived at q and q has delivered all predecessors of m. The message m is
    needlessly delayed in two cases:

    - After m became deliverable and before m's delivery, q has an event that is not a delivery. (Other deliveries in
      between are allowed, because one arrival can release several messages at one instant.)
    - When the trace ends, m is deliverable, but was never delivered.

    If m was delivered, it is enough to examine one event: the last event at q that comes before m's delivery and is not
    itself a delivery. Then m is needlessly delayed iff it was deliverable before this event. A message without an
    ``arrive`` row at q is not judged. If the destinations of a message are unknown, the processes that delivered it are
    treated as its destinations.
    """
    trace = events if isinstance(events, Matched) else match(events)
    bits, carried = pasts(trace)
    addressed = _addressed(trace, bits)
    delays = []
    for process, line in enumerate(trace.lines):
        name = trace.names[process]
        arrived: dict[str, tuple[int, int]] = {}
        delivered = delivered_before_pause = 0
        pause = -1
        for position, event in enumerate(line):
            message = event.message or ""
            if event.kind != DELIVER:
                pause, delivered_before_pause = position, delivered
                if event.kind == ARRIVE and not delivered & bits[message]:
                    arrived.setdefault(message, (position, event.index))
                continue
            if message in arrived:
                at, index = arrived.pop(message)
                wanted = carried[message] & addressed[process] & ~bits[message]
                if at < pause and not wanted & ~delivered_before_pause:
                    delays.append(Delay(name, index, message, event.index))
            delivered |= bits[message]
        for message, (_, index) in arrived.items():
            bit = bits[message]
            if addressed[process] & bit and not carried[message] & addressed[process] & ~bit & ~delivered:
                delays.append(Delay(name, index, message, None))
    return sorted(delays, key=lambda delay: (delay.process, delay.arrive_index, delay.message))


def _addressed(trace: Matched, bits: dict[str, int]) -> list[int]:
    numbers = {name: process for process, name in enumerate(trace.names)}
    addressed = [0] * len(trace.lines)
    for process, line in enumerate(trace.lines):
        for event in line:
            message = event.message or ""
            if event.kind == SEND:
                for name in event.to or ():
                    if name in numbers:
                        addressed[numbers[name]] |= bits[message]
            elif event.kind == DELIVER:
                addressed[process] |= bits[message]
    return addressed
