"""Find the position of each send among the spans of its service.

A span records its start. A message leads from one span, the cause, to another span, the effect. The message is
delivered where the effect begins. The time of the *send* is not recorded. The send lies between the starts of the two
spans. There are two cases:

**A client's or producer's span** is the record of one send. This send took place between the span's start and its end.
If the service sent and received nothing else in that interval, all positions in the interval are equivalent. Then the
send is placed at the start of the span, and this position is certain. (Recorded times are rounded to a *tick*: the
largest power of ten that divides all times of the service. The start and the duration are both rounded. So a span may
have ended up to two ticks later than recorded.)

**Otherwise the position is assumed.** The import chooses the latest position that the spans allow. The starts of all
spans are put into one sequence. This sequence keeps the order of each service, puts every cause before its effect, and
otherwise follows the clocks. The send is put directly before the start of the effect. But if the cause is a client's or
producer's span, the send is not put after the end of the cause. So calls that were made one after the other stay in
that order. The names and the clocks of the services cannot change this. :mod:`antecede.trace.assumed` defines what a
row with an assumed position can prove.

These positions are assumed, too:

* **ties**: spans of one service that begin at the same time and send or receive messages. (If one of them descends from
  the other, their order is certain.)
* **several instances** in one process, because each instance has its own clock.

Sometimes no sequence can both keep the order of each service and put every cause before its effect. Then some spans
wait for each other. Of these spans, the one with the earliest start is put first. ``verify`` then sets the impossible
deliveries aside.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import groupby, pairwise
from typing import Any, Final

import msgspec

from antecede.trace.foreign.moments import SEND_POSITION, TIED_START, Moment
from antecede.trace.race_search import resolution_of

CALLING: Final = ("client", "producer")
"""The kinds of spans that send one message."""

SEVERAL_INSTANCES: Final = "several_instances"


class Span(msgspec.Struct, frozen=True, gc=False):
    """The data that the import needs about a span. Times are in nanoseconds."""

    trace: str
    id: str
    service: str
    start: int
    parent: str | None = None
    kind: str | None = None
    """``client``, ``server``, ``producer``, ``consumer``, or anything else."""
    name: str | None = None
    duration: int | None = None
    links: tuple[tuple[str, str], ...] = ()
    instance: str | None = None
    """The instance of the service; ``None`` if it is not recorded, or if ``service`` already includes the instance."""

    def columns(self) -> dict[str, Any]:
        """Return the data of the span for extra columns of the trace. The start and the service are not included,
        because the trace has them in its columns ``time`` and ``process``."""
        columns: dict[str, Any] = {"trace": self.trace, "span": self.id}
        for key, value in (("name", self.name), ("span_kind", self.kind), ("duration_ns", self.duration)):
            if value is not None:
                columns[key] = value
        return columns


class Tie(msgspec.Struct, frozen=True, gc=False):
    """A message from the span ``cause`` to the span ``span``."""

    cause: Span
    span: Span
    message: str


class _Sent(msgspec.Struct, frozen=True, gc=False):
    """The recorded data of a send that has an assumed position."""

    tie: Tie

    def columns(self) -> dict[str, Any]:
        return {"trace": self.tie.cause.trace, "span": self.tie.cause.id}


def placed(
    services: dict[str, list[Span]], ties: Sequence[Tie], above: Callable[[Span], Span | None]
) -> dict[str, list[Moment]]:
    """Return the events of each service in their order, with the sends and deliveries of all messages (``ties``).
    ``above`` returns the span that called a given span, usually its parent."""
    moments = {id(span): Moment(span, span.start) for spans in services.values() for span in spans}
    sequence = _sequence(services, ties, above)
    for spans in services.values():
        spans.sort(key=lambda span: sequence[id(span)])
    ticks = {
        service: resolution_of(time for span in spans for time in (span.start, span.duration or 0)) or 1
        for service, spans in services.items()
    }
    certain = _certain(ties, above, ticks)
    sends: dict[str, list[tuple[int, int, Moment]]] = {}
    for tie in ties:
        moments[id(tie.span)].take(tie.message)
        first, delivered = sequence[id(tie.cause)], sequence[id(tie.span)]
        if id(tie.cause) in certain or first > delivered:
            moments[id(tie.cause)].give(tie.message, tie.span.service)
            continue
        spans = services[tie.cause.service]
        # After everything that begins before the delivery, but not after the end of the span that records it.
        place = bisect_left(spans, delivered, key=lambda span: sequence[id(span)])
        end = _end(tie.cause, ticks)
        if end is not None:
            ended = bisect_right(spans, end, key=lambda span: span.start)
            place = min(place, max(ended, bisect_right(spans, first, key=lambda span: sequence[id(span)])))
        sent = Moment(_Sent(tie), assumed=SEND_POSITION)
        sent.give(tie.message, tie.span.service)
        sends.setdefault(tie.cause.service, []).append((place, delivered, sent))
    lines = {}
    for service, spans in services.items():
        line = [moments[id(span)] for span in spans]
        _mark(spans, line, above)
        # Each send comes before the span at its place, and sends at one place in the order of their deliveries.
        begins = [(place, -1, moment) for place, moment in enumerate(line, 1)]
        in_order = sorted([*begins, *sends.get(service, ())], key=lambda found: found[:2])
        lines[service] = [moment for _, _, moment in in_order]
    return lines


def _end(span: Span, ticks: dict[str, int]) -> int | None:
    """Return the latest possible end of a client's or producer's span. It is later than the recorded end, because
    recorded times are rounded. Return ``None`` for other spans, or if the duration is unknown."""
    if span.kind not in CALLING or span.duration is None:
        return None
    return span.start + span.duration + 2 * ticks[span.service]


def _sequence(
    services: dict[str, list[Span]], ties: Sequence[Tie], above: Callable[[Span], Span | None]
) -> dict[int, int]:
    """Put the spans of all services into one sequence. Return the position of each span, by its ``id()``."""
    needs: dict[int, list[Span]] = {}
    for tie in ties:
        needs.setdefault(id(tie.span), []).append(tie.cause)
    lines = [services[name] for name in sorted(services)]
    opened = [0] * len(lines)
    """For each service, the number of its spans that were put into ``ready`` so far. Spans with the same start are put
    there together."""
    unfinished = [0] * len(lines)
    numbers: dict[int, int] = {}
    ready: list[tuple[int, int, int]] = []
    waiting: dict[int, list[tuple[int, int, int]]] = {}
    """For each cause that is not in the sequence yet, the spans that wait for it."""

    def open_next(line: int) -> None:
        spans, begin = lines[line], opened[line]
        end = begin
        while end < len(spans) and spans[end].start == spans[begin].start:
            end += 1
        opened[line], unfinished[line] = end, end - begin
        if end - begin > 1:
            for at in range(begin, end):
                parent = above(spans[at])
                if parent is not None and parent.service == spans[at].service and parent.start == spans[at].start:
                    needs.setdefault(id(spans[at]), []).append(parent)
        for at in range(begin, end):
            heappush(ready, (spans[at].start, line, at))

    for line in range(len(lines)):
        open_next(line)
    while ready or any(waiting.values()):
        if ready:
            turn = heappop(ready)
            span = lines[turn[1]][turn[2]]
            missing = next((cause for cause in needs.get(id(span), ()) if id(cause) not in numbers), None)
            if missing is not None:
                waiting.setdefault(id(missing), []).append(turn)
                continue
        else:
            # Causes contradict the order of services: the earliest by the clocks goes first.
            blocked = min((turns for turns in waiting.values() if turns), key=min)
            turn = min(blocked)
            blocked.remove(turn)
            span = lines[turn[1]][turn[2]]
        line = turn[1]
        numbers[id(span)] = len(numbers)
        for released in waiting.pop(id(span), ()):
            heappush(ready, released)
        unfinished[line] -= 1
        if not unfinished[line]:
            open_next(line)
    return numbers


def _certain(ties: Sequence[Tie], above: Callable[[Span], Span | None], ticks: dict[str, int]) -> set[int]:
    """Return the ``id()`` of each calling span (``Tie.cause``) whose send has a certain position, not an assumed one.
    The position is certain if the span has only one send, and its service sent and received nothing else during the
    span."""
    messages: dict[int, list[Tie]] = {}
    involved: dict[str, dict[int, Span]] = {}
    for tie in ties:
        messages.setdefault(id(tie.cause), []).append(tie)
        for span in (tie.cause, tie.span):
            involved.setdefault(span.service, {})[id(span)] = span
    lines = {service: sorted(own.values(), key=lambda span: span.start) for service, own in involved.items()}
    found = set()
    for number, own in messages.items():
        cause = own[0].cause
        end = _end(cause, ticks)
        if len(own) > 1 or end is None:
            continue
        line = lines[cause.service]
        begin = bisect_left(line, cause.start, key=lambda span: span.start)
        during = range(begin, bisect_right(line, end, key=lambda span: span.start))
        # The span at the other end always comes after the send, and an ancestor that began with it comes before.
        others = (line[at] for at in during if line[at] is not cause and line[at] is not own[0].span)
        if all(span.start == cause.start and _descends(cause, span, above) for span in others):
            found.add(number)
    return found


def _mark(spans: list[Span], line: list[Moment], above: Callable[[Span], Span | None]) -> None:
    """Mark the positions of moments (events of a service) as assumed if the service's clock does not show their order.
    If the spans are from several instances, mark all moments. Otherwise look at the moments that have messages and
    start at the same time: mark them, unless each of their spans descends from the span before it."""
    if len({span.instance for span in spans}) > 1:
        for moment in line:
            moment.assumed = SEVERAL_INSTANCES
        return
    for _, group in groupby(zip(spans, line, strict=True), key=lambda pair: pair[0].start):
        tied = [(span, moment) for span, moment in group if moment.tied]
        if any(not _descends(two[0], one[0], above) for one, two in pairwise(tied)):
            for _, moment in tied:
                moment.assumed = TIED_START


def _descends(span: Span, ancestor: Span, above: Callable[[Span], Span | None]) -> bool:
    """Return whether ``ancestor`` is an ancestor of ``span``, and all spans between them began at the same time as
    ``ancestor``."""
    seen: set[int] = set()
    current = above(span)
    while current is not None and current.start == ancestor.start and id(current) not in seen:
        if current is ancestor:
            return True
        seen.add(id(current))
        current = above(current)
    return False
