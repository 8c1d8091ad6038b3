"""An SVG document with curves, in several panels. Each panel shows the points of some series, and their curves.

The document has no script. It contains its style, with other colours for a dark page. Each point has its value as a
``<title>``.
"""

from collections.abc import Callable, Sequence
from html import escape
from math import floor, log10

import msgspec

Curve = Callable[[float], float]


class Series(msgspec.Struct, frozen=True):
    """A series of measured points, which has one name and one colour in a panel."""

    name: str
    points: Sequence[tuple[float, float]]
    law: Curve | None = None
    """A curve to draw as a dashed line, for comparison with the points. If it is None, no dashed line is drawn."""


class Panel(msgspec.Struct, frozen=True):
    """One figure."""

    title: str
    below: str
    """One line of text below the figure."""
    series: Sequence[Series]


def draw(panels: Sequence[Panel], across: str, up: str) -> str:
    """Draw panels as one SVG document, two panels side by side. ``across`` and ``up``: the names of the horizontal and
    the vertical axis."""
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    width, height = columns * _panel_width, rows * _panel_height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<style>{_style}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
    ]
    for place, panel in enumerate(panels):
        x, y = place % columns * _panel_width, place // columns * _panel_height
        parts.append(f'<g transform="translate({x} {y})">{"".join(_panel(panel, across, up))}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, across: str, up: str) -> list[str]:
    points = [point for series in panel.series for point in series.points]
    most_x = max((x for x, _ in points), default=1.0)
    step = _step(max((y for _, y in points), default=1.0))
    most_y = step * _lines

    def place(x: float, y: float) -> tuple[float, float]:
        return _left + _width * x / most_x, _top + _height * (1 - y / most_y)

    parts = [f'<text class="title" x="{_left}" y="26">{escape(panel.title)}</text>']
    for line in range(_lines + 1):
        _, y = place(0, line * step)
        parts.append(f'<line class="grid" x1="{_left}" x2="{_left + _width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="end" x="{_left - 8}" y="{y + 4:.1f}">{line * step:,.10g}</text>')
    for value in sorted({x for x, _ in points}):
        parts.append(
            f'<text class="middle" x="{place(value, 0)[0]:.1f}" y="{_top + _height + 18}">{value:,.10g}</text>'
        )
    parts.append(f'<text class="end" x="{_left + _width}" y="{_top + _height + 36}">{escape(across)}</text>')
    parts.append(f'<text x="{_left - 46}" y="{_top - 10}">{escape(up)}</text>')
    parts.append(f'<text class="note" x="{_left}" y="{_top + _height + 56}">{escape(panel.below)}</text>')
    for number, series in enumerate(panel.series, 1):
        parts += _series(series, number, most_x, most_y, place)
        y = _top + 14 + 18 * (number - 1)
        parts.append(f'<circle class="dot c{number}" cx="{_left + 14}" cy="{y - 4}" r="4"/>')
        parts.append(f'<text x="{_left + 24}" y="{y}">{escape(series.name)}</text>')
    return parts


def _series(
    series: Series, number: int, most_x: float, most_y: float, place: Callable[[float, float], tuple[float, float]]
) -> list[str]:
    parts = []
    if series.law is not None:
        path = []
        for share in range(_pieces + 1):
            x = most_x * share / _pieces
            y = min(max(series.law(x), 0.0), most_y)
            path.append("{:.1f},{:.1f}".format(*place(x, y)))
        parts.append(f'<polyline class="law c{number}" points="{" ".join(path)}"/>')
    line = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in series.points)
    parts.append(f'<polyline class="line c{number}" points="{line}"/>')
    for x, y in series.points:
        at_x, at_y = place(x, y)
        parts.append(
            f'<circle class="dot c{number}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="4">'
            f"<title>{escape(series.name)}, {x:,.10g}: {y:,.1f}</title></circle>"
        )
    return parts


def _step(most: float) -> float:
    """Return the distance between two grid lines. It is a round number, and large enough that no value is above the
    highest grid line. ``most``: the largest value."""
    least = max(most, 1e-9) / _lines
    unit = 10.0 ** floor(log10(least))
    return next(unit * times for times in (1, 2, 2.5, 5, 10) if unit * times >= least)


_panel_width, _panel_height = 460, 350
_left, _top, _width, _height = 66, 58, 370, 220
_lines = 4
_pieces = 60
_style = (
    "text{font:12px system-ui,sans-serif;fill:#334155}.title{font-size:15px;font-weight:600;fill:#0f172a}"
    ".end{text-anchor:end}.middle{text-anchor:middle}.note{fill:#64748b}"
    ".page{fill:#ffffff}.grid{stroke:#e2e8f0}.line,.law{fill:none;stroke-width:2}"
    ".law{stroke-dasharray:5 4;stroke-width:1.5;opacity:.7}"
    ".line.c1,.law.c1{stroke:#2563eb}.dot.c1{fill:#2563eb}.line.c2,.law.c2{stroke:#ea580c}.dot.c2{fill:#ea580c}"
    "@media(prefers-color-scheme:dark){.page{fill:#0f172a}text{fill:#cbd5e1}.title{fill:#f1f5f9}.grid{stroke:#334155}"
    ".note{fill:#94a3b8}}"
)
