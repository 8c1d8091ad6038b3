"""The content of a diagram: points on the lines of processes, and messages from one point to another.

A *point* is one event or several events. For example, if a message is delivered when it arrives, its arrival and its
delivery are adjacent in the global sequence. Then both events are one point, and are drawn as one dot. A message that
waits is *held* from the point of its arrival to the point of its delivery. This module does not compute the
positions in a drawing. The module `text` computes them for a terminal, and the module `layout` computes them for SVG.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec

from antecede import limits
from antecede.errors import DiagramError
from antecede.trace.explain import is_causal_chain, rows_of, sentence
from antecede.trace.matched import merged
from antecede.trace.schema import Event as Row
from antecede.trace.titles import Titles, short_id

KINDS = ("send", "arrive", "drop", "deliver", "local")
_text_max = 1_000
"""The largest number of characters of a name, label or caption. The middle of a longer text is cut out."""


class Event(msgspec.Struct, frozen=True):
    """One event of a computation."""

    process: str
    kind: str
    """``send``, ``arrive``, ``drop`` (a message arrived, but was dropped as a repeat), ``deliver`` or ``local``."""
    message: str = ""
    to: tuple[str, ...] = ()
    """The known destinations of a send; empty for other kinds. In SVG, a copy that never arrives is
    drawn as a short line towards its destination, unless the destination is the sender itself."""
    label: str | None = None
    """The text that is drawn for the message or local event; by default the message's id."""


class Point(msgspec.Struct):
    """A point on the line of a process. It stands for one event or for several adjacent events."""

    lane: int
    """The number of the process's line, from 0: counted from the top (SVG) or from the left (text)."""
    kind: str
    """``send``, ``local``, ``deliver``, ``hold`` (a message arrived, and was delivered later or was never delivered),
    ``repeat`` (a message arrived again) or ``drop`` (a message was dropped as a repeat, although no earlier arrival of
    it is known)."""
    label: str
    message: str
    late: bool = False


class Flight(msgspec.Struct):
    """One copy of a message, which goes from the sender to one destination. It is drawn as an arrow."""

    label: str
    start: Point | None
    """The point where the message was sent; None if the trace does not contain the send."""
    lane: int
    """The number of the destination's line, from 0."""
    end: Point | None
    """The point where the copy arrived; None if it never arrived."""
    delivery: Point | None = None
    """The point where the copy was delivered. If the copy was delivered when it arrived, this point is ``end``. If the
    copy was held, this point is later. If the copy was not delivered, the value is None."""
    late: bool = False


class Diagram:
    """A computation that can be drawn, as text for a terminal or as SVG."""

    def __init__(
        self,
        processes: Sequence[str],
        events: Sequence[Event],
        *,
        late: Collection[tuple[str, str]] = (),
        title: str = "",
        caption: str = "",
    ) -> None:
        """``late``: the late deliveries, each as the message's id and the receiver's name. ``title``: a text above the
        drawing. ``caption``: a sentence that says what is drawn. Only a drawing in SVG shows the caption, below the
        title."""
        _check(len(events), "events", limits.diagram_events_max)
        _check(len(processes), "processes", limits.diagram_processes_max)
        self.processes = [printable(name) for name in processes]
        self.title = printable(title)
        self.caption = printable(caption)
        self._lanes = {name: lane for lane, name in enumerate(processes)}
        self._late = frozenset(late)
        self.points: list[Point] = []
        """The points, in the global sequence."""
        self.flights: list[Flight] = []
        """The copies of messages, in the sequence of their arrivals. Copies that never arrive come last."""
        self._sends: dict[str, tuple[Point, Event]] = {}
        self._arrived: dict[tuple[str, int], Flight] = {}
        self._dropped: set[tuple[str, int]] = set()
        for position, event in enumerate(events):
            self._add(event, events[position - 1] if position else None)
        self._add_stubs()

    def _add(self, event: Event, previous: Event | None) -> None:
        lane = self._lanes.get(event.process)
        if lane is None:
            raise DiagramError(f"process {event.process!r} is not among the processes of the diagram")
        if event.kind not in KINDS:
            raise DiagramError(f"event of kind {event.kind!r}: expected one of {', '.join(KINDS)}")
        label = printable(event.message if event.label is None else event.label)
        if event.kind in ("send", "local"):
            point = Point(lane, event.kind, label, event.message)
            self.points.append(point)
            if event.kind == "send":
                self._sends.setdefault(event.message, (point, event))
            return
        key = (event.message, lane)
        flight = self._arrived.get(key)
        if event.kind == "arrive":
            self._arrive(key, label, "hold" if flight is None else "repeat")
            return
        if event.kind == "drop":
            self._dropped.add(key)
            self._fly(key, label, "drop" if flight is None else "repeat")
            return
        late = (event.message, event.process) in self._late
        if flight is None:
            flight = self._arrive(key, label, "deliver")
        elif (
            flight.delivery is None
            and previous is not None
            and (previous.process, previous.kind, previous.message) == (event.process, "arrive", event.message)
        ):
            assert flight.end is not None
            flight.end.kind = "deliver"
        else:
            self.points.append(Point(lane, "deliver", flight.label, event.message))
            flight.delivery = self.points[-1]
        flight.delivery = flight.delivery or flight.end
        assert flight.delivery is not None
        flight.late = flight.delivery.late = late

    def _arrive(self, key: tuple[str, int], label: str, kind: str) -> Flight:
        flight = self._fly(key, label, kind)
        self._arrived.setdefault(key, flight)
        return flight

    def _fly(self, key: tuple[str, int], label: str, kind: str) -> Flight:
        message, lane = key
        start = self._sends.get(message)
        end = Point(lane, kind, start[0].label if start else label, message)
        flight = Flight(end.label, start[0] if start else None, lane, end)
        self.points.append(end)
        self.flights.append(flight)
        return flight

    def _add_stubs(self) -> None:
        for message, (start, event) in self._sends.items():
            for name in dict.fromkeys(event.to):
                lane = self._lanes.get(name)
                if lane is not None and (message, lane) not in self._arrived.keys() | self._dropped:
                    self.flights.append(Flight(start.label, start, lane, None))

    def targets(self, point: Point) -> list[str]:
        """Return the names of the known destinations of a send; an empty list for other points."""
        found = self._sends.get(point.message)
        if found is None or found[0] is not point:
            return []
        if found[1].to:
            return [printable(name) for name in dict.fromkeys(found[1].to)]
        lanes = dict.fromkeys(flight.lane for flight in self.flights if flight.start is point)
        return [self.processes[lane] for lane in sorted(lanes)]

    def text(self, width: int = 80, *, unicode: bool = True, colour: bool = False) -> str:
        """Return the diagram as text for a terminal with ``width`` columns. If ``colour`` is true, the text contains
        ANSI colour sequences."""
        from antecede.diagram.text import draw

        return draw(self, width, unicode=unicode, colour=colour)

    def svg(self) -> str:
        """Return the diagram as a self-contained SVG document."""
        from antecede.diagram.svg import draw_stack

        return draw_stack([self])


