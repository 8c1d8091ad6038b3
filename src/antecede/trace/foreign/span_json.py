"""Spans in JSON: Zipkin v2, OpenTelemetry's OTLP, and Jaeger.

A file is one document, or has one document per line (as from the OpenTelemetry collector's file exporter). If it has
one document per line, it is read line by line. Inside a document every span is decoded separately, so that a bad span
does not affect the other spans. Unknown keys are ignored.

========= ============================================================ =================== =====================
format    document                                                     service             time
========= ============================================================ =================== =====================
zipkin    a list of spans, or of lists of spans, or one span           ``localEndpoint``   microseconds
otlp      ``resourceSpans`` → ``scopeSpans`` → ``spans``; as Tempo and ``service.name``    nanoseconds, as text
          Jaeger v3 return it: ``batches``, ``trace``, ``result``
jaeger    ``data`` → traces → ``spans``, or one trace                  ``processes``       microseconds
========= ============================================================ =================== =====================

If ``instances`` is true, each instance of a service becomes a process of the trace (``service@instance``), because each
instance has its own clock. The file may name the instance by address, pod, instance id or host. If ``instances`` is
false, or the file names no instance, the process of the trace is the service. If the file names only the instance, the
process is the instance.
"""

from collections.abc import Callable, Iterator
from sys import intern
from typing import Any

import msgspec

from antecede import limits
from antecede.trace.foreign.files import JSON_ERRORS, ForeignFile
from antecede.trace.foreign.spans import Span
from antecede.trace.schema import INT64_MAX

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


def spans_of(file: ForeignFile, read: Callable[[bytes, bool], Iterator[Found]], instances: bool) -> Iterator[Span]:
    """Yield the spans of a file. Spans that cannot be read are recorded as unreadable."""
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
