"""Spans of OpenTelemetry, as one OTLP document in JSON. Collectors, Jaeger and Tempo can read it.

A send is a span of kind *producer*. A delivery is a span of kind *consumer*. The parent of a delivery is the send of
its message. The parent of a send is the last delivery before the send in the same process, if there is one. So a trace
of OpenTelemetry contains a first message and all messages that were sent in reaction to it, directly or indirectly. A
late delivery has the status *error*. A process is a service. Attributes follow the semantic conventions for messaging.

The id of a trace is a hash of its first message's id. The id of a span is a hash of the event's process and index. So
the same input always gives the same document.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import msgspec

from antecede import __version__
from antecede.trace.exporting.view import View, described, label_of
from antecede.trace.schema import DELIVER, SEND, Event

_producer, _consumer = 4, 5
_error = 2


def written(view: View) -> Iterator[str]:
    """Yield the document in pieces, one process after the other."""
    encode = msgspec.json.Encoder().encode
    roots = _roots(view)
    yield '{"resourceSpans":['
    for process, name in enumerate(view.trace.names):
        resource = {"attributes": [_text("service.name", name)]}
        scope = {"name": "antecede", "version": __version__}
        head = encode({"resource": resource}).decode()[:-1]
        yield f'{"," if process else ""}{head},"scopeSpans":[{{"scope":{encode(scope).decode()},"spans":['
        for number, span in enumerate(_spans(view, process, roots)):
            yield ("," if number else "") + encode(span).decode()
        yield "]}]}"
    yield "]}\n"


def _roots(view: View) -> dict[str, str]:
    """Return, for each message, the first message of its OpenTelemetry trace. Let p be the sender of a message m, and
    let c be the last message that p delivered before it sent m. Then m belongs to the trace of c. If there is no such
    message c, m begins a new trace."""
    roots: dict[str, str] = {}
    current: dict[int, str] = {}
    for one in view.sequence:
        message = one.event.message or ""
        if one.event.kind == SEND:
            cause = current.get(one.process)
            roots[message] = message if cause is None else roots[cause]
        elif one.event.kind == DELIVER:
            current[one.process] = message
    return roots


def _spans(view: View, process: int, roots: dict[str, str]) -> Iterator[dict[str, Any]]:
    cause: Event | None = None
    for position, event in enumerate(view.trace.lines[process]):
        if event.kind not in (SEND, DELIVER):
            continue
        message = event.message or ""
        start, length = view.slices[process, position]
        late = view.is_late(event)
        span = {
            "traceId": _hash(16, "message", roots[message]),
            "spanId": _span_id(event),
            "name": described(event, late),
            "kind": _producer if event.kind == SEND else _consumer,
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(start + length),
            "attributes": _attributes(event),
            "status": {},
        }
        parent = cause if event.kind == SEND else view.trace.sent(message)
        if parent is not None:
            span["parentSpanId"] = _span_id(parent)
        if late is not None:
            span["status"] = {"code": _error, "message": f"late under causal order: {late.overtaken_by} came first"}
        if event.kind == DELIVER:
            cause = event
        yield span


def _attributes(event: Event) -> list[dict[str, Any]]:
    attributes = [
        _text("messaging.system", "antecede"),
        _text("messaging.operation.type", "send" if event.kind == SEND else "process"),
        _text("messaging.message.id", event.message or ""),
        {"key": "antecede.index", "value": {"intValue": str(event.index)}},
    ]
    if event.to is not None:
        attributes.append(_text("messaging.destination.name", ",".join(event.to)))
    if label := label_of(event):
        attributes.append(_text("antecede.label", label))
    return attributes


def _text(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def _span_id(event: Event) -> str:
    return _hash(8, event.process, str(event.index))


def _hash(size: int, *parts: str) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()
