"""The figures of Laumay et al. §6.2, drawn from a report of ``./run bench paper000``.

The paper compares two organisations: *flat* (all servers are in one domain) and *bus* (one domain connects several
other domains). Fig. 9 shows the flat organisation, Fig. 11 shows the bus, and Fig. 12 shows both. The text of the paper
states two laws. In the flat organisation, the turn-around time grows quadratically with the number of servers. In the
bus, it grows linearly. The laws are fitted to our measured points and drawn as dashed lines.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.curves import Curve, Panel, Series, draw


def figures(report: Mapping[str, Any]) -> str:
    """Return the figures as one SVG document."""
    rows: Sequence[Mapping[str, Any]] = report["rows"]
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    panels = []
    for shape in shapes:
        law = "quadratic" if shape == "flat" else "linear"
        named, subtitle = _titles.get(shape, (f"{shape}: remote unicast", "the dashed curve is linear"))
        panels.append(Panel(named, subtitle, [_series(report, shape, "remote", law)]))
    if len(shapes) > 1:
        panels.append(
            Panel(
                "Fig. 12: remote unicast",
                "the paper: domains of causality win as the number of servers grows",
                [_series(report, shape, "remote") for shape in shapes[:2]],
            )
        )
    panels.append(
        Panel(
            "Broadcast to all servers, and back",
            f"every server writes to its disk: durability {report['durability']}",
            [_series(report, shape, "broadcast") for shape in shapes[:2]],
        )
    )
    return draw(panels, "servers", "turn-around time, ms (median)")


def _series(report: Mapping[str, Any], shape: str, kind: str, law: str = "") -> Series:
    points = [(row["servers"], row[kind]["median_ms"]) for row in report["rows"] if row["shape"] == shape]
    found = report["fits"][shape][kind][law] if law else None
    return Series(f"{shape}, order {report['order']}", points, None if found is None else _curve(found, law))


def _curve(found: Mapping[str, float], law: str) -> Curve:
    start, slope, power = found["a"], found["b"], 2 if law == "quadratic" else 1
    return lambda x: start + slope * x**power


_titles = {
    "flat": ("Fig. 9: remote unicast, no domains", "dashed: the paper's law, a + b·n², fitted to our points"),
    "bus": ("Fig. 11: remote unicast, a bus of domains", "dashed: the paper's law, a + b·n, fitted to our points"),
}
