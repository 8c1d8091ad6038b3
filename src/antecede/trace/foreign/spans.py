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

:mod:`antecede.trace.foreign.span_sends` finds **where a message was sent**. A service is not a sequential process,
because threads and replicas share its name. If the clock of a service does not show the order of some events, these
events are marked ``assumed``, and their positions prove nothing.
"""

from collections.abc import Iterator

from antecede import limits
from antecede.errors import TraceError
from antecede.trace.foreign.moments import ConvertedTrace
from antecede.trace.foreign.span_sends import CALLING, Span, Tie, placed

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
