"""Read the events at the user's paths (files, directories, patterns, ``-``), and remember the file and line of each
event.

For a directory, the trace files in it and below it are read, in the order of their paths. Symbolic links are followed.
Names that begin with a dot or an underscore are skipped. Metadata files are not read as trace files. A file is read
only once, even if several paths name it. The first bytes show whether a file is Parquet or gzipped. A file named
``….parquet`` must be Parquet.
"""

import glob
import gzip
import os
import re
import sys
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from antecede.errors import TraceError
from antecede.trace import files as jsonl
from antecede.trace import files as parquet
from antecede.trace.schema import Event, Fault, Metadata, Nulled, metadata_of

_endings = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".json", ".json.gz", ".parquet")
_wanted = f"files ending in {', '.join(_endings)}, nor a server's data directory"
METADATA_NAME = "antecede.json"
METADATA_ENDING = ".meta.json"
METADATA_BYTES_MAX = 64 * 1024 * 1024
"""The largest size of a metadata file. It is large because the file may list many processes for each epoch (a period
with one topology)."""


class SetAside(msgspec.Struct, frozen=True):
    """A row that was set aside, that is, a row that is not judged: its file, its line and the reason."""

    file: str
    line: int
    reason: str
    detail: str
    raw: str


class Loaded:
    """Everything that was read: events in reading order, and the rows that are not events."""

    def __init__(self, keep_raw: bool, keep: Callable[[Event], bool] | None = None, used: Collection[str] = ()) -> None:
        self._keep = keep
        self.events: list[Event] = []
        self.files: list[str] = []
        self.metadata: list[Metadata] = []
        self.outside = 0
        """The number of events that were read and rejected by ``keep``."""
        self.reasons: Counter[str] = Counter()
        """The number of rows that are not events, by reason."""
        self.unread_first: dict[str, str] = {}
        """For each reason in ``reasons``, the first row with this reason, as the text ``FILE:LINE: ERROR``."""
        self.nulled = Nulled(used)
        """The counts, by column, of the values that were read as null because their type was wrong."""
        self.nulled_first: dict[str, str] = {}
        """For each column, the first value of a wrong type that was read as null, as the text ``FILE:LINE: ERROR``."""
        self.placed: list[Fault] = []
        """The rows that are not events, but whose process and index are known."""
        self.set_aside: list[SetAside] = []
        """All rows that are not events, with their text; empty unless ``keep_raw`` is set."""
        self._keep_raw = keep_raw
        self._file_of = array("l")
        self._line_of = array("q")
        self._raw_of: list[bytes] = []

    @property
    def rows(self) -> int:
        """The number of all rows that were read, events or not."""
        return len(self.events) + self.outside + sum(self.reasons.values())

    def describe(self, event: int, reason: str) -> SetAside:
        """Describe an event that is set aside for this reason. ``event`` is its position in ``events``."""
        raw = self._raw_of[event] if self._keep_raw else b""
        file = self.files[self._file_of[event]]
        return SetAside(file, self._line_of[event], reason, "", raw.decode("utf-8", "replace"))

    def take(self, name: str, stream: BinaryIO) -> None:
        """Read one file to its end."""
        metadata, items = _items(name, stream, self._keep_raw)
        if metadata is not None:
            self.metadata.append(metadata)
        file = len(self.files)
        self.files.append(name)
        for line, raw, read in items:
            item = self.nulled.take(line, read)
            if item is not read:
                for column, (number, detail) in self.nulled.first.items():
                    self.nulled_first.setdefault(column, f"{name}:{number}: {detail}")
            if isinstance(item, Event):
                if self._keep is not None and not self._keep(item):
                    self.outside += 1
                    continue
                self.events.append(item)
                self._file_of.append(file)
                self._line_of.append(line)
                if self._keep_raw:
                    self._raw_of.append(raw)
                continue
            self.reasons[item.reason] += 1
            self.unread_first.setdefault(item.reason, f"{name}:{line}: {item.detail}")
            if item.process is not None:
                self.placed.append(item)
            if self._keep_raw:
                text = raw.decode("utf-8", "replace")
                self.set_aside.append(SetAside(name, line, item.reason, item.detail, text))


