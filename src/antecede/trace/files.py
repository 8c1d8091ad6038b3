"""JSON Lines: one event per line, plain or gzipped.

**Reading** yields an :class:`Event` for each line that is not blank, or a :class:`Fault` for a line that is not an
event. Only errors of the file system itself are raised here. A line is *unreadable* in these cases:

* It is longer than ``trace_line_bytes_max``. Such a line is read in small pieces and skipped.
* It is not UTF-8, or not a standard JSON object. NaN and unescaped control characters are not standard.
* It is nested too deeply, or has a key twice. (Other readers would keep the first value of this key, or the last one.)

If a gzip stream is damaged or incomplete, everything before the damage is read. The rest counts as one unreadable line.
A byte order mark at the beginning of a file is skipped.

**Writing** gives the same bytes for the same events. The keys of the schema come first, in the order of the schema.
Then the extra keys follow, sorted by name. The entries of maps are sorted by name. Absent fields and white space are
left out.
"""

import gzip
import json
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from decimal import Decimal
from importlib import import_module
from io import BufferedReader
from operator import attrgetter
from pathlib import Path
from sys import intern
from typing import IO, Annotated, Any, BinaryIO, Literal, cast

import msgspec

from antecede import limits
from antecede.errors import TraceError, UsageError
from antecede.trace.schema import (
    COLUMNS,
    FLAGS,
    INT64_MAX,
    INT64_MIN,
    KINDS,
    LOCAL,
    NUMBERS,
    Event,
    Fault,
    Metadata,
    case_matched,
    destinations,
    event_of,
    metadata_bytes,
    metadata_of,
)

_gzip_magic = b"\x1f\x8b"
_byte_order_mark = b"\xef\xbb\xbf"
_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder()


