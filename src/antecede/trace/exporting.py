"""A trace in the formats of other viewers: Perfetto, OpenTelemetry, ShiViz, Graphviz and Mermaid.

This package reads a trace and sets invalid rows aside. It finds the deliveries that are late under causal order, and
writes text. There is one module per format. Each module yields its output in pieces, so a caller can write the output
without keeping all of it in memory. Every format has a limit: the number of events that its viewer can show. A longer
trace is refused while it is read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from os import PathLike
from typing import Any, Final

import msgspec

from antecede import __version__, limits
from antecede.errors import TraceError, UsageError
from antecede.trace.clocks import raise_to
from antecede.trace.matched import Matched, merged
from antecede.trace.quarantine import counts, sift
from antecede.trace.schema import ARRIVE, DELIVER, SEND, Event
from antecede.trace.sources import load
from antecede.trace.streaming import judge_large
from antecede.trace.verdicts import Late

_epoch = 946_684_800_000_000_000
"""The first logical time: the beginning of the year 2000, in nanoseconds since 1970."""

_step = 1_000_000
_longest = 500_000
_text_chars_max = 80


class Placed(msgspec.Struct, frozen=True):
    """An event of the sequence, with the time that a viewer shows for it."""

    process: int
    position: int
    """The position of the event in the sequence of its process, from 0."""
    event: Event
    time: int
    """The recorded or logical time, in nanoseconds."""


class View:
    """A trace as a viewer shows it: all events in one possible sequence, their times, and the late deliveries.

    The sequence keeps the order of events in every process and puts each delivery after its send. Among the events that
    can come next, the event with the earliest recorded time comes first. Without recorded times, deliveries come first,
    then the other events by their positions in their processes.

    Times are *recorded* or *logical*. Logical times are one millisecond apart along the sequence, so they never
    contradict the sequence. Logical times are used if the caller requests them, or if any row has no recorded time.
    Recorded times come from different clocks. If they contradict the sequence, an arrow points back in time. Within a
    process, times always rise. If the recorded time of an event is not later than the time at which the previous event
    is shown, the event is shown one nanosecond after the previous event.
    """

    def __init__(self, trace: Matched, late: Sequence[Late], aside: Mapping[str, int], logical: bool = False) -> None:
        self.trace = trace
        self.late = {(one.message, one.to): one for one in late}
        """Late deliveries by message and receiver."""
        self.aside = dict(aside)
        """The number of rows that were set aside, by reason."""
        self.recorded = not logical and all(event.time is not None for line in trace.lines for event in line)
        """Whether the view uses the recorded times, not logical times."""

    @property
    def events(self) -> int:
        """The number of events."""
        return sum(map(len, self.trace.lines))

    @cached_property
    def sequence(self) -> list[Placed]:
        """All events in one possible sequence."""
        lines, origins = self.trace.lines, self.trace.origins
        found: list[Placed] = []
        last = [-1] * len(lines)
        lengths = [*map(len, lines)]
        for process, position in merged(lengths, lambda at, to: filter(None, [origins[at][to]]), self._rank):
            event = lines[process][position]
            time = _epoch + len(found) * _step if not self.recorded else event.time or 0
            last[process] = max(time, last[process] + 1)
            found.append(Placed(process, position, event, last[process]))
        assert len(found) == self.events, "an event comes before itself"
        return found

    @cached_property
    def slices(self) -> dict[tuple[int, int], tuple[int, int]]:
        """For each event, the time and the duration that a viewer shows, in nanoseconds. The keys are process and
        position. The duration is half of the time until the next event of the process, but at least 1 nanosecond and
        at most half a millisecond."""
        times = {(one.process, one.position): one.time for one in self.sequence}
        ends = {place: times.get((place[0], place[1] + 1), time + 2 * _longest) for place, time in times.items()}
        return {place: (time, max(1, min(_longest, (ends[place] - time) // 2))) for place, time in times.items()}

    def _rank(self, process: int, position: int) -> int:
        event = self.trace.lines[process][position]
        if self.recorded:
            return event.time or 0
        return -1 if event.kind == DELIVER else position

    def backwards(self) -> int:
        """Return how many deliveries have an earlier recorded time than their send. Such times occur because the clocks
        of processes differ. If the view uses logical times, return 0."""
        if not self.recorded:
            return 0
        lines = self.trace.lines
        pairs = (
            (event.time or 0, lines[origin[0]][origin[1]].time or 0)
            for line, origins in zip(lines, self.trace.origins, strict=True)
            for event, origin in zip(line, origins, strict=True)
            if origin is not None
        )
        return sum(delivered < sent for delivered, sent in pairs)

    def is_late(self, event: Event) -> Late | None:
        """Return the verdict on a late delivery. For all other events return ``None``."""
        return self.late.get((event.message or "", event.process)) if event.kind == DELIVER else None


def label_of(event: Event) -> str:
    """Return the label of a row: a text for human readers. It is empty if the row has no label."""
    label = getattr(event, "label", None) or (event.extra or {}).get("label")
    return one_line(label) if isinstance(label, str) else ""


def one_line(text: str) -> str:
    """Return the text as one line of at most 80 characters. A space replaces each character that is not printable."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain if len(plain) <= _text_chars_max else plain[: _text_chars_max - 1] + "…"