def _check(count: int, noun: str, most: int) -> None:
    if count > most:
        raise DiagramError(
            f"{count} {noun}: a diagram shows at most {most}; without a diagram, the command does not have this limit"
        )


def from_events(
    rows: Iterable[Row],
    *,
    processes: Sequence[str] | None = None,
    late: Collection[tuple[str, str]] = (),
    title: str = "",
    caption: str = "",
    names: Callable[[str], str] | None = None,
) -> Diagram:
    """Return a diagram of a trace's rows. ``names``: a function that returns the label for the id of a message.

    The rows may be given in any sequence. In the diagram, the rows of a process are in the sequence of their ``index``,
    and a message's arrival and delivery come after its send. If several rows can come next, the row that was given
    first is taken. By default, the diagram first shows the processes that have rows, in the sequence of their first
    rows. After them, it shows the processes that occur only as destinations. Rows of routers (``hop``) are left out.
    Raise :class:`DiagramError` if the rows contradict each other, or if there are too many rows or processes.
    """
    given = [row for row in rows if row.kind in KINDS]
    _check(len(given), "events", limits.diagram_events_max)
    if processes is None:
        named = [row.process for row in given]
        named += [name for row in given if row.kind == "send" for name in sorted(row.to or ())]
        processes = list(dict.fromkeys(named))
    events = [
        Event(
            row.process,
            row.kind,
            row.message or "",
            tuple(sorted(row.to or ())) if row.kind == "send" else (),
            None if names is None or not row.message else names(row.message),
        )
        for row in _in_sequence(given)
    ]
    return Diagram(processes, events, late=late, title=title, caption=caption)


def _in_sequence(rows: list[Row]) -> list[Row]:
    """Return the rows in one sequence: the rows of a process by their ``index``, and each send before the arrivals and
    deliveries of its message. If several rows can come next, take the row that was given first."""
    lanes = {name: lane for lane, name in enumerate(dict.fromkeys(row.process for row in rows))}
    lines: list[list[int]] = [[] for _ in lanes]
    sends: dict[str, tuple[int, int]] = {}
    for given in sorted(range(len(rows)), key=lambda given: rows[given].index):
        row, lane = rows[given], lanes[rows[given].process]
        if row.kind == "send" and row.message is not None:
            sends.setdefault(row.message, (lane, len(lines[lane])))
        lines[lane].append(given)

    def needs(lane: int, position: int) -> Sequence[tuple[int, int]]:
        row = rows[lines[lane][position]]
        return [sends[row.message]] if row.kind in ("arrive", "deliver") and row.message in sends else ()

    places = merged([*map(len, lines)], needs, lambda lane, position: lines[lane][position])
    sequence = {lines[lane][position]: rows[lines[lane][position]] for lane, position in places}
    if len(sequence) < len(rows):
        stuck = next(row for given, row in enumerate(rows) if given not in sequence)
        raise DiagramError(
            f"{stuck.process}[{stuck.index}]: the rows contradict each other: a delivery comes before its send"
        )
    return list(sequence.values())


def printable(text: str) -> str:
    """Return a text that can be drawn. Control characters are replaced: a terminal would execute them, and XML forbids
    them. If the text is longer than ``_text_max``, its middle is cut out."""
    text = text if len(text) <= _text_max else f"{text[: _text_max // 2]}…{text[-_text_max // 2 :]}"
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def of_explanation(explanation: dict[str, Any], titles: Titles | None = None) -> Diagram:
    """Return the diagram of an explanation. It shows a late message and the chain of messages that overtook it, or the
    messages of a cycle.

    :mod:`antecede.trace.explain` describes the form of an explanation. The form is the same for all engines.
    """
    titles = titles or Titles()
    rows = rows_of(explanation)
    length = explanation["length"]
    if "chain" not in explanation:
        return from_events(rows, title=f"a cycle of {length} messages", names=titles.brief)
    chain = explanation["chain"]
    way = [explanation["from"], *(end for link in chain for end in (link["from"], link["to"]) if end is not None)]
    message, to = explanation["message"], explanation["to"]
    called, target = titles(message), short_id(to, 40)
    caption = (
        sentence(explanation, titles.quoted, lambda name: short_id(name, 40)) if is_causal_chain(explanation) else ""
    )
    return from_events(
        rows,
        processes=list(dict.fromkeys(way)),
        late={(message, to)},
        title=f"{target} delivered {called} late",
        caption=caption,
        names=titles.brief,
    )
