"""Record the messages of any program as a trace: one row for each message sent, and one for each message received.

    me = Recorder("traces/orders.jsonl")          # the process is called orders
    me.sent("order-17", to="billing")             # before the message leaves
    me.delivered("payment-5")                     # when the application gets it

``antecede verify traces`` then judges whether FIFO and causal order were kept. A :class:`Recorder` records one process.
In a trace, a *process* is one sequence of events. :class:`Recording` is a folder with one recorder for each process.

* **Threads and tasks** may share a recorder. The recorder holds a lock while a row gets its index and is written. The
  thread that holds the lock waits only for the operating system. A forked child cannot use its parent's recorder,
  because both processes would write the same indices.
* **After a kill** the trace is readable: each row is one ``write`` to the end of the file, and nothing is buffered in
  the program. (A power cut may lose rows, because nothing is synced.) The next recorder of the same file removes an
  incomplete last line and continues the index without a gap.
* **Parquet** files cannot be extended row by row. So the rows of ``orders.parquet`` are lines of ``orders.jsonl`` while
  the recorder is open, and become Parquet when it is closed. A reader of the folder finds the rows in either form.

This module knows files and rows. It must not know who sends the messages, or how.
"""

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from hashlib import blake2s
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote
from uuid import UUID

import msgspec

from antecede import limits
from antecede.errors import TraceError, UsageError
from antecede.trace import files
from antecede.trace.files import write_trace
from antecede.trace.schema import ARRIVE, DELIVER, LOCAL, SEND, Event, Mended, brief, event_of, is_count
from antecede.trace.sources import events_in, shown

__all__ = ["Recorder", "Recording"]

Id = str | int | UUID
"""An id of a message; in the trace it is a text."""

_modes: Final = ("a", "w", "x")
_encode = msgspec.json.Encoder().encode
_open: "weakref.WeakSet[Recorder]" = weakref.WeakSet()
_given: Final = ("process", "index", "kind", "message", "to")
"""The columns that the recorder writes itself. A caller must not pass them as named values."""


