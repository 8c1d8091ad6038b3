"""Tools for a trial of a server without a network: a transport that only stores what the server writes, a handler for
the server's log messages, and a function that measures memory."""

import asyncio
import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from antecede import limits


class Nowhere(asyncio.Transport):
    """A transport without a network. It stores what the server writes, up to a bound, and never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.written = bytearray()

    def write(self, data: Any) -> None:
        if len(self.written) < _written_bytes_max:
            self.written += data

    def close(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        # The other end closes as soon as nothing more will come.
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return


def feed(end: asyncio.BufferedProtocol, data: bytes) -> None:
    """Give bytes to one end of a connection, as if they came from the network."""
    while data:
        memory = memoryview(end.get_buffer(-1))
        part = data[: len(memory)]
        memory[: len(part)] = part
        end.buffer_updated(len(part))
        data = data[len(part) :]


def resident_mib(pid: int | str = "self") -> int:
    """Return the memory that a process uses now, in MiB, or 0 if the operating system does not report it. The default
    is the current process."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() >> 20
    except OSError:
        return 0


class ReasonHandler(logging.Handler):
    """A log handler that keeps the reasons and the exceptions of log messages."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: set[str] = set()
        self.exceptions: list[str] = []

    def has_reason(self, reason: str) -> bool:
        """Return whether a log message had this reason. A log message may contain only a part of a reason: the
        beginning, if the reason is long, or the text after "is stopped:", if the reason is about a stopped link. Such a
        part is enough."""
        shown = reason[: limits.log_text_chars_max] + "…"
        stopped = reason.partition(" is stopped: ")[2] or reason
        return not self.reasons.isdisjoint({reason, shown, stopped})

    def emit(self, record: logging.LogRecord) -> None:
        self.reasons.add(str(getattr(record, "fields", {}).get("reason", "")))
        if record.exc_info:
            self.exceptions.append(self.format(record))


@contextmanager
def listening() -> Iterator[ReasonHandler]:
    """Capture the log messages of servers, and hide them from other handlers."""
    logger = logging.getLogger("antecede")
    before = (logger.handlers, logger.propagate, logger.level)
    handler = ReasonHandler()
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        logger.handlers, logger.propagate = before[0], before[1]
        logger.setLevel(before[2])


_written_bytes_max = 1 << 20
