"""Divide the input into splits: pieces of files that tasks can read independently. Each row has a number in its file or
in its split.

A Parquet file is split at its row groups, and its rows are numbered in the file. A plain JSON Lines file can be split
at any byte: a line belongs to the split that contains the first byte of the line. A gzip stream is not split. Lines are
numbered within a split. The number of a line in its file is known only after the lines of all earlier splits have been
counted.

An input is a path on the machine that reads it, or an address that Arrow's file systems know (``s3://``, ``gs://``,
``hdfs://``, ``file://``). On a cluster the workers read the files, so each path must exist on every worker. Splits name
their files by absolute paths, because the tasks that read them have a different working directory.
"""

import io
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, cast
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from antecede import limits
from antecede.errors import TraceError
from antecede.trace import files as jsonl
from antecede.trace.files import conformed, folded_in
from antecede.trace.schema import COLUMNS, Fault, Metadata, case_matched, metadata_of
from antecede.trace.sources import (
    METADATA_BYTES_MAX,
    METADATA_ENDING,
    METADATA_NAME,
    is_trace_name,
    shown,
    trace_files,
)

batch_rows = 131_072
_items_at_once = 32_768
_piece = 1 << 20
_sample_bytes_max = 64 * _piece


class Split(msgspec.Struct, frozen=True):
    """A piece of one file."""

    number: int
    file: int
    path: str
    kind: str
    """``parquet``, ``lines`` or ``gzip`` for a piece of a file. ``batches`` for a partition of a DataFrame
    (:class:`Batches`)."""
    start: int
    """For a Parquet split, the number of its first row group. For a split of lines, the position of its first byte."""
    end: int
    first_row: int = 0
    """For a Parquet split, the number of its first row in the file. Splits of lines do not use this field, because
    their lines are numbered from the start of the split."""
    rows: int = 0
    """The number of rows of a Parquet split. It is 0 for other splits, because their rows are counted only while they
    are read."""
    name: str = ""
    """The name of the file as the user wrote it. This name is used in error messages, and in the file with the rows
    that were set aside."""


class Input(msgspec.Struct, frozen=True):
    """The files to read and their splits."""

    files: list[str]
    splits: list[Split]
    metadata: list[Metadata]
    bytes: int
    """The size of all files. For a gzip file, an estimate of the size of its text."""
    rows: int | None
    """The number of rows; ``None`` if it is known only after all files are read."""


