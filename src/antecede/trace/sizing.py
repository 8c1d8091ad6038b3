"""Estimate the size of a trace: the numbers of its events and processes. The estimate uses the size of each file and
the beginning of some files.

A Parquet file records its number of rows. For a text file, the length of the first lines shows the approximate number
of rows. If there are many files, only some text files are examined in this way; in the others, a row is assumed to
have 100 bytes. The processes of the first rows are a sample. Two numbers are counted: the processes in the first half
of the sample, and the new processes in the second half. To estimate the processes of the whole trace, the trace is
divided into parts, each as long as half of the sample. From each part to the next, the number of new processes is
assumed to change by the same factor.
"""

import gzip
import os
import re
import zlib
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec

from antecede.errors import TraceError
from antecede.trace.sources import shown, trace_files

_sample_bytes = 256 * 1024
_sample_rows = 4_096
_files_sampled = 16
_gzip_factor = 10
_row_bytes = 100
_process = re.compile(rb'"process"\s*:\s*"([^"]{0,200})"', re.IGNORECASE)


class Size(msgspec.Struct, frozen=True):
    """The estimated size of a trace; it is not exact."""

    events: int
    processes: int


def size_of(paths: list[str]) -> Size:
    """Estimate the size of a trace. Standard input and pipes are treated as empty, because their size is not known
    before they are read."""
    files = [path for path in trace_files(paths)[0] if path != "-" and os.path.isfile(path)]
    events = looked = 0
    first: set[Any] = set()
    later: set[Any] = set()
    every = max(1, len(files) // _files_sampled)
    for number, path in enumerate(files):
        try:
            size = os.path.getsize(path)
            rows, names = _sample(path, size, number % every == 0)
        except (OSError, EOFError, zlib.error) as error:
            raise TraceError(f"{shown(path)}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
        events += rows
        looked += len(names)
        half = len(names) // 2
        first.update(names[:half])
        later.update(names[half:])
    if not looked:
        return Size(events, 0)
    return Size(events, _extrapolated(len(first), len(later - first), events / max(1.0, looked / 2)))


def _extrapolated(first: int, fresh: int, halves: float) -> int:
    """Estimate the number of processes of a whole trace from a sample. The first half of the sample has ``first``
    processes. The second half has ``fresh`` processes that are not in the first half. ``halves`` is the length of the
    whole trace, divided by the length of one half of the sample.

    The trace is divided into parts, each as long as one half of the sample. From each part to the next, the number of
    new processes is assumed to change by the same factor. The factor is 1 if new processes replace old ones all the
    time, and smaller than 1 if the same processes occur again and again.
    """
    if not first or fresh >= first:
        return first + int(fresh * max(0.0, halves - 1))
    factor = fresh / first
    left: float = factor ** max(2.0, halves)
    return round(first * (1 - left) / (1 - factor))


def _sample(path: str, size: int, wanted: bool) -> tuple[int, list[Any]]:
    """Return the approximate number of rows of a file, and the processes of its first rows. For a text file, the
    first rows are read only if ``wanted`` is true. Otherwise no processes are returned, and a row is assumed to have
    100 bytes."""
    with open(path, "rb") as stream:
        magic = stream.read(4)
        if magic == b"PAR1":
            return _parquet(path, size) if find_spec("pyarrow") is not None else (size // 30, [])
        if not wanted:
            return size * (_gzip_factor if magic[:2] == b"\x1f\x8b" else 1) // _row_bytes, []
        stream.seek(0)
        if magic[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=stream) as text:
                head = text.read(_sample_bytes)
            size *= _gzip_factor
        else:
            head = stream.read(_sample_bytes)
    lines = head.count(b"\n") or 1
    return size * lines // max(1, len(head)), _process.findall(head)


def _parquet(path: str, size: int) -> tuple[int, list[Any]]:
    pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    try:
        file = pq.ParquetFile(path)
        name = next((name for name in file.schema_arrow.names if name.lower() == "process"), None)
        rows: Iterable[Any] = file.iter_batches(_sample_rows, columns=[name]) if name is not None else ()
        batch = next(iter(rows), None)
        return file.metadata.num_rows, batch.column(0).to_pylist() if batch is not None else []
    except (pa.ArrowException, OSError, ValueError):
        # The reader of the file will report what is wrong with it.
        return size // 30, []
