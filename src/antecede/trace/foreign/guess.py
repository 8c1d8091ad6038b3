"""Guess the format of a file from its beginning, never from its name.

A JSON format is recognised by its required keys, and a table of spans by its header. A log is recognised if it contains
its own pattern, or if one of the presets (built-in patterns) finds an event in it. Our own traces are recognised, too,
so that the user learns that no import is needed.
"""

import re
from typing import Final

from antecede.trace.foreign import span_csv
from antecede.trace.foreign.executions import header_of
from antecede.trace.foreign.files import ForeignFile
from antecede.trace.foreign.patterns import choose
from antecede.trace.foreign.records import parquet_columns

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
    """Return the format of a file, or ``None`` if it is unknown."""
    head = file.head
    if head[:4] == b"PAR1":
        names = parquet_columns(file)
        if {"process", "index", "kind"} <= {name.lower() for name in names}:
            return OURS
        return "spans" if span_csv.columns_of(names) is not None else None
    if head.lstrip()[:1] in (b"[", b"{"):
        for name, keys in _marks:
            if all(key.search(head) for key in keys):
                return name
    if span_csv.header_of(head.partition(b"\n")[0].rstrip(b"\r")[: 1 << 16]) is not None:
        return "spans"
    return "shiviz" if header_of(file) is not None or choose(sample(file)) is not None else None


def sample(file: ForeignFile) -> list[tuple[int, bytes]]:
    """Return the first lines of a file. If more than two were read, leave out the last one, because it may be
    incomplete."""
    lines = file.head.split(b"\n", _sample_lines)
    # An even number of lines, because an event of many logs has two.
    whole = lines[:-1] if len(lines) > 2 else lines
    return [(number, line.rstrip(b"\r")) for number, line in enumerate(whole, 1)]
