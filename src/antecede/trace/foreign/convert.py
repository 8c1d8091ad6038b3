"""``import``: foreign files in, one trace and a report out.

All the files of one import make one trace. They may differ in format as long as they are of one family: logs with
vector clocks (each with a pattern of its own), spans (of any of their formats), or one of the others.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from antecede import __version__
from antecede.errors import AntecedeError, TraceError, UsageError
from antecede.trace.foreign import span_csv, span_json
from antecede.trace.foreign.chrome import Flows
from antecede.trace.foreign.editing import Editing
from antecede.trace.foreign.files import ForeignFile, Unreadable, files_of, opened
from antecede.trace.foreign.guess import FORMATS, KNOWN, OURS, guess, sample
from antecede.trace.foreign.patterns import GOVECTOR, PRESETS, Pattern, choose, preset
from antecede.trace.foreign.records import parquet_columns
from antecede.trace.foreign.spans import Spans
from antecede.trace.foreign.temporal import History
from antecede.trace.foreign.vectors import ClockedLog
from antecede.trace.foreign.weave import Woven
from antecede.trace.schema import Metadata
from antecede.trace.writer import TraceWriter

_span_readers = {"zipkin": span_json.zipkin, "otlp": span_json.otlp, "jaeger": span_json.jaeger}
_collectors: dict[str, Callable[[], "Collector"]] = {
    "shiviz": ClockedLog,
    "govector": ClockedLog,
    "editing": Editing,
    "chrome": Flows,
    "temporal": History,
}

_columns_shown = 12

Collector = ClockedLog | Spans | Editing | Flows | History


def convert(
    paths: Sequence[str | os.PathLike[str]],
    to: str | os.PathLike[str] | None = None,
    form: str = "auto",
    pattern: str | None = None,
    instances: bool = False,
    say: Callable[[str], None] = lambda text: None,
    skip_unknown: bool = False,
) -> dict[str, Any]:
    """Read foreign files and write them as one trace, if ``to`` names it; the report.

    ``form`` is one of :data:`FORMATS` or ``auto``; ``pattern`` a regular expression for logs, or a preset's name;
    ``instances`` makes every instance of a service a process. ``say`` is told what is being done. ``skip_unknown``
    leaves out files whose format is not known, or that are traces already, and lists them.
    """
    started = time.perf_counter()
    given = _pattern(pattern, form)
    if form != "auto" and form not in FORMATS:
        raise UsageError(f"--format must be auto or one of {', '.join(FORMATS)}, not {form!r}")
    unreadable = Unreadable()
    files: list[dict[str, Any]] = []
    collector: Collector | None = None
    skipped: list[str] = []
    for path in files_of(paths):
        with opened(path, unreadable) as file:
            say(f"reading {file.name}")
            try:
                found = _format(file, form, given)
            except AntecedeError as error:
                if not skip_unknown:
                    raise
                skipped.append(str(error))
                continue
            kind = _collectors.get(found, Spans)
            if collector is None:
                collector = kind()
            elif type(collector) is not kind:
                raise UsageError(f"{file.name} is {found}, {files[0]['file']} is {files[0]['format']}: import one kind")
            before = collector.events
            used = _read(collector, file, found, given, instances)
            files.append({"file": file.name, "format": found, "pattern": used, "events": collector.events - before})
    if collector is None:
        raise TraceError(f"no file of a known format: {skipped[0]}")
    if not collector.events:
        first = f" ({unreadable.first[0]})" if unreadable.first else ""
        raise TraceError(f"{files[0]['file']}: nothing could be read as {files[0]['format']}{first}")
    say("finding messages")
    woven = collector.weave()
    rows = _write(woven, to, files, say)
    report = _report(collector, woven, files, unreadable, rows, to) | {"skipped": skipped}
    return report | {"seconds": round(time.perf_counter() - started, 3)}


def _pattern(text: str | None, form: str) -> Pattern | None:
    if text is None:
        return None
    if form not in ("auto", "shiviz", "govector"):
        raise UsageError(f"--pattern is for logs, not for --format {form}")
    return preset(text) if text in PRESETS else Pattern("given", text)


def _format(file: ForeignFile, form: str, given: Pattern | None) -> str:
    if form != "auto":
        return form
    if given is not None:
        return "shiviz"
    if not file.head:
        raise TraceError(f"{file.name}: the file is empty")
    found = guess(file)
    if found == OURS:
        raise UsageError(f"{file.name} is a trace already: antecede verify reads it")
    if found is None:
        if file.head[:4] == b"PAR1":
            names = ", ".join(parquet_columns(file)[:_columns_shown])
            raise TraceError(
                f"{file.name}: Parquet, but neither a trace nor spans: it has the columns {names}; give --map"
            )
        raise TraceError(
            f"{file.name}: none of the formats that we know: {KNOWN}. Give --format, --pattern for a log with clocks, "
            "or --map for any other log of sends and deliveries"
        )
    return found


def _read(collector: Collector, file: ForeignFile, form: str, given: Pattern | None, instances: bool) -> str | None:
    """Take in one file; the name of the pattern if there is one."""
    if isinstance(collector, Editing | Flows | History):
        collector.read(file)
    elif isinstance(collector, Spans):
        read = _span_readers.get(form)
        table = span_csv.spans_of_parquet if file.head[:4] == b"PAR1" else span_csv.spans_of
        for span in table(file) if read is None else span_json.spans_of(file, read, instances):
            collector.add(span)
    else:
        chosen = given or choose(sample(file), GOVECTOR if form == "govector" else PRESETS)
        if chosen is None:
            raise TraceError(f"{file.name}: no preset finds an event; give --pattern with groups event, host, clock")
        collector.read(file, chosen)
        return chosen.name
    return None


def _write(
    woven: Woven, to: str | os.PathLike[str] | None, files: list[dict[str, Any]], say: Callable[[str], None]
) -> int:
    if to is None:
        return sum(1 for _ in woven.events())
    formats = sorted({str(file["format"]) for file in files})
    metadata = Metadata(recorded_by=f"antecede {__version__} import of {', '.join(formats)}")
    with TraceWriter(to, metadata) as trace:
        for event in woven.events():
            trace.write(event)
            if trace.events % 100_000 == 0:
                say(f"{trace.events:,} rows written")
    return trace.events


def _report(
    collector: Collector,
    woven: Woven,
    files: list[dict[str, Any]],
    unreadable: Unreadable,
    rows: int,
    to: str | os.PathLike[str] | None,
) -> dict[str, Any]:
    before_send, cycle = woven.impossible()
    spans = collector if isinstance(collector, Spans) else None
    return {
        "version": __version__,
        "files": files,
        "processes": len(woven.lines),
        "events": woven.moments,
        "messages": woven.messages,
        "rows": rows,
        "to": None if to is None else os.fsdecode(to),
        "unreadable": unreadable.count,
        "unreadable_first": unreadable.first,
        "before_send": before_send,
        "cycle": cycle,
        "unlogged": collector.unlogged if isinstance(collector, ClockedLog) else None,
        "merges": collector.merges if isinstance(collector, Editing) else None,
        "early_children": spans.early_children if spans else None,
        "early_messages": spans.early_messages if spans else None,
        "without_parent": spans.without_parent if spans else None,
        "duplicates": spans.duplicates if spans else None,
    }