class Recorder(AbstractContextManager["Recorder"]):
    """Writes the events of one process to one file."""

    def __init__(self, path: str | os.PathLike[str], process: str | None = None, *, mode: str = "a") -> None:
        """Open ``path``, which ends in ``.jsonl`` or ``.parquet``. By default the process has the name of the file
        without this ending.

        ``mode`` has the same meaning as for ``open``. If the file exists, ``a`` continues it, ``w`` empties it, and
        ``x`` raises an error.
        """
        self.path = Path(path)
        if self.path.suffix not in (".jsonl", ".parquet"):
            raise UsageError(f"{shown(self.path)}: expected a file name that ends in .jsonl or .parquet")
        if mode not in _modes:
            raise UsageError(f"mode {mode!r}: expected one of {', '.join(_modes)}")
        self.process = self.path.stem if process is None else _process(process)
        self._lock = threading.Lock()
        self._ended = ""
        """The reason why no more rows are accepted; empty while rows are accepted."""
        self._lines = self.path.with_suffix(".jsonl")
        if self.path.suffix == ".parquet":
            from antecede.trace.files import pyarrow

            pyarrow()
        self._file = self._opened(mode)
        try:
            self._kept = self._packed(mode)
            """The number of rows that were already in the Parquet file when it was opened."""
            self._index = 0
            self._resume()
        except BaseException:
            os.close(self._file)
            raise
        _open.add(self)
        self._finalizer = weakref.finalize(self, _close_quietly, self._file)
        self._finalizer.atexit = False

    @property
    def events(self) -> int:
        """The number of rows of this process so far, which is also the index of its next row."""
        return self._index

    def sent(self, message: Id | None = None, to: str | Iterable[str] | None = None, **more: Any) -> str:
        """Record that this process sends a message. Call this method before the message leaves.

        ``message`` is an id that no other message has. The default id consists of the name of the process and the index
        of the row. ``to`` names the receiving processes; by default they are unknown. Other named values become columns
        of the row. The method returns the id, which must travel with the message.
        """
        return self._record(SEND, message, to, more)

    def delivered(self, message: Id, **more: Any) -> None:
        """Record that the application of this process gets a message."""
        self._record(DELIVER, _named(message), None, more)

    def arrived(self, message: Id, **more: Any) -> None:
        """Record that a message has reached this process, but not yet its application. The command ``measure`` uses
        such rows to show how many messages were held before their delivery."""
        self._record(ARRIVE, _named(message), None, more)

    def local(self, **more: Any) -> None:
        """Record an event without a message."""
        self._record(LOCAL, None, None, more)

    def close(self) -> None:
        """Close the recorder, so that it accepts no more rows. If the file is a Parquet file, write it now. A second
        call has no effect."""
        with self._lock:
            if self._ended:
                return
            self._ended = "the recorder is closed"
            try:
                if self.path.suffix == ".parquet":
                    self._pack()
            finally:
                self._finalizer.detach()
                _close_quietly(self._file)

    def _record(self, kind: str, message: Id | None, to: str | Iterable[str] | None, more: dict[str, Any]) -> str:
        if self._ended:
            raise UsageError(f"{shown(self.path)}: {self._ended}")
        with self._lock:
            if self._ended:
                raise UsageError(f"{shown(self.path)}: {self._ended}")
            index = self._index
            row: dict[str, Any] = {"process": self.process, "index": index, "kind": kind}
            if kind != LOCAL:
                row["message"] = f"{self.process}:{index}" if message is None else _named(message)
            if to is not None:
                row["to"] = _receivers(to)
            row["time"] = time.time_ns()
            if more:
                _add(row, more)
            line = _line(row)
            try:
                written = os.write(self._file, line)
                if written != len(line):
                    raise OSError(None, "the disk is full")
                self._index = index + 1
            except BaseException as error:
                # A part of the line may have been written, and an interrupt may have come after the write.
                self._resume()
                if isinstance(error, OSError):
                    raise TraceError(f"{shown(self._lines)}: cannot be written: {error.strerror}") from None
                raise
            return cast("str", row.get("message", ""))

    def _opened(self, mode: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | (os.O_EXCL if mode == "x" else 0)
        try:
            if mode == "x" and self.path.exists():
                raise FileExistsError(None, "the file exists already")
            self._lines.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._lines, flags, 0o666)
        except OSError as error:
            raise TraceError(f"{shown(self.path)}: cannot be opened for recording: {error.strerror}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise TraceError(f"{shown(self.path)}: another recorder writes to this file") from None
        if mode == "w":
            os.ftruncate(file, 0)
        return file

    def _packed(self, mode: str) -> int:
        if self.path.suffix != ".parquet" or not self.path.exists():
            return 0
        if mode == "w":
            self.path.unlink()
            return 0
        kept = 0
        for event in events_in(str(self.path)):
            self._own(event)
            kept = max(kept, event.index + 1)
        return kept

    def _own(self, event: Event) -> None:
        if event.process != self.process:
            raise TraceError(
                f"{shown(self.path)}: has rows of process {event.process!r}, not of {self.process!r}: "
                "give each process its own file"
            )

    def _resume(self) -> None:
        """Remove an incomplete last line, and find the index of the next row."""
        end = os.fstat(self._file).st_size
        whole, last, torn = _last_line(self._file, end)
        # After a power cut, a file may end with zeros that were never written.
        begin = torn.rstrip(b"\0")[: len(_row_begin)]
        if not _row_begin.startswith(begin) or len(torn) > limits.trace_line_bytes_max:
            raise TraceError(f"{shown(self._lines)}: the last line is not a row of a trace, nor the beginning of one")
        if torn:
            os.ftruncate(self._file, whole)
        self._index = self._kept
        if last:
            row = files.decode(last)
            if not isinstance(row, Event):
                raise TraceError(f"{shown(self._lines)}: the last line is not a row of a trace: {row.detail}")
            self._own(row)
            self._index = max(self._kept, row.index + 1)

    def _pack(self) -> None:
        """Write all rows to the Parquet file, if there are any, and remove the JSON Lines file."""
        rows = [*events_in(str(self.path))] if self._kept else []
        rows += [event for event in events_in(str(self._lines)) if event.index >= self._kept]
        if rows:
            write_trace(self.path, rows)
        self._lines.unlink(missing_ok=True)

    def __fspath__(self) -> str:
        return str(self.path)

    def __exit__(self, *_: object) -> None:
        self.close()


class Recording(AbstractContextManager["Recording"]):
    """A folder with one recorder for each process: ``Recording("traces").process("ann").sent(…)``."""

    def __init__(self, folder: str | os.PathLike[str], *, mode: str = "a", parquet: bool = False) -> None:
        if mode not in _modes:
            raise UsageError(f"mode {mode!r}: expected one of {', '.join(_modes)}")
        self.folder = Path(folder)
        self._mode = mode
        self._ending = ".parquet" if parquet else ".jsonl"
        self._lock = threading.Lock()
        self._recorders: dict[str, Recorder] = {}

    @property
    def events(self) -> int:
        """The number of rows so far, of all processes for which :meth:`process` was called."""
        return sum(recorder.events for recorder in self._recorders.values())

    def process(self, name: str) -> Recorder:
        """Return the recorder of the process with this name; the first call opens its file."""
        with self._lock:
            recorder = self._recorders.get(name)
            if recorder is None:
                path = self.folder / (_file_name(_process(name)) + self._ending)
                recorder = self._recorders[name] = Recorder(path, name, mode=self._mode)
            return recorder

    def close(self) -> None:
        """Close all recorders."""
        with self._lock:
            for recorder in self._recorders.values():
                recorder.close()

    def __fspath__(self) -> str:
        return str(self.folder)

    def __exit__(self, *_: object) -> None:
        self.close()


def _named(message: Any) -> str:
    if type(message) is str:
        return message
    if type(message) is int or isinstance(message, str | UUID):
        return str(message)
    raise UsageError(f"message {message!r}: expected an id: a text, a number or a UUID")


def _process(name: Any) -> str:
    if type(name) is not str or not name:
        raise UsageError(f"process {name!r}: expected a name: a text that is not empty")
    return name


def _receivers(to: Any) -> list[str]:
    if isinstance(to, str):
        return [to]
    names = list(to) if isinstance(to, Iterable) else [to]
    for name in names:
        if type(name) is not str:
            raise UsageError(f"to={to!r}: expected a name of a process, or a list of names")
    return names


def _add(row: dict[str, Any], more: dict[str, Any]) -> None:
    """Add the named values to a row. Raise an error if a reader of the trace would reject the row or change a value in
    it."""
    for name in more:
        if name in _given:
            raise UsageError(f"{name}=…: the recorder writes this column itself; leave it out")
    row.update(more)
    checked = event_of(row)
    if not isinstance(checked, Event):
        raise UsageError(checked.detail)
    if isinstance(checked, Mended):
        raise UsageError(checked.nulled[0][1])
    size = row.get("bytes")
    if size is not None and not is_count(size):
        # The schema does not name this column, but ``measure`` would ignore such a size.
        raise UsageError(f"bytes={brief(size)}: expected an int64, 0 or more")


def _line(row: dict[str, Any]) -> bytes:
    try:
        line = _encode(row) + b"\n"
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"a row cannot be written as JSON: {error}") from None
    if len(line) > limits.trace_line_bytes_max:
        raise UsageError(f"a row of {len(line)} bytes: expected at most {limits.trace_line_bytes_max}")
    return line


