"""Convert the spans of any system for distributed tracing: find the spans that are connected by a message.

A span is one piece of work in one service. It has an id within its distributed trace, and a start time by the clock
of its host. It may have a parent: the span that called it. In the converted trace, a service is a process and the start
of a span is an event.

* Usually the *cause* of a span is its parent. But in Zipkin, client and server may record a call as two spans with
  the same id, the *halves* of the call. The cause of the server's half is the client's half. If the parent of a
  span has two halves, the cause is the half in the span's own service. If neither half is in that service, the
  cause is the server's half.
* **A message** leads from the cause to the span if they are in different services. Within one service, there is a
  message only if the cause is the calling side of a call (client, producer) and the span is the receiving side. The
  *links* of a span to other spans (OpenTelemetry, Jaeger's *follows from*) are further causes. The message is delivered
  where the span starts.
* Within a service, spans are ordered by the service's wall clock. At equal times a parent comes before its child.
  The clocks of different services never decide an order. The import compares them only to count two things:
  ``early_messages`` counts messages whose cause begins after the effect. ``early_children`` counts spans that begin
  before their parent, in the same service or in another one.

:func:`placed` finds **where a message was sent**. A service is not a sequential process,
because threads and replicas share its name. If the clock of a service does not show the order of some events, these
events are marked ``assumed``, and their positions prove nothing.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import groupby, pairwise
from sys import intern
from typing import Any, Final

import msgspec

from antecede import limits
from antecede.errors import TraceError
from antecede.trace.foreign.mapping import nanoseconds, unit_of
from antecede.trace.foreign.moments import SEND_POSITION, TIED_START, ConvertedTrace, Moment
from antecede.trace.foreign.records import JSON_ERRORS, ForeignFile, cells_of, parquet_columns, parquet_rows
from antecede.trace.races import resolution_of
from antecede.trace.schema import INT64_MAX

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
    ``above`` returns the span that called a given span, usually its parent.

    Find the position of each send among the spans of its service.

    A span records its start. A message leads from one span, the cause, to another span, the effect. The message is
    delivered where the effect begins. The time of the *send* is not recorded. The send lies between the starts of the
    two spans. There are two cases:

    **A client's or producer's span** is the record of one send. This send took place between the span's start and its
    end. If the service sent and received nothing else in that interval, all positions in the interval are equivalent.
    Then the send is placed at the start of the span, and this position is certain. (Recorded times are rounded to a
    *tick*: the largest power of ten that divides all times of the service. The start and the duration are both rounded.
    So a span may have ended up to two ticks later than recorded.)

    **Otherwise the position is assumed.** The import chooses the latest position that the spans allow. The starts of
    all spans are put into one sequence. This sequence keeps the order of each service, puts every cause before its
    effect, and otherwise follows the clocks. The send is put directly before the start of the effect. But if the cause
    is a client's or producer's span, the send is not put after the end of the cause. So calls that were made one after
    the other stay in that order. The names and the clocks of the services cannot change this.
    :func:`antecede.trace.oracle.certain` defines what a row with an assumed position can prove.

    These positions are assumed, too:

    * **ties**: spans of one service that begin at the same time and send or receive messages. (If one of them descends
      from the other, their order is certain.)
    * **several instances** in one process, because each instance has its own clock.

    Sometimes no sequence can both keep the order of each service and put every cause before its effect. Then some spans
    wait for each other. Of these spans, the one with the earliest start is put first. ``verify`` then sets the
    impossible deliveries aside.
    """
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


__all__ = ["Span", "Spans"]

_receiving = ("server", "consumer")


