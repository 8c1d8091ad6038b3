"""Make a trace from the data directories of servers. The trace consists of their Parquet files, and of JSON Lines files
with the rest of their logs.

:func:`gathered` takes the paths that a user gives as a trace. It replaces each data directory at or below a path by two
kinds of files: the converted Parquet files, and a temporary file with the rows that are only in the log. Any engine can
read these files. All other paths stay as they are.

**Servers may be running.** Their logs are read one after the other. So a delivery may be found without its send. For
example, server A commits a send after its log was read. The delivery of this message is then in the log of server B,
which is read later. Therefore all logs are read twice. When the first reading ends, the sends of all deliveries that it
found are in the logs. So the second reading finds the sends that the first one missed. But the second reading also
finds new deliveries, and their sends may be missing in the same way. So each new delivery becomes a ``local`` row of
its process. The result is a consistent cut: it has the send of every delivery.

If a segment is converted and deleted between the two readings, everything is read again.
"""

import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from antecede.errors import StoreError
from antecede.recording.segments import Recording, pieces_in
from antecede.store.directory import IDENTITY, numbered
from antecede.trace import DELIVER, LOCAL, Event, TraceWriter
from antecede.trace.sources import folders_of, is_trace_name

_tries = 5


@contextmanager
def gathered(paths: Sequence[str]) -> Iterator[list[str]]:
    """Replace the data directories at or below ``paths`` by files with their rows, and yield the resulting paths. Some
    of these files are temporary, and are deleted when the context ends."""
    directories: list[str] = []
    others: list[str] = []
    for path in paths:
        for one in _matches(path):
            below, beside = _sort_out(one)
            directories += below
            others += beside if below else [one]
    if not directories:
        yield list(paths)
        return
    distinct = list({os.path.realpath(directory): directory for directory in directories}.values())
    with TemporaryDirectory(prefix="antecede-trace-") as scratch:
        yield others + _read(distinct, scratch)


def is_data_directory(path: str) -> bool:
    """Return whether this is the data directory of a server."""
    try:
        names = os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        # It may belong to a server, and a verdict without its rows would cover less than was requested.
        raise StoreError(f"{error.filename}: {error.strerror}") from None
    return IDENTITY in names and bool(numbered(names, "segment"))


def _matches(path: str) -> list[str]:
    if path == "-" or "\0" in path or "://" in path or os.path.exists(path) or not glob.has_magic(path):
        return [path]
    found = sorted(glob.glob(path, recursive=True))
    # Without a directory among them, the reader of patterns handles them.
    return found if any(map(os.path.isdir, found)) else [path]


def _sort_out(path: str) -> tuple[list[str], list[str]]:
    """Return the data directories at or below a path, and the trace files below the path that are not in a data
    directory."""
    if "\0" in path or not os.path.isdir(path):
        return [], []

    below: list[str] = []
    beside: list[str] = []
    for folder, folders, names in folders_of(path):
        if is_data_directory(folder):
            below.append(folder)
            folders.clear()
            continue
        beside += [os.path.join(folder, name) for name in names if is_trace_name(name)]
    return below, beside


def _read(directories: list[str], scratch: str) -> list[str]:
    for left in reversed(range(_tries)):
        recordings: list[Recording] = []
        try:
            recordings += map(Recording, directories)
            return _spill(recordings, scratch)
        except StoreError:
            moved = any(pieces_in(one.directory) != one.pieces for one in recordings)
            if not moved or not left:
                raise
    raise AssertionError("unreachable: the last try returns or raises")


def _spill(recordings: list[Recording], scratch: str) -> list[str]:
    """Write the rows that are only in logs to files in ``scratch``. Return the paths of these files and of the
    Parquet files."""
    paths: list[str] = []
    with ExitStack() as stack:
        writers: list[TraceWriter] = []
        for number, recording in enumerate(recordings):
            name = f"{number:03d}-{os.path.basename(os.path.abspath(recording.directory))}.jsonl"
            writers.append(stack.enter_context(TraceWriter(os.path.join(scratch, name))))
            paths += [*(piece.path for piece in recording.pieces), os.path.join(scratch, name)]
        for recording, writer in zip(recordings, writers, strict=True):
            for row in recording.rows():
                writer.write(row)
        for recording, writer in zip(recordings, writers, strict=True):
            for row in recording.rows():
                writer.write(_without_delivery(row))
            writer.beside = recording.metadata
    return paths


def _without_delivery(row: Event) -> Event:
    return row if row.kind != DELIVER else replace(row, kind=LOCAL, message=None, dead=None)
