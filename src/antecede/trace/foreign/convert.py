"""``import``: convert foreign files to a trace and a report.

All files of one import make one trace. But if logs contain several executions, each execution makes one trace. One
import accepts only files of one kind: logs with vector clocks, spans, or files of one other format. The logs of one
import may have different patterns, and the spans may have different formats.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from antecede import __version__
from antecede.errors import AntecedeError, TraceError, UsageError
from antecede.trace.files import write_trace
from antecede.trace.foreign import spans
from antecede.trace.foreign.formats import CloudEvents, Editing, Flows, History
from antecede.trace.foreign.mapping import GOVECTOR, PRESETS, Pattern, choose, preset
from antecede.trace.foreign.moments import ConvertedTrace
from antecede.trace.foreign.records import ForeignFile, Unreadable, files_of, opened, parquet_columns
from antecede.trace.foreign.spans import Spans
from antecede.trace.foreign.vectors import Delimiter, Logs, header_of
from antecede.trace.schema import Metadata

FORMATS: Final = (
    "shiviz",
    "govector",
    "zipkin",
    "otlp",
    "jaeger",
    "spans",
    "chrome",
    "temporal",
    "editing",
    "cloudevents",
)
"""The names of the formats. ``govector`` is the same as ``shiviz``, but with only the patterns of the library
GoVector."""

KNOWN: Final = (
    "logs with vector clocks (shiviz, govector); spans (zipkin, otlp, jaeger, or spans: CSV and Parquet); "
    "flow events of Chrome and Perfetto (chrome); histories of Temporal (temporal); recorded sessions in which several "
    "people edit one text (editing); CloudEvents with causationid (cloudevents)"
)
"""The formats, described for people."""

OURS: Final = "antecede"
"""The name that :func:`guess` returns for our own traces."""

_sample_lines = 400


def _keys(*names: str) -> tuple[re.Pattern[bytes], ...]:
    return tuple(re.compile(rb'"' + name.encode() + rb'"\s*:') for name in names)


_marks: tuple[tuple[str, tuple[re.Pattern[bytes], ...]], ...] = (
    ("cloudevents", _keys("specversion", "id", "source")),
    ("otlp", _keys("resourceSpans")),
    ("otlp", _keys("batches", "startTimeUnixNano")),
    ("temporal", _keys("eventId", "eventType", "eventTime")),
    ("editing", _keys("txns")),
    ("editing", _keys("endContent", "kind")),
    ("editing", _keys("startContent", "endContent")),
    ("jaeger", _keys("traceID", "spanID")),
    ("zipkin", _keys("traceId", "id")),
    ("chrome", _keys("traceEvents")),
    ("chrome", _keys("ph", "pid", "ts")),
    (OURS, _keys("process", "index", "kind")),
)


def guess(file: ForeignFile) -> str | None:
    """Return the format of a file, or ``None`` if it is unknown. The format is guessed from the beginning of the file,
    never from its name.

    A JSON format is recognised by its required keys, and a table of spans by its header. A log is recognised if it
    contains its own pattern, or if one of the presets (built-in patterns) finds an event in it. Our own traces are
    recognised, too, so that the user learns that no import is needed.
    """
    head = file.head
    if head[:4] == b"PAR1":
        names = parquet_columns(file)
        if {"process", "index", "kind"} <= {name.lower() for name in names}:
            return OURS
        return "spans" if spans.columns_of(names) is not None else None
    if head.lstrip()[:1] in (b"[", b"{"):
        for name, keys in _marks:
            if all(key.search(head) for key in keys):
                return name
    if spans.header_of(head.partition(b"\n")[0].rstrip(b"\r")[: 1 << 16]) is not None:
        return "spans"
    return "shiviz" if header_of(file) is not None or choose(sample(file)) is not None else None


def sample(file: ForeignFile) -> list[tuple[int, bytes]]:
    """Return the first lines of a file. If more than two were read, leave out the last one, because it may be
    incomplete."""
    lines = file.head.split(b"\n", _sample_lines)
    # An even number of lines, because an event of many logs has two.
    whole = lines[:-1] if len(lines) > 2 else lines
    return [(number, line.rstrip(b"\r")) for number, line in enumerate(whole, 1)]


_span_readers = {"zipkin": spans.zipkin, "otlp": spans.otlp, "jaeger": spans.jaeger}
_collectors: dict[str, Callable[[], "Collector"]] = {
    "shiviz": Logs,
    "govector": Logs,
    "editing": Editing,
    "chrome": Flows,
    "temporal": History,
    "cloudevents": CloudEvents,
}

_figures = ("unlogged", "merges", "early_children", "early_messages", "without_parent", "duplicates")
"""The names of counts that only some formats have. The report contains ``None`` for the other formats."""

_columns_shown = 12

Collector = Logs | Spans | Editing | Flows | History | CloudEvents


def convert(
    paths: Sequence[str | os.PathLike[str]],
    to: str | os.PathLike[str] | None = None,
    form: str = "auto",
    pattern: str | None = None,
    instances: bool = False,
    delimiter: str | None = None,
    execution: str | None = None,
    report_status: Callable[[str], None] = lambda text: None,
    skip_unknown: bool = False,
) -> dict[str, Any]:
    """Convert foreign files to a trace, write the trace to the file ``to``, and return the report. Without ``to``,
    nothing is written.

    ``form`` is one of :data:`FORMATS` or ``auto``. ``pattern`` is a regular expression for logs, or the name of a
    preset. With ``instances``, every instance of a service becomes a process. ``delimiter`` is a regular expression for
    the lines between two executions in one log. Each execution becomes a separate trace in a numbered file.
    ``execution`` selects one execution by its name. ``report_status`` is called with texts about the progress. With
    ``skip_unknown``, files of unknown format and files that are already traces are left out. The report lists them.
    """
    started = time.perf_counter()
    for option, text in (("--pattern", pattern), ("--delimiter", delimiter)):
        if text is not None and form not in ("auto", "shiviz", "govector"):
            raise UsageError(f"{option} is for logs with vector clocks, not for --format {form}")
    given = None if pattern is None else preset(pattern) if pattern in PRESETS else Pattern("given", pattern)
    parted = None if delimiter is None else Delimiter(delimiter)
    if form != "auto" and form not in FORMATS:
        raise UsageError(f"--format must be auto or one of {', '.join(FORMATS)}, not {form!r}")
    unreadable = Unreadable()
    files: list[dict[str, Any]] = []
    collector: Collector | None = None
    skipped: list[str] = []
    for path in files_of(paths, to):
        with opened(path, unreadable) as file:
            report_status(f"reading {file.name}")
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
                raise UsageError(
                    f"{file.name} is {found}, {files[0]['file']} is {files[0]['format']}: import one format at a time"
                )
            before = collector.events
            used = _read(collector, file, found, given, parted, instances)
            files.append({"file": file.name, "format": found, "pattern": used, "events": collector.events - before})
    if collector is None:
        raise TraceError(f"no file of a known format; the error of the first file: {skipped[0]}")
    if not collector.events:
        first = f" ({unreadable.first[0]})" if unreadable.first else ""
        raise TraceError(f"{files[0]['file']}: nothing could be read as {files[0]['format']}{first}")
    if execution is not None:
        if not isinstance(collector, Logs):
            raise UsageError(f"--execution is only for logs with vector clocks, not for {files[0]['format']}")
        collector.choose(execution)
    report_status("finding messages")
    traces = collector.convert() if isinstance(collector, Logs) else {"": collector.convert()}
    described = []
    for number, (name, converted) in enumerate(traces.items(), 1):
        target = to if len(traces) == 1 or to is None else _numbered(to, number)
        described.append(_about(name, converted, _write(converted, target, files, report_status), target))
    report = _report(collector, described, files, unreadable, to) | {"skipped": skipped}
    return report | {"seconds": round(time.perf_counter() - started, 3)}


def _numbered(to: str | os.PathLike[str], number: int) -> str:
    """Return the file name for one of several traces: for number 2, ``trace.jsonl.gz`` becomes ``trace-2.jsonl.gz``."""
    folder, name = os.path.split(os.fsdecode(to))
    stem, dot, endings = name.partition(".")
    return os.path.join(folder, f"{stem}-{number}{dot}{endings}")


def _format(file: ForeignFile, form: str, given: Pattern | None) -> str:
    if form != "auto":
        return form
    if given is not None:
        return "shiviz"
    if not file.head:
        raise TraceError(f"{file.name}: the file is empty")
    found = guess(file)
    if found == OURS:
        raise UsageError(f"{file.name} is already a trace: use antecede verify")
    if found is None:
        if file.head[:4] == b"PAR1":
            names = ", ".join(parquet_columns(file)[:_columns_shown])
            raise TraceError(
                f"{file.name}: this Parquet file is neither a trace nor spans: it has the columns {names}; "
                "for a log of sends and deliveries give --send, --deliver and --map"
            )
        raise TraceError(
            f"{file.name}: unknown format; known are {KNOWN}. Give --format. For a log with clocks give --pattern. For "
            "any other log of sends and deliveries give --send, --deliver and --map; if it has lines of text, give "
            "--pattern instead of --map"
        )
    return found


def _read(
    collector: Collector,
    file: ForeignFile,
    form: str,
    given: Pattern | None,
    delimiter: Delimiter | None,
    instances: bool,
) -> str | None:
    """Read one file. If the file is a log, return the name of the pattern that was used. Otherwise return ``None``."""
    if isinstance(collector, Editing | Flows | History | CloudEvents):
        collector.read(file)
    elif isinstance(collector, Spans):
        read = _span_readers.get(form)
        for span in spans.spans_of_csv(file) if read is None else spans.spans_of_json(file, read, instances):
            collector.add(span)
    else:
        header = header_of(file)
        chosen = given or (header.pattern if header else None)
        chosen = chosen or choose(sample(file), GOVECTOR if form == "govector" else PRESETS)
        if chosen is None:
            expected = "give --pattern with groups event, host, clock"
            raise TraceError(f"{file.name}: no built-in pattern finds an event; {expected}")
        collector.read(file, chosen, delimiter or (header.delimiter if header else None), header.lines if header else 0)
        return chosen.name
    return None


def _write(
    converted: ConvertedTrace,
    to: str | os.PathLike[str] | None,
    files: list[dict[str, Any]],
    report_status: Callable[[str], None],
) -> int:
    if to is None:
        return sum(1 for _ in converted.events())
    formats = sorted({str(file["format"]) for file in files})
    recorded_by = f"antecede {__version__} import of {', '.join(formats)}"
    return write_trace(
        to, converted.events(), Metadata(recorded_by=recorded_by, assumed=converted.assumed() or None), report_status
    )


def _about(execution: str, converted: ConvertedTrace, rows: int, to: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return the part of the report that describes one trace."""
    before_send, cycle = converted.impossible()
    return {
        "execution": execution,
        "processes": len(converted.lines),
        "messages": converted.messages,
        "rows": rows,
        "to": None if to is None else os.fsdecode(to),
        "assumed": converted.assumed(),
        "before_send": before_send,
        "cycle": cycle,
    }


def _report(
    collector: Collector,
    traces: list[dict[str, Any]],
    files: list[dict[str, Any]],
    unreadable: Unreadable,
    to: str | os.PathLike[str] | None,
) -> dict[str, Any]:
    assumed: Counter[str] = Counter()
    for trace in traces:
        assumed.update(trace["assumed"])

    def total(name: str) -> int:
        return sum(trace[name] for trace in traces)

    return {
        "version": __version__,
        "files": files,
        "executions": traces if len(traces) > 1 else None,
        "processes": total("processes"),
        "events": collector.events,
        "messages": total("messages"),
        "rows": total("rows"),
        "to": None if to is None else os.fsdecode(to),
        "unreadable": unreadable.count,
        "unreadable_first": unreadable.first,
        "assumed": dict(assumed),
        "before_send": total("before_send"),
        "cycle": total("cycle"),
        **{figure: getattr(collector, figure, None) for figure in _figures},
    }
