"""Spans as a table: one line per span, with columns recognised by common names.

The header must name columns for trace id, span id, parent, place (pod or service) and start. Columns for end, kind and
operation are optional. Only the letters and digits in the name of a column are compared. Upper and lower case make no
difference. The name of a time column may end with the unit of its times (``StartTimeUnixNano``, ``start_us``). If the
name of the start column contains no unit, the unit is chosen so that the first start time is near the present. If the
name of the end column contains no unit, its times have the same unit as the start times. A time may also be an ISO 8601
date. A Parquet file with such columns is read in the same way.
"""

from collections.abc import Iterator
from sys import intern

from antecede import limits
from antecede.errors import TraceError
from antecede.trace.foreign.files import ForeignFile
from antecede.trace.foreign.records import cells_of, parquet_columns, parquet_rows
from antecede.trace.foreign.spans import Span
from antecede.trace.foreign.times import nanoseconds, unit_of
from antecede.trace.schema import INT64_MAX

_columns: dict[str, tuple[str, ...]] = {
    "trace": ("traceid", "trace"),
    "span": ("spanid", "span", "id"),
    "parent": ("parentid", "parentspanid", "parentspan", "parent"),
    "place": ("podname", "pod", "servicename", "service", "process", "host", "instance"),
    "start": ("start", "starttime", "timestamp", "begin"),
    "end": ("end", "endtime", "finish"),
    "kind": ("spankind", "kind"),
    "name": ("operationname", "operation", "spanname", "name"),
}
_needed = ("trace", "span", "parent", "place", "start")
_units = {"unixnano": 1, "nanos": 1, "nano": 1, "ns": 1, "micros": 10**3, "us": 10**3, "millis": 10**6, "ms": 10**6}
_no_parent = ("", "root", "null", "none", "nan", "-")

_Table = tuple[dict[str, tuple[int, int]], Iterator[tuple[int, list[str] | str]]]
"""The columns and the rows of a table. Each column has its position and its unit of time. Each row has its number, and
either its cells or an error message."""


def header_of(line: bytes) -> dict[str, tuple[int, int]] | None:
    """Return the position and the time unit of each known column of a header. A time unit is given by its length in
    nanoseconds, or by 0 if it is unknown. Return ``None`` if the line is not the header of a table of spans."""
    names = cells_of(line)
    return None if isinstance(names, str) else columns_of(names)


def columns_of(names: list[str]) -> dict[str, tuple[int, int]] | None:
    """Return the position and the time unit of each known column among the names. A time unit is given by its length in
    nanoseconds, or by 0 if it is unknown. Return ``None`` if a required column is missing."""
    plain = ["".join(c for c in name.lower() if c.isalnum()) for name in names]
    found: dict[str, tuple[int, int]] = {}
    for column, aliases in _columns.items():
        units = _units if column in ("start", "end") else {}
        for alias in aliases:
            forms = {alias: 0} | {alias + suffix: unit for suffix, unit in units.items()}
            place = next((position for position, name in enumerate(plain) if name in forms), None)
            if place is not None:
                found[column] = place, forms[plain[place]]
                break
    return found if all(column in found for column in _needed) else None


def spans_of(file: ForeignFile) -> Iterator[Span]:
    """Yield the spans of a table. Rows that are not valid spans are recorded as unreadable."""
    columns, rows = _parquet(file) if file.head[:4] == b"PAR1" else _csv(file)
    unit = columns["start"][1]
    for number, cells in rows:
        try:
            if isinstance(cells, str):
                raise ValueError(cells)
            get = {column: cells[place].strip() for column, (place, _) in columns.items() if place < len(cells)}
            span, unit = _read(get, unit, columns)
        except KeyError:
            file.unreadable(number, "fewer columns than the header names")
        except ValueError as error:
            file.unreadable(number, str(error))
        else:
            yield span


def _csv(file: ForeignFile) -> _Table:
    lines = file.lines()
    columns = header_of(next(lines, (0, b""))[1])
    if columns is None:
        wanted = ", ".join(_columns[name][0] for name in _needed)
        raise TraceError(f"{file.name}:1: not a header of spans: expected columns {wanted}")
    return columns, ((number, cells_of(line)) for number, line in lines if line.strip())


def _parquet(file: ForeignFile) -> _Table:
    names = list(dict.fromkeys(parquet_columns(file)))
    columns = columns_of(names)
    if columns is None:
        raise TraceError(f"{file.name}: not a table of spans: it has the columns {', '.join(names)}")
    rows = (
        (number, ["" if cell is None else str(cell) for cell in row.values()]) for number, row in parquet_rows(file)
    )
    return columns, rows


def _read(get: dict[str, str], unit: int, columns: dict[str, tuple[int, int]]) -> tuple[Span, int]:
    """Return the span of a row, and the unit of time for the next rows. The unit is given by its length in nanoseconds,
    or by 0 if it is still unknown."""
    begun, ended = get["start"], get.get("end", "")
    if begun.lstrip("-").isdigit():
        unit = unit or unit_of(int(begun))
        start = int(begun) * unit
        end = int(ended) * (columns["end"][1] or unit) if ended.isascii() and ended.isdigit() else None
    else:
        date, end = nanoseconds(begun), nanoseconds(ended)
        if date is None:
            raise ValueError(f"the start {begun[:40]!r} is neither a number nor a date")
        start = date
    duration = None if end is None else end - start
    if not 0 <= start <= INT64_MAX or not 0 <= (duration or 0) <= INT64_MAX:
        raise ValueError("the span ends before it begins, or a time is negative or beyond int64 nanoseconds")
    if not get["trace"] or not get["span"] or not get["place"]:
        raise ValueError("a value of the span is missing: the trace id, the span id, or the name of the pod or service")
    parent = get["parent"]
    span = Span(
        intern(get["trace"]),
        get["span"],
        intern(get["place"]),
        start,
        None if parent.lower() in _no_parent or not parent.strip("0") else parent,
        intern(get.get("kind", "").lower()) or None,
        intern(get.get("name", "")[: limits.raw_text_bytes_max]) or None,
        duration,
    )
    return span, unit
