"""Figures of a report as SVG: a map of the traffic, messages per second, and bars.

A chart has no script. A cell of the map, or a bar in the chart of messages per second, has its value as a ``<title>``.
Browsers show the title under the pointer. Colours come from the style sheet of the page, which has variants for light
and dark.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, sqrt
from typing import Any

from antecede import limits
from antecede.diagram.computation import printable
from antecede.trace.titles import short_id

OTHERS = "others"
_shades = 8
_named_max = 36
"""The largest number of processes for which the rows and columns of the map have names."""
_points_max = 240
"""The largest number of bars in a chart over time. If a trace has more seconds, one bar stands for several seconds."""


def text(value: object, length: int = 40) -> str:
    """Return a value from a trace as text for the page: printable, escaped, and shortened if it is too long."""
    return escape(short_id(printable(str(value)), length))


def busiest(traffic: Sequence[Mapping[str, Any]]) -> tuple[list[str], dict[tuple[str, str], int]]:
    """Return the names of the busiest processes, and the number of copies of messages for each pair (sender, receiver).
    A message to three receivers counts as three copies. The busiest processes send and receive the most copies. If
    there are more than ``report_processes_max`` processes, the others are counted together under an empty name, which
    comes last."""
    totals: Counter[str] = Counter()
    for row in traffic:
        totals[row["from"]] += row["messages"]
        totals[row["to"]] += row["messages"]
    chosen = [name for name, _ in sorted(totals.items(), key=lambda item: (-item[1], item[0]))]
    kept = set(chosen[: limits.report_processes_max])
    cells: Counter[tuple[str, str]] = Counter()
    for row in traffic:
        # No process can be mistaken for the others: a name is never empty here.
        cells[row["from"] if row["from"] in kept else "", row["to"] if row["to"] in kept else ""] += row["messages"]
    names = sorted(kept, key=_natural)
    return names + ([""] if len(chosen) > len(kept) else []), dict(cells)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts P2 before P10."""
    return [(int(part[:18]) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", name)]


def heat_map(traffic: Sequence[Mapping[str, Any]]) -> str:
    """Draw a map with one row per sender and one column per receiver. Each cell shows how many copies of messages this
    sender has sent to this receiver. Return an empty string if there is no traffic."""
    names, cells = busiest(traffic)
    if not cells:
        return ""
    size = 22 if len(names) <= 20 else 14 if len(names) <= _named_max else 7
    shown = [text(name, 18) if name else OTHERS for name in names]
    named = len(names) <= _named_max
    letters = max(len(short_id(printable(name), 18)) if name else len(OTHERS) for name in names)
    left = 14 + 7.2 * letters if named else 40.0
    top = 18 + 5.2 * letters if named else 20.0
    # The cells of the others together are much larger; they would make all single processes look alike.
    single = [count for (source, to), count in cells.items() if source and to] or [*cells.values()]
    least, most = min(single), max(single)
    parts: list[str] = []
    if named:
        for place, name in enumerate(shown):
            middle = (place + 0.5) * size
            parts.append(f'<text class="axis end" x="{left - 6:.0f}" y="{top + middle + 4:.1f}">{name}</text>')
            x = left + middle + 4
            parts.append(
                f'<text class="axis" x="{x:.1f}" y="{top - 6:.0f}" transform="rotate(-45 {x:.1f} {top - 6:.0f})">'
                f"{name}</text>"
            )
    else:
        parts.append(f'<text class="axis" x="{left:.0f}" y="{top - 6:.0f}">to →</text>')
        parts.append(f'<text class="axis" x="2" y="{top + 10:.0f}">from</text>')
    side = len(names) * size
    parts.append(f'<rect class="field" x="{left:.0f}" y="{top:.0f}" width="{side}" height="{side}"/>')
    places = {name: place for place, name in enumerate(names)}
    for (source, to), count in sorted(cells.items()):
        shade = _shade(count, most)
        x, y = left + places[to] * size, top + places[source] * size
        title = f"{shown[places[source]]} → {shown[places[to]]}: {count:,}"
        parts.append(
            f'<rect class="s{shade}" x="{x:.0f}" y="{y:.0f}" width="{size - 1}" height="{size - 1}">'
            f"<title>{title}</title></rect>"
        )
    y = top + side + 14
    used = range(_shade(least, most), _shades + 1)
    for place, shade in enumerate(used):
        parts.append(f'<rect class="s{shade}" x="{left + place * 14:.0f}" y="{y:.0f}" width="14" height="9"/>')
    scale = f"{least:,} to {most:,} copies" if least < most else f"{most:,} {'copy' if most == 1 else 'copies'} each"
    above = max(cells.values())
    scale += f"; {OTHERS}: up to {above:,}" if above > most else ""
    parts.append(f'<text class="axis" x="{left + len(used) * 14 + 8:.0f}" y="{y + 9:.0f}">{scale}</text>')
    width = left + max(side + (top * 0.8 if named else 8), _shades * 14 + 160)
    height = y + 20
    return _svg(width, height, "Copies from each process to each", parts)


def _shade(count: int, most: int) -> int:
    return min(_shades, max(1, ceil(_shades * sqrt(count / most))))


def per_second(by_second: Mapping[int, int]) -> str:
    """Draw one bar per second. Each bar shows how many messages were sent in this second. If the trace is long, one bar
    stands for several seconds, and shows the average number per second. Return an empty string if all messages were
    sent in the same second, or if there are no messages. ``by_second`` has the number of messages for each second."""
    if len(by_second) < 2:
        return ""
    first, last = min(by_second), max(by_second)
    step = max(1, -(-(last - first + 1) // _points_max))
    counts: Counter[int] = Counter()
    for second, count in by_second.items():
        counts[(second - first) // step] += count
    total = (last - first) // step + 1
    most = max(counts.values()) / step
    left, width, height = 62.0, 640.0, 150.0
    bar = width / total
    parts = _grid(left, width, height, most)
    for place, count in sorted(counts.items()):
        high = height * count / step / most
        start = first + place * step
        when = f"second {start:,}" if step == 1 else f"seconds {start:,} to {start + step - 1:,}"
        parts.append(
            f'<rect class="bar" x="{left + place * bar:.1f}" y="{10 + height - high:.1f}" '
            f'width="{max(bar - 0.6, 0.6):.1f}" height="{high:.1f}"><title>{when}: {count / step:,.1f}/s</title></rect>'
        )
    parts.append(f'<text class="axis" x="{left:.0f}" y="{height + 26:.0f}">{first:,} s</text>')
    parts.append(f'<text class="axis end" x="{left + width:.0f}" y="{height + 26:.0f}">{last + 1:,} s</text>')
    return _svg(left + width + 10, height + 34, "Messages sent per second", parts)


def _grid(left: float, width: float, height: float, most: float) -> list[str]:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = 10 + height * (1 - share)
        parts.append(f'<line class="grid" x1="{left:.0f}" x2="{left + width:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="axis end" x="{left - 6:.0f}" y="{y + 4:.1f}">{most * share:,.0f}</text>')
    return parts


def bars(rows: Sequence[tuple[str, int]], label: str) -> str:
    """Draw one horizontal bar per row, with its name and its value. Return an empty string if there are no rows."""
    if not rows:
        return ""
    most = max(value for _, value in rows) or 1
    left = 16 + 6.8 * max(len(short_id(printable(name), 28)) for name, _ in rows)
    parts: list[str] = []
    for place, (name, value) in enumerate(rows):
        y = 8 + place * 22
        long = 300 * value / most
        parts.append(f'<text class="axis end" x="{left - 8:.0f}" y="{y + 13}">{text(name, 28)}</text>')
        parts.append(f'<rect class="bar" x="{left:.0f}" y="{y}" width="{max(long, 1):.1f}" height="17" rx="2"/>')
        parts.append(f'<text class="axis" x="{left + long + 6:.1f}" y="{y + 13}">{value:,}</text>')
    return _svg(left + 300 + 110, 16 + 22 * len(rows), label, parts)


def _svg(width: float, height: float, label: str, parts: list[str]) -> str:
    return (
        f'<svg class="chart" role="img" aria-label="{escape(label)}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">{"".join(parts)}</svg>'
    )
