"""The trace in one server's data directory: first the rows that were converted to Parquet, then the rest of the log.

A *segment* is one file of the log. It is closed when the server writes to a later segment. The folder ``trace/`` in the
data directory has the rows of closed segments, one file per segment::

    trace/begun                                  empty; shows that a trace was begun
    trace/events-00000000000000123456.parquet    the rows after the previous file, up to record 123456

The metadata of each Parquet file contain the **place** where the file ends: the number of the last record, and the data
to continue the trace there (for example, the next index of each process). The rows and the place become durable by one
rename. So the next conversion neither skips a row nor writes a row twice. The rest of the log begins after the place of
the newest file. It can be read even while the server writes the log, because only complete groups of records are read.

The first record of a log contains the name of the server. A server with ``--trace`` deletes a segment of its log only
when the rows of the segment are in a Parquet file. So if the next record that the trace needs is not in the log, the
server ran without ``--trace``. Such a directory is rejected with an error, because its rows could not be numbered.
"""

import glob
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from tempfile import TemporaryDirectory

import msgspec
from msgspec.structs import replace

from antecede import __version__
from antecede.errors import AntecedeError, StoreError, TraceError, UsageError
from antecede.server.items import Began, decode_record, joined
from antecede.server.projection import Projection
from antecede.store import Files, read_records
from antecede.store.directory import IDENTITY, TEMPORARY, identity_of, named, numbered, write_file
from antecede.trace import DELIVER, LOCAL, Event, Metadata, TraceWriter
from antecede.trace.sources import folders_of, is_trace_name

RECORDED_BY = "antecede serve"
"""The name of the program that recorded a server's trace. The metadata contain this name, followed by the program's
version."""
FOLDER = "trace"
BEGUN = "begun"
"""An empty file in the folder of a trace. A backup contains it, so that the restored server continues the trace."""
PLACE_KEY = b"antecede.place"
"""The key in a Parquet file's metadata under which the :class:`Place` of the file is stored."""

CONVERTER = "antecede.recording.converting"
"""The module of the process that converts closed segments."""
CONVERTER_BUSY = 75
"""The exit code of the converting process if another conversion is already running."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The point in a log where the converted part ends, with all data that is needed to continue the trace after it."""

    server: str
    upto: int
    """The number of the last record whose rows are in the trace."""
    projection: bytes


class Piece(msgspec.Struct, frozen=True):
    """One of the Parquet files in the trace of a data directory, with the rows up to record ``upto``."""

    path: str
    upto: int


def check_converter() -> None:
    """Raise UsageError if closed segments cannot be converted, because pyarrow is not installed."""
    # Not imported: the server itself does not need it.
    if find_spec("pyarrow") is None:
        raise UsageError("a trace needs pyarrow: install antecede[spark]")


def piece_name(upto: int) -> str:
    """Return the name of the Parquet file that ends with the rows of record ``upto``."""
    return f"events-{upto:020d}.parquet"


def pieces_in(directory: str) -> list[Piece]:
    """Return the Parquet files of the trace in a data directory, oldest first. The files themselves are not read, only
    their names."""
    folder = os.path.join(directory, FOLDER)
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}") from None
    found = [(int(match[1]), name) for name in names if (match := _piece.fullmatch(name))]
    return [Piece(os.path.join(folder, name), upto) for upto, name in sorted(found)]