def load(
    paths: Sequence[str | os.PathLike[str]],
    keep_raw: bool = False,
    keep: Callable[[Event], bool] | None = None,
    used: Collection[str] = (),
) -> Loaded:
    """Read everything at the paths, and leave out the events that ``keep`` rejects.

    ``used`` contains the names of the columns that the caller needs. If a value in one of these columns has a wrong
    type, its row is not an event. In all other columns, a value of a wrong type is read as null.
    """
    loaded = Loaded(keep_raw, keep, used)
    for path in _files(paths, loaded.metadata):
        try:
            if path == "-":
                loaded.take("<stdin>", sys.stdin.buffer)
            else:
                _read_metadata(path + METADATA_ENDING, loaded.metadata)
                with open(path, "rb") as stream:
                    loaded.take(shown(path), stream)
        except OSError as error:
            raise TraceError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None
    return loaded


def _items(name: str, stream: BinaryIO, keep_raw: bool) -> tuple[Metadata | None, Iterator[jsonl.Item]]:
    """Return two values: the metadata inside a file (None if the file contains no metadata), and the rows of the
    file."""
    if name.lower().endswith(".parquet") or cast(BufferedReader, stream).peek(4)[:4] == b"PAR1":
        if not stream.seekable():
            raise TraceError(f"{name}: Parquet cannot be read from a pipe; give a file")
        return parquet.read_parquet(stream, name, keep_raw)
    return None, jsonl.read_jsonl(stream)


def events_in(path: str) -> Iterator[Event]:
    """Yield the events of one file, in the order of the file. Duplicates and contradictions are not detected."""
    try:
        with open(path, "rb") as stream:
            for _, _, item in _items(shown(path), stream, False)[1]:
                if isinstance(item, Event):
                    yield item
    except OSError as error:
        raise TraceError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None


def _files(paths: Sequence[str | os.PathLike[str]], metadata: list[Metadata]) -> Iterator[str]:
    def below(directory: str) -> list[str]:
        _read_metadata(os.path.join(directory, METADATA_NAME), metadata)
        return files_below(directory, is_trace_name, f"no trace in this directory: neither {_wanted}")

    seen: set[str] = set()
    for _, file, real in expanded(paths, below, _is_metadata):
        if real not in seen:
            seen.add(real)
            yield file


def expanded(
    paths: Sequence[str | os.PathLike[str]],
    below: Callable[[str], list[str]],
    ignored: Callable[[str], bool] = lambda name: False,
) -> Iterator[tuple[str, str, str]]:
    """Yield a tuple (path, file, real path of the file) for every file that one of the paths names. For the path ``-``,
    all three are ``-``.

    ``below`` returns the files of a directory. A path may be a pattern with wildcards. A file that matches the pattern
    is left out if ``ignored`` returns true for its name.
    """
    for given in paths:
        path = os.fspath(given)
        if "\0" in path:
            raise TraceError(f"{path!r} is not a path")
        for file in _expanded(path, below, ignored):
            yield path, file, "-" if file == "-" else os.path.realpath(file)


def _expanded(path: str, below: Callable[[str], list[str]], ignored: Callable[[str], bool]) -> list[str]:
    if os.path.isdir(path):
        return below(path)
    # A pipe or a device can be read if it can be opened.
    if path == "-" or os.path.exists(path):
        return [path]
    if not glob.has_magic(path):
        raise TraceError(f"{shown(path)}: no such file or directory")
    found = []
    for match in sorted(glob.glob(path, recursive=True)):
        if os.path.isdir(match):
            found += below(match)
        elif not ignored(os.path.basename(match)):
            found.append(match)
    if not found:
        raise TraceError(f"{shown(path)}: no file matches this pattern")
    return found


def files_below(directory: str, wanted: Callable[[str], bool], otherwise: str) -> list[str]:
    """Search a directory and all folders below it. Return the files with a name that ``wanted`` accepts. If there
    are no such files, raise an error with the text ``otherwise``."""
    found = [os.path.join(folder, name) for folder, _, names in folders_of(directory) for name in names if wanted(name)]
    if not found:
        raise TraceError(f"{shown(directory)}: {otherwise}")
    return sorted(found)