def described(event: Event, late: Late | None = None) -> str:
    """Return an event in words: ``send x to bob``, ``deliver x (late, after z)``."""
    if event.kind not in (SEND, ARRIVE, DELIVER):
        return one_line(label_of(event) or event.kind)
    text = f"{event.kind} {one_line(event.message or '')}"
    if event.kind == SEND and event.to:
        text += f" to {one_line(', '.join(event.to))}"
    if label := label_of(event):
        text += f': "{label}"'
    return f"{text} (late, after {one_line(late.overtaken_by)})" if late is not None else text


_shapes = {SEND: "square", DELIVER: "circle", ARRIVE: "diamond"}
_step_inches = 0.6
_row_inches = 1.0


def dot_text(view: View) -> Iterator[str]:
    """Yield the graph, line by line.

    A graph for Graphviz. ``dot -Tsvg`` draws the graph as a space-time diagram: each process is a row, and time passes
    from left to right.

    Graphviz's own layout would bend the rows of processes. So every point has a fixed place (``pos="x,y!"``), and the
    graph asks for the layout program that keeps these places.
    """
    yield "digraph trace {\n"
    yield '  graph [layout=neato, splines=line, outputorder=edgesfirst, fontname="sans-serif"];\n'
    yield '  node [label="", width=0.14, height=0.14, fixedsize=true, style=filled, fillcolor=black];\n'
    yield '  edge [fontname="sans-serif", fontsize=10, arrowsize=0.7];\n'
    columns = {(one.process, one.position): number for number, one in enumerate(view.sequence, 1)}
    width = max((len(one_line(name)) for name in view.trace.names), default=0) * 0.1 + 0.3
    for process, name in enumerate(view.trace.names):
        yield from _row(view, process, name, columns, width)
    for process, (line, origins) in enumerate(zip(view.trace.lines, view.trace.origins, strict=True)):
        for position, (event, origin) in enumerate(zip(line, origins, strict=True)):
            if origin is None:
                continue
            text = label_of(view.trace.sent(event.message or "")) or one_line(event.message or "")
            style = f"label={_quoted(text)}"
            if view.is_late(event) is not None:
                style = f"label={_quoted(text + ' (late)')}, color=red, fontcolor=red, penwidth=2"
            yield f"  {_node(*origin)} -> {_node(process, position)} [{style}];\n"
    yield "}\n"


def _row(view: View, process: int, name: str, columns: dict[tuple[int, int], int], width: float) -> Iterator[str]:
    height = -process * _row_inches
    look = f'shape=plaintext, fixedsize=false, fillcolor=transparent, fontname="sans-serif", pos="0,{height:g}!"'
    yield f"  p{process} [label={_quoted(name)}, {look}];\n"
    before = f"p{process}"
    for position, event in enumerate(view.trace.lines[process]):
        late = view.is_late(event)
        colour = ", fillcolor=red, color=red" if late is not None else ""
        shape = _shapes.get(event.kind, "point")
        tip = _quoted(f"{name} {event.index}: {described(event, late)}")
        place = f'pos="{width + columns[process, position] * _step_inches:g},{height:g}!"'
        yield f"  {_node(process, position)} [shape={shape}, {place}, tooltip={tip}{colour}];\n"
        yield f"  {before} -> {_node(process, position)} [arrowhead=none, color=gray50];\n"
        before = _node(process, position)


def _node(process: int, position: int) -> str:
    return f"e{process}_{position}"


