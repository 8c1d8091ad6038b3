"""Writing a trace: the ending of the file name decides the format, and the file appears as a whole or not at all.

``.jsonl`` and ``.jsonl.gz`` (also ``.json``, ``.ndjson``) are JSON Lines, ``.parquet`` is Parquet. Events are written
as they come, to a temporary file in the folder of the target. When the writer is closed without an error, the temporary
file gets the name of the target. Metadata go into the Parquet file itself. The metadata of a JSON Lines file go into a
separate file, ``FILE.meta.json``, in the same folder.
"""

import gzip
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO

from antecede.errors import TraceError, UsageError
from antecede.trace import jsonl, parquet
from antecede.trace.schema import Event, Metadata, metadata_bytes


class _Lines:
    def __init__(self, raw: IO[bytes], gzipped: bool) -> None:
        # Without a name and a time, the bytes depend only on what is written.
        self._gzip = gzip.GzipFile("", "wb", 6, raw, mtime=0) if gzipped else None
        self._put = self._gzip.write if self._gzip else raw.write

    def write(self, event: Event) -> None:
        self._put(jsonl.encode(event) + b"\n")

    def close(self) -> None:
        if self._gzip:
            self._gzip.close()

    abandon = close


class TraceWriter(AbstractContextManager["TraceWriter"]):
    """Writes a trace: ``with TraceWriter(path, metadata) as trace: trace.write(event)``."""

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
            self._sink: _Lines | parquet.Rows = (
                parquet.Rows(self._raw, metadata) if is_parquet else _Lines(self._raw, name.endswith(".gz"))
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
