"""Races: pairs of messages that were delivered in the right order, but only because of their timing.

Let q be a process that delivers the messages m and m′. The pair (m, m′) is a **race** at q if four conditions hold:

* The send of m happened before the send of m′.
* q delivered m before m′.
* The delivery of m at q did not happen before the send of m′.
* The declared guarantee of the system does not order m and m′.

If the copy of m to q had taken a little longer, m would have been late. The guarantee ``none`` orders no pair. The
guarantee ``fifo`` orders two messages of one sender. The guarantee ``causal`` orders m and m′ whenever the first
condition holds, so with it there are no races.

:func:`find_races` finds the pairs. If several messages of one sender are in a race with the same m′ at
q, only the last one delivered is counted, unless all pairs are requested.

**Slack** is how much later m could have arrived without being late. It is the time, by q's own clock, from the arrival
of m to the arrival of m′. There is one exception, if FIFO order is declared: m′ could not be delivered before all
earlier messages of its sender had arrived. If some of them arrived after m′, the slack is measured to the last of these
arrivals instead. If the arrivals are not recorded, the times of the deliveries are compared. A negative slack means
that m arrived after m′ but was delivered first: the system kept more order than it declared.

This module must not import :mod:`antecede.orders`, so the caller provides the declared guarantee.
"""

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from heapq import heappush, heappushpop
from typing import Any

import msgspec

from antecede import __version__
from antecede.errors import UsageError
from antecede.trace.explain import Chains, Link
from antecede.trace.matched import Matched
from antecede.trace.quarantine import counts, sift
from antecede.trace.schema import ARRIVE, DELIVER, Event, Metadata
from antecede.trace.sources import load
from antecede.trace.streaming import Lanes, Vectors
from antecede.trace.verdicts import Late

_second = 10**9
_never, _always = -(2**66), 2**66
"""``_never`` is smaller than every time, and ``_always`` is larger than every time. This stays true if a time is added
to ``_never`` or ``_always``."""


class Wanted(msgspec.Struct, frozen=True):
    """Settings that choose the races to report. ``first``: the largest number of races in the report."""

    first: int = 10
    within: int | None = None
    """The maximum slack of a reported race, in nanoseconds. (*Slack* is how much later the first message could have
    arrived without being late.) If it is None, there is no maximum."""
    every: bool = False
    """Whether to report all races. If it is false, and several messages of one sender are in a race with the same
    second message, only the race of the message that was delivered last is reported and counted."""

    def check(self) -> None:
        """Raise an error if ``first`` is negative. The caller does this check before it reads a trace."""
        if self.first < 0:
            raise UsageError(f"--first {self.first}: expected 0 or more")


class Race(msgspec.Struct, frozen=True, order=True):
    """A race between two messages, given by the process that delivered both (``at``) and the positions of the two
    deliveries. Races are sorted by slack, then by process and position; races without a slack come last."""

    untimed: bool
    slack: int
    at: int
    second: int
    """The position of the delivery of the second message."""
    first: int
    """The position of the delivery of the first message."""


class Found(msgspec.Struct):
    """The result of one pass over a trace."""

    pairs: int = 0
    untimed: int = 0
    late: int = 0
    """The number of deliveries that broke causal order; they are not races."""
    races: list[Race] = []
    """The races with the smallest slack, ascending."""
    resolution: int | None = None
    """The resolution of the recorded times, in nanoseconds: the largest power of ten that divides all these times, but
    at most one second. It is ``None`` if no times are recorded."""