def folders_of(directory: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a directory like ``os.walk``, but sorted by name. Follow symbolic links, and visit each folder once.

    Names that begin with a dot or an underscore are skipped. A folder that cannot be read, or a link to nothing, is an
    error, because otherwise the verdict would leave out a part of the trace without notice.
    """

    def refuse(error: OSError) -> None:
        raise TraceError(f"{shown(str(error.filename))}: cannot be read: {error.strerror}")

    seen = {os.path.realpath(directory)}
    for folder, folders, names in os.walk(directory, onerror=refuse, followlinks=True):
        names[:] = sorted(name for name in names if name[0] not in "._")
        for name in names:
            path = os.path.join(folder, name)
            if os.path.islink(path) and not os.path.exists(path):
                raise TraceError(f"{shown(path)}: cannot be read: this symbolic link leads nowhere")
        fresh = []
        for name in sorted(name for name in folders if name[0] not in "._"):
            real = os.path.realpath(os.path.join(folder, name))
            if real not in seen:
                seen.add(real)
                fresh.append(name)
        # In place, because os.walk reads this list.
        folders[:] = fresh
        yield folder, folders, names


def is_trace_name(name: str) -> bool:
    """Return whether a file with this name in a directory is part of a trace."""
    return name[0] not in "._" and name.lower().endswith(_endings) and not _is_metadata(name)


def _is_metadata(name: str) -> bool:
    return name == METADATA_NAME or name.endswith(METADATA_ENDING)


def _read_metadata(path: str, metadata: list[Metadata]) -> None:
    if not os.path.isfile(path):
        return
    with open(path, "rb") as stream:
        text = stream.read(METADATA_BYTES_MAX + 1)
    if len(text) > METADATA_BYTES_MAX:
        raise TraceError(f"{shown(path)}: metadata is longer than {METADATA_BYTES_MAX} bytes")
    metadata.append(metadata_of(text, shown(path)))


def shown(path: str | Path) -> str:
    """Return a path in printable form, whatever bytes it contains."""
    return os.fsencode(path).decode("utf-8", "replace")


def trace_files(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[str], list[Metadata]]:
    """Return the files that the paths name (``-`` is standard input), and the metadata in separate files. Metadata are
    read from ``antecede.json`` in a directory that the paths name, and from ``FILE.meta.json`` next to each file."""
    metadata: list[Metadata] = []
    files = []
    for path in _files(paths, metadata):
        if path != "-":
            _read_metadata(path + METADATA_ENDING, metadata)
        files.append(path)
    return files, metadata


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
    """Estimate the size of a trace: the numbers of its events and processes. The estimate uses the size of each file
    and the beginning of some files. Standard input and pipes are treated as empty, because their size is not known
    before they are read.

    A Parquet file records its number of rows. For a text file, the length of the first lines shows the approximate
    number of rows. If there are many files, only some text files are examined in this way; in the others, a row is
    assumed to have 100 bytes. The processes of the first rows are a sample. Two numbers are counted: the processes in
    the first half of the sample, and the new processes in the second half. To estimate the processes of the whole
    trace, the trace is divided into parts, each as long as half of the sample. From each part to the next, the number
    of new processes is assumed to change by the same factor.
    """
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


class Cut(msgspec.Struct, frozen=True):
    """The selected rows: the rows of the given processes with ``since`` ≤ time < ``until``. A field that is None
    restricts nothing.

    A row without a time is in every range. A row that cannot be read is not checked against the selection. It is always
    counted in the report.

    A part of a trace. The part can be limited to a range of time, to some processes, or to both.

    If rows are left out, happened-before may no longer hold for some pairs of events, but it never holds for additional
    pairs. So every violation that is still found is real. Violations that depend on rows outside the part are not
    found. A delivery whose send is outside the part is reported as an orphan, and the indices of rows outside the part
    are reported as missing.
    """

    since: int | None = None
    until: int | None = None
    processes: tuple[str, ...] | None = None

    def keeps(self, event: Event) -> bool:
        """Return whether an event is selected."""
        if self.processes is not None and event.process not in self.processes:
            return False
        if event.time is None:
            return True
        return (self.since is None or event.time >= self.since) and (self.until is None or event.time < self.until)

    def __bool__(self) -> bool:
        return self != Cut()