def place_of(piece: Piece) -> Place:
    """Return the place that is stored in the metadata of a Parquet file."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise TraceError(f"{piece.path}: Parquet needs pyarrow: install antecede[spark]") from None
    try:
        metadata = parquet.read_metadata(piece.path).metadata or {}
        place = msgspec.msgpack.decode(metadata[PLACE_KEY], type=Place)
    except (OSError, ValueError, KeyError, msgspec.MsgspecError) as error:
        reason = (
            str(error).splitlines()[0]
            if isinstance(error, (OSError, ValueError))
            else "the metadata key antecede.place is missing or damaged"
        )
        raise TraceError(f"{piece.path}: cannot find the last record of this file: {reason[:200]}") from None
    if place.upto != piece.upto:
        raise TraceError(f"{piece.path}: the file ends with record {place.upto}, but its name has another number")
    return place


def begin(directory: str) -> None:
    """Make the folder of a trace in a data directory, unless it exists."""
    files, folder = Files(), f"{directory}/{FOLDER}"
    with named(folder):
        if not os.path.isdir(folder):
            files.make_directory(folder)
            files.sync_directory(directory)
        if not os.path.exists(f"{folder}/{BEGUN}"):
            write_file(files, folder, BEGUN, b"")


def is_begun(directory: str) -> bool:
    """Return whether this data directory has a trace. If it has one, the server must continue the trace."""
    return os.path.isdir(f"{directory}/{FOLDER}")


def tidy(directory: str, files: Files | None = None) -> None:
    """Remove the temporary files of an interrupted conversion. This must not be called while a conversion is
    running."""
    files = files or Files()
    folder = f"{directory}/{FOLDER}"
    for name in files.names(folder):
        if name.startswith("events-") and name.endswith(TEMPORARY):
            files.unlink(f"{folder}/{name}")


class Recording:
    """Reads the rows of a data directory that are not yet converted to Parquet, and remembers how far it has read."""

    def __init__(self, directory: str, files: Files | None = None) -> None:
        self.directory = directory
        self._files = files or Files()
        try:
            self._incarnation = identity_of(self._files, directory).incarnation
        except OSError as error:
            raise StoreError(f"{directory}: {error.strerror}") from None
        self.pieces = pieces_in(directory)
        self.upto = 0
        """The number of the last record whose rows are in a Parquet file or were yielded by :meth:`rows`."""
        self._projection: Projection | None = None
        if self.pieces:
            place = place_of(self.pieces[-1])
            self.upto = place.upto
            self._begin(place.server).load(place.projection)

    def rows(self, until: int | None = None) -> Iterator[Event]:
        """Yield the rows of all complete records after record ``self.upto``, up to record ``until``. By default,
        continue to the end of the log."""
        first = self.upto + 1
        records = read_records(self.directory, self.upto, until, self._files)
        at = 0

        def stored() -> Iterator[bytes]:
            nonlocal at, first
            for number, record in records:
                if first and number != first:
                    raise StoreError(
                        f"{self.directory}: the log begins with record {number}, but the trace needs record {first}: "
                        "this server ran without --trace"
                    )
                first = 0
                at = number
                yield record

        for record in joined(stored()):
            projection = self._projection or self._begin(self._server_of(record))
            yield from projection.rows(record)
            self.upto = at

    def indices(self) -> dict[str, int]:
        """Read to the end of the log. For each process, return the index of its next row."""
        for _ in self.rows():
            pass
        return {} if self._projection is None else dict(self._projection.indices)

    @property
    def metadata(self) -> Metadata:
        """The metadata of the rows that were read so far."""
        recorded_by, projection = f"{RECORDED_BY} {__version__}", self._projection
        if projection is None:
            return Metadata(recorded_by=recorded_by)
        epochs = msgspec.to_builtins(projection.epochs) or None
        topology = msgspec.json.decode(projection.file.canonical()) if epochs and projection.file is not None else None
        return Metadata(topology=topology, conflicts=projection.conflicts, recorded_by=recorded_by, epochs=epochs)

    def place(self) -> Place:
        """Return the point in the log after the rows that were read so far. The next reading must continue there."""
        assert self._projection is not None, "nothing was read"
        return Place(self._projection.server, self.upto, self._projection.save())

    def _begin(self, server: str) -> Projection:
        self._projection = Projection(server, self._incarnation)
        return self._projection

    def _server_of(self, record: bytes) -> str:
        items = decode_record(record)
        if not items or not isinstance(items[0], Began):
            raise StoreError(f"{self.directory}: this is not a server's log")
        return items[0].server


def next_indices(directory: str, addresses: list[str]) -> dict[str, int]:
    """For each process in ``addresses``, return the index of its next row in the trace of a data directory. Return an
    empty dictionary if the rows cannot be read, for example because some records are neither in the log nor in the
    trace."""
    try:
        indices = Recording(directory).indices()
    except AntecedeError:
        # Nothing was recorded, so there is nothing to continue.
        return {}
    return {address: indices.get(address, 0) for address in addresses}


_piece = re.compile(r"events-(\d{20,})\.parquet")


# Make a trace from the data directories of servers. The trace consists of their Parquet files, and of JSON Lines
# files with the rest of their logs.
#
# :func:`gathered` takes the paths that a user gives as a trace. It replaces each data directory at or below a path by
# two kinds of files: the converted Parquet files, and a temporary file with the rows that are only in the log. Any
# engine can read these files. All other paths stay as they are.
#
# **Servers may be running.** Their logs are read one after the other. So a delivery may be found without its send.
# For example, server A commits a send after its log was read. The delivery of this message is then in the log of
# server B, which is read later. Therefore all logs are read twice. When the first reading ends, the sends of all
# deliveries that it found are in the logs. So the second reading finds the sends that the first one missed. But the
# second reading also finds new deliveries, and their sends may be missing in the same way. So each new delivery
# becomes a ``local`` row of its process. The result is a consistent cut: it has the send of every delivery.
#
# If a segment is converted and deleted between the two readings, everything is read again.


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