class _Clock:
    """The times of one message at one receiver, measured with the clock of the receiver: when the message arrived, when
    it was delivered, and the earliest time when it could have been delivered (``released``)."""

    __slots__ = ("arrived", "delivered", "earliest", "latest", "released")

    def __init__(self, arrived: int | None, delivered: int | None, released: int | None) -> None:
        self.arrived, self.delivered, self.released = arrived, delivered, released
        known = [moment for moment in (arrived, delivered) if moment is not None]
        self.latest = max(known, default=_never)
        """The later one of two times: the arrival and the delivery. If this message is the first message of a race, the
        slack is measured from one of these times."""
        self.earliest = min([*known, released or _always], default=_always)

    def slack_of(self, earlier: "_Clock") -> int | None:
        """Return the slack of a race in nanoseconds. This object has the times of the second message, and ``earlier``
        has the times of the first message. Return None if the necessary times are not recorded."""
        if self.released is not None and earlier.arrived is not None:
            return self.released - earlier.arrived
        if self.delivered is not None and earlier.delivered is not None:
            return self.delivered - earlier.delivered
        return None


class _Receiver:
    """The deliveries of one process so far, numbered from 0. Each sender has a *lane*: its position in the vectors."""

    def __init__(self, firsts: int) -> None:
        self.firsts = firsts
        """A vector with an entry for each sender. If messages of the sender were delivered here, the entry is the
        position of the earliest of their sends, plus 1. Otherwise the entry is the largest possible value."""
        self.of: dict[int, list[int]] = {}
        """For each sender's lane, the numbers of the deliveries of its messages. The keys are sorted by the last
        delivery of each sender, so the sender of the newest delivery comes last."""
        self.positions: list[int] = []
        self.lanes: list[int] = []
        """For each delivery, the lane of its sender."""
        self.clocks: list[_Clock] = []
        self.arrivals: dict[str, int | None] = {}
        self._sent: list[int] = []
        self._ascending: dict[int, list[int] | None] = {}
        """For each sender's lane, the positions of the sends of the delivered messages, in the order of the deliveries;
        ``None`` if these positions are not ascending."""
        self._latest: list[int] = []
        """For each delivery, the latest time at which its message, or a message that was delivered earlier, arrived or
        was delivered."""
        self._released: dict[int, int | None] = {}

    def clock(self, event: Event, lane: int, fifo: bool) -> _Clock:
        """Return the times of a message that ``event`` delivers. ``fifo``: whether FIFO order is declared. If it is,
        the message could not be delivered before all earlier messages from its sender had arrived."""
        arrived = self.arrivals.pop(event.message or "", None)
        released = arrived
        before = self._released.get(lane)
        if fifo and arrived is not None and before is not None:
            released = max(before, arrived)
        self._released[lane] = released
        return _Clock(arrived, event.time, released)

    def delivered(self, position: int, lane: int, sent: int, clock: _Clock) -> None:
        """Remember a delivery."""
        own = self.of.pop(lane, None)
        if own is None:
            own, self._ascending[lane] = [], []
        ascending = self._ascending[lane]
        if ascending is not None:
            if ascending and ascending[-1] >= sent:
                self._ascending[lane] = None
            else:
                ascending.append(sent)
        own.append(len(self.positions))
        self.of[lane] = own
        self.positions.append(position)
        self.lanes.append(lane)
        self.clocks.append(clock)
        self._sent.append(sent)
        self._latest.append(max(self._latest[-1], clock.latest) if self._latest else clock.latest)

    def every(self, begin: int, reach: Sequence[int]) -> Iterator[int]:
        """Yield the numbers of the deliveries that fulfil two conditions, newest first. The delivery is at position
        ``begin`` or later. The position of its send is below the sender's entry in ``reach``."""
        for number in range(len(self.positions) - 1, bisect_left(self.positions, begin) - 1, -1):
            if self._sent[number] < reach[self.lanes[number]]:
                yield number

    def last(self, begin: int, reach: Sequence[int], since: int) -> Iterator[int]:
        """Yield one number for each sender: the number of the newest delivery that :meth:`every` would yield for the
        messages of this sender. Leave out senders without such a delivery. Stop when the times of all remaining
        deliveries are before ``since``."""
        for lane in reversed(self.of):
            own = self.of[lane]
            if self.positions[own[-1]] < begin or self._latest[own[-1]] < since:
                return
            limit = reach[lane]
            ascending = self._ascending[lane]
            if ascending is not None:
                place = bisect_left(ascending, limit) - 1
                if place >= 0 and self.positions[own[place]] >= begin:
                    yield own[place]
                continue
            for number in reversed(own):
                if self.positions[number] < begin:
                    break
                if self._sent[number] < limit:
                    yield number
                    break


