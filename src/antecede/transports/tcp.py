"""Frames over TCP, with or without TLS (asyncio).

Everything that is handed over in one call leaves in one write. Nagle's algorithm is off: whoever sends has gathered
what there was to gather. A peer that does not read makes the write buffer grow up to its bound; then the connection
says that it is full, and its owner stops writing. Bytes that are no frames end the connection with the reason.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from errno import EADDRINUSE
from typing import cast

from antecede import limits
from antecede.errors import UsageError, WireError
from antecede.transports.contract import Receiver
from antecede.wire import VERSION_OLDEST, Bye, Part, Unframer, frames


class TcpConnection(asyncio.Protocol):
    """One end of a TCP connection; see :class:`antecede.transports.contract.Connection`."""

    def __init__(self, opened: "Callable[[TcpConnection], Receiver]") -> None:
        self.remote = "?"
        self.full = False
        self._opened = opened
        self._unframer = Unframer(limits.hello_bytes_max)
        self._loop = asyncio.get_running_loop()
        self._heard = self.spoke = self._loop.time()
        self._version = VERSION_OLDEST
        self._held = False
        self._expects_a_reader = False
        self._deaf = False
        self.reason = ""
        """Why this end closed it."""
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.remote = _shown(transport.get_extra_info("peername"))
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport.set_write_buffer_limits(high=limits.write_buffer_bytes_max)
        self._receiver = self._opened(self)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        if self._closing:
            return
        try:
            parts = self._unframer.feed(data)
            if parts:
                self._receiver.received(parts)
        except WireError as error:
            self.close(str(error))

    def pause_writing(self) -> None:
        self.full = True
        self._attend()

    def resume_writing(self) -> None:
        self.full = False
        self._attend()
        if not self._closing:
            self._receiver.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._receiver.closed(self.reason or (str(exc) if exc else "the other end hung up"))

    # What the owner calls.

    def send(self, parts: Sequence[Part]) -> None:
        if self._closing:
            return
        self.spoke = self._loop.time()
        for written in frames(parts, self._version):
            self._transport.write(written)

    def close(self, reason: str, final: bool = False) -> None:
        if self._closing:
            return
        self.reason = reason
        self.send([Bye(reason[:_reason_chars], final)])
        self._closing = True
        self._transport.close()
        # An end that does not read keeps what was written, and with it the connection: it gets a little time.
        self._loop.call_later(_linger_seconds, self._transport.abort)

    def trust(self) -> None:
        self._unframer.bytes_max = limits.frame_bytes_max

    def speak(self, version: int) -> None:
        self._version = version

    def hold(self, held: bool) -> None:
        self._held = held
        self._attend()

    def expect_a_reader(self, expected: bool) -> None:
        self._expects_a_reader = expected
        self._attend()

    def _attend(self) -> None:
        """Read or don't."""
        deaf = self._held or (self.full and self._expects_a_reader)
        if self._closing or deaf == self._deaf:
            return
        self._deaf = deaf
        if deaf:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    @property
    def heard(self) -> float:
        """Whom we don't listen to is not silent."""
        return self._loop.time() if self._deaf else self._heard


async def listen(
    opened: Callable[[TcpConnection], Receiver], host: str, port: int, tls: ssl.SSLContext | None = None
) -> asyncio.Server:
    """Listen; every connection that is made is handed to ``opened``."""
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(lambda: TcpConnection(opened), host, port, ssl=tls, backlog=256)
    except OSError as error:
        if error.errno == EADDRINUSE:
            # asyncio puts the address into its text as well.
            why = "address already in use; is another antecede up or serve running?"
            raise UsageError(f"cannot listen on {host}:{port}: {why}") from None
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


async def dial(
    opened: Callable[[TcpConnection], Receiver], host: str, port: int, tls: ssl.SSLContext | None = None
) -> TcpConnection:
    """Connect to a listener; ``OSError`` if nobody is there."""
    loop = asyncio.get_running_loop()
    connecting = loop.create_connection(
        lambda: TcpConnection(opened), host, port, ssl=tls, server_hostname=host if tls else None
    )
    # Not ``wait_for``: before Python 3.12 it forgets that it was cancelled if the connection fails at that moment.
    async with asyncio.timeout(limits.hello_seconds_max):
        _, protocol = await connecting
    return protocol


def _shown(peer: object) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "?"


_linger_seconds = 1.0
_reason_chars = 1_000
