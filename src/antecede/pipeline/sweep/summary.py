"""The summary of a sweep: for each setting the mean over its seeds, and its confidence interval.

The interval is that of 95 % (:mod:`antecede.pipeline.sweep.intervals`). With one seed there is none.
"""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from antecede.pipeline.sweep.cells import FIGURES, Row
from antecede.pipeline.sweep.intervals import half_width

SETTINGS = ("order", "shape", "size", "processes", "workload", "gap", "delay", "density", "messages", "warmup")
"""All settings of a cell except its seed."""


def summary(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return one entry for each setting, in the sequence in which the settings first occur."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in SETTINGS), []).append(row)
    return [
        {
            **dict(zip(SETTINGS, setting, strict=True)),
            "runs": len(group),
            "engines": sorted({row.engine for row in group}),
            "undelivered": sum(row.undelivered for row in group),
            "figures": {name: _figure([getattr(row, name) for row in group]) for name in FIGURES},
        }
        for setting, group in groups.items()
    ]


def _figure(values: Sequence[float | None]) -> dict[str, float | None] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    reach = half_width(known)
    mean = fmean(known)
    return {
        "mean": mean,
        "low": None if reach is None else mean - reach,
        "high": None if reach is None else mean + reach,
    }


def stamp_table(entries: Iterable[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """Return the mean stamp in bytes by order and number of processes, in the form of the planner's model."""
    table: dict[str, dict[int, float]] = {}
    for entry in entries:
        table.setdefault(entry["order"], {})[entry["processes"]] = round(entry["figures"]["bytes_mean"]["mean"], 1)
    return table