_row_begin: Final = b'{"process":'


def _last_line(file: int, end: int) -> tuple[int, bytes, bytes]:
    """Return the total length of the complete lines in a file, the last complete line, and the incomplete line after
    it. If the file has no complete line, the first two values are 0 and an empty line. ``end``: the size of the
    file."""
    tail = b""
    start = end
    while start and tail.count(b"\n") < 2 and len(tail) <= 2 * limits.trace_line_bytes_max:
        step = min(start, 64 * 1024)
        start -= step
        tail = os.pread(file, step, start) + tail
    whole, newline, torn = tail.rpartition(b"\n")
    if not newline:
        return 0, b"", torn
    return end - len(torn), whole.rpartition(b"\n")[2], torn


def _file_name(process: str) -> str:
    """Return the file name for a process, without the ending. The name of the process may have any characters and any
    length."""
    name = quote(process, safe=" @+=,")
    if len(name) > 200:
        name = f"{name[:150]}-{blake2s(process.encode('utf-8', 'replace'), digest_size=8).hexdigest()}"
    return f"%{ord(name[0]):02X}{name[1:]}" if name[:1] in (".", "_") else name


def _close_quietly(file: int) -> None:
    with suppress(OSError):
        os.close(file)


def _close_in_child() -> None:
    """After a fork, close the files of the parent's recorders in the child process. Otherwise the child would keep the
    parent's file locks after the parent has ended."""
    for recorder in list(_open):
        if not recorder._ended:
            recorder._ended = "this recorder belongs to the parent process: open another one after the fork"
            recorder._lock = threading.Lock()
            recorder._finalizer.detach()
            _close_quietly(recorder._file)


os.register_at_fork(after_in_child=_close_in_child)