class Spans:
    """Collects spans and finds the messages between them."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._halves: dict[tuple[str, str], list[Span]] = {}
        """The spans by trace id and span id. An id usually has one span. It has several spans if both sides of a call,
        or several receivers of a message, share the id."""
        self.duplicates = 0
        """The number of skipped records that repeat a span."""
        self.without_parent = 0
        """The number of references to a parent or a linked span that was not recorded."""
        self.early_children = 0
        self.early_messages = 0

    @property
    def events(self) -> int:
        """The number of spans."""
        return len(self._spans)

    def add(self, span: Span) -> None:
        """Add one span."""
        halves = self._halves.setdefault((span.trace, span.id), [])
        if any(_same(half, span) for half in halves):
            self.duplicates += 1
            return
        if len(halves) == limits.foreign_halves_max:
            raise TraceError(
                f"span {span.id[:40]!r} has more than {len(halves)} different records: its id is not unique"
            )
        halves.append(span)
        self._spans.append(span)
        if len(self._spans) > limits.foreign_events_max:
            raise TraceError(f"more than {limits.foreign_events_max} spans: import fewer or smaller files")

    def convert(self) -> ConvertedTrace:
        """Return the trace of the spans."""
        depths = self._depths()
        services: dict[str, list[Span]] = {}
        for span in self._spans:
            services.setdefault(span.service, []).append(span)
        for spans in services.values():
            spans.sort(key=lambda span: (span.start, depths[id(span)], span.trace, span.id, span.kind or ""))
        taken: set[str] = set()
        ties = [tie for service in sorted(services) for span in services[service] for tie in self._ties(span, taken)]
        return ConvertedTrace(placed(services, ties, self._above))

    def _ties(self, span: Span, taken: set[str]) -> Iterator[Tie]:
        """Yield the messages that a span receives. Also increase three counts. ``without_parent`` counts the parents
        and linked spans that were not recorded. ``early_children`` counts this span if it starts before its parent.
        ``early_messages`` counts the messages whose cause starts after this span."""
        parent = self._parent(span)
        if parent is not None:
            halves = self._halves[parent.trace, parent.id]
            # A span in two halves begins with its client's.
            begun = next((half for half in halves if half.kind in CALLING), parent).start
            self.early_children += span.start < begun
        elif span.parent is not None:
            self.without_parent += 1
        for cause in self._causes(span, parent):
            if cause.service == span.service and not (cause.kind in CALLING and span.kind in _receiving):
                continue
            self.early_messages += span.start < cause.start
            yield Tie(cause, span, _named(cause, span, taken))

    def _above(self, span: Span) -> Span | None:
        """Return the span that called the given span. Client and server may record one call as two spans, the *halves*
        of the call. If the given span is the server's half and the client's half is recorded, return the client's half.
        Otherwise return the parent of the given span, or None if no parent is recorded."""
        return self._caller(span) or self._parent(span)

    def _causes(self, span: Span, parent: Span | None) -> Iterator[Span]:
        first = self._caller(span) or parent
        if first is not None:
            yield first
        seen = {id(span), id(first)}
        for link in span.links:
            linked = self._pick(span, link)
            if linked is None:
                self.without_parent += 1
            elif id(linked) not in seen:
                seen.add(id(linked))
                yield linked

    def _caller(self, span: Span) -> Span | None:
        """Return the calling span (client or producer) with the same id as the given receiving span (server or
        consumer). Return ``None`` if there is no such span, or if the given span is not a receiving span."""
        if span.kind not in _receiving:
            return None
        halves = self._halves[span.trace, span.id]
        return next((half for half in halves if half.kind in CALLING), None)

    def _parent(self, span: Span) -> Span | None:
        return self._pick(span, (span.trace, span.parent)) if span.parent is not None else None

    def _pick(self, span: Span, key: tuple[str, str]) -> Span | None:
        halves = [half for half in self._halves.get(key, ()) if half is not span]
        if len(halves) < 2:
            return halves[0] if halves else None
        # Of several spans that received one message, the last that began before this span.
        return min(
            halves,
            key=lambda half: (
                half.service != span.service,
                half.kind in CALLING,
                half.instance != span.instance,
                half.start > span.start,
                -half.start,
            ),
        )

    def _depths(self) -> dict[int, int]:
        """Return the number of ancestors of each span, by the span's ``id()``. Wrong records may make spans ancestors
        of each other; such spans get a number, too."""
        depths: dict[int, int] = {}
        for span in self._spans:
            path: list[Span] = []
            above: Span | None = span
            on_path: set[int] = set()
            while above is not None and id(above) not in depths and id(above) not in on_path:
                path.append(above)
                on_path.add(id(above))
                above = self._above(above)
            depth = depths.get(id(above), -1) if above is not None else -1
            while path:
                depth += 1
                depths[id(path.pop())] = depth
        return depths


def _same(one: Span, other: Span) -> bool:
    """Return whether two records with the same id describe the same span. Different spans may have the same id: if a
    message has several receivers, the spans of the receivers may share one id."""
    return (one.service, one.kind, one.start, one.instance) == (other.service, other.kind, other.start, other.instance)


def _named(cause: Span, span: Span, taken: set[str]) -> str:
    """Return an id for the message from ``cause`` to ``span``, and add it to ``taken``. The id differs from all ids
    that were already in ``taken``. Every import of the same spans gives the message the same id."""
    if cause.trace != span.trace:
        name = f"{cause.trace}:{cause.id}->{span.trace}:{span.id}"
    elif cause.id != span.id:
        name = f"{span.trace}:{cause.id}->{span.id}"
    else:
        name = f"{span.trace}:{span.id}"
    if name in taken:
        # Two services answered under one id, as with a retried call.
        name = f"{name}@{span.service}/{span.kind}"
    again = 2
    while name in taken:
        name, again = f"{name.removesuffix(f'#{again - 1}')}#{again}", again + 1
    taken.add(name)
    return name


Raw = msgspec.Raw
Found = Span | str
"""A span, or an error message for a span that cannot be read."""

Place = tuple[str | None, str | None]
"""The process of a span in the trace, and the instance of the service. The instance is ``None`` if the file does not
name it, or if the name of the process already contains it."""


class _Camel(msgspec.Struct, frozen=True, rename="camel"):
    """The base of all objects with keys in camel case, as usual in JSON."""


class _Endpoint(_Camel, frozen=True):
    service_name: str | None = None
    ipv4: str | None = None
    ipv6: str | None = None


class _Zipkin(_Camel, frozen=True):
    trace_id: str
    id: str
    parent_id: str | None = None
    kind: str | None = None
    name: str | None = None
    timestamp: int | None = None
    duration: int | None = None
    local_endpoint: _Endpoint | None = None


class _Attribute(msgspec.Struct, frozen=True):
    key: str
    value: Any = None

    def text(self) -> str | None:
        value = self.value.get("stringValue") if isinstance(self.value, dict) else self.value
        return value if isinstance(value, str) else None


class _Resource(msgspec.Struct, frozen=True):
    attributes: list[_Attribute] = []


class _Scope(msgspec.Struct, frozen=True):
    spans: list[Raw] = []


class _ResourceSpans(_Camel, frozen=True):
    resource: _Resource = _Resource()
    scope_spans: list[_Scope] = []
    instrumentation_library_spans: list[_Scope] = []


class _Otlp(_Camel, frozen=True):
    """An OTLP document. Collectors write the list ``resourceSpans``. Tempo calls this list ``batches`` or puts it into
    ``trace``. Jaeger v3 puts it into ``result``."""

    resource_spans: list[Raw] | None = None
    batches: list[Raw] | None = None
    trace: Raw = Raw()
    result: Raw = Raw()


class _Link(_Camel, frozen=True):
    trace_id: str
    span_id: str


class _OtlpSpan(_Camel, frozen=True):
    trace_id: str
    span_id: str
    start_time_unix_nano: str | int
    end_time_unix_nano: str | int = 0
    parent_span_id: str | None = None
    name: str | None = None
    kind: int | str | None = None
    links: list[_Link] = []


class _Reference(msgspec.Struct, frozen=True):
    span_id: str = msgspec.field(name="spanID")
    trace_id: str = msgspec.field(name="traceID")
    type: str = msgspec.field(name="refType", default="CHILD_OF")


class _JaegerSpan(_Camel, frozen=True):
    start_time: int
    trace_id: str = msgspec.field(name="traceID")
    span_id: str = msgspec.field(name="spanID")
    process_id: str | None = msgspec.field(name="processID", default=None)
    parent_span_id: str | None = msgspec.field(name="parentSpanID", default=None)
    operation_name: str | None = None
    duration: int | None = None
    references: list[_Reference] | None = None
    tags: list[_Attribute] | None = None


class _JaegerProcess(_Camel, frozen=True):
    service_name: str | None = None
    tags: list[_Attribute] | None = None


class _JaegerTrace(msgspec.Struct, frozen=True):
    spans: list[Raw]
    processes: dict[str, _JaegerProcess] = {}


class _Jaeger(msgspec.Struct, frozen=True):
    data: list[Raw]


_otlp_kinds = (None, "internal", "server", "client", "producer", "consumer")


def zipkin(document: bytes | Raw, instances: bool) -> Iterator[Found]:
    """Yield the spans of a Zipkin v2 document. For a span that cannot be read, yield an error message."""
    if bytes(memoryview(document)[:64]).lstrip()[:1] == b"[":
        for raw in msgspec.json.decode(document, type=list[Raw]):
            if bytes(memoryview(raw)[:64]).lstrip()[:1] == b"[":
                for inner in msgspec.json.decode(raw, type=list[Raw]):
                    yield _zipkin_span(inner, instances)
            else:
                yield _zipkin_span(raw, instances)
    else:
        yield _zipkin_span(document, instances)


def _zipkin_span(raw: bytes | Raw, instances: bool) -> Found:
    try:
        span = msgspec.json.decode(raw, type=_Zipkin)
    except JSON_ERRORS as error:
        return str(error)
    place = span.local_endpoint or _Endpoint()
    if span.timestamp is None:
        return "the span has no timestamp"
    return _span(
        span.trace_id,
        span.id,
        _place(place.service_name, place.ipv4 or place.ipv6, instances),
        span.timestamp * 1000,
        span.parent_id,
        span.kind,
        span.name,
        span.duration * 1000 if span.duration is not None else None,
    )


def otlp(document: bytes, instances: bool) -> Iterator[Found]:
    """Yield the spans of an OTLP document. For a span that cannot be read, yield an error message."""
    for raw in _resource_spans(document):
        try:
            group = msgspec.json.decode(raw, type=_ResourceSpans)
        except JSON_ERRORS as error:
            yield str(error)
            continue
        attributes = {attribute.key: attribute.text() for attribute in group.resource.attributes}
        instance = next((attributes[key] for key in _instance_keys if attributes.get(key)), None)
        place = _place(attributes.get("service.name"), instance, instances)
        for scope in (*group.scope_spans, *group.instrumentation_library_spans):
            for span in scope.spans:
                yield _otlp_span(span, place)


def _resource_spans(document: bytes | Raw, depth: int = 2) -> list[Raw]:
    decoded = msgspec.json.decode(document, type=_Otlp)
    inner = next((raw for raw in (decoded.trace, decoded.result) if bytes(raw)), None)
    found = decoded.resource_spans if decoded.resource_spans is not None else decoded.batches
    if found is None and inner is not None and depth:
        return _resource_spans(inner, depth - 1)
    if found is None:
        raise ValueError("not an OTLP document: it has no resourceSpans")
    return found


_instance_keys = ("service.instance.id", "k8s.pod.name", "host.name", "hostname", "ip")


def _otlp_span(raw: Raw, place: Place) -> Found:
    try:
        span = msgspec.json.decode(raw, type=_OtlpSpan)
        start, end = int(span.start_time_unix_nano), int(span.end_time_unix_nano)
    except JSON_ERRORS as error:
        return str(error)
    kind = span.kind
    if isinstance(kind, int):
        kind = _otlp_kinds[kind] if 0 <= kind < len(_otlp_kinds) else None
    elif kind is not None:
        kind = kind.removeprefix("SPAN_KIND_")
    links = tuple((link.trace_id, link.span_id) for link in span.links)
    duration = end - start if end >= start else None
    return _span(span.trace_id, span.span_id, place, start, span.parent_span_id, kind, span.name, duration, links)


def jaeger(document: bytes, instances: bool) -> Iterator[Found]:
    """Yield the spans of a Jaeger document. For a span that cannot be read, yield an error message."""
    try:
        traces = msgspec.json.decode(document, type=_Jaeger).data
    except msgspec.ValidationError:
        traces = [Raw(document)]
    for raw in traces:
        try:
            trace = msgspec.json.decode(raw, type=_JaegerTrace)
        except JSON_ERRORS as error:
            yield str(error)
            continue
        places = {}
        for key, process in trace.processes.items():
            tags = {tag.key: tag.text() for tag in process.tags or ()}
            instance = next((tags[name] for name in _instance_keys if tags.get(name)), None)
            places[key] = _place(process.service_name, instance, instances)
        for span in trace.spans:
            yield _jaeger_span(span, places)


def _jaeger_span(raw: Raw, places: dict[str, Place]) -> Found:
    try:
        span = msgspec.json.decode(raw, type=_JaegerSpan)
    except JSON_ERRORS as error:
        return str(error)
    parent = span.parent_span_id
    links = []
    for reference in span.references or ():
        # A span has one parent, in its own trace; all its other causes are links.
        if reference.type == "CHILD_OF" and not parent and reference.trace_id == span.trace_id:
            parent = reference.span_id
        elif reference.span_id != parent or reference.trace_id != span.trace_id:
            links.append((reference.trace_id, reference.span_id))
    kind = next((tag.text() for tag in span.tags or () if tag.key == "span.kind"), None)
    return _span(
        span.trace_id,
        span.span_id,
        places.get(span.process_id or "", (None, None)),
        span.start_time * 1000,
        parent,
        kind,
        span.operation_name,
        span.duration * 1000 if span.duration is not None else None,
        tuple(links),
    )


def _place(service: str | None, instance: str | None, instances: bool) -> Place:
    if not service:
        return instance, None
    return (f"{service}@{instance}", None) if instance and instances else (service, instance)


def _span(
    trace: str,
    span: str,
    place: Place,
    start: int,
    parent: str | None,
    kind: str | None,
    name: str | None,
    duration: int | None,
    links: tuple[tuple[str, str], ...] = (),
) -> Found:
    service, instance = place
    if not trace or not span:
        return "the span has no id"
    if not service:
        return "the span has no service and no address"
    if not 0 <= start <= INT64_MAX or not 0 <= (duration or 0) <= INT64_MAX:
        return "a time of the span is not an int64 from 0 in nanoseconds"
    kind = intern(kind.lower()) if kind else None
    name = intern(name[: limits.raw_text_bytes_max]) if name else None
    instance = intern(instance) if instance else None
    return Span(intern(trace), span, intern(service), start, parent or None, kind, name, duration, links, instance)


def spans_of_json(file: ForeignFile, read: Callable[[bytes, bool], Iterator[Found]], instances: bool) -> Iterator[Span]:
    """Yield the spans of a file. Spans that cannot be read are recorded as unreadable.

    Spans in JSON: Zipkin v2, OpenTelemetry's OTLP, and Jaeger.

    A file is one document, or has one document per line (as from the OpenTelemetry collector's file exporter). If it
    has one document per line, it is read line by line. Inside a document every span is decoded separately, so that a
    bad span does not affect the other spans. Unknown keys are ignored.

    ========= ============================================================ =================== =====================
    format    document                                                     service             time
    ========= ============================================================ =================== =====================
    zipkin    a list of spans, or of lists of spans, or one span           ``localEndpoint``   microseconds
    otlp      ``resourceSpans`` → ``scopeSpans`` → ``spans``; as Tempo and ``service.name``    nanoseconds, as text
              Jaeger v3 return it: ``batches``, ``trace``, ``result``
    jaeger    ``data`` → traces → ``spans``, or one trace                  ``processes``       microseconds
    ========= ============================================================ =================== =====================

    If ``instances`` is true, each instance of a service becomes a process of the trace (``service@instance``), because
    each instance has its own clock. The file may name the instance by address, pod, instance id or host. If
    ``instances`` is false, or the file names no instance, the process of the trace is the service. If the file names
    only the instance, the process is the instance.
    """
    for line, document in _documents(file):
        number = 0
        try:
            for found in read(document, instances):
                number += 1
                if isinstance(found, Span):
                    yield found
                else:
                    file.unreadable(line, f"span {number}: {found}")
        except JSON_ERRORS as error:
            file.unreadable(line, str(error))


def _documents(file: ForeignFile) -> Iterator[tuple[int | None, bytes]]:
    """Yield the documents of a file, each with its line number. If the first line is a complete document, every line
    that is not blank is a document. Otherwise the whole file is one document, with ``None`` as its number."""
    if _is_json(file.head.lstrip().partition(b"\n")[0]):
        for number, line in file.lines(limits.trace_line_bytes_max):
            if line.strip():
                yield number, line
        return
    data = file.document()
    # If the first line is longer than the sample, we cannot see that there are more lines.
    lines = data.split(b"\n") if b"\n" in data.strip() and not _is_json(data) else []
    if lines and _is_json(lines[0]):
        yield from ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    else:
        yield None, data


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=Raw)
    except JSON_ERRORS:
        return False
    return True


_columns: dict[str, tuple[str, ...]] = {
    "trace": ("traceid", "trace"),
    "span": ("spanid", "span", "id"),
    "parent": ("parentid", "parentspanid", "parentspan", "parent"),
    "place": ("podname", "pod", "servicename", "service", "process", "host", "instance"),
    "start": ("start", "starttime", "timestamp", "begin"),
    "end": ("end", "endtime", "finish"),
    "kind": ("spankind", "kind"),
    "name": ("operationname", "operation", "spanname", "name"),
}
_needed = ("trace", "span", "parent", "place", "start")
_units = {"unixnano": 1, "nanos": 1, "nano": 1, "ns": 1, "micros": 10**3, "us": 10**3, "millis": 10**6, "ms": 10**6}
_no_parent = ("", "root", "null", "none", "nan", "-")

_Table = tuple[dict[str, tuple[int, int]], Iterator[tuple[int, list[str] | str]]]
"""The columns and the rows of a table. Each column has its position and its unit of time. Each row has its number, and
either its cells or an error message."""


def header_of(line: bytes) -> dict[str, tuple[int, int]] | None:
    """Return the position and the time unit of each known column of a header. A time unit is given by its length in
    nanoseconds, or by 0 if it is unknown. Return ``None`` if the line is not the header of a table of spans."""
    names = cells_of(line)
    return None if isinstance(names, str) else columns_of(names)


def columns_of(names: list[str]) -> dict[str, tuple[int, int]] | None:
    """Return the position and the time unit of each known column among the names. A time unit is given by its length in
    nanoseconds, or by 0 if it is unknown. Return ``None`` if a required column is missing."""
    plain = ["".join(c for c in name.lower() if c.isalnum()) for name in names]
    found: dict[str, tuple[int, int]] = {}
    for column, aliases in _columns.items():
        units = _units if column in ("start", "end") else {}
        for alias in aliases:
            forms = {alias: 0} | {alias + suffix: unit for suffix, unit in units.items()}
            place = next((position for position, name in enumerate(plain) if name in forms), None)
            if place is not None:
                found[column] = place, forms[plain[place]]
                break
    return found if all(column in found for column in _needed) else None


def spans_of_csv(file: ForeignFile) -> Iterator[Span]:
    """Yield the spans of a table. Rows that are not valid spans are recorded as unreadable.

    Spans as a table: one line per span, with columns recognised by common names.

    The header must name columns for trace id, span id, parent, place (pod or service) and start. Columns for end, kind
    and operation are optional. Only the letters and digits in the name of a column are compared. Upper and lower case
    make no difference. The name of a time column may end with the unit of its times (``StartTimeUnixNano``,
    ``start_us``). If the name of the start column contains no unit, the unit is chosen so that the first start time is
    near the present. If the name of the end column contains no unit, its times have the same unit as the start times. A
    time may also be an ISO 8601 date. A Parquet file with such columns is read in the same way.
    """
    columns, rows = _parquet(file) if file.head[:4] == b"PAR1" else _csv(file)
    unit = columns["start"][1]
    for number, cells in rows:
        try:
            if isinstance(cells, str):
                raise ValueError(cells)
            get = {column: cells[place].strip() for column, (place, _) in columns.items() if place < len(cells)}
            span, unit = _read(get, unit, columns)
        except KeyError:
            file.unreadable(number, "fewer columns than the header names")
        except ValueError as error:
            file.unreadable(number, str(error))
        else:
            yield span


def _csv(file: ForeignFile) -> _Table:
    lines = file.lines()
    columns = header_of(next(lines, (0, b""))[1])
    if columns is None:
        wanted = ", ".join(_columns[name][0] for name in _needed)
        raise TraceError(f"{file.name}:1: not a header of spans: expected columns {wanted}")
    return columns, ((number, cells_of(line)) for number, line in lines if line.strip())


def _parquet(file: ForeignFile) -> _Table:
    names = list(dict.fromkeys(parquet_columns(file)))
    columns = columns_of(names)
    if columns is None:
        raise TraceError(f"{file.name}: not a table of spans: it has the columns {', '.join(names)}")
    rows = (
        (number, ["" if cell is None else str(cell) for cell in row.values()]) for number, row in parquet_rows(file)
    )
    return columns, rows


def _read(get: dict[str, str], unit: int, columns: dict[str, tuple[int, int]]) -> tuple[Span, int]:
    """Return the span of a row, and the unit of time for the next rows. The unit is given by its length in nanoseconds,
    or by 0 if it is still unknown."""
    begun, ended = get["start"], get.get("end", "")
    if begun.lstrip("-").isdigit():
        unit = unit or unit_of(int(begun))
        start = int(begun) * unit
        end = int(ended) * (columns["end"][1] or unit) if ended.isascii() and ended.isdigit() else None
    else:
        date, end = nanoseconds(begun), nanoseconds(ended)
        if date is None:
            raise ValueError(f"the start {begun[:40]!r} is neither a number nor a date")
        start = date
    duration = None if end is None else end - start
    if not 0 <= start <= INT64_MAX or not 0 <= (duration or 0) <= INT64_MAX:
        raise ValueError("the span ends before it begins, or a time is negative or beyond int64 nanoseconds")
    if not get["trace"] or not get["span"] or not get["place"]:
        raise ValueError("a value of the span is missing: the trace id, the span id, or the name of the pod or service")
    parent = get["parent"]
    span = Span(
        intern(get["trace"]),
        get["span"],
        intern(get["place"]),
        start,
        None if parent.lower() in _no_parent or not parent.strip("0") else parent,
        intern(get.get("kind", "").lower()) or None,
        intern(get.get("name", "")[: limits.raw_text_bytes_max]) or None,
        duration,
    )
    return span, unit