def find_races(trace: Matched, guarantee: str, wanted: Wanted) -> Found:
    """Count the races of a trace, and return the races that ``wanted`` chooses. If the guarantee is ``causal``, there
    are no races.

    The search for races: one pass over a trace in causal order, with a vector for each process.

    **Vectors decide.** Let q be a process that delivers a message m′, and let V be the vector that m′ carries
    (:mod:`antecede.trace.streaming`). For each process p, V[p] is the number of p's events that happened before
    send(m′). (If p sent m′, V[p] also counts send(m′).) A message m from p is in a race with m′ at q if and only if
    three conditions hold: p sent m at a position below V[p], q delivered m before m′, and this delivery of m is at
    position V[q] or later. There is no race between two messages of one sender if FIFO order is declared. If several
    messages of one sender are in a race with m′ at q, only the last one delivered is reported, unless all pairs are
    requested.

    **Counting without examining each pair.** A process that never sends, such as an archive, is not in the past of
    other processes. So every message that it delivered before m′ may be in a race with m′. At such a process q, the
    races are counted by comparing two whole vectors: V and a second vector, which also has one entry for each sender.
    To compute the entry of a sender, take the messages from this sender that q has delivered. The entry is the position
    of the earliest of their sends. After counting, races are examined one by one, the newest first, to find those that
    the report shows. This search stops when no further race can be shown.

    :mod:`antecede.trace.races` defines a race and its slack.
    """
    times = (event.time for line in trace.lines for event in line if event.kind in (ARRIVE, DELIVER))
    found = Found(resolution=resolution_of(time for time in times if time is not None))
    return found if guarantee == "causal" else _Pass(trace, guarantee == "fifo", wanted, found).run()


class _Pass:
    """The pass over a trace that finds its races, with the vectors of :mod:`antecede.trace.streaming`."""

    def __init__(self, trace: Matched, fifo: bool, wanted: Wanted, found: Found) -> None:
        self._trace, self._fifo, self._wanted, self._found = trace, fifo, wanted, found
        self._vectors = Vectors(trace, Lanes)
        self._lane_of, self._lanes = self._vectors.lane_of, self._vectors.lanes
        self._receivers = [_Receiver(self._lanes.full()) for _ in trace.lines]
        self._kept = _Kept(found, wanted)
        timed = {event.time is not None for line in trace.lines for event in line if event.kind == DELIVER}
        self._counts = not wanted.every and wanted.within is None and len(timed) == 1
        """Whether races may be counted without examining each race. This is possible only if ``wanted`` sets neither
        ``every`` nor ``within``, and if either all deliveries have a time or none has."""
        self._timed = True in timed

    def run(self) -> Found:
        for process, position, event, vector, late in self._vectors.walk():
            if event.kind == ARRIVE:
                self._receivers[process].arrivals.setdefault(event.message or "", event.time)
            elif event.kind == DELIVER:
                self._deliver(process, position, event, vector)
                self._found.late += late
        self._found.races = self._kept.ascending()
        return self._found

    def _deliver(self, process: int, position: int, event: Event, vector: int) -> None:
        """Find the races in which ``event`` delivers the second message."""
        here, kept, lanes = self._receivers[process], self._kept, self._lanes
        source, sent = self._trace.sends[event.message or ""]
        lane, own = self._lane_of[source], self._lane_of.get(process)
        clock = here.clock(event, lane, self._fifo)
        reach = lanes.entries(vector)
        """For each sender, the number of its events that happened before the send of the second message. For the sender
        of the second message, this send is counted, too."""
        begin = 0 if own is None else reach[own]
        earliest = lanes.entry(here.firsts, lane)
        count = self._counts and not begin
        if count:
            pairs = lanes.count_at_least(vector, here.firsts) - (self._fifo and earliest <= sent + 1)
            self._found.pairs += pairs
            self._found.untimed += 0 if self._timed else pairs
        if not count or kept.open_to(process, self._timed):
            since = kept.since(clock) if count else _never
            numbers = here.every(begin, reach) if self._wanted.every else here.last(begin, reach, since)
            for number in numbers:
                if not (self._fifo and here.lanes[number] == lane):
                    slack = clock.slack_of(here.clocks[number])
                    kept.add(process, position, here.positions[number], slack, not count)
        if sent + 1 < earliest:
            here.firsts = lanes.replaced(here.firsts, lane, sent + 1)
        here.delivered(position, lane, sent, clock)


