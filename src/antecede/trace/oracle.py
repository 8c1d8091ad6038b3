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
them (:func:`certain`). Deliveries that are late only if the assumed positions are right are counted as
*undecided*.

Each set has one bit per message, so the cost is quadratic in the number of messages. This is fast enough for traces of
about ten thousand messages. The oracle is the reference for all other engines. :mod:`antecede.trace.streaming` gives
the same verdicts on large traces.

The given events must be well formed (:mod:`antecede.trace.quarantine` ensures this for traces from outside).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from antecede.trace.matched import Matched, match, of_lines
from antecede.trace.schema import ARRIVE, DELIVER, SEND, Event
from antecede.trace.verdicts import ORDERS, Late, Verdict


def certain(trace: Matched) -> Matched:
    """Return the certain trace: the given trace without the happened-before relations that depend on an assumed
    position. FIFO and causal order are judged on the certain trace. If no position is assumed, return the given trace
    itself.

    The certain verdicts on an imported trace. They are true even if the import assumed wrong positions for some rows.

    A foreign record may show that a process sent a message, but not when. The import then chooses a position among the
    rows of the process and marks the row ``assumed``. It is not known which other rows of the process really come
    before this row. It is still known that the send comes before its deliveries.

    :func:`certain` returns the *certain trace*. In it, each assumed send or delivery is left out, or is moved to a
    separate process. So the certain trace contains only those happened-before relations of the imported trace that do
    not depend on an assumed position. If a delivery is late in the certain trace, it is late for every possible
    position of the assumed rows. So it is also late in the imported trace. A delivery that is late in the imported
    trace, but not in the certain trace, is *undecided*. Total and synchronous order are about sequences of rows, and
    are judged without the assumed rows.

    Two kinds of rows are left out of the certain trace, because they could not change any verdict there:

    * every assumed delivery. It is not certain which rows of its process come after it, or which deliveries come before
      it.
    * an assumed send with its deliveries, if at most one of these deliveries has a known position. It is not certain
      which rows come before the send, so its message cannot make another delivery late. Its own delivery can be late
      only if another process delivered the message first. This requires two deliveries with known positions.

    If two or more deliveries of an assumed send have known positions, the send becomes the only row of a separate
    process.
    """
    if not any(event.assumed for line in trace.lines for event in line):
        return trace
    left = Counter(
        event.message or "" for line in trace.lines for event in line if event.kind == DELIVER and not event.assumed
    )
    lines: list[list[Event]] = []
    alone: list[Event] = []
    for line in trace.lines:
        kept: list[Event] = []
        for event in line:
            if event.kind == SEND and event.assumed:
                if left[event.message or ""] > 1:
                    alone.append(event)
            elif event.kind != DELIVER or _counts(trace, event, left):
                kept.append(event)
        lines.append(kept)
    mark = "assumed"
    while any(name.startswith(mark) for name in trace.names):
        mark += " "
    names = trace.names + [f"{mark}:{event.message}" for event in alone]
    lines += [[event] for event in alone]
    return of_lines(names, lines)


def _counts(trace: Matched, event: Event, left: Counter[str]) -> bool:
    """Return whether a delivery stays in the certain trace. It stays if it can be late there, or if it can make another
    delivery late. ``left``: for each message, the number of its deliveries that are not assumed."""
    message = event.message or ""
    return not event.assumed and (left[message] > 1 or not trace.sent(message).assumed)


def cycle_in(sequences: Sequence[Sequence[str]]) -> list[str] | None:
    """Return ``None`` if the sequences can be merged into one sequence. Otherwise return a cycle of messages:
    each message comes before the next one (in at least one sequence), and the last one comes before the first one.

    Total and synchronous order as one question: can several sequences of messages be merged into one sequence?

    There is one sequence per process. For total order, it has the deliveries of the process. For synchronous order, it
    has all sends and deliveries of the process (Garg §12.1, §12.3). Message a *comes before* another message b if some
    sequence has a before b. The sequences can be merged iff this relation has no cycle. To find out, messages are
    *released* one after the other. A message is released as soon as it is at the head of every sequence in which it
    still occurs. If several messages can be released, any of them may be released first. The result is always the same:
    the same messages are released, and the same messages remain. If one sequence contains a message twice, with another
    message in between, the repeated message comes both before and after the other message. So the repeated message can
    never be released.

    **The witness.** When no message can be released, every remaining message is blocked: in some sequence another
    remaining message comes before it. Take the first sequence in which the message is blocked. The *blocker* of the
    message is the first other remaining message in this sequence. To find a cycle, start with the head of the first
    sequence that has a remaining message. Go from each message to its blocker, until a message x occurs for the second
    time. The messages from the first to the second occurrence of x are a cycle. In the returned list, each message
    comes before the next one, and the last message comes before the first one. The list begins with the smallest id.
    The cycle depends on the trace alone, and in practice it is short.
    """
    # The same message twice in a row counts once.
    lines = [[message for message, _ in groupby(sequence)] for sequence in sequences]
    occurrences = Counter(message for line in lines for message in line)
    cursors = [0] * len(lines)
    at_head: dict[str, list[int]] = {}
    ready: list[str] = []

    def bring_to_head(process: int) -> None:
        line, position = lines[process], cursors[process]
        if position < len(line):
            message = line[position]
            heads = at_head.setdefault(message, [])
            heads.append(process)
            if len(heads) == occurrences[message]:
                ready.append(message)

    for process in range(len(lines)):
        bring_to_head(process)
    while ready:
        for process in at_head.pop(ready.pop()):
            cursors[process] += 1
            bring_to_head(process)
    remaining = [line[position:] for line, position in zip(lines, cursors, strict=True)]
    return _witness(remaining) if any(remaining) else None


def _witness(stuck: list[list[str]]) -> list[str]:
    homes: dict[str, dict[int, int]] = {}
    for process, line in enumerate(stuck):
        for position, message in enumerate(line):
            homes.setdefault(message, {})[process] = position

    def blocker(message: str) -> str:
        for process, last in homes[message].items():
            line = stuck[process]
            if line[0] != message:
                return line[0]
            if last > 0:
                return line[1]
        raise AssertionError(f"message {message} remains, but no other message blocks it")

    path: list[str] = []
    seen: dict[str, int] = {}
    message = next(line for line in stuck if line)[0]
    while message not in seen:
        seen[message] = len(path)
        path.append(message)
        message = blocker(message)
    # The walk went from each message to one that comes before it.
    cycle = path[seen[message] :][::-1]
    least = cycle.index(min(cycle))
    return cycle[least:] + cycle[:least]


def agree_pairwise(sequences: Sequence[Sequence[str]]) -> bool:
    """Return whether every two sequences have their common messages in the same order. A sequence must not repeat a
    message."""
    homes: dict[str, list[tuple[int, int]]] = {}
    for process, line in enumerate(sequences):
        for position, message in enumerate(line):
            homes.setdefault(message, []).append((process, position))
    for process, line in enumerate(sequences):
        reached: dict[int, int] = {}
        for message in line:
            for other, position in homes[message]:
                if other > process:
                    if position < reached.get(other, -1):
                        return False
                    reached[other] = position
    return True


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
