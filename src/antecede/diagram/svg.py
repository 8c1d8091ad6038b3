"""A space-time diagram as SVG: time runs to the right, one line per process, straight arrows from send to arrival.

The document is self-contained: no scripts, no external fonts or pictures, colours for light and dark pages in its own
style sheet, and a title and a description for screen readers. All text from outside is escaped.
"""

from collections.abc import Iterator, Sequence
from math import hypot
from xml.sax.saxutils import escape

from antecede.diagram.computation import Diagram, Flight, Point
from antecede.diagram.layout import ARC, LETTER, Box, Labels, Layout, Segment, label_box, shorten

_dot = 4.6
_edge = 16.0
_base = 4.2

_style = """
.antecede { font: 12px ui-sans-serif, system-ui, "DejaVu Sans", "Segoe UI", Arial, sans-serif; }
.antecede .page { fill: #ffffff; }
.antecede text { fill: #24292f; stroke: #ffffff; stroke-width: 0; }
@supports (paint-order: stroke) {
.antecede text { stroke-width: 3.5px; stroke-linejoin: round; paint-order: stroke; }
}
.antecede .title { font-size: 14px; font-weight: 600; }
.antecede .name { font-size: 13px; font-weight: 600; }
.antecede .label { text-anchor: middle; }
.antecede .lane { stroke: #8c959f; stroke-width: 1.2; }
.antecede .arrow { stroke: #57606a; stroke-width: 1.2; fill: none; }
.antecede .head { fill: #57606a; }
.antecede .lost { stroke-dasharray: 3 3; }
.antecede .repeat { stroke-dasharray: 5 3; opacity: .65; }
.antecede .wait { stroke: #d4890b; stroke-width: 4; stroke-linecap: butt; opacity: .75; }
.antecede .send { fill: #24292f; }
.antecede .local { fill: #8c959f; }
.antecede .deliver { fill: #0969da; }
.antecede .hold, .antecede .again { fill: #ffffff; stroke: #b87503; stroke-width: 2; }
.antecede .again { stroke: #8c959f; }
.antecede .late { stroke: #cf222e; }
.antecede .head.late, .antecede .deliver.late { fill: #cf222e; stroke: none; }
.antecede text.late { fill: #cf222e; stroke: #ffffff; font-weight: 600; }
@media (prefers-color-scheme: dark) {
.antecede .page { fill: #0d1117; }
.antecede text { fill: #e6edf3; stroke: #0d1117; }
.antecede .lane { stroke: #6e7681; }
.antecede .arrow { stroke: #adb7c2; }
.antecede .head { fill: #adb7c2; }
.antecede .wait { stroke: #e3a32b; }
.antecede .send { fill: #e6edf3; }
.antecede .deliver { fill: #58a6ff; }
.antecede .hold, .antecede .again { fill: #0d1117; stroke: #e3a32b; }
.antecede .again { stroke: #8b949e; }
.antecede .late { stroke: #ff7b72; }
.antecede .head.late, .antecede .deliver.late { fill: #ff7b72; stroke: none; }
.antecede text.late { fill: #ff7b72; stroke: #0d1117; }
}
"""

_shares = (0.5, 0.44, 0.56, 0.38, 0.62, 0.32, 0.68, 0.26, 0.74, 0.2, 0.8)
"""Positions of a label along its arrow, the best first."""

_meanings = (
    ("send", "sent"),
    ("deliver", "delivered"),
    ("deliver late", "delivered late"),
    ("hold", "arrived, held until delivered"),
    ("again", "arrived again"),
    ("local", "local event"),
)


def draw(diagram: Diagram) -> str:
    """The whole document."""
    return draw_stack([diagram])


def draw_stack(diagrams: Sequence[Diagram]) -> str:
    """One document with several drawings, one below the other."""
    drawings = [_drawing(diagram) for diagram in diagrams]
    width = max((width for width, _, _ in drawings), default=0.0)
    height = sum(height for _, height, _ in drawings)
    title = diagrams[0].title if len(diagrams) == 1 else f"{len(diagrams)} space-time diagrams"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="antecede" role="img" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{escape(title or 'Space-time diagram')}</title>",
        f"<desc>{escape(' '.join(map(_describe, diagrams)))}</desc>",
        f"<style>{_style}</style>",
        f'<rect class="page" width="{width:.0f}" height="{height:.0f}"/>',
    ]
    top = 0.0
    for _, own_height, drawn in drawings:
        # The first one is not moved, so that a document with one drawing needs no group.
        parts.extend([f'<g transform="translate(0 {top:.1f})">', *drawn, "</g>"] if top else drawn)
        top += own_height
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _drawing(diagram: Diagram) -> tuple[float, float, list[str]]:
    """Return the width, the height and the elements of a drawing."""
    names = max((LETTER * 1.12 * len(shorten(name, 24)) for name in diagram.processes), default=0.0)
    left = _edge + names + 14
    top = _edge + 30 + (24 if diagram.title else 0)
    layout = Layout(diagram, left - 8, top)
    legend, legend_width = _legend(diagram, layout)
    layout.right = max(layout.right, legend_width, _edge + LETTER * 1.2 * len(diagram.title))
    parts = []
    if diagram.title:
        parts.append(f'<text class="title" x="{_edge:.0f}" y="{_edge + 10:.0f}">{escape(diagram.title)}</text>')
    for lane, name in enumerate(diagram.processes):
        y = layout.y(lane)
        parts.append(f'<text class="name" x="{_edge:.0f}" y="{y + 4.5:.1f}">{_written(name, 24)}</text>')
        parts.append(f'<line class="lane" x1="{left:.1f}" y1="{y:.1f}" x2="{layout.right:.1f}" y2="{y:.1f}"/>')
    parts.extend(_waits(diagram, layout))
    for flight in diagram.flights:
        parts.extend(_arrow(flight, layout))
    parts.extend(_point(point, layout) for point in diagram.points)
    parts.extend(_labels(diagram, layout))
    parts.extend(legend)
    height = layout.y(max(len(diagram.processes) - 1, 0)) + 34 + (30 if legend else 0)
    return layout.right + _edge, height, parts


