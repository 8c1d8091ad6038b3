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
import gzip
import io
import os
import re
import signal
import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, BinaryIO, Final, NamedTuple, Self

import msgspec

from antecede import limits
from antecede.errors import TraceError, UsageError
from antecede.trace.files import one_line, opened_file
from antecede.trace.foreign.mapping import Plan
from antecede.trace.sources import expanded, files_below, shown

_gzip_magic = b"\x1f\x8b"
_byte_order_mark = b"\xef\xbb\xbf"
_head_bytes = 256 * 1024
_first_shown = 5
_endings = (".log", ".txt", ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
_metadata_ending = ".meta.json"
JSON_ERRORS: Final = (msgspec.MsgspecError, RecursionError, ValueError, OverflowError)
"""The exceptions that a JSON decoder raises if a text is not JSON or does not have the expected types."""
_torn = (EOFError, gzip.BadGzipFile, zlib.error)


class Unreadable:
    """Counts unreadable items, and keeps the position and the reason of the first few."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, where: str, reason: str) -> None:
        """Count one unreadable line, span or transaction."""
        self.count += 1
        if len(self.first) < _first_shown:
            self.first.append(f"{where}: {' '.join(reason.split())[:200]}")


class ForeignFile:
    """One open file: its name for error messages, its first bytes, and methods to read it by lines or as a whole.

    Select foreign files, read them with bounded memory, and count what cannot be read.

    A file may be gzipped, whatever its name. Lines longer than ``foreign_line_bytes_max`` are skipped, and a document
    longer than ``foreign_document_bytes_max`` is refused. So memory is bounded for any input. If a gzip stream is
    damaged or incomplete, everything before the damage is read, and the rest is counted as one unreadable line.
    """

    def __init__(self, name: str, stream: BinaryIO, unreadable: Unreadable, path: str | None = None) -> None:
        self.name = name
        self.path = path
        """The path of the file. ``None`` for standard input, because standard input cannot be opened again."""
        self._unreadable = unreadable
        magic = stream.read(2)
        raw: BinaryIO = io.BufferedReader(_Rejoined(magic, stream))
        if magic == _gzip_magic:
            raw = io.BufferedReader(_Untorn(gzip.GzipFile(fileobj=raw, mode="rb"), self))
        self.head = raw.read(_head_bytes).removeprefix(_byte_order_mark)
        """The first bytes, for guessing the format."""
        self._stream = io.BufferedReader(_Rejoined(self.head, raw), buffer_size=1 << 17)

    def unreadable(self, line: int | None, reason: str) -> None:
        """Record an unreadable line, or another unreadable item, of this file."""
        self._unreadable.add(self.name if line is None else f"{self.name}:{line}", reason)

    def lines(self, bound: int = limits.foreign_line_bytes_max) -> Iterator[tuple[int, bytes]]:
        """Yield the lines without their line breaks, numbered from 1. Lines longer than ``bound`` are counted and left
        out."""
        number = 0
        # Two more bytes than the bound: a line of exactly that length still shows its end.
        while line := self._stream.readline(bound + 2):
            number += 1
            piece = line
            while len(piece) == bound + 2 and not piece.endswith(b"\n"):
                piece = self._stream.readline(bound + 2)
            text = line.rstrip(b"\r\n")
            if piece is not line or len(text) > bound:
                self.unreadable(number, f"longer than {bound} bytes")
            else:
                yield number, text

    def document(self) -> bytes:
        """Return the whole file."""
        bound = limits.foreign_document_bytes_max
        data = self._stream.read(bound + 1)
        if len(data) > bound:
            raise TraceError(
                f"{self.name}: one JSON document of more than {bound} bytes: write one document per trace, "
                "each on one line"
            )
        return data


class _Rejoined(io.RawIOBase):
    """A stream that first returns the bytes that were already read from another stream, and then the rest of that
    stream."""

    def __init__(self, taken: bytes, rest: BinaryIO) -> None:
        self._taken = memoryview(taken)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._taken:
            data = self._rest.read(len(buffer))
            buffer[: len(data)] = data
            return len(data)
        count = min(len(buffer), len(self._taken))
        buffer[:count] = self._taken[:count]
        self._taken = self._taken[count:]
        return count


class _Untorn(io.RawIOBase):
    """A gzip stream that accepts damaged or incomplete data. It ends at the damage and raises no error. The damage is
    counted as one unreadable item."""

    def __init__(self, stream: gzip.GzipFile, file: ForeignFile) -> None:
        self._stream = stream
        self._file = file
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._ended:
            return 0
        try:
            data = self._stream.read1(len(buffer))
        except _torn as error:
            self._ended = True
            self._file.unreadable(None, f"torn gzip stream: {error}")
            return 0
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def opened(path: str, unreadable: Unreadable) -> Iterator[ForeignFile]:
    """Open a file, or standard input if the path is ``-``. If the file cannot be opened or read, raise a TraceError."""
    try:
        if path == "-":
            yield ForeignFile("<stdin>", sys.stdin.buffer, unreadable)
        else:
            with open(path, "rb") as stream:
                yield ForeignFile(shown(path), stream, unreadable, path)
    except OSError as error:
        raise TraceError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None


def files_of(paths: Sequence[str | os.PathLike[str]], to: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the files at the paths. If several paths lead to the same file, return it only once. For a directory,
    return only the files with a file extension of logs or spans, such as ``.log`` or ``.json``. The path ``-``
    (standard input) is returned unchanged.

    The trace ``to`` and its metadata file are left out, because an earlier import may have written them into a
    directory of logs. If ``paths`` directly names one of these two files, raise a UsageError.
    """
    found: dict[str, str] = {}
    written = [] if to is None else [os.path.realpath(os.fsdecode(to) + ending) for ending in ("", _metadata_ending)]
    for path, file, real in expanded(paths, _below):
        if real not in written:
            found.setdefault(real, file)
        elif file == path:
            raise UsageError(f"{shown(path)} is a source and would be overwritten: give --to another name")
    if not found:
        raise TraceError(f"{shown(os.fspath(paths[0]))}: no log here, only the trace of an earlier import")
    return list(found.values())


def _below(directory: str) -> list[str]:
    def wanted(name: str) -> bool:
        return name.lower().removesuffix(".gz").endswith(_endings)

    return files_below(directory, wanted, f"no file ending in {', '.join(_endings)} in this directory")


class Guard:
    """A context manager. It ends a search that takes too long. Use it once around all searches, and use :meth:`on`
    around the searches of each line.

    Python's matching is exponential in the worst case: ``(a+)+$`` needs years for forty letters. A limit on the length
    of lines does not prevent this, so a timer checks the search at regular intervals. If the same line is being
    searched at two successive checks, the search ends with an error that names the line. The timer needs a signal, so
    the guard works only in the main thread. In other threads there is no guard.
    """

    def __init__(self, seconds: float = limits.pattern_seconds_max) -> None:
        self._seconds = seconds
        self._place: tuple[str, int] | None = None
        self._seen: tuple[str, int] | None = None
        self._before: object = None
        self._armed = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
            self._before = signal.signal(signal.SIGALRM, self._look)
            signal.setitimer(signal.ITIMER_REAL, self._seconds, self._seconds)
            self._armed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._armed:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)  # type: ignore[arg-type]
            self._armed = False

    @contextmanager
    def on(self, file: str, line: int) -> Iterator[None]:
        """Return a context manager. While it is open, the guard limits the time of the searches in one line of a
        file."""
        self._place = file, line
        try:
            yield
        finally:
            self._place = None

    def _look(self, number: int, frame: FrameType | None) -> None:
        place = self._place
        if place is not None and place is self._seen:
            raise UsageError(
                f"{place[0]}:{place[1]}: a pattern searched this line for more than {self._seconds:g} s: the pattern "
                "backtracks too much; avoid a repetition in a repetition, such as (a+)+, and begin the pattern with ^"
            )
        self._seen = place


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
