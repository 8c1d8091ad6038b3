"""Spans of reactions, for applications that use OpenTelemetry.

A *reaction* is the handling of one letter. Each attempt to handle a letter is one span. This span has a link to the
span in which the letter was sent: another reaction's span, or a client's current span. So a chain of messages can be
followed from span to span, through servers and crashes. For this purpose, each letter contains a W3C trace context: a
short text that identifies the span in which the letter was sent. Only this module reads the text. Messages from a
handler are sent in the reaction's span, and spans that the handler opens are children of that span.

This module uses only the package ``opentelemetry-api`` (extra ``telemetry``), which does nothing without an SDK.
Tracing is off if the package is missing or no SDK is set up. This is checked when a server starts, and when a client
enters the ``async with`` block of its bus. If tracing is off, letters carry no trace context, and there is no cost.
Names of attributes follow OpenTelemetry's conventions for messaging.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from antecede.channel.letters import Letter
from antecede.engine.agents import Context
from antecede.failures import text_of
from antecede.labels import trace_in
from antecede.limits import trace_context_chars_max

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span


def is_set_up() -> bool:
    """Return whether an OpenTelemetry SDK is set up. Without an SDK, spans would have no effect."""
    try:
        from opentelemetry import trace
    except ImportError:
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)


def current() -> Callable[[], str] | None:
    """Return a function that gives the current trace context; None if tracing is off."""
    if not is_set_up():
        return None
    from opentelemetry.trace import get_current_span

    return lambda: _text(get_current_span())


def spans(server: str = "") -> "Spans | None":
    """Return an object that makes the spans of reactions; None if tracing is off. ``server``: the name of the server
    that handles the letters, or an empty text if a client handles them."""
    return Spans(server) if is_set_up() else None


class Spans:
    """An observer of reactions (:class:`antecede.engine.host.Watch`). It opens one span when an attempt
    to handle a letter begins, and ends the span when the attempt ends."""

    def __init__(self, server: str) -> None:
        from opentelemetry import trace

        self._server = server
        self._tracer = trace.get_tracer("antecede")

    def begin(self, context: Context) -> Any:
        begun = self.open(context.agent, context.letter)
        context.trace = _text(begun[0])
        return begun

    def open(self, agent: str, letter: Letter) -> "tuple[Span, Any]":
        """Open a span for a reaction and make it the current span. Return the span and a token. The token is needed to
        make the previous span current again."""
        from opentelemetry.context import Context as Around
        from opentelemetry.context import attach
        from opentelemetry.trace import SpanKind, set_span_in_context

        attributes: dict[str, str | int] = {
            "messaging.system": "antecede",
            "messaging.operation.name": "react",
            "messaging.operation.type": "process",
            "messaging.destination.name": agent,
            "messaging.message.id": letter.id,
            "messaging.message.body.size": len(letter.body),
            "antecede.notification": letter.type,
            "antecede.sender": letter.source,
        }
        if self._server:
            attributes["antecede.server"] = self._server
        if letter.ask or letter.answers:
            attributes["messaging.message.conversation_id"] = letter.ask or letter.answers
        span = self._tracer.start_span(
            f"react {agent}",
            Around(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links(trace_in(letter.context)),
        )
        return span, attach(set_span_in_context(span, Around()))

    def end(self, begun: Any, dead: str, failure: BaseException | None) -> None:
        from opentelemetry.context import detach
        from opentelemetry.trace import Status, StatusCode

        span, token = begun
        if failure is not None:
            span.record_exception(failure)
            span.set_attribute("error.type", type(failure).__name__)
            span.set_status(Status(StatusCode.ERROR, text_of(failure)))
        elif dead:
            span.set_attribute("error.type", "dead letter")
            span.set_status(Status(StatusCode.ERROR, dead))
        span.end()
        detach(token)


def _text(span: "Span") -> str:
    """Return a span as a W3C trace context; empty if the span is not valid."""
    where = span.get_span_context()
    if not where.is_valid:
        return ""
    return f"00-{where.trace_id:032x}-{where.span_id:016x}-{where.trace_flags:02x}"


def _links(text: str) -> "list[Link]":
    """Return a list with one link: to the span in a received trace context. Return an empty list if the text is empty
    or too long, or contains no valid span."""
    if not text or len(text) > trace_context_chars_max:
        return []
    from opentelemetry.context import Context as Around
    from opentelemetry.trace import Link, get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found = TraceContextTextMapPropagator().extract({"traceparent": text}, Around())
    where = get_current_span(found).get_span_context()
    return [Link(where)] if where.is_valid else []