def _describe(diagram: Diagram) -> str:
    """Return the computation in words, process by process."""
    words = {"send": "sends", "deliver": "delivers", "hold": "holds", "repeat": "gets again", "local": "does"}
    said: list[str] = []
    for lane, name in enumerate(diagram.processes):
        own = [point for point in diagram.points if point.lane == lane]
        did = ", ".join(f"{words[point.kind]} {point.label}{' late' if point.late else ''}" for point in own)
        said.append(f"{name}: {did or 'nothing'}.")
    return " ".join(said)


def _waits(diagram: Diagram, layout: Layout) -> Iterator[str]:
    """Draw each held message as a thick piece of its process's line, from arrival to delivery."""
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
    kind = " repeat" if flight.end.kind == "repeat" else ""
    length = hypot(line.x2 - line.x1, line.y2 - line.y1)
    x, y = line.at(1 - (_dot + 6) / length)
    yield f'<path class="arrow{kind}{late}" d="M{line.x1:.1f} {line.y1:.1f}L{x:.1f} {y:.1f}"/>'
    yield _head(line.x1, line.y1, line.x2, line.y2, late)


def _head(x1: float, y1: float, x2: float, y2: float, late: str) -> str:
    """Return an arrowhead that points from the first place to the second and ends before the dot there."""
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
    radius = {"send": 3.4, "local": 3.0, "again": 3.4}.get(kind, _dot)
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>'


def _point(point: Point, layout: Layout) -> str:
    return _dot_at(_class(point), layout.x(point), layout.y(point.lane))


def _labels(diagram: Diagram, layout: Layout) -> Iterator[str]:
    """Return the names of messages along their arrows, and at points without an arrow."""
    room = Labels()
    for lane in range(len(diagram.processes)):
        y = layout.y(lane)
        room.avoid(Segment(0, y, layout.right, y), 1.5)
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
            short = shorten(point.label)
            yield from _label(point.label, *room.place(short, [(x, y - 14), (x, y + 15)]), point.late)
    for flight, line in zip(diagram.flights, lines, strict=True):
        if line is not None:
            short = shorten(flight.label)
            x, y = room.place(short, list(_beside(short, line, flight.end is None)), line)
            yield from _label(flight.label, x, y, flight.late)
        elif flight.start is not None and flight.end is not None:
            begin, end, y = layout.x(flight.start), layout.x(flight.end), layout.y(flight.lane) - ARC
            places = [
                (begin + (end - begin) * share, y + side)
                for share in (0.5, 0.4, 0.6, 0.3, 0.7)
                for side in (-9.0, 10.0)
            ]
            yield from _label(flight.label, *room.place(shorten(flight.label), places), flight.late)


def _beside(text: str, line: Segment, stub: bool) -> Iterator[tuple[float, float]]:
    """Places for a label close to an arrow, on either side of it."""
    dx, dy = line.x2 - line.x1, line.y2 - line.y1
    length = hypot(dx, dy)
    # The normal that points up, or to the right of a steep arrow.
    nx, ny = (dy / length, -dx / length) if dx > 0 else (-dy / length, dx / length)
    box = label_box(text, 0, 0)
    away = abs(nx) * box.right + abs(ny) * box.bottom + 1
    for share in (1.0,) if stub else _shares:
        x, y = line.at(share)
        for side in (away, -away):
            yield x + nx * side, y + ny * side


def _label(text: str, x: float, y: float, late: bool) -> Iterator[str]:
    # Text is placed by its base line, which is a little below the middle of the letters.
    if text:
        yield f'<text class="label{" late" if late else ""}" x="{x:.1f}" y="{y + _base:.1f}">{_written(text)}</text>'


def _written(text: str, length: int = 16) -> str:
    """Return text as it is drawn; if it was cut, the full text appears under the pointer."""
    short = shorten(text, length)
    return escape(short) if short == text else f"<title>{escape(text)}</title>{escape(short)}"


def _legend(diagram: Diagram, layout: Layout) -> tuple[list[str], float]:
    """Return the legend of the signs that occur, as one row, and its width."""
    kinds = {_class(point) for point in diagram.points}
    parts: list[str] = []
    x, y = _edge + 5, layout.y(max(len(diagram.processes) - 1, 0)) + 42
    for kind, words in _meanings:
        if kind not in kinds:
            continue
        if kind == "hold":
            parts.append(f'<line class="wait" x1="{x:.1f}" y1="{y:.1f}" x2="{x + 18:.1f}" y2="{y:.1f}"/>')
        parts.append(_dot_at(kind, x, y))
        x += 24 if kind == "hold" else 10
        parts.append(f'<text x="{x:.1f}" y="{y + 4:.1f}">{words}</text>')
        x += 0.9 * LETTER * len(words) + 18
    return parts, x - 18