class _Row(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A line that has only the most common columns, so that it can be decoded fast. Decoding checks the types of the
    values, but does not find repeated keys."""

    process: str
    index: Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
    kind: Literal["send", "deliver", "arrive"]
    message: str
    to: tuple[str, ...] | None = None
    time: Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)] | None = None
    stamp_bytes: Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)] | None = None
    notification: str | None = None
    label: str | None = None
    held: bool | None = None
    source: str | None = None
    """The file and line of the imported log from which the row was made."""


_row_decoder = msgspec.json.Decoder(_Row)

Item = tuple[int, bytes, Event | Fault]
"""One line of a trace as three values: its number (from 1), its bytes, and its event. If there are too many bytes, only
the first bytes are kept. If the line is not an event, the third value is a fault."""


def encode(event: Event) -> bytes:
    """Return an event as one line, without the line break."""
    if not event.extra:
        return _encoder.encode(event)
    # First the keys of the schema, in its order; then the extra keys, sorted by name.
    return _encoder.encode(msgspec.structs.replace(event, extra=None))[:-1] + b"," + _encoder.encode(event.extra)[1:]


def decode(line: bytes) -> Event | Fault:
    """Return the event in a line, or a fault if the line is not an event."""
    try:
        plain = _row_decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
        return _decode_any(line)
    # Every key has its colon, so as many colons as columns prove that no key was there twice.
    colons = 4 + (plain.to is not None) + (plain.time is not None)
    colons += (plain.stamp_bytes is not None) + (plain.held is not None)
    texts = [text for text in (plain.notification, plain.label, plain.source) if text is not None]
    if texts:
        if b"\\" in line:
            # A colon may be written as an escape.
            return _decode_any(line)
        colons += len(texts) + sum(text.count(":") for text in texts)
    if line.count(b":") != colons:
        return _decode_any(line)
    to = plain.to
    if to is not None:
        to = destinations(to)
    process = intern(plain.process)
    if plain.notification is None and plain.stamp_bytes is None and plain.held is None and not texts:
        return Event(process, plain.index, plain.kind, plain.message, to, plain.time)
    return Event(
        process,
        plain.index,
        plain.kind,
        plain.message,
        to,
        plain.time,
        stamp_bytes=plain.stamp_bytes,
        notification=None if plain.notification is None else intern(plain.notification),
        label=plain.label,
        held=plain.held,
        extra=None if plain.source is None else {"source": plain.source},
    )


def content(event: Event) -> bytes:
    """Return a row as bytes, without the texts for people (``notification``, ``label``) and without extra columns. If
    these bytes are equal for two rows, the second row is treated as a repeat of the first."""
    return encode(msgspec.structs.replace(event, extra=None, notification=None, label=None))


def _decode_any(line: bytes) -> Event | Fault:
    """Decode a line that may have any columns, not only those of :class:`_Row`. Return its event, or a fault if the
    line is not an event."""
    try:
        row = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError) as error:
        return Fault("unreadable_line", f"not JSON: {error}")
    if type(row) is not dict:
        return Fault("unreadable_line", "not a JSON object")
    clock = row.get("clock")
    keys = len(row) + (len(clock) if type(clock) is dict else 0)
    if line.count(b":") != keys and (twice := _key_given_twice(line)) is not None:
        return Fault("unreadable_line", f"key {twice!r} is given twice")
    return event_of(row)


class _GivenTwiceError(Exception):
    pass


def _distinct(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise _GivenTwiceError(key)
        seen.add(key)


def _key_given_twice(line: bytes) -> str | None:
    try:
        json.loads(line, object_pairs_hook=_distinct, parse_int=str, parse_float=str)
    except _GivenTwiceError as error:
        return cast(str, error.args[0])[:40]
    except (ValueError, RecursionError):
        return "?"
    return None


def read_jsonl(stream: BinaryIO) -> Iterator[Item]:
    """Yield an item for each line of a buffered stream of bytes. The stream may be gzipped."""
    if cast(BufferedReader, stream).peek(2)[:2] == _gzip_magic:
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=stream, mode="rb"))
    number = 0
    bound = limits.trace_line_bytes_max
    while True:
        try:
            line = stream.readline(bound + 1)
            whole = len(line) <= bound
            ended = whole or line.endswith(b"\n")
            while not ended:
                rest = stream.readline(1 << 20)
                ended = not rest or rest.endswith(b"\n")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            yield number + 1, b"", Fault("unreadable_line", f"torn gzip stream: {error}")
            return
        if not line:
            return
        number += 1
        if number == 1:
            line = line.removeprefix(_byte_order_mark)
        if not whole:
            yield number, line[: limits.raw_text_bytes_max], Fault("unreadable_line", f"longer than {bound} bytes")
        elif text := line.strip(b" \t\r\n"):
            yield number, text[: limits.raw_text_bytes_max], decode(text)


_batch_rows = 16_384
_group_rows = 65_536
METADATA_KEY = b"antecede"
_folded = {b"antecede": b"json"}
_folded_decoder = msgspec.json.Decoder(dict[str, Any])


def pyarrow() -> Any:
    """Return the module ``pyarrow``; raise an error if it is not installed."""
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError:
        raise TraceError("Parquet needs pyarrow: install antecede[spark]") from None


def opened_file(file: IO[bytes] | str, where: str) -> tuple[Any, Any, Any]:
    """Return pyarrow, an open Parquet file and its schema."""
    pa = pyarrow()
    try:
        opened = pa.parquet.ParquetFile(file)
        return pa, opened, opened.schema_arrow
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TraceError(f"{where}: not a readable Parquet file: {one_line(error)}") from None


def read_parquet(file: IO[bytes], where: str, keep_raw: bool = True) -> tuple[Metadata | None, Iterator[Item]]:
    """Return the metadata of a Parquet file, if it has any, and its rows, numbered from 1.

    If ``keep_raw`` is true, each row also has its values as JSON text. (A Parquet file has no lines of text that could
    be shown.)

    Traces as Parquet files. They have the same columns as in JSON Lines, with the same or exactly equivalent types.

    A null means that the value is absent. pyarrow is imported only when a Parquet file is read or written. Columns that
    the schema does not name are read unchanged. On writing they are *folded*: stored as JSON in one column ``extra``.
    This column has a mark, so that a reader can restore the original columns.

    If a file is not Parquet, or its pages are damaged, it cannot be read at all. If a text in a column of the schema is
    not valid UTF-8, only its row is reported, as an unreadable line. If this happens in another column, the column is
    left out for all rows of the batch, and nothing is reported.
    """
    pa, opened, schema = opened_file(file, where)
    twice = [name for name in COLUMNS if schema.names.count(name) > 1]
    if twice:
        raise TraceError(f"{where}: column {twice[0]} is given twice")
    # Not the metadata of the schema, which is written before the rows are known.
    text = (opened.metadata.metadata or {}).get(METADATA_KEY)
    metadata = metadata_of(text, where) if text is not None else None
    return metadata, _rows(pa, opened, schema, where, keep_raw)


def _rows(pa: Any, opened: Any, schema: Any, where: str, keep_raw: bool) -> Iterator[Item]:
    folded = folded_in(schema)
    number = 0
    batches = opened.iter_batches(batch_size=_batch_rows)
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise TraceError(f"{where}: row {number + 1}: damaged Parquet file: {one_line(error)}") from None
        if batch is None:
            return
        for item in items_in(batch, folded, number + 1, keep_raw):
            number = item[0]
            yield item


def items_in(batch: Any, folded: Collection[str], first: int, keep_raw: bool) -> Iterator[Item]:
    """Yield the rows of one Arrow batch, numbered from ``first``. ``folded`` contains the names of the columns in
    which other columns are stored as JSON."""
    batch = conformed(batch)
    events = None if keep_raw else _plain_events(pyarrow(), batch, folded)
    if events is not None:
        yield from ((number, b"", event) for number, event in enumerate(events, first))
        return
    for number, row in enumerate(_dicts(pyarrow(), batch), first):
        if isinstance(row, Fault):
            yield number, b"", row
            continue
        row = _unfolded(row, folded)
        yield number, _raw(row) if keep_raw else b"", event_of(row)


def conformed(batch: Any) -> Any:
    """Return the batch with the column names and types of the trace schema. A column name that differs only in case is
    replaced, and a type that is exactly equivalent is converted.

    A timestamp in ``time`` becomes nanoseconds. An integer in ``message`` becomes a text. An unsigned integer in
    ``index`` becomes a signed integer; if a value is too large, only this value is reported as wrong. A decimal with 20
    digits in ``index`` also becomes a signed integer. But if one of these decimals is negative or has more than 64
    bits, the column is not converted, and every index in the batch is reported as wrong.
    """
    pa = pyarrow()
    other = case_matched(batch.schema.names)
    columns = [_exact(pa, other.get(name, name), batch.column(at)) for at, name in enumerate(batch.schema.names)]
    if not other and all(
        made is batch.column(at) or made.type == batch.column(at).type for at, made in enumerate(columns)
    ):
        return batch
    fields = [
        pa.field(other.get(field.name, field.name), column.type, metadata=field.metadata)
        for field, column in zip(batch.schema, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _exact(pa: Any, name: str, column: Any) -> Any:
    kind = column.type
    try:
        if name == "time" and pa.types.is_timestamp(kind):
            return _nanoseconds(pa, column)
        if name == "message" and pa.types.is_integer(kind):
            return column.cast(pa.string())
        if name == "index" and pa.types.is_uint64(kind):
            return column.cast(pa.int64())
        # An unsigned 64-bit column is a decimal of 20 digits in a DataFrame.
        if name == "index" and kind == pa.decimal128(20, 0):
            return _exact(pa, name, column.cast(pa.uint64()))
    except pa.ArrowInvalid:
        pass
    return column


def _nanoseconds(pa: Any, column: Any) -> Any:
    """Convert a column of timestamps to nanoseconds: to integers, or to decimals if one of the values needs more than
    64 bits."""
    kind = column.type
    try:
        return column.cast(pa.timestamp("ns", kind.tz)).cast(pa.int64())
    except pa.ArrowInvalid:
        factor = pa.scalar(Decimal(_nanoseconds_in[kind.unit]), pa.decimal128(10, 0))
        return import_module("pyarrow.compute").multiply(column.cast(pa.int64()).cast(pa.decimal128(19, 0)), factor)


def _plain_events(pa: Any, batch: Any, folded: Collection[str]) -> list[Event] | None:
    """Return the events of a batch if the batch is plain. If it is not plain, return ``None``. A plain batch has no
    errors and no ``clock``. It has only columns of the schema and, perhaps, one column in which other columns are
    stored as JSON.

    A plain batch is read column by column, because this is several times faster than row by row. For any other batch,
    :func:`event_of` examines the rows one by one and reports the errors.
    """
    given = zip(batch.schema.names, batch.columns, strict=True)
    columns = {name: column for name, column in given if column.null_count < len(column)}
    others = columns.keys() - _readers.keys()
    if len(others) > 1 or not others <= set(folded):
        return None
    if any(name not in columns or columns[name].null_count for name in ("process", "index", "kind")):
        return None
    readers = _readers | dict.fromkeys(others, _extras)
    try:
        found = {name: readers[name](pa, column) for name, column in columns.items()}
    except (pa.ArrowException, msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return None
    if others:
        found["extra"] = found.pop(others.pop())
    nothing = [None] * batch.num_rows
    if not KINDS.issuperset(found["kind"]) or min(found["index"]) < 0:
        return None
    if any(m is None and k != LOCAL for m, k in zip(found.get("message", nothing), found["kind"], strict=True)):
        return None
    # Columns after the last one that is there are left to their defaults, which is faster.
    used = Event.__struct_fields__[: 1 + max(map(Event.__struct_fields__.index, found))]
    return list(map(Event, *(found.get(name, nothing) for name in used)))


def _names(pa: Any, column: Any) -> list[Any]:
    """Return the texts of a column. Equal texts are the same Python object, which saves memory if texts repeat."""
    _require(pa.types.is_string(column.type))
    encoded = column.dictionary_encode()
    names = [intern(name) for name in encoded.dictionary.to_pylist()]
    return [None if code is None else names[code] for code in encoded.indices.to_pylist()]


def _typed(kind: str) -> Callable[[Any, Any], list[Any]]:
    """Return a reader for columns of one type. ``kind`` is the name of the function in ``pyarrow.types`` that tests for
    this type."""

    def read(pa: Any, column: Any) -> list[Any]:
        _require(getattr(pa.types, kind)(column.type))
        values: list[Any] = column.to_pylist()
        return values

    return read


_texts, _numbers, _flags = map(_typed, ("is_string", "is_int64", "is_boolean"))


def _lists(pa: Any, column: Any) -> list[tuple[str, ...] | None]:
    _require(pa.types.is_list(column.type))
    entries = column.flatten()
    _require(not entries.null_count)
    names = _names(pa, entries)
    lists: list[tuple[str, ...] | None] = []
    start = 0
    for length in column.value_lengths().to_pylist():
        if length is None:
            lists.append(None)
        else:
            lists.append(destinations(names[start : start + length]))
            start += length
    return lists


def _extras(pa: Any, column: Any) -> list[dict[str, Any] | None]:
    """Return, for each row, the extra columns that ``column`` stores as JSON. Raise TypeError if an extra column has
    the same name as a column of the schema. Upper and lower case are treated as equal."""
    found: list[dict[str, Any] | None] = []
    for text in _texts(pa, column):
        extra = _folded_decoder.decode(text) if text is not None else None
        if extra:
            _require(not any(name.lower() in COLUMNS for name in extra))
        found.append(extra or None)
    return found


_nanoseconds_in = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

_readers: dict[str, Callable[[Any, Any], list[Any]]] = {
    **{name: _texts for name in COLUMNS if name != "clock"},
    **dict.fromkeys(("process", "kind", "domain", "operation", "type", "notification"), _names),
    **dict.fromkeys(NUMBERS, _numbers),
    **dict.fromkeys(FLAGS, _flags),
    "to": _lists,
}


def _require(expected: bool) -> None:
    if not expected:
        raise TypeError


def folded_in(schema: Any) -> set[str]:
    """Return the names of those columns of a Parquet file that contain other columns, as JSON."""
    return {field.name for field in schema if field.metadata == _folded}


def _dicts(pa: Any, batch: Any) -> list[Any]:
    """Return the rows of a batch. If a value in a column of the schema is unreadable, its row becomes a
    :class:`Fault`."""
    failures = (pa.ArrowException, ValueError, OverflowError, TypeError)
    names = batch.schema.names
    known = batch.select([i for i, name in enumerate(names) if name in COLUMNS])
    try:
        rows: list[Any] = known.to_pylist()
    except failures:
        rows = []
        for i in range(batch.num_rows):
            try:
                rows += known.slice(i, 1).to_pylist()
            except failures as error:
                rows.append(Fault("unreadable_line", f"a value cannot be read: {one_line(error)}"))
    for i, name in enumerate(names):
        if name not in COLUMNS:
            try:
                values = batch.column(i).to_pylist()
            except failures:
                # This column is not used, so a value that Python cannot represent must not set the row aside.
                continue
            for row, value in zip(rows, values, strict=True):
                if not isinstance(row, Fault) and value is not None:
                    row[name] = value
    return rows


def _unfolded(row: dict[str, Any], folded: Collection[str]) -> dict[str, Any]:
    clock = row.get("clock")
    if type(clock) is list:
        # A map column comes as a list of pairs. A key given twice is ambiguous, so it stays a list: a wrong type.
        pairs = dict(clock) if all(type(pair) is tuple for pair in clock) else {}
        row["clock"] = pairs if len(pairs) == len(clock) else clock
    elif type(clock) is dict:
        # A struct column has a null for each entry that this row lacks.
        row["clock"] = {key: entry for key, entry in clock.items() if entry is not None}
    if type(row.get("time")) is Decimal and row["time"].as_tuple().exponent == 0:
        row["time"] = int(row["time"])
    for name in folded:
        text = row.pop(name, None)
        if text is not None:
            try:
                row.update((k, v) for k, v in msgspec.json.decode(text).items() if k not in COLUMNS)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, AttributeError, TypeError):
                row[name] = text
    return row


def _raw(row: dict[str, Any]) -> bytes:
    present = {name: value for name, value in row.items() if value is not None}
    try:
        text = msgspec.json.encode(present, enc_hook=repr)
    except (TypeError, ValueError, RecursionError):
        text = repr(present).encode("utf-8", "replace")
    return text[: limits.raw_text_bytes_max]


def one_line(error: Exception) -> str:
    """Return the first line of an error of pyarrow."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


class Rows:
    """Writes events to a Parquet file, in batches."""

    def __init__(self, raw: IO[bytes], metadata: Metadata | None) -> None:
        pa = self._pa = pyarrow()
        text, number = pa.string(), pa.int64()
        kinds: dict[str, Any] = dict.fromkeys(COLUMNS, text)
        kinds |= dict.fromkeys(NUMBERS, number) | dict.fromkeys(FLAGS, pa.bool_())
        kinds |= {"to": pa.list_(text), "clock": pa.map_(text, number)}
        fields = [pa.field(name, kinds[name], nullable=name not in COLUMNS[:3]) for name in COLUMNS]
        fields.append(pa.field("extra", text, metadata=_folded))
        schema_metadata = {METADATA_KEY: metadata_bytes(metadata)} if metadata is not None else None
        self._schema = pa.schema(fields, metadata=schema_metadata)
        self._writer = pa.parquet.ParquetWriter(raw, self._schema)
        self._events: list[Event] = []

    def write(self, event: Event) -> None:
        self._events.append(event)
        if len(self._events) >= _group_rows:
            self._flush()

    def say(self, key: bytes, value: bytes) -> None:
        """Add an entry to the file's own metadata."""
        self._writer.add_key_value_metadata({key: value})

    def _flush(self) -> None:
        if self._events:
            # Column by column, which is several times as fast as row by row.
            columns = [self._column(field) for field in self._schema]
            self._writer.write_batch(self._pa.RecordBatch.from_arrays(columns, schema=self._schema))
            self._events.clear()

    def _column(self, field: Any) -> Any:
        values: list[Any] = list(map(attrgetter(field.name), self._events))
        if values.count(None) == len(values):
            return self._pa.nulls(len(values), field.type)
        if field.name == "clock":
            values = [None if clock is None else sorted(clock.items()) for clock in values]
        elif field.name == "extra":
            values = [msgspec.json.encode(extra, order="deterministic").decode() if extra else None for extra in values]
        return self._pa.array(values, field.type)

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        self._events.clear()
        self._writer.close()


class _Lines:
    def __init__(self, raw: IO[bytes], gzipped: bool) -> None:
        # Without a name and a time, the bytes depend only on what is written.
        self._gzip = gzip.GzipFile("", "wb", 6, raw, mtime=0) if gzipped else None
        self._put = self._gzip.write if self._gzip else raw.write

    def write(self, event: Event) -> None:
        self._put(encode(event) + b"\n")

    def close(self) -> None:
        if self._gzip:
            self._gzip.close()

    abandon = close


class TraceWriter(AbstractContextManager["TraceWriter"]):
    """Writes a trace: ``with TraceWriter(path, metadata) as trace: trace.write(event)``.

    Writing a trace: the ending of the file name decides the format, and the file appears as a whole or not at all.

    ``.jsonl`` and ``.jsonl.gz`` (also ``.json``, ``.ndjson``) are JSON Lines, ``.parquet`` is Parquet. Events are
    written as they come, to a temporary file in the folder of the target. When the writer is closed without an error,
    the temporary file gets the name of the target. Metadata go into the Parquet file itself. The metadata of a JSON
    Lines file go into a separate file, ``FILE.meta.json``, in the same folder.
    """

    def __init__(self, path: str | os.PathLike[str], metadata: Metadata | None = None) -> None:
        self._path = Path(path)
        name = self._path.name.lower()
        is_parquet = name.endswith(".parquet")
        if not is_parquet and not name.endswith(_line_endings):
            raise UsageError(f"{self._path}: the name of a trace must end in .jsonl, .jsonl.gz or .parquet")
        self._temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        try:
            self._raw = open(self._temporary, "wb")  # noqa: SIM115 (it outlives this function)
        except OSError as error:
            raise TraceError(f"{self._path}: cannot be written: {error.strerror}") from None
        try:
            self._sink: _Lines | Rows = (
                Rows(self._raw, metadata) if is_parquet else _Lines(self._raw, name.endswith(".gz"))
            )
        except BaseException:
            self._discard()
            raise
        self.beside = None if is_parquet else metadata
        """The metadata that are written to ``FILE.meta.json`` when the writer is closed; ``None`` for Parquet."""
        self.events = 0
        """The number of events written."""

    def write(self, event: Event) -> None:
        """Append one event."""
        try:
            self._sink.write(event)
        except OSError as error:
            raise TraceError(f"{self._path}: cannot be written: {error.strerror}") from None
        self.events += 1

    def close(self) -> None:
        """Finish the temporary file. Write the metadata ``beside`` to their file, unless they are ``None``. Then rename
        the temporary file to the target."""
        try:
            self._sink.close()
            self._raw.close()
            if self.beside is not None:
                beside = self._path.with_name(self._path.name + ".meta.json")
                beside.write_bytes(metadata_bytes(self.beside) + b"\n")
            os.replace(self._temporary, self._path)
        except OSError as error:
            self._discard()
            raise TraceError(f"{self._path}: cannot be written: {error.strerror}") from None

    def abandon(self) -> None:
        """Remove the unfinished file."""
        try:
            # Data that a full disk did not take fails again here, which does not matter any more.
            with suppress(OSError):
                self._sink.abandon()
        finally:
            self._discard()

    def _discard(self) -> None:
        with suppress(OSError):
            self._raw.close()
        self._temporary.unlink(missing_ok=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


_line_endings = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".ndjson", ".ndjson.gz")


def write_trace(
    path: str | os.PathLike[str],
    events: Iterable[Event],
    metadata: Metadata | None = None,
    report_status: Callable[[str], None] = lambda text: None,
) -> int:
    """Write a whole trace; return the number of its events. After every 100,000 rows, ``report_status`` is called with
    a text that contains the number of rows written so far."""
    with TraceWriter(path, metadata) as trace:
        for event in events:
            trace.write(event)
            if trace.events % 100_000 == 0:
                report_status(f"{trace.events:,} rows written")
    return trace.events
