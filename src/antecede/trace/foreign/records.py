"""The records of a log for a mapping: JSON objects, rows of a table, lines of text split into groups.

* ``json``: one object per line, or one document. The document is a list of objects, or an object with one list in it.
* ``csv``: one row per line below a header, with commas, semicolons, tabs or bars between the cells. An empty cell
  counts as missing.
* ``parquet``: one row per record. Timestamps are in nanoseconds.
* ``text``: one line per record. The first pattern that matches a line splits this line into fields. Logs often put a
  few words before a JSON object. So the text of a group named ``json`` is read as JSON, and the keys of the object are
  fields, too.

A line of JSON may have at most ``trace_line_bytes_max`` bytes. Any other line may have at most
``foreign_line_bytes_max`` bytes. For ``text``, a line has a second limit: ``pattern_line_chars_max`` characters. Lines
that cannot be read or are too long are counted.
"""

import csv
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from antecede import limits
from antecede.errors import TraceError, UsageError
from antecede.trace.foreign.files import JSON_ERRORS, ForeignFile
from antecede.trace.foreign.guard import Guard
from antecede.trace.foreign.mapping import Plan
from antecede.trace.parquet import one_line, opened_file

_delimiters = ",;\t|"
_batch_rows = 8_192
_json_begins = re.compile(rb'\s*(?:\{\s*(?:["}]|$)|\[\s*(?:[\[{"\]]|$))')
_time_of_day = re.compile(r"\d\d:\d\d")


class Record(NamedTuple):
    """One record. For a line of text that no pattern matches, ``fields`` is ``None``."""

    number: int
    fields: dict[str, Any] | None
    text: str


def form_of(file: ForeignFile, plan: Plan) -> str:
    """Return the format of a file's records. If the mapping does not name the format, guess it from the beginning of
    the file. A file that is not Parquet is ``text`` if the mapping has patterns for lines. Raise a UsageError if the
    format remains unknown."""
    if plan.mapping.format != "auto":
        return plan.mapping.format
    if file.head[:4] == b"PAR1":
        return "parquet"
    if plan.patterns:
        return "text"
    if _is_json(file.head):
        return "json"
    if _is_table(file.head, plan):
        return "csv"
    raise UsageError(
        f"{file.name}: neither JSON nor a table: for lines of text give --pattern with named groups, "
        r"such as '(?P<time>\S+) (?P<process>\S+) (?P<kind>\w+) (?P<message>\S+)'"
    )


def _is_json(head: bytes) -> bool:
    """Return whether a file begins with JSON. A bracket alone is not enough, because a line of text may begin with
    ``[15/Nov/2026:10:00:00]``."""
    if _json_begins.match(head):
        return True
    try:
        return type(msgspec.json.decode(head.lstrip().partition(b"\n")[0])) in (dict, list)
    except JSON_ERRORS:
        return False


def _is_table(head: bytes, plan: Plan) -> bool:
    """Return whether the first line of a file is the header of a table. A header must have at least three columns. It
    must also name a field of the mapping, or contain no time of day. (A line of a log often contains a time of day.)"""
    first = head.partition(b"\n")[0].decode("utf-8", "replace").rstrip("\r")
    marks = [mark for mark in _delimiters if first.count(mark) >= 2]
    names = {name.strip().strip('"') for mark in marks for name in first.split(mark)}
    return bool(marks) and (not names.isdisjoint(plan.paths()) or _time_of_day.search(first) is None)


def records_of(file: ForeignFile, form: str, plan: Plan, guard: Guard) -> Iterator[Record]:
    """Return the records of a file, numbered by line or row from 1."""
    if form == "json":
        return json_records(file)
    if form == "csv":
        return _table(file)
    if form == "parquet":
        rows = parquet_rows(file)
        return (Record(number, {k: v for k, v in fields.items() if v is not None}, "") for number, fields in rows)
    if not plan.patterns:
        raise UsageError("lines of text need --pattern: a regular expression with named groups")
    return _text(file, plan.patterns, guard)