class _Kept:
    """Keeps the ``wanted.first`` races with the smallest slack, and counts races in ``found``."""

    def __init__(self, found: Found, wanted: Wanted) -> None:
        self._found, self._wanted = found, wanted
        self._heap: list[tuple[int, int, int, int, int]] = []
        """A heap with the negated fields of each kept race. So the race with the largest slack is on top, and is
        dropped first."""

    def add(self, at: int, second: int, first: int, slack: int | None, count: bool) -> None:
        """Keep a race if its slack is among the smallest so far. If ``count`` is true, also count the race. A race that
        ``wanted.within`` excludes is neither kept nor counted."""
        within = self._wanted.within
        if within is not None and (slack is None or slack > within):
            return
        self._found.pairs += count
        self._found.untimed += count and slack is None
        race = -(slack is None), -(slack or 0), -at, -second, -first
        if len(self._heap) < self._wanted.first:
            heappush(self._heap, race)
        elif self._heap:
            heappushpop(self._heap, race)

    def since(self, clock: _Clock) -> int:
        """Return a limit for the times of the first message of a race. ``clock`` has the times of the second message.
        The race can be kept only if its first message arrived or was delivered at the returned time or later."""
        if len(self._heap) < self._wanted.first or not self._heap or self._heap[0][0]:
            return _never
        return clock.earliest + self._heap[0][1]

    def open_to(self, at: int, timed: bool) -> bool:
        """Return whether the next race at process ``at`` can still be kept. If ``wanted.first`` is 0, return False.
        Otherwise, if deliveries have times (``timed``) or fewer than ``wanted.first`` races are kept, return True. In
        all other cases, return True only if a kept race is at a process with a larger number than ``at``. (Races
        without times are sorted by process, then by delivery.)"""
        if len(self._heap) < self._wanted.first or timed:
            return bool(self._wanted.first)
        return bool(self._heap) and at < -self._heap[0][2]

    def ascending(self) -> list[Race]:
        return sorted(Race(bool(untimed), *(-field for field in rest)) for untimed, *rest in self._heap)


def resolution_of(times: Iterator[int]) -> int | None:
    """Return the resolution of times, in nanoseconds: the largest power of ten that divides all of them, but at most
    one second. Return None if there are no times."""
    unit = None
    for moment in times:
        unit = _second if unit is None else unit
        while moment % unit:
            unit //= 10
        if unit == 1:
            break
    return unit


GUARANTEES = ("none", "fifo", "causal")
"""The guarantees that a system may declare, weakest first."""

_second_of = 10**9


class Declared(msgspec.Struct, frozen=True):
    """The guarantee on which the search for races relies. ``by`` says where the guarantee comes from: from the
    ``metadata`` of the trace, from the option ``assume``, or from the ``default``."""

    guarantee: str = "fifo"
    by: str = "default"


Declare = Callable[[Sequence[Metadata]], Declared]
"""A function that returns the guarantee declared in the metadata of a trace. The caller provides it, because this
module must not import :mod:`antecede.orders`."""


