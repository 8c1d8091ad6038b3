"""Find where the rows of an explanation come from: the file and the line of the imported log.

``antecede import --map`` writes the file and the line into the extra column ``source``. No verdict needs this column,
so the engines do not keep it. This module looks up the column afterwards, for a few rows, in the files of the trace
that have the column.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from antecede.trace.explain import rows_of
from antecede.trace.schema import HOP
from antecede.trace.sources import events_in, trace_files

Place = tuple[str, int]
"""A row of a trace, given by its process and its index."""


def with_origins(report: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Return the report of ``explain`` with an additional key ``sources``: for each row that an explanation names, the
    file and the line of the imported log. A row is left out if its file and line are not known."""
    places = {(row.process, row.index) for explanation in report["explanations"] for row in rows_of(explanation)}
    found = _origins([path for path in paths if os.path.exists(path)], places) if places else {}
    sources = [
        {"process": process, "index": index, "source": found[process, index]} for process, index in sorted(found)
    ]
    return {**report, "sources": sources}


def _origins(paths: Sequence[str], places: Iterable[Place]) -> dict[Place, str]:
    left = set(places)
    found: dict[Place, str] = {}
    for path in trace_files(paths)[0] if paths else ():
        for number, event in enumerate(events_in(path)):
            source = (event.extra or {}).get("source")
            if type(source) is not str and number == 0:
                # Not a trace of an import by a mapping: every row of such a trace has the column.
                break
            place = event.process, event.index
            if place in left and type(source) is str and event.kind != HOP:
                left.remove(place)
                found[place] = source
            if not left:
                return found
    return found