def json_records(file: ForeignFile) -> Iterator[Record]:
    """Yield the objects of a JSON file. The file has one object per line, or is one document with all objects."""
    first = file.head.lstrip().partition(b"\n")[0].strip()
    if first[:1] == b"[" or first == b"{":
        yield from _document(file)
        return
    for number, line in file.lines(limits.trace_line_bytes_max):
        if line.strip():
            try:
                fields = msgspec.json.decode(line)
            except JSON_ERRORS as error:
                file.unreadable(number, f"not JSON: {error}")
                continue
            if type(fields) is dict:
                yield Record(number, fields, "")
            else:
                file.unreadable(number, "not a JSON object")


def _document(file: ForeignFile) -> Iterator[Record]:
    try:
        document = msgspec.json.decode(file.document())
    except JSON_ERRORS as error:
        raise TraceError(f"{file.name}: not a JSON document: {error}; for lines of text give --pattern") from None
    if isinstance(document, dict):
        lists = [value for value in document.values() if isinstance(value, list)]
        document = lists[0] if len(lists) == 1 else [document]
    for number, fields in enumerate(document, 1):
        if type(fields) is dict:
            yield Record(number, fields, "")
        else:
            file.unreadable(None, f"record {number}: not a JSON object")


def _table(file: ForeignFile) -> Iterator[Record]:
    lines = file.lines()
    number, header = next(lines, (0, b""))
    mark = max(_delimiters, key=lambda mark: header.count(mark.encode()))
    names = cells_of(header, mark)
    if isinstance(names, str) or len(names) < 2:
        raise TraceError(f"{file.name}:{number}: expected a header that names the columns of a table")
    for number, line in lines:
        if line.strip():
            cells = cells_of(line, mark)
            if isinstance(cells, str):
                file.unreadable(number, cells)
            else:
                row = {name.strip(): cell.strip() for name, cell in zip(names, cells, strict=False) if cell.strip()}
                yield Record(number, row, "")


def cells_of(line: bytes, mark: str = ",") -> list[str] | str:
    """Return the cells of one row, or an error message. Each line is read separately, so that an unclosed quote does
    not affect the rest of the file."""
    try:
        return next(csv.reader([line.decode("utf-8")], delimiter=mark, strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        return str(error)


def parquet_rows(file: ForeignFile) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the rows of a Parquet file, numbered from 1. Timestamps become nanoseconds since 1970."""
    pa, opened, _ = _opened(file)
    number = 0
    try:
        for batch in opened.iter_batches(batch_size=_batch_rows):
            for fields in _plain(pa, batch).to_pylist():
                number += 1
                yield number, fields
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise TraceError(f"{file.name}: row {number + 1}: cannot be read as Parquet: {one_line(error)}") from None


def parquet_columns(file: ForeignFile) -> list[str]:
    """Return the names of the columns of a Parquet file."""
    return list(_opened(file)[2].names)


def _opened(file: ForeignFile) -> tuple[Any, Any, Any]:
    if file.path is None:
        raise TraceError(f"{file.name}: Parquet cannot be read from a pipe; give a file")
    return opened_file(file.path, file.name)


def _plain(pa: Any, batch: Any) -> Any:
    """Return the rows of a batch, with every timestamp converted to nanoseconds since 1970."""
    columns = [
        column.cast(pa.timestamp("ns", column.type.tz)).cast(pa.int64())
        if pa.types.is_timestamp(column.type)
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _text(file: ForeignFile, patterns: list[re.Pattern[str]], guard: Guard) -> Iterator[Record]:
    for number, line in file.lines():
        text = line.decode("utf-8", "backslashreplace")
        if len(text) > limits.pattern_line_chars_max:
            file.unreadable(number, f"longer than {limits.pattern_line_chars_max} characters")
            continue
        if not text.strip():
            continue
        with guard.on(file.name, number):
            found = next(filter(None, (pattern.search(text) for pattern in patterns)), None)
        if found is None:
            yield Record(number, None, text)
            continue
        fields: dict[str, Any] = {name: value for name, value in found.groupdict().items() if value is not None}
        if "json" in fields:
            try:
                inner = msgspec.json.decode(fields.pop("json"))
            except JSON_ERRORS as error:
                file.unreadable(number, f"the group json is not JSON: {error}")
                continue
            fields = (inner if isinstance(inner, dict) else {"json": inner}) | fields
        yield Record(number, fields, text)