def _quoted(text: str) -> str:
    return '"' + one_line(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def mermaid_text(view: View) -> Iterator[str]:
    """Yield the diagram, line by line.

    A sequence diagram for Mermaid, which GitHub, GitLab and many wikis draw.

    A copy of a message is an arrow from its sender to one receiver. In Mermaid an arrow belongs to one moment, so the
    arrow is drawn at the time of the delivery. If other events happen between the send and the deliveries of a message,
    a note shows when the message was sent. A copy that is never delivered is an arrow with a cross, at the time of the
    send.
    """
    yield "sequenceDiagram\n"
    lanes = {name: f"p{process}" for process, name in enumerate(view.trace.names)}
    for name, lane in lanes.items():
        yield f"  participant {lane} as {_text(name)}\n"
    steps = [one for one in view.sequence if one.event.kind != ARRIVE]
    delivered = {(one.event.message, one.event.process) for one in steps if one.event.kind == DELIVER}
    for number, one in enumerate(steps):
        event, lane = one.event, lanes[one.event.process]
        if event.kind == SEND:
            text = _message(view, event)
            if not _at_once(steps, number, delivered):
                yield f"  Note over {lane}: sends {_quoted_mermaid(view, event)}\n"
            for name in event.to or ():
                if name in lanes and (event.message, name) not in delivered:
                    yield f"  {lane}-x{lanes[name]}: {text} (not delivered)\n"
        elif event.kind == DELIVER:
            late = view.is_late(event)
            source = lanes[view.trace.sent(event.message or "").process]
            yield f"  {source}-){lane}: {_message(view, event)}{' (late)' if late is not None else ''}\n"
            if late is not None:
                overtaker = view.trace.sent(late.overtaken_by)
                yield f"  Note over {lane}: late, after {_quoted_mermaid(view, overtaker)}\n"
        else:
            yield f"  Note over {lane}: {_text(label_of(event) or event.kind)}\n"


def _at_once(steps: list[Placed], number: int, delivered: set[tuple[str | None, str]]) -> bool:
    """Return whether all deliveries of a message come directly after its send, which is ``steps[number]``."""
    message = steps[number].event.message
    awaited = sum(one == message for one, _ in delivered)
    following = steps[number + 1 : number + 1 + awaited]
    return all(one.event.kind == DELIVER and one.event.message == message for one in following)


def _message(view: View, event: Event) -> str:
    message = event.message or ""
    return _text(label_of(view.trace.sent(message)) or message)


def _quoted_mermaid(view: View, event: Event) -> str:
    """Return the label of a message in quotation marks. If it has no label, return its id without quotation marks."""
    text = _message(view, event)
    return f'"{text}"' if label_of(view.trace.sent(event.message or "")) else text


_escaped = {"#": "#35;", ";": "#59;", ":": "#58;", "%": "#37;", "<": "#lt;", ">": "#gt;"}


def _text(text: str) -> str:
    """Return a text in which the characters that have a meaning in Mermaid are escaped."""
    return "".join(_escaped.get(char, char) for char in one_line(text)).strip() or "#8203;"


_producer, _consumer = 4, 5
_error = 2


def otlp_text(view: View) -> Iterator[str]:
    """Yield the document in pieces, one process after the other.

    Spans of OpenTelemetry, as one OTLP document in JSON. Collectors, Jaeger and Tempo can read it.

    A send is a span of kind *producer*. A delivery is a span of kind *consumer*. The parent of a delivery is the send
    of its message. The parent of a send is the last delivery before the send in the same process, if there is one. So a
    trace of OpenTelemetry contains a first message and all messages that were sent in reaction to it, directly or
    indirectly. A late delivery has the status *error*. A process is a service. Attributes follow the semantic
    conventions for messaging.

    The id of a trace is a hash of its first message's id. The id of a span is a hash of the event's process and index.
    So the same input always gives the same document.
    """
    encode = msgspec.json.Encoder().encode
    roots = _roots(view)
    yield '{"resourceSpans":['
    for process, name in enumerate(view.trace.names):
        resource = {"attributes": [_text_value("service.name", name)]}
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
        _text_value("messaging.system", "antecede"),
        _text_value("messaging.operation.type", "send" if event.kind == SEND else "process"),
        _text_value("messaging.message.id", event.message or ""),
        {"key": "antecede.index", "value": {"intValue": str(event.index)}},
    ]
    if event.to is not None:
        attributes.append(_text_value("messaging.destination.name", ",".join(event.to)))
    if label := label_of(event):
        attributes.append(_text_value("antecede.label", label))
    return attributes