def plan(paths: Sequence[str], tasks: int = 8, rows_max: int = 1_000_000, bytes_max: int = 64 * 1024 * 1024) -> Input:
    """Find the trace files at ``paths``, and divide them into splits. This reads only the first bytes of each file, the
    footer of each Parquet file, and the metadata files."""
    local = [path for path in paths if "://" not in path]
    files, metadata = trace_files(local) if local else ([], [])
    files += [file for path in paths if "://" in path for file in _remote(path, metadata)]
    names = [_named(path) for path in files]
    # Workers have a different working directory.
    files = [path if "://" in path else os.path.abspath(path) for path in files]
    splits: list[Split] = []
    size = rows = 0
    counted = True
    sizes = [_size(path) for path in files]
    share = max(1 << 20, min(bytes_max, sum(sizes) // max(1, tasks)))
    for number, path in enumerate(files):
        kind = _kind(path)
        size += _text_bytes(path, sizes[number]) if kind == "gzip" else sizes[number]
        if kind == "parquet":
            rows += _split_parquet(path, number, names[number], splits, metadata, rows_max)
        else:
            counted = False
            step = share if kind == "lines" else max(1, sizes[number])
            for start in range(0, max(1, sizes[number]), step):
                end = min(start + step, sizes[number])
                splits.append(Split(len(splits), number, path, kind, start, end, name=names[number]))
    return Input(names, splits, metadata, size, rows if counted else None)


def _split_parquet(
    path: str, file: int, name: str, splits: list[Split], metadata: list[Metadata], rows_max: int
) -> int:
    with _open(path) as stream:
        footer, schema = _footer(stream, name)
    twice = [column for column in COLUMNS if schema.names.count(column) > 1]
    if twice:
        raise TraceError(f"{name}: column {twice[0]} is given twice")
    text = (footer.metadata or {}).get(b"antecede")
    if text is not None:
        metadata.append(metadata_of(text, name))
    first = start = first_row = row = 0
    for group in range(footer.num_row_groups):
        row += footer.row_group(group).num_rows
        last = group + 1 == footer.num_row_groups
        if row - first_row >= rows_max // 2 or last:
            splits.append(Split(len(splits), file, path, "parquet", start, group + 1, first_row, row - first_row, name))
            start, first_row = group + 1, row
    return row - first


def _footer(stream: Any, where: str) -> tuple[Any, Any]:
    try:
        opened = pq.ParquetFile(stream)
        return opened.metadata, opened.schema_arrow
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TraceError(f"{where}: not a readable Parquet file: {_first_line(error)}") from None


def _kind(path: str) -> str:
    if path.lower().endswith(".parquet"):
        return "parquet"
    with _open(path) as stream:
        magic = stream.read(4)
    if magic == b"PAR1":
        return "parquet"
    return "gzip" if magic[:2] == b"\x1f\x8b" else "lines"


def _filesystem(path: str) -> tuple[Any, str]:
    if "://" not in path:
        return fs.LocalFileSystem(), path
    try:
        found, inner = fs.FileSystem.from_uri(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TraceError(f"{_named(path)}: cannot be read: {_first_line(error)}") from None
    return found, inner


def _named(path: str) -> str:
    """Return a path or an address in printable form. The name, the password and the settings in an address are left
    out, because they may be secret."""
    scheme, colon, rest = path.partition("://")
    if not colon:
        return shown(path)
    host, slash, inner = rest.partition("?")[0].partition("/")
    return shown(f"{scheme}://{host.rpartition('@')[2]}{slash}{unquote(inner)}")


def _open(path: str) -> Any:
    system, inner = _filesystem(path)
    try:
        return system.open_input_file(inner)
    except (OSError, pa.ArrowException) as error:
        raise TraceError(f"{_named(path)}: cannot be read: {_reason(error)}") from None


def _size(path: str) -> int:
    system, inner = _filesystem(path)
    try:
        about = system.get_file_info(inner)
    except (OSError, pa.ArrowException) as error:
        raise TraceError(f"{_named(path)}: cannot be read: {_reason(error)}") from None
    if about.type != fs.FileType.File:
        raise TraceError(f"{_named(path)}: not a regular file: copy it to a regular file, which can be read in pieces")
    return int(about.size)


def _text_bytes(path: str, size: int) -> int:
    """Estimate the size of the text in a gzip file of this size, from the beginning of the file."""
    with _open(path) as stream:
        packed = stream.read(_piece)
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        text = unpacker.decompress(packed, _sample_bytes_max)
    except zlib.error:
        # The task that reads the file reports the damage.
        return size
    used = len(packed) - len(unpacker.unconsumed_tail) - len(unpacker.unused_data)
    return max(size, size * len(text) // max(1, used))


def _remote(address: str, metadata: list[Metadata]) -> list[str]:
    """Return the trace files at an address, which may be a directory. Add the metadata in separate files. The rules are
    those of :func:`antecede.trace.sources.trace_files`."""
    system, inner = _filesystem(address)
    if isinstance(system, fs.LocalFileSystem):
        # Arrow's own directory walk does not end if a link leads back to a parent directory.
        files, found = trace_files([inner])
        metadata += found
        return [f"file://{quote(os.path.abspath(path))}" for path in files]
    try:
        about = system.get_file_info(inner)
        below = (
            system.get_file_info(fs.FileSelector(inner, recursive=True)) if about.type == fs.FileType.Directory else []
        )
    except (OSError, pa.ArrowException) as error:
        raise TraceError(f"{_named(address)}: cannot be read: {_reason(error)}") from None
    if about.type == fs.FileType.File:
        # A store that may not be listed refuses to say that a file is missing.
        with suppress(OSError):
            if system.get_file_info(inner + METADATA_ENDING).is_file:
                metadata.append(_metadata_at(_address(address, METADATA_ENDING)))
        return [address]
    # The path of each file below the directory.
    names = sorted(one.path.removeprefix(inner.rstrip("/")).lstrip("/") for one in below if one.is_file)
    files = [
        name
        for name in names
        if is_trace_name(os.path.basename(name)) and not any(part[0] in "._" for part in name.split("/"))
    ]
    if not files:
        raise TraceError(f"{_named(address)}: found no trace files there, such as .jsonl or .parquet files")
    wanted = {METADATA_NAME, *(name + METADATA_ENDING for name in files)}
    metadata += [_metadata_at(_address(address, f"/{name}")) for name in names if name in wanted]
    return [_address(address, f"/{name}") for name in files]


def _address(address: str, more: str) -> str:
    """Return an address with this text after its path. The settings after a question mark stay at the end."""
    path, question, settings = address.partition("?")
    return (path.rstrip("/") if more[0] == "/" else path) + quote(more) + question + settings


def _metadata_at(address: str) -> Metadata:
    with _open(address) as stream:
        text = stream.read(METADATA_BYTES_MAX + 1)
    if len(text) > METADATA_BYTES_MAX:
        raise TraceError(f"{_named(address)}: metadata is longer than {METADATA_BYTES_MAX} bytes")
    return metadata_of(text, _named(address))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


class Arrow(msgspec.Struct):
    """An Arrow batch from a Parquet file or from a partition of a DataFrame. ``first`` is the number of the batch's
    first row in the file or partition, from 0."""

    batch: Any
    first: int
    folded: set[str]
    plain: bool


class Batches(Split, frozen=True):
    """A split that has already been read: a partition of a DataFrame, as Arrow batches."""

    batches: Any = ()


def read(split: Split, columns: Sequence[str] = COLUMNS, keep_raw: bool = False) -> Iterator[Arrow | list[jsonl.Item]]:
    """Yield the rows of a split. A Parquet file or a DataFrame yields Arrow batches. Other files yield lists with one
    item per line, numbered within the split."""
    if isinstance(split, Batches):
        yield from _read_batches(split.batches)
    elif split.kind == "parquet":
        yield from _read_parquet(split, columns, keep_raw)
    else:
        yield from _read_lines(split)


def _read_batches(batches: Iterable[Any]) -> Iterator[Arrow]:
    from antecede.pipeline.read.columns import plain_types

    row = 0
    for given in batches:
        batch = conformed(given)
        yield Arrow(batch, row, folded_in(given.schema), plain_types(batch.schema))
        row += batch.num_rows


def _read_parquet(split: Split, columns: Sequence[str], keep_raw: bool) -> Iterator[Arrow]:
    from antecede.pipeline.read.columns import plain_types

    where = split.name or shown(split.path)
    with _open(split.path) as stream:
        try:
            footer = pq.read_metadata(stream)
            schema = footer.schema.to_arrow_schema()
            texts = [
                name
                for name in ("process", "kind")
                if name in schema.names and pa.types.is_string(schema.field(name).type)
            ]
            encoded = [*texts, *_destinations(schema, footer)]
            opened = pq.ParquetFile(stream, metadata=footer, read_dictionary=encoded)
            wanted = None if keep_raw else _needed(opened.metadata, schema, columns, range(split.start, split.end))
            # Read one row group at a time: the reader cannot join the dictionaries of a nested column across groups.
            batches = (
                batch
                for group in range(split.start, split.end)
                for batch in opened.iter_batches(
                    batch_size=batch_rows, row_groups=[group], columns=wanted, use_threads=False
                )
            )
            row = split.first_row
            # The types of the columns come from the file's schema, since some columns may not have been read.
            nothing = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
            plain = plain_types(conformed(nothing).schema)
            for given in batches:
                batch = conformed(given)
                yield Arrow(batch, row, folded_in(schema), plain and plain_types(batch.schema))
                row += batch.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            raise TraceError(f"{where}: damaged Parquet file: {_first_line(error)}") from None


def _destinations(schema: Any, footer: Any) -> list[str]:
    """Return the Parquet path of the entries in the column ``to``, for example ``["to.list.element"]``. Return an empty
    list if ``to`` is not a column with lists of texts. The path is read from the file's footer, because different
    writers give the entries of a list different names."""
    if "to" not in schema.names or not pa.types.is_list(schema.field("to").type):
        return []
    if not pa.types.is_string(schema.field("to").type.value_type):
        return []
    paths = [footer.schema.column(i).path for i in range(footer.num_columns)]
    return [path for path in paths if path.startswith("to.")]


def _needed(footer: Any, schema: Any, columns: Sequence[str], groups: range) -> list[str]:
    """Return the columns to read: the given columns that the file has. Leave out a column if the footer shows that all
    its values in these row groups are null. Never leave out ``process``, ``index`` and ``kind`` for this reason."""
    silent = set()
    names = {column: name for name, column in case_matched(schema.names).items()}
    columns = [names.get(column, column) for column in columns]
    always = {names.get(column, column) for column in ("process", "index", "kind")}
    for name in columns:
        if name not in schema.names or name in always:
            continue
        leaves = [
            i for i in range(footer.num_columns) if footer.row_group(0).column(i).path_in_schema.split(".")[0] == name
        ]
        if all(_is_null(footer.row_group(g).column(i)) for g in groups for i in leaves):
            silent.add(name)
    return [name for name in columns if name in schema.names and name not in silent]


def _is_null(chunk: Any) -> bool:
    about = chunk.statistics
    # An empty list counts as a null of its leaf. So only for flat columns does the count show that all values are null.
    flat = "." not in chunk.path_in_schema
    return flat and about is not None and about.has_null_count and about.null_count == chunk.num_values


def _read_lines(split: Split) -> Iterator[list[jsonl.Item]]:
    with _open(split.path) as stream:
        raw = io.BufferedReader(_Readable(stream), _piece)
        if split.kind == "gzip":
            source: Iterator[jsonl.Item] = jsonl.read_jsonl(cast(BinaryIO, raw))
        elif split.start == 0 and split.end >= stream.size():
            source = jsonl.read_jsonl(cast(BinaryIO, raw))
        else:
            source = _range(raw, split)
        held: list[jsonl.Item] = []
        size = 0
        for item in source:
            held.append(item)
            size += len(item[1])
            if len(held) >= _items_at_once or size > 64 * _piece:
                yield held
                held, size = [], 0
        if held:
            yield held


class _Readable(io.RawIOBase):
    """An Arrow file as a raw stream of Python's ``io`` module."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())


def _range(stream: Any, split: Split) -> Iterator[jsonl.Item]:
    """Yield one item for each line of a split, but no items for blank lines. A line belongs to the split if the first
    byte of the line is at ``start`` or later, but before ``end``."""
    bound = limits.trace_line_bytes_max
    position = split.start
    if split.start:
        # Begin with the byte before the start: if it ends a line, the first line of this split begins at the start.
        stream.seek(split.start - 1)
        position -= 1
        ended = False
        while not ended:
            rest = stream.readline(_piece)
            position += len(rest)
            ended = not rest or rest.endswith(b"\n")
    number = 0
    while position < split.end:
        line = stream.readline(bound + 1)
        if not line:
            return
        position += len(line)
        whole = len(line) <= bound
        ended = whole or line.endswith(b"\n")
        while not ended:
            rest = stream.readline(_piece)
            position += len(rest)
            ended = not rest or rest.endswith(b"\n")
        number += 1
        if split.start == 0 and number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not whole:
            yield number, line[: limits.raw_text_bytes_max], Fault("unreadable_line", f"longer than {bound} bytes")
        elif text := line.strip(b" \t\r\n"):
            yield number, text[: limits.raw_text_bytes_max], jsonl.decode(text)


def line_before(split: Split) -> int:
    """Return how many lines of the file come before the first line of a split. Return 0 for a Parquet split, because
    its rows are numbered in the file."""
    if split.kind != "lines" or not split.start:
        return 0
    count = 0
    with _open(split.path) as stream:
        left = split.start - 1
        while left:
            piece = stream.read(min(left, _piece))
            count += piece.count(b"\n")
            left -= len(piece)
    # Count the end of line after which the split begins: there is one in [start - 1, …), or the split has no lines.
    return count + 1
