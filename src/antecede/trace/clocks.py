"""Check whether the clocks recorded in a trace agree with its events.

**Vector clocks.** There are two rules, and the trace decides which one applies. The *own entry* of a row is the entry
of its clock for its own process. If the own entry is ``index`` + 1 on most rows that have a clock, the rule is
``exact``. Otherwise the clocks count in another way, and the rule is ``order``.

The rule ``exact``: take an event f and a process p, and let k be the index of p's last event in the past of f (f
included). Then the entry of p in the clock of f must be k + 1, or 0 if there is no such event. A missing entry is 0.

The rule ``order``: V(e) < V(f) iff e → f, for all events e and f that have a clock. Here V(e) is the clock of e,
and e → f means that e happened before f. Two tests examine each event f that has a clock. They consider only events
that have a clock:

* V(f) is at least V(e), entry by entry, for every e → f;
* for every process p, the number of p's events whose own entry is at most V(f)[p] equals the number of p's events in
  f's past (f included).

If every event passes, the rule holds for every pair. First, let e → f. Then V(e) ≤ V(f) by the first test. V(e) and
V(f) are different: by the second test, V(f) counts f in the entry for f's process, but V(e) does not. Second, let V(e)
< V(f) and let p be e's process. Then V(e)[p] ≤ V(f)[p], so e is one of the events that the second test counts for p. By
the first part, own entries rise along each process. So if the second test counts k events of p, these are the first k
events of p. By the second test, f's past also contains k events of p, and these also are the first k. So e is in f's
past.

An event *disagrees* if it breaks the rule ``exact``, or fails one of the tests of the rule ``order``.

**Lamport clocks** must rise along each process and from send to deliver. An event disagrees if its clock is not larger
than the clock of the previous row of its process (rows without a clock are skipped). A delivery also disagrees if its
clock is not larger than the clock of its send.

Rows that were set aside and ``hop`` rows are not checked.
"""

from bisect import bisect_right
from collections import Counter
from typing import Any

from antecede.trace.matched import Matched
from antecede.trace.schema import DELIVER, SEND, Event
from antecede.trace.streaming import Lanes


def check_lamport(trace: Matched) -> dict[str, Any]:
    """Check the Lamport clocks, and return the ``lamport`` object of a report."""
    checked = disagree = 0
    for line in trace.lines:
        before: int | None = None
        for event in line:
            if event.lamport is None:
                continue
            checked += 1
            sent = trace.sent(event.message or "").lamport if event.kind == DELIVER else None
            if any(other is not None and event.lamport <= other for other in (before, sent)):
                disagree += 1
            before = event.lamport
    return {"checked": checked, "disagree": disagree, "used": checked > 0 and disagree == 0}


def check_clocks(trace: Matched) -> dict[str, Any]:
    """Check the vector clocks, and return the ``clocks`` object of a report."""
    clocked = [event for line in trace.lines for event in line if event.clock is not None]
    if not clocked:
        return {"checked": 0, "disagree": 0, "rule": None}
    by_index = sum(own_entry(event) == event.index + 1 for event in clocked)
    exact = 2 * by_index > len(clocked)
    rule = _Exact(trace) if exact else _Order(trace)
    disagree = _walk(trace, rule)
    return {"checked": len(clocked), "disagree": disagree, "rule": "exact" if exact else "order"}


def own_entry(event: Event) -> int:
    """Return the entry of an event's clock for the process of the event; 0 if the clock has no such entry."""
    return (event.clock or {}).get(event.process, 0)


class _Exact:
    """The rule ``exact``. Let k be the index of the last event of a process p in the past of an event (the event
    included). Then the entry of p in the event's clock must be k + 1, or 0 if the past has no event of p."""

    def __init__(self, trace: Matched) -> None:
        self._names = trace.names
        self._lines = trace.lines

    def agrees(self, event: Event, reached: list[int], floor: dict[str, int]) -> bool:
        expected = {
            self._names[process]: self._lines[process][count - 1].index + 1
            for process, count in enumerate(reached)
            if count
        }
        assert event.clock is not None
        return expected == {name: entry for name, entry in event.clock.items() if entry}


class _Order:
    """The rule ``order``: an event agrees if it passes the two tests that the docstring of this module describes."""

    def __init__(self, trace: Matched) -> None:
        self._names = trace.names
        self._own = [sorted(own_entry(e) for e in line if e.clock is not None) for line in trace.lines]
        self._clocked_before: list[list[int]] = []
        for line in trace.lines:
            counts = [0]
            for event in line:
                counts.append(counts[-1] + (event.clock is not None))
            self._clocked_before.append(counts)

    def agrees(self, event: Event, reached: list[int], floor: dict[str, int]) -> bool:
        clock = event.clock
        assert clock is not None
        if any(clock.get(name, 0) < entry for name, entry in floor.items()):
            return False
        return all(
            bisect_right(own, clock.get(name, 0)) == before[count]
            for name, own, before, count in zip(self._names, self._own, self._clocked_before, reached, strict=True)
        )


def _walk(trace: Matched, rule: _Exact | _Order) -> int:
    """Return how many events disagree with the rule. For each event with a clock, the rule gets two values.
    ``reached``: for each process, the number of its events in the past of this event (the event included). ``floor``:
    for each entry of a clock, the largest value in the clocks of the earlier events in this event's past."""
    lanes = Lanes(len(trace.lines))
    awaited = Counter(event.message for line in trace.lines for event in line if event.kind == DELIVER)
    known = [0] * len(trace.lines)
    own = [0] * len(trace.lines)
    floors: list[dict[str, int]] = [{} for _ in trace.lines]
    carried: dict[str, tuple[int, dict[str, int]]] = {}
    disagree = 0
    for process, position, event in trace.in_causal_order():
        message = event.message or ""
        if event.kind == DELIVER:
            vector, floor = carried[message]
            known[process] = lanes.maximum(known[process], vector)
            floors[process] = _join(floors[process], floor)
            awaited[message] -= 1
            if not awaited[message]:
                del carried[message]
        if event.clock is not None:
            reached = list(lanes.entries(known[process]))
            reached[process] = position + 1
            disagree += not rule.agrees(event, reached, floors[process])
            floors[process] = _join(floors[process], event.clock)
        if event.kind == SEND and message in awaited:
            known[process] = lanes.raised(known[process], process, position + 1 - own[process])
            own[process] = position + 1
            carried[message] = known[process], floors[process]
    return disagree


def raise_to(clock: dict[str, int], other: dict[str, int]) -> None:
    """Change ``clock``: set each entry to the larger of its two values in ``clock`` and in ``other``."""
    for name, entry in other.items():
        if entry > clock.get(name, 0):
            clock[name] = entry


def _join(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    """Return a new clock: each entry is the larger of its two values in ``a`` and in ``b``. The given clocks are not
    changed, because messages in transit may share them."""
    joined = dict(a)
    raise_to(joined, b)
    return joined
