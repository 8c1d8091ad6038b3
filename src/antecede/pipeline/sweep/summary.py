"""The summary of a sweep. Runs that differ only in their seed form a group. For each group, the summary has the mean
and the confidence interval of each figure.

The confidence level is 95 % (:mod:`antecede.pipeline.sweep.intervals`). A group of one run has no interval.
"""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from antecede.pipeline.sweep.cells import FIGURES, Row
from antecede.pipeline.sweep.intervals import half_width

SETTINGS = ("order", "shape", "size", "processes", "workload", "gap", "delay", "density", "messages", "warmup")
"""The columns with the settings of a cell, except its seed."""


def summary(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return one entry for each combination of settings, in the sequence in which the combinations first occur in
    ``rows``."""
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
    """Return the mean size of a stamp in bytes, by order and number of processes. The planner's model has these values
    in its table ``STAMP_BYTES``."""
    table: dict[str, dict[int, float]] = {}
    for entry in entries:
        table.setdefault(entry["order"], {})[entry["processes"]] = round(entry["figures"]["bytes_mean"]["mean"], 1)
    return table