def _text_value(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def _span_id(event: Event) -> str:
    return _hash(8, event.process, str(event.index))


def _hash(size: int, *parts: str) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


def perfetto_text(view: View) -> Iterator[str]:
    """Yield the JSON document that Perfetto reads, in pieces.

    The JSON trace format of Chrome. The viewers ui.perfetto.dev and chrome://tracing can read it.

    A process of the trace is a track. An event is a short slice. Each delivered copy of a message is an arrow (a flow)
    from the slice of the send to the slice of the delivery. If the arrival of a message was recorded, an asynchronous
    slice shows how long the message was held before its delivery. Times are microseconds since the first event.
    """
    encode = msgspec.json.Encoder().encode
    begin = min((one.time for one in view.sequence), default=0)
    about = {"source": "antecede export", "times": "recorded" if view.recorded else "logical"}
    about |= {"begin_ns": str(begin)} if view.recorded else {}
    yield f'{{"displayTimeUnit":"ns","otherData":{encode(about).decode()},"traceEvents":[\n'
    for number, one in enumerate(_events(view, begin)):
        yield (",\n" if number else "") + encode(one).decode()
    yield "\n]}\n"


def _events(view: View, begin: int) -> Iterator[dict[str, Any]]:
    for process, name in enumerate(view.trace.names):
        yield {"ph": "M", "name": "process_name", "pid": process + 1, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_name", "pid": process + 1, "tid": 1, "args": {"name": "messages"}}
    copies = _copies(view)
    arrived: dict[tuple[int, str], int] = {}
    for number, one in enumerate(view.sequence):
        event, message = one.event, one.event.message or ""
        if event.kind == ARRIVE:
            arrived.setdefault((one.process, message), one.time)
            continue
        since = arrived.pop((one.process, message), None) if event.kind == DELIVER else None
        if since is not None:
            held = {"name": f"held {message}", "cat": "held", "id": number, "pid": one.process + 1, "tid": 1}
            yield {"ph": "b", **held, "ts": (since - begin) / 1000}
            yield {"ph": "e", **held, "ts": (one.time - begin) / 1000}
        yield _slice(view, one, begin)
        if event.kind == SEND:
            for flow in copies.get((one.process, one.position), ()):
                yield _flow(one, begin, "s", flow)
        elif event.kind == DELIVER:
            yield _flow(one, begin, "f", copies[one.process, one.position][0])


def _copies(view: View) -> dict[tuple[int, int], list[int]]:
    """Return, for each send and delivery, the numbers of the arrows that begin or end there. The keys are process and
    position of the event."""
    copies: dict[tuple[int, int], list[int]] = {}
    number = 0
    for process, origins in enumerate(view.trace.origins):
        for position, origin in enumerate(origins):
            if origin is not None:
                number += 1
                copies[process, position] = [number]
                copies.setdefault(origin, []).append(number)
    return copies


def _slice(view: View, one: Placed, begin: int) -> dict[str, Any]:
    event, late = one.event, view.is_late(one.event)
    _, length = view.slices[one.process, one.position]
    details: dict[str, Any] = {"index": event.index}
    details |= {"message": event.message} if event.message is not None else {}
    details |= {"to": list(event.to)} if event.to is not None else {}
    details |= {"label": label_of(event)} if label_of(event) else {}
    details |= {"late": True, "overtaken_by": late.overtaken_by} if late is not None else {}
    where = {"pid": one.process + 1, "tid": 1, "ts": (one.time - begin) / 1000, "dur": length / 1000}
    return {"ph": "X", "name": described(event, late), "cat": event.kind, **where, "args": details}


def _flow(one: Placed, begin: int, phase: str, number: int) -> dict[str, Any]:
    where = {"pid": one.process + 1, "tid": 1, "ts": (one.time - begin) / 1000}
    named = {"ph": phase, "name": one.event.message or "", "cat": "message", "id": number}
    return {**named, **where, **({"bp": "e"} if phase == "f" else {})}


EXPRESSION: Final = r"(?<host>\S+) (?<clock>\{.*?\}) (?<event>.*)"
"""The first line of the log: the regular expression with which ShiViz reads the other lines."""

PATTERN: Final = (
    r"^(?P<process>\S+) \{.*?\} (?P<kind>send|deliver|local)(?: (?P<message>\S+))?(?: to (?P<to>\S+))?(?: |$)"
)
"""The expression for ``antecede import --pattern … --send send --deliver deliver``."""


def shiviz_text(view: View) -> Iterator[str]:
    """Yield the log, line by line.

    A log with vector clocks, for ShiViz. The first line is the regular expression with which ShiViz reads the other
    lines. Each of these lines has a host, a clock and an event::

        ann {"ann":1} send x to cy

    A host is a process of the trace. Events are in one possible sequence. Arrivals are left out. In the clock of a
    host, the entry of this host is the number of its events so far. At a delivery, the receiver copies each entry of
    the send's clock that is larger than its own entry. ShiViz draws only the arrows that follow from the clocks. If a
    message is late, its receiver has already learned of the send from other messages. So a late delivery has no arrow
    in ShiViz, but its text says that it is late. White space and special characters in names are written as codes such
    as ``%20``.

    Antecede can import this log in two ways. With the format ``shiviz``, only the arrows that ShiViz draws become
    messages, so late deliveries are lost. With ``PATTERN``, all messages are imported, late or not.
    """
    encode = msgspec.json.Encoder(order="sorted").encode
    names = [_word(name) for name in view.trace.names]
    clocks: list[dict[str, int]] = [{} for _ in names]
    carried: dict[str, dict[str, int]] = {}
    entries = 0
    yield EXPRESSION + "\n\n"
    for one in view.sequence:
        event, message = one.event, one.event.message or ""
        if event.kind == ARRIVE:
            continue
        clock = clocks[one.process]
        clock[names[one.process]] = clock.get(names[one.process], 0) + 1
        if event.kind == DELIVER:
            raise_to(clock, carried[message])
        elif event.kind == SEND:
            carried[message] = dict(clock)
        entries += len(clock)
        if entries > limits.foreign_clock_entries_max:
            most = limits.foreign_clock_entries_max
            raise TraceError(f"more than {most:,} clock entries: export fewer processes, or a shorter range of time")
        yield f"{names[one.process]} {encode(clock).decode()} {_event_text(event, view.is_late(event))}\n"


def _event_text(event: Event, late: Late | None) -> str:
    text = event.kind
    if event.message is not None:
        text += f" {_word(event.message)}"
    if event.kind == SEND and event.to:
        text += f" to {','.join(map(_word, event.to))}"
    if label := label_of(event):
        text += f" : {label}"
    return f"{text} (late, after {_word(late.overtaken_by)})" if late is not None else text


def _word(name: str) -> str:
    """Return a name in which white space, commas, braces and percent signs are replaced by codes such as ``%20``.
    Different names stay different."""
    plain = "".join(char if _plain(char) else "".join(f"%{byte:02X}" for byte in _bytes(char)) for char in name)
    return plain or "%"


def _plain(char: str) -> bool:
    return char.isprintable() and not char.isspace() and char not in "%,{}"


def _bytes(char: str) -> bytes:
    return char.encode("utf-8", "surrogatepass")


__all__ = ["FORMATS", "View", "export", "view_of"]

FORMATS: Final[dict[str, Callable[[View], Iterator[str]]]] = {
    "perfetto": perfetto_text,
    "otlp": otlp_text,
    "shiviz": shiviz_text,
    "dot": dot_text,
    "mermaid": mermaid_text,
}
"""The formats, each with the function that writes a trace in this format."""


def view_of(
    paths: Sequence[str | PathLike[str]],
    form: str,
    keep: Callable[[Event], bool] | None = None,
    logical: bool = False,
) -> View:
    """Read a trace for one format. Events that ``keep`` rejects are left out. If ``logical`` is true, the recorded
    times are not used."""
    if form not in FORMATS:
        raise UsageError(f"--to must be one of {', '.join(FORMATS)}, not {form!r}")
    most = limits.export_events_max[form]
    taken = 0

    def counted(event: Event) -> bool:
        nonlocal taken
        if keep is not None and not keep(event):
            return False
        taken += 1
        if taken > most:
            raise TraceError(_too_large(form, most))
        return True

    loaded = load(paths, keep=counted)
    sifted = sift(loaded.events, loaded.placed)
    if not sifted.events:
        raise TraceError("nothing to export: the trace has no valid row, or none was selected")
    late = judge_large(sifted.trace, ("causal",), every_overtaker=True).causal
    return View(sifted.trace, late, counts(sifted, loaded.reasons), logical)


def _too_large(form: str, most: int) -> str:
    larger = [name for name, bound in limits.export_events_max.items() if bound > most]
    others = f", or use a format for larger traces ({', '.join(larger)})" if larger else ""
    return f"more than {most:,} events, the limit of {form}: export a part by --since, --until or --processes{others}"


def export(paths: Sequence[str | PathLike[str]], form: str, **options: Any) -> str:
    """Return a trace as a text of one format."""
    view = view_of(paths, form, **options)
    return "".join(FORMATS[form](view))
