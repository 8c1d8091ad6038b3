"""A space-time diagram as SVG: time runs to the right, one line per process, straight arrows from send to arrival.

The document is self-contained: it has no scripts, and no external fonts or pictures. Its style sheet has colours for
light and dark pages. For screen readers, it has a title and a description. All given texts are escaped.
"""

from collections.abc import Iterator, Sequence
from math import hypot
from textwrap import wrap
from xml.sax.saxutils import escape

from antecede.diagram.computation import Diagram, Flight, Point
from antecede.diagram.layout import (
    ARC,
    LETTER,
    NAME_CHARS,
    Box,
    Labels,
    Layout,
    Place,
    Segment,
    along,
    shorten,
)

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
