"""A trace in the formats of other viewers: Perfetto, OpenTelemetry, ShiViz, Graphviz and Mermaid.

This package reads a trace and sets invalid rows aside. It finds the deliveries that are late under causal order, and
writes text. There is one module per format. Each module yields its output in pieces, so a caller can write the output
without keeping all of it in memory. Every format has a limit: the number of events that its viewer can show. A longer
trace is refused while it is read.
"""

from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import Any, Final

from antecede import limits
from antecede.errors import TraceError, UsageError
from antecede.trace.exporting import dot, mermaid, otlp, perfetto, shiviz
from antecede.trace.exporting.view import View
from antecede.trace.quarantine import counts, sift
from antecede.trace.schema import Event
from antecede.trace.sources import load
from antecede.trace.streaming import judge_large

__all__ = ["FORMATS", "View", "export", "view_of"]

FORMATS: Final[dict[str, Callable[[View], Iterator[str]]]] = {
    "perfetto": perfetto.written,
    "otlp": otlp.written,
    "shiviz": shiviz.written,
    "dot": dot.written,
    "mermaid": mermaid.written,
}
"""The formats, each with the function that writes a trace in this format."""


def view_of(
    paths: Sequence[str | PathLike[str]],
    form: str,
    keep: Callable[[Event], bool] | None = None,
    logical: bool = False,
) -> View:
    """Read a trace for one format. Events that ``keep`` rejects are left out. If ``logical`` is true, the recorded
    times are not used."""
    if form not in FORMATS:
        raise UsageError(f"--to must be one of {', '.join(FORMATS)}, not {form!r}")
    most = limits.export_events_max[form]
    taken = 0

    def counted(event: Event) -> bool:
        nonlocal taken
        if keep is not None and not keep(event):
            return False
        taken += 1
        if taken > most:
            raise TraceError(_too_large(form, most))
        return True

    loaded = load(paths, keep=counted)
    sifted = sift(loaded.events, loaded.placed)
    if not sifted.events:
        raise TraceError("nothing to export: the trace has no valid row, or none was selected")
    late = judge_large(sifted.trace, ("causal",), every_overtaker=True).causal
    return View(sifted.trace, late, counts(sifted, loaded.reasons), logical)


def _too_large(form: str, most: int) -> str:
    larger = [name for name, bound in limits.export_events_max.items() if bound > most]
    others = f", or use a format for larger traces ({', '.join(larger)})" if larger else ""
    return f"more than {most:,} events, the limit of {form}: export a part by --since, --until or --processes{others}"


def export(paths: Sequence[str | PathLike[str]], form: str, **options: Any) -> str:
    """Return a trace as a text of one format."""
    view = view_of(paths, form, **options)
    return "".join(FORMATS[form](view))
