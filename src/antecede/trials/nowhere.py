"""The other end of a connection without a network: it accepts written data up to a bound, and answers nothing. Also
measures this process's memory, to see what such connections leave."""

import asyncio
import resource
from pathlib import Path
from typing import Any


class Nowhere(asyncio.Transport):
    """The other end of a connection without a network."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.written = bytearray()

    def write(self, data: Any) -> None:
        if len(self.written) < _heard_bytes_max:
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
    """Let an end read these bytes."""
    while data:
        memory = memoryview(end.get_buffer(-1))
        part = data[: len(memory)]
        memory[: len(part)] = part
        end.buffer_updated(len(part))
        data = data[len(part) :]


def resident_mib(pid: int | str = "self") -> int:
    """Return the memory of a process now, by default of this one; 0 if the operating system does not report it."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() >> 20
    except OSError:
        return 0


_heard_bytes_max = 1 << 20