def assumed(guarantee: str, by: str = "assume") -> Declare:
    """Return a function that always returns this guarantee and ignores the metadata."""
    if guarantee not in GUARANTEES:
        raise UsageError(f"--assume {guarantee!r}: expected one of {', '.join(GUARANTEES)}")
    return lambda _: Declared(guarantee, by)


def races(
    paths: Sequence[str | os.PathLike[str]], declare: Declare | None = None, wanted: Wanted | None = None
) -> dict[str, Any]:
    """Find the races of the given traces, taken as one trace; return the report."""
    started = time.perf_counter()
    wanted = wanted or Wanted()
    wanted.check()
    loaded = load(paths)
    declared = declare(loaded.metadata) if declare is not None else Declared()
    sifted = sift(loaded.events, loaded.placed)
    trace = sifted.trace
    found = find_races(trace, declared.guarantee, wanted)
    about = {
        "events": sifted.events,
        "deliveries": trace.deliveries,
        "complete": not sifted.reasons and not loaded.reasons,
        "quarantined": counts(sifted, loaded.reasons),
    }
    report = assembled("plain", declared, found, _race_rows(trace, found.races), about)
    return report | {"session_seconds": 0.0, "seconds": round(time.perf_counter() - started, 3)}


def assembled(
    engine: str, declared: Declared, found: Found, rows: list[dict[str, Any]], about: dict[str, Any]
) -> dict[str, Any]:
    """Return the report on the races of a trace, without the durations of the run."""
    return {
        "version": __version__,
        "engine": engine,
        "guarantee": declared.guarantee,
        "declared_by": declared.by,
        "events": about["events"],
        "deliveries": about["deliveries"],
        "late": None if declared.guarantee == "causal" else found.late,
        "pairs": found.pairs,
        "untimed": found.untimed,
        "resolution_seconds": None if found.resolution is None else found.resolution / _second_of,
        "shown": len(rows),
        "races": rows,
        "complete": about["complete"],
        "quarantined": about["quarantined"],
    }


def _race_rows(trace: Matched, found: list[Race]) -> list[dict[str, Any]]:
    """Return the report of each race. The report includes a shortest chain of messages, which shows how the second
    message of the race depends on the first."""
    if not found:
        return []
    chains = Chains(trace)
    rows = []
    for race in found:
        line = trace.lines[race.at]
        first, second = line[race.first], line[race.second]
        sent, after = trace.sent(first.message or ""), trace.sent(second.message or "")
        links: list[Link] = []
        if sent.process != after.process:
            # The chain that reaches the second sender before it sends, as if a delivery were late there at that moment.
            links = chains.shortest(Late(after.index, after.process, first.message or "", sent.process, sent.index))
        links.append(Link(second.message or "", after.process, after.index, second.process, second.index))
        rows.append(race_of(first, sent, second, None if race.untimed else race.slack, links))
    return rows


def race_of(first: Event, sent: Event, second: Event, slack: int | None, chain: Sequence[Link]) -> dict[str, Any]:
    """Return the report of one race. ``first`` and ``second``: the deliveries of the two messages. ``sent``: the send
    of the first message. ``slack``: in nanoseconds, or None if it is not known. ``chain``: a chain of messages through
    which the second message depends on the first."""
    return {
        "first": first.message,
        "second": second.message,
        "at": first.process,
        "slack_seconds": None if slack is None else slack / _second_of,
        "from": sent.process,
        "send_index": sent.index,
        "first_index": first.index,
        "second_index": second.index,
        "chain": [link.as_json() for link in chain],
    }


def declared_orders(metadata: Sequence[Metadata]) -> list[str]:
    """Return the names of all orders that the metadata of a trace contain, without repeats. If the metadata of one file
    do not name an order, return an empty list."""
    named: list[str] = []
    for one in metadata:
        if not isinstance(one.order, str) or not one.order.strip():
            return []
        named += [name.strip() for name in one.order.split(", ")]
    return list(dict.fromkeys(named))
