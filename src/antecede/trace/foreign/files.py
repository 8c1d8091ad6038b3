"""Select foreign files, read them with bounded memory, and count what cannot be read.

A file may be gzipped, whatever its name. Lines longer than ``foreign_line_bytes_max`` are skipped, and a document
longer than ``foreign_document_bytes_max`` is refused. So memory is bounded for any input. If a gzip stream is damaged
or incomplete, everything before the damage is read, and the rest is counted as one unreadable line.
"""

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, Final

import msgspec

from antecede import limits
from antecede.errors import TraceError, UsageError
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
    """One open file: its name for error messages, its first bytes, and methods to read it by lines or as a whole."""

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
