"""A space-time diagram as SVG: time runs to the right, one line per process, straight arrows from send to arrival.

The document is self-contained: it has no scripts, and no external fonts or pictures. Its style sheet has colours for
light and dark pages. For screen readers, it has a title and a description. All given texts are escaped.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import atan2, cos, degrees, hypot, radians, sin, sqrt
from textwrap import wrap
from xml.sax.saxutils import escape

import msgspec

from antecede.diagram.computation import Diagram, Flight, Point
from antecede.trace.titles import short_id

LANE = 62.0
"""The distance between the lines of two adjacent processes, in pixels."""
STEP = 34.0
"""The least distance between two adjacent points on the line of one process."""
CLEAR = 11.0
"""The least distance between a point and an arrow that passes by."""
LETTER = 7.6
"""The assumed width of a character if the font size is 12 pixels. Most characters are a little narrower."""
STEEP = 0.6
"""The least ratio of an arrow's width to its height. The label of a steeper arrow would be hard to read."""
NAME_CHARS = 24
"""The largest number of characters of a process's name. A longer name is drawn in a shortened form."""
ARC = 26.0
"""The height of an arrow from a process to itself, above the line of the process."""


class Box(msgspec.Struct):
    """A rectangle that a text or a dot covers."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Box") -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


class Segment(msgspec.Struct):
    """A straight line, for example an arrow or a piece of a curved arrow."""

    x1: float
    y1: float
    x2: float
    y2: float

    def at(self, share: float) -> tuple[float, float]:
        return self.x1 + share * (self.x2 - self.x1), self.y1 + share * (self.y2 - self.y1)

    def meets(self, box: Box) -> bool:
        """Return whether the segment passes through the box (Liang–Barsky algorithm)."""
        enter, leave = 0.0, 1.0
        dx, dy = self.x2 - self.x1, self.y2 - self.y1
        for delta, low, high in (
            (dx, box.left - self.x1, box.right - self.x1),
            (dy, box.top - self.y1, box.bottom - self.y1),
        ):
            if delta == 0:
                if low > 0 or high < 0:
                    return False
                continue
            first, second = sorted((low / delta, high / delta))
            enter, leave = max(enter, first), min(leave, second)
        return enter < leave


class Layout:
    """The coordinates of the points, lanes and arrows of a diagram.

    Time runs from left to right, and each process has a horizontal line, its *lane*. Points are placed one after
    another, each as far left as possible. A point is to the right of the previous point on its lane. The arrival of a
    message is to the right of its send. If a point on another lane was placed earlier, the new point may be to the left
    of that point, but only by a small distance. A point is not near an arrow that passes by. With these rules,
    independent events can share a column, and the drawing of a run with many processes stays short.

    A drawing can be stretched to a given width, so that several drawings below each other are equally wide.

    Labels are placed last. The label of a message lies along its arrow, so that a reader sees to which arrow the label
    belongs, even where many arrows cross. Several places on both sides of the arrow are tried. The label gets the place
    where it covers the fewest other things.
    """

    def __init__(self, diagram: Diagram, left: float, top: float) -> None:
        self.top = top
        self.left = left
        lanes = len(diagram.processes)
        self._dots: list[list[float]] = [[] for _ in range(lanes)]
        self._passing: list[list[float]] = [[] for _ in range(lanes)]
        self._x: dict[int, float] = {}
        ends = {id(flight.end): flight for flight in diagram.flights}
        reach = [left] * lanes
        frontier = left
        for point in diagram.points:
            flight = ends.get(id(point))
            width = (
                max(STEP, LETTER * len(shorten(point.label)) + 14) if flight is None and point.kind != "send" else STEP
            )
            x = max(reach[point.lane] + width, frontier - 2.5 * STEP)
            x = self._settle(point, flight, x)
            self._x[id(point)] = x
            insort(self._dots[point.lane], x)
            for lane, crossing in self._crossings(flight, x):
                insort(self._passing[lane], crossing)
            reach[point.lane] = x + (width - STEP) / 2
            frontier = max(frontier, x)
        self.right = frontier + STEP

    def stretch(self, right: float) -> None:
        """Stretch the drawing so that its right edge is at ``right``. A drawing that is already wider does
        not change."""
        if right <= self.right or not self._x:
            self.right = max(right, self.right)
            return
        reach = self.right - STEP - self.left
        scale = (right - STEP - self.left) / reach if reach > 0 else 1.0
        self._x = {point: self.left + (x - self.left) * scale for point, x in self._x.items()}
        self.right = right

    def x(self, point: Point) -> float:
        return self._x[id(point)]

    def y(self, lane: int) -> float:
        return self.top + lane * LANE

    def segment(self, flight: Flight) -> Segment | None:
        """Return the straight arrow of a message from one lane to another. If the message never arrives, return a short
        line towards its destination. Return None if the send is unknown, or if a process sent the message to itself."""
        if flight.start is None or flight.start.lane == flight.lane:
            return None
        x, y = self.x(flight.start), self.y(flight.start.lane)
        if flight.end is not None:
            return Segment(x, y, self.x(flight.end), self.y(flight.lane))
        # Towards the receiver, but not as far as its line.
        direction = 1 if flight.lane > flight.start.lane else -1
        return Segment(x, y, x + 22, y + direction * LANE * 0.55)

    def arc(self, flight: Flight) -> list[Segment]:
        """Return the curved arrow of a message from a process to itself, as short straight pieces that labels should
        not cover. Return an empty list for other messages."""
        if flight.start is None or flight.end is None or flight.start.lane != flight.lane:
            return []
        begin, end, y = self.x(flight.start), self.x(flight.end), self.y(flight.lane)
        places = [(begin, y)]
        places += [
            (begin + (end - begin) * share, y - 4 * ARC * share * (1 - share)) for share in (0.15, 0.35, 0.65, 0.85)
        ]
        places.append((end, y))
        return [Segment(*first, *second) for first, second in pairwise(places)]

    def _settle(self, point: Point, flight: Flight | None, x: float) -> float:
        if flight is not None and flight.start is not None:
            height = abs(flight.lane - flight.start.lane) * LANE
            # Long enough for its label, with space at both ends.
            length = LETTER * len(shorten(flight.label)) + 36
            width = max(26.0, STEEP * height, sqrt(max(length * length - height * height, 0.0)))
            x = max(x, self.x(flight.start) + (width if height else max(1.5 * STEP, length)))
        for _ in range(80):
            if not _near(self._passing[point.lane], x) and not any(
                _near(self._dots[lane], crossing) for lane, crossing in self._crossings(flight, x)
            ):
                break
            x += 6
        return x

    def _crossings(self, flight: Flight | None, x: float) -> Iterator[tuple[int, float]]:
        """Yield the lanes that an arrow crosses between the sender's lane and the receiver's lane, each with the x
        coordinate of the crossing. ``x``: the x coordinate of the arrow's tip, at the receiver's lane."""
        if flight is None or flight.start is None:
            return
        begin, end = flight.start.lane, flight.lane
        start = self.x(flight.start)
        for lane in range(min(begin, end) + 1, max(begin, end)):
            yield lane, start + (x - start) * (lane - begin) / (end - begin)


def _near(places: list[float], x: float) -> bool:
    position = bisect_left(places, x - CLEAR)
    return position < len(places) and places[position] < x + CLEAR


class Place(msgspec.Struct):
    """A place for a label: the coordinates of the label's middle, and the label's angle in degrees."""

    x: float
    y: float
    angle: float = 0.0


class Labels:
    """Chooses a place for one label after another, so that each label covers as few other things as possible."""

    _bucket = 120.0

    def __init__(self) -> None:
        self._things: dict[int, list[tuple[float, Box | Segment]]] = {}

    def avoid(self, thing: Box | Segment, cost: float) -> None:
        """Add ``cost`` to the cost of each place where a later label would cover ``thing``."""
        left, right = (thing.left, thing.right) if isinstance(thing, Box) else (thing.x1, thing.x2)
        for bucket in range(int(min(left, right) // self._bucket), int(max(left, right) // self._bucket) + 1):
            self._things.setdefault(bucket, []).append((cost, thing))

    def place(self, text: str, places: list[Place], own: Segment | None = None) -> Place:
        """Return the place with the lowest cost for a label, and reserve this place. If several places have the same
        cost, return the first of them. ``own``: the arrow to which the label belongs; covering this arrow costs
        nothing."""
        best, least = places[0], float("inf")
        for rank, place in enumerate(places):
            cost = rank * 0.03 + self._covered(label_boxes(text, place), own)
            if cost < least:
                best, least = place, cost
        for box in label_boxes(text, best):
            self.avoid(box, 4.0)
        return best

    def _covered(self, boxes: list[Box], own: Segment | None) -> float:
        total = 0.0
        seen: set[int] = set()
        for box in boxes:
            for bucket in range(int(box.left // self._bucket), int(box.right // self._bucket) + 1):
                for cost, thing in self._things.get(bucket, ()):
                    if thing is own or id(thing) in seen:
                        continue
                    if thing.overlaps(box) if isinstance(thing, Box) else thing.meets(box):
                        seen.add(id(thing))
                        total += cost
        return total


def along(text: str, line: Segment) -> list[Place]:
    """Return the possible places for a label along an arrow, on both sides of the arrow. The best place comes first."""
    dx, dy = line.x2 - line.x1, line.y2 - line.y1
    length = hypot(dx, dy)
    angle = degrees(atan2(dy, dx))
    # Between the two ends, with some space for the dot and the head.
    half = (LETTER * len(text) / 2 + 6) / length
    low, high = half + 8 / length, 1 - half - 14 / length
    shares = [low + (high - low) * share for share in _shares] if low < high else [0.5]
    # The normal that points up.
    nx, ny = dy / length, -dx / length
    away = _beside
    if len(text) <= _level_chars:
        # A turned letter may look like another one.
        angle, away = 0.0, abs(nx) * (LETTER * len(text) / 2 + 3) + abs(ny) * 8 + 1
    places = []
    for share in shares:
        x, y = line.at(share)
        places += [Place(x + nx * side, y + ny * side, angle) for side in (away, -away)]
    return places


_shares = (0.5, 0.35, 0.65, 0.2, 0.8, 0.1, 0.9, 0.0, 1.0)
_level_chars = 2
"""A label with at most this number of characters stays horizontal, even next to a sloping arrow."""
_beside = 9.5
"""The distance between an arrow and the middle of its label."""


def shorten(text: str, length: int = 28) -> str:
    """Cut out the middle of a label that is longer than ``length`` characters. Ids in recorded traces can be long."""
    return short_id(text, length) if len(text) > length else text


def label_boxes(text: str, place: Place) -> list[Box]:
    """Return the rectangles that a label covers. A horizontal label covers one rectangle; a sloping label covers a row
    of small squares."""
    half = LETTER * len(text) / 2 + 3
    if abs(place.angle) < 1:
        return [Box(place.x - half, place.y - 8, place.x + half, place.y + 8)]
    count = max(1, round(2 * half / 9))
    dx, dy = cos(radians(place.angle)), sin(radians(place.angle))
    offsets = [((number + 0.5) / count - 0.5) * (2 * half - 6) for number in range(count)]
    middles = [(place.x + dx * offset, place.y + dy * offset) for offset in offsets]
    return [Box(x - 6.5, y - 6.5, x + 6.5, y + 6.5) for x, y in middles]


_dot = 4.6
_edge = 16.0
_base = 4.2
_name_letter = 1.12 * LETTER
_text_width_min = 460.0
"""The least width of a drawing with a title or a caption."""

_style = """
.antecede { font: 12px ui-sans-serif, system-ui, "DejaVu Sans", "Segoe UI", Arial, sans-serif; }
.antecede .page { fill: #ffffff; }
.antecede text { fill: #24292f; stroke: #ffffff; stroke-width: 0; }
@supports (paint-order: stroke) {
.antecede text { stroke-width: 3.5px; stroke-linejoin: round; paint-order: stroke; }
}
.antecede .title { font-size: 14px; font-weight: 600; }
.antecede .caption, .antecede .note { fill: #57606a; }
.antecede .name { font-size: 13px; font-weight: 600; text-anchor: end; }
.antecede .label { text-anchor: middle; }
.antecede .lane { stroke: #afb8c1; stroke-width: 1.4; }
.antecede .end { fill: #afb8c1; }
.antecede .arrow { stroke: #57606a; stroke-width: 1.2; fill: none; }
.antecede .head { fill: #57606a; }
.antecede .lost { stroke-dasharray: 3 3; }
.antecede .repeat { stroke-dasharray: 5 3; opacity: .65; }
.antecede .wait { stroke: #d4890b; stroke-width: 4; stroke-linecap: butt; opacity: .75; }
.antecede .send { fill: #24292f; }
.antecede .local { fill: #8c959f; }
.antecede .deliver { fill: #0969da; }
.antecede .hold, .antecede .again, .antecede .drop { fill: #ffffff; stroke: #b87503; stroke-width: 2; }
.antecede .again, .antecede .drop { stroke: #8c959f; }
.antecede .arrow.late { stroke: #cf222e; stroke-width: 1.8; }
.antecede .head.late, .antecede .deliver.late { fill: #cf222e; stroke: none; }
.antecede text.late { fill: #cf222e; stroke: #ffffff; font-weight: 600; }
@media (prefers-color-scheme: dark) {
.antecede .page { fill: #0d1117; }
.antecede text { fill: #e6edf3; stroke: #0d1117; }
.antecede .caption, .antecede .note { fill: #9198a1; }
.antecede .lane { stroke: #484f58; }
.antecede .end { fill: #484f58; }
.antecede .arrow { stroke: #adb7c2; }
.antecede .head { fill: #adb7c2; }
.antecede .wait { stroke: #e3a32b; }
.antecede .send { fill: #e6edf3; }
.antecede .deliver { fill: #58a6ff; }
.antecede .hold, .antecede .again, .antecede .drop { fill: #0d1117; stroke: #e3a32b; }
.antecede .again, .antecede .drop { stroke: #8b949e; }
.antecede .arrow.late { stroke: #ff7b72; }
.antecede .head.late, .antecede .deliver.late { fill: #ff7b72; stroke: none; }
.antecede text.late { fill: #ff7b72; stroke: #0d1117; }
}
"""

_meanings = (
    ("send", "sent"),
    ("deliver", "delivered"),
    ("deliver late", "delivered late"),
    ("hold", "arrived, held until delivered"),
    ("again", "arrived again"),
    ("drop", "dropped as a repeat"),
    ("local", "local event"),
)


def draw_stack(diagrams: Sequence[Diagram]) -> str:
    """Return one SVG document with several drawings of the same width, one below the other, and one common legend."""
    panels = [_Panel(diagram) for diagram in diagrams]
    legend, legend_width = _legend(diagrams)
    right = max([panel.layout.right for panel in panels] + [legend_width, 0.0])
    if any(diagram.title or diagram.caption for diagram in diagrams):
        right = max(right, _text_width_min)
    drawn: list[str] = []
    top = 0.0
    for panel in panels:
        height, parts = panel.draw(right)
        # The first one is not moved, so that a document with one drawing needs no group.
        drawn.extend([f'<g transform="translate(0 {top:.1f})">', *parts, "</g>"] if top else parts)
        top += height
    if legend:
        drawn += [f'<g transform="translate(0 {top + 8:.1f})">', *legend, "</g>"]
        top += 8
    width, height = right + _edge, top + _edge
    title = diagrams[0].title if len(diagrams) == 1 else f"{len(diagrams)} space-time diagrams"
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="antecede" role="img" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{escape(title or 'Space-time diagram')}</title>",
        f"<desc>{escape(' '.join(map(_describe, diagrams)))}</desc>",
        f"<style>{_style}</style>",
        f'<rect class="page" width="{width:.0f}" height="{height:.0f}"/>',
    ]
    return "\n".join([*head, *drawn, "</svg>"]) + "\n"


class _Panel:
    """One of the drawings in a document. Its final width is known only when all drawings have been measured."""

    def __init__(self, diagram: Diagram) -> None:
        self.diagram = diagram
        names = max((_name_letter * len(shorten(name, NAME_CHARS)) for name in diagram.processes), default=0.0)
        self.left = _edge + names + 14
        self.layout = Layout(diagram, self.left - 8, 0.0)

    def draw(self, right: float) -> tuple[float, list[str]]:
        """Return the height of the drawing, and its SVG elements. ``right``: the right edge of the drawing."""
        diagram, layout = self.diagram, self.layout
        layout.stretch(right)
        parts: list[str] = []
        y = _edge
        for text, kind, step, letter in ((diagram.title, "title", 20.0, 8.3), (diagram.caption, "caption", 17.0, 6.7)):
            for line in wrap(text, max(20, int((right - _edge) / letter))):
                parts.append(f'<text class="{kind}" x="{_edge:.0f}" y="{y + 11:.0f}">{escape(line)}</text>')
                y += step
        layout.top = y + 26
        for lane, name in enumerate(diagram.processes):
            y = layout.y(lane)
            parts.append(
                f'<text class="name" x="{self.left - 14:.1f}" y="{y + 4.5:.1f}">{_written(name, NAME_CHARS)}</text>'
            )
            parts.append(f'<line class="lane" x1="{self.left:.1f}" y1="{y:.1f}" x2="{layout.right:.1f}" y2="{y:.1f}"/>')
            parts.append(
                f'<path class="end" d="M{layout.right:.1f} {y - 3.5:.1f}L{layout.right + 6:.1f} {y:.1f}'
                f'L{layout.right:.1f} {y + 3.5:.1f}Z"/>'
            )
        parts.extend(_waits(diagram, layout))
        for flight in diagram.flights:
            parts.extend(_arrow(flight, layout))
        parts.extend(_dot_at(_class(point), layout.x(point), layout.y(point.lane)) for point in diagram.points)
        parts.extend(_labels(diagram, layout, self.left))
        return layout.y(max(len(diagram.processes) - 1, 0)) + 32, parts


def _describe(diagram: Diagram) -> str:
    """Return a description of the computation in words, for screen readers: one sentence per process."""
    verbs = {"send": "sends", "deliver": "delivers", "hold": "holds", "repeat": "gets again", "drop": "drops"}
    sentences: list[str] = []
    for lane, name in enumerate(diagram.processes):
        own = [point for point in diagram.points if point.lane == lane]
        did = ", ".join(
            f"{verbs.get(point.kind, 'does')} {point.label}{' late' if point.late else ''}" for point in own
        )
        sentences.append(f"{name}: {did or 'nothing'}.")
    return " ".join(sentences)


def _waits(diagram: Diagram, layout: Layout) -> Iterator[str]:
    """Yield a thick line on the receiver's lane for each held message, from its arrival to its delivery. If the message
    was never delivered, the line ends at the right edge of the drawing."""
    for flight in diagram.flights:
        if flight.end is None or flight.end.kind != "hold":
            continue
        until = layout.x(flight.delivery) if flight.delivery is not None else layout.right
        y = layout.y(flight.lane)
        yield f'<line class="wait" x1="{layout.x(flight.end):.1f}" y1="{y:.1f}" x2="{until:.1f}" y2="{y:.1f}"/>'


def _arrow(flight: Flight, layout: Layout) -> Iterator[str]:
    late = " late" if flight.late else ""
    if flight.start is not None and flight.start.lane == flight.lane and flight.end is not None:
        begin, end, y = layout.x(flight.start), layout.x(flight.end), layout.y(flight.lane)
        rise = ARC * 4 / 3
        yield (
            f'<path class="arrow{late}" d="M{begin:.1f} {y:.1f}C{begin + 8:.1f} {y - rise:.1f} '
            f'{end - 8:.1f} {y - rise:.1f} {end - 1.5:.1f} {y - _dot - 6:.1f}"/>'
        )
        yield _head(end - 1.9, y - _dot - 6, end, y, late)
        return
    line = layout.segment(flight)
    if line is None:
        return
    if flight.end is None:
        yield f'<path class="arrow lost" d="M{line.x1:.1f} {line.y1:.1f}L{line.x2:.1f} {line.y2:.1f}"/>'
        return
    kind = " repeat" if flight.end.kind in ("repeat", "drop") else ""
    length = hypot(line.x2 - line.x1, line.y2 - line.y1)
    x, y = line.at(1 - (_dot + 6) / length)
    yield f'<path class="arrow{kind}{late}" d="M{line.x1:.1f} {line.y1:.1f}L{x:.1f} {y:.1f}"/>'
    yield _head(line.x1, line.y1, line.x2, line.y2, late)


def _head(x1: float, y1: float, x2: float, y2: float, late: str) -> str:
    """Return an arrowhead that points from (x1, y1) to (x2, y2), and ends before the dot at (x2, y2)."""
    length = hypot(x2 - x1, y2 - y1)
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    tip_x, tip_y = x2 - ux * (_dot + 1), y2 - uy * (_dot + 1)
    back_x, back_y = tip_x - ux * 8.5, tip_y - uy * 8.5
    return (
        f'<path class="head{late}" d="M{tip_x:.1f} {tip_y:.1f}L{back_x - uy * 3.2:.1f} {back_y + ux * 3.2:.1f}'
        f'L{back_x + uy * 3.2:.1f} {back_y - ux * 3.2:.1f}Z"/>'
    )


def _class(point: Point) -> str:
    if point.kind == "deliver":
        return "deliver late" if point.late else "deliver"
    return "again" if point.kind == "repeat" else point.kind


def _dot_at(kind: str, x: float, y: float) -> str:
    radius = {"send": 3.4, "local": 3.0, "again": 3.4, "drop": 3.4}.get(kind, _dot)
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>'


def _labels(diagram: Diagram, layout: Layout, left: float) -> Iterator[str]:
    """Yield the labels as SVG. The label of a message is along its arrow. A point that has no arrow has its label above
    or below the point."""
    room = Labels()
    for lane in range(len(diagram.processes)):
        y = layout.y(lane)
        room.avoid(Segment(0, y, layout.right, y), 1.5)
        room.avoid(Box(0, y - 12, left, y + 12), 8.0)
    for point in diagram.points:
        x, y = layout.x(point), layout.y(point.lane)
        room.avoid(Box(x - 6, y - 6, x + 6, y + 6), 3.0)
    lines = [layout.segment(flight) for flight in diagram.flights]
    for flight, line in zip(diagram.flights, lines, strict=True):
        for piece in layout.arc(flight) if line is None else [line]:
            room.avoid(piece, 1.0)
    pointed = {id(flight.end) for flight in diagram.flights if flight.start is not None}
    leading = {id(flight.start) for flight in diagram.flights}
    for point in diagram.points:
        if id(point) not in pointed and id(point) not in leading:
            x, y = layout.x(point), layout.y(point.lane)
            places = [Place(x, y - 14), Place(x, y + 15)]
            yield from _label(point.label, room.place(shorten(point.label), places), point.late)
    for flight, line in zip(diagram.flights, lines, strict=True):
        if line is not None:
            places = along(shorten(flight.label), line)
            yield from _label(flight.label, room.place(shorten(flight.label), places, line), flight.late)
        elif flight.start is not None and flight.end is not None:
            begin, end, y = layout.x(flight.start), layout.x(flight.end), layout.y(flight.lane) - ARC
            places = [
                Place(begin + (end - begin) * share, y + side)
                for share in (0.5, 0.4, 0.6, 0.3, 0.7)
                for side in (-9.0, 10.0)
            ]
            yield from _label(flight.label, room.place(shorten(flight.label), places), flight.late)


def _label(text: str, place: Place, late: bool) -> Iterator[str]:
    # Text is placed by its base line, which is a little below the middle of the letters.
    if text:
        turned = f' transform="rotate({place.angle:.1f} {place.x:.1f} {place.y:.1f})"' if abs(place.angle) >= 1 else ""
        kind = "label late" if late else "label"
        yield f'<text class="{kind}" x="{place.x:.1f}" y="{place.y + _base:.1f}"{turned}>{_written(text)}</text>'


def _written(text: str, length: int = 28) -> str:
    """Return a text for SVG. A long text is shortened; the reader sees the full text when the mouse points at the short
    text."""
    short = shorten(text, length)
    return escape(short) if short == text else f"<title>{escape(text)}</title>{escape(short)}"


def _legend(diagrams: Sequence[Diagram]) -> tuple[list[str], float]:
    """Return a legend for the signs that occur in the diagrams, as SVG elements in one row, and the width of this
    row."""
    kinds = {_class(point) for diagram in diagrams for point in diagram.points}
    parts: list[str] = []
    x, y = _edge + 5, 0.0
    for kind, meaning in _meanings:
        if kind not in kinds:
            continue
        if kind == "hold":
            parts.append(f'<line class="wait" x1="{x:.1f}" y1="{y:.1f}" x2="{x + 18:.1f}" y2="{y:.1f}"/>')
        parts.append(_dot_at(kind, x, y))
        x += 24 if kind == "hold" else 10
        parts.append(f'<text class="note" x="{x:.1f}" y="{y + 4:.1f}">{meaning}</text>')
        x += 0.9 * LETTER * len(meaning) + 18
    return parts, x - 18
