"""Frames over TCP, with or without TLS (asyncio).

One call of ``send`` writes all its parts (:class:`antecede.wire.Part`) in one frame, unless they are too long for one
frame. Nagle's algorithm is off, because the sender has already batched its output. If the input contains bytes that are
not frames, this end sends an error text to the other end and closes the connection.

If the other end does not read, the write buffer grows to its limit, and the connection reports that it is full. A
client then stops writing to its server, and a server stops writing to another server. A server continues to write to a
client, but it reads nothing more from this client until the client reads.

This module accepts connections itself, because it must count a connection before the TLS handshake. The event loop
would start the handshake first.
"""

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import EADDRINUSE, EMFILE, ENFILE
from typing import cast

from antecede import limits
from antecede.errors import UsageError, WireError
from antecede.server.admission import Admission, ConnectionSlot
from antecede.server.connections import Receiver, break_off, serials
from antecede.wire import AnyPart, Bye, Part, Unframer, frames


class TcpConnection(asyncio.Protocol, asyncio.BufferedProtocol):
    """One end of a TCP connection; see :class:`antecede.server.connections.Connection`.

    uvloop reads into its own memory and calls ``data_received``. The event loop of asyncio gets a buffer from
    ``get_buffer``. Otherwise it would allocate memory for each read.
    """

    def __init__(self, opened: "Callable[[TcpConnection], Receiver]", slot: ConnectionSlot | None = None) -> None:
        """``slot``: the entry of this connection among the server's incoming connections. It is None if this end opened
        the connection."""
        self.remote = "?"
        self.binding = b""
        self.certified: tuple[str, ...] = ()
        self.serial = next(serials)
        self._slot = slot
        self._among: set[TcpConnection] | None = None
        self.full = False
        self._opened = opened
        self._unframer = Unframer()
        self._loop = asyncio.get_running_loop()
        self._input = _input_buffer()
        self._last_received = self.last_sent = self._loop.time()
        self._held = self._busy = False
        self._expects_a_reader = False
        self._reading_paused = False
        self.reason = self.code = ""
        """The reason why this end closed the connection, and a code for this reason. Both are empty if this end has not
        closed the connection. Some reasons have no code; then only the code is empty."""
        self._closing = self._end_reported = self._trusted = self._lost = False
        self._receiver: Receiver = _nobody
        self._linger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.remote = peer_text(transport.get_extra_info("peername"))
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.binding, self.certified = tls_identity(transport.get_extra_info("ssl_object"))
        self._transport.set_write_buffer_limits(high=limits.write_buffer_bytes_max)
        if self._slot is not None:
            self._slot.drop = self._drop
        receiver = self._opened(self)
        if self._lost:
            receiver.closed(self.reason, self._loop.time())
        else:
            self._receiver = receiver

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._input

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._input[:nbytes]))

    def data_received(self, data: bytes) -> None:
        self._last_received = self._loop.time()
        if self._closing:
            return
        unframer, slot = self._unframer, self._slot
        try:
            parts = unframer.feed(data)
            while parts:
                self._receiver.received(parts)
                if self._closing:
                    return
                parts = unframer.more() if unframer.pending else []
        except WireError as error:
            break_off(self, error, client=slot is not None and slot.is_client)
            return
        if slot is not None and len(unframer.pending) != slot.unfinished:
            slot.set_unfinished(len(unframer.pending))

    def pause_writing(self) -> None:
        self.full = True
        self._update_reading()

    def resume_writing(self) -> None:
        self.full = False
        self._update_reading()
        if not self._closing:
            self._receiver.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lost:
            return
        self._closing = self._lost = True
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._among is not None:
            self._among.discard(self)
        if self._slot is not None:
            self._slot.left()
        self._ended(self.reason or (str(exc) if exc else ""))
        # Without cycles it is freed now. With many strangers (connections before their hello) the garbage collector
        # would often stop the server.
        self._receiver = _nobody
        if self._slot is not None:
            self._slot.drop = _too_late

    def _ended(self, reason: str) -> None:
        """Notify the receiver that the connection has ended. Only the first call has an effect."""
        if not self._end_reported:
            self._end_reported = True
            self._receiver.closed(reason, self._loop.time())

    def _drop(self, reason: str, code: str) -> None:
        """Close this connection to make room for others."""
        self.close(reason, code=code)

    def copied(self) -> None:
        """Let this process have no part in the connection: it is a copy of the process that has the connection."""
        connected = self._transport.get_extra_info("socket")
        if connected is not None:
            disconnect(connected.fileno())

    # Called by the owner.

    def join(self, connections: "set[TcpConnection]") -> None:
        """Add this connection to the connections of a server; it is removed when both directions have ended."""
        self._among = connections
        connections.add(self)

    def send(self, parts: Sequence[Part]) -> None:
        if self._closing:
            return
        self.last_sent = self._loop.time()
        try:
            for written in frames(parts):
                self._transport.write(written)
        except RuntimeError as error:
            # uvloop raises this for a connection that it has closed by itself, for example because there was no file
            # descriptor for it, and need not call connection_lost.
            self.connection_lost(error)

    def close(self, reason: str, final: bool = False, code: str = "") -> None:
        if self._closing:
            return
        self.reason, self.code = reason, code
        self.send([Bye(reason[:_reason_chars], final, code)])
        if self._closing:
            return
        self._closing = True
        self._unframer = Unframer()
        if self._slot is not None:
            self._slot.set_unfinished(0)
        known = self._among is not None if self._slot is None else self._slot.known
        if known and self._transport.can_write_eof():
            self._loop.call_soon(self._end_writing)
        else:
            self._transport.close()
        # If the other end does not read, it keeps the written data and the connection open: it gets a little time.
        self._linger = self._loop.call_later(LINGER_SECONDS, self._transport.abort)

    def _end_writing(self) -> None:
        """Close only the direction to the other end (a client or a server). If both directions were closed while there
        are unread bytes, the connection would be reset, and the other end might never read the reason. So this end
        continues to read, and drops the input, until the other end closes its direction. The receiver is notified
        first, so that this end logs the closing before the other end can notice it."""
        self._ended(self.reason)
        if self._transport.is_closing():
            return
        try:
            self._transport.write_eof()
            if self._reading_paused:
                self._reading_paused = False
                self._transport.resume_reading()
        except OSError:
            # The other end is gone.
            self._transport.close()
        except RuntimeError as error:
            # uvloop has closed it by itself, see send.
            self.connection_lost(error)

    @property
    def lingers(self) -> bool:
        """Whether this end has closed the connection, and the other end (a client or a server that is authenticated)
        may still read the reason."""
        return self._closing and self._trusted

    def trust(self, *, server: bool) -> None:
        self._trusted = True
        self._unframer.trust(limits.frame_bytes_max if server else limits.client_frame_bytes_max)
        if self._slot is not None:
            self._slot.proved(server=server)

    def hold(self, held: bool) -> None:
        self._held = held
        self._update_reading()

    def busy(self, busy: bool) -> None:
        self._busy = busy
        self._update_reading()

    def expect_a_reader(self, expected: bool) -> None:
        self._expects_a_reader = expected
        self._update_reading()

    def _update_reading(self) -> None:
        """Stop or continue reading. Reading stops after ``hold(True)`` and after ``busy(True)``. After
        ``expect_a_reader(True)``, reading also stops while the write buffer is full."""
        paused = self._held or self._busy or (self.full and self._expects_a_reader)
        if self._closing or paused == self._reading_paused:
            return
        self._reading_paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    @property
    def last_received(self) -> float:
        """The time of the last input. While this end has paused reading, the value is the present time, so that the
        connection is not closed for lack of input."""
        return self._loop.time() if self._reading_paused else self._last_received


class _Nobody:
    """The receiver of a connection that has ended."""

    def received(self, parts: list[AnyPart]) -> None: ...

    def closed(self, reason: str, now: float) -> None: ...

    def writable(self) -> None: ...


_nobody = _Nobody()


def _too_late(reason: str, code: str) -> None:
    """Do nothing, because the connection that should be dropped has already ended."""


class Listener:
    """Sockets that listen, and the connections that are being opened on them."""

    def __init__(
        self,
        sockets: list[socket.socket],
        opened: Callable[[TcpConnection], Receiver],
        tls: ssl.SSLContext | None,
        admission: Admission,
        accept_failed: Callable[[str], None],
        failed: Callable[[str, str], None],
    ) -> None:
        self._sockets = sockets
        self._opened = opened
        self._tls = tls
        self._admission = admission
        self._accept_failed = accept_failed
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._making: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._start()

    def close(self) -> None:
        """Accept nothing more; accepted connections continue."""
        if self._again is not None:
            self._again.cancel()
        self._pause()
        for one in self._sockets:
            one.close()
        self._sockets = []

    def copied(self) -> None:
        """Let this process have no part in the sockets: it is a copy of the process that listens."""
        for one in self._sockets:
            disconnect(one.fileno())

    def _start(self) -> None:
        self._again = None
        for one in self._sockets:
            self._loop.add_reader(one, self._accept, one)

    def _pause(self) -> None:
        for one in self._sockets:
            self._loop.remove_reader(one)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_accepted_together):
            try:
                made, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors or memory: waiting connections stay in the kernel's queue for a while.
                if error.errno in (EMFILE, ENFILE):
                    self._admission.make_room()
                self._accept_failed(f"cannot accept a connection: {error.strerror or error}")
                self._pause()
                self._again = self._loop.call_later(limits.accept_retry_seconds, self._start)
                return
            made.setblocking(False)
            task = self._loop.create_task(self._make(made, str(peer[0])))
            self._making.add(task)
            task.add_done_callback(self._making.discard)

    async def _make(self, made: socket.socket, address: str) -> None:
        """Make the connection immediately, or after a TLS handshake if TLS is used."""
        task = asyncio.current_task()
        assert task is not None

        def drop(reason: str, code: str) -> None:
            task.cancel()

        slot = self._admission.enter(address, drop, self._loop.time())
        patience = None if self._tls is None else limits.hello_seconds_max
        try:
            await self._loop.connect_accepted_socket(
                lambda: TcpConnection(self._opened, slot), made, ssl=self._tls, ssl_handshake_timeout=patience
            )
        except (Exception, asyncio.CancelledError) as error:
            # The handshake failed or was too slow, or there were too many strangers.
            slot.left()
            if isinstance(error, ssl.SSLError):
                self._failed(address, f"TLS: {error.reason or error}")
            with suppress(OSError):
                made.close()


async def listen(
    opened: Callable[[TcpConnection], Receiver],
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    *,
    admission: Admission | None = None,
    accept_failed: Callable[[str], None] = lambda reason: None,
    failed: Callable[[str, str], None] = lambda remote, reason: None,
) -> Listener:
    """Listen for connections. Raise UsageError if this process cannot listen. Every new connection is passed to
    ``opened``. ``accept_failed``: a function that is called with the reason when a connection cannot be accepted. (The
    listener tries again later.) ``failed``: a function that is called with the address and the reason when a TLS
    handshake fails."""
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            sockets.append(one)
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            one.listen(_backlog)
    except OSError as error:
        for one in sockets:
            one.close()
        why = error.strerror or str(error)
        if error.errno == EADDRINUSE:
            why = "address already in use; is another antecede up or serve running?"
        raise UsageError(f"cannot listen on {host}:{port}: {why}") from None
    return Listener(sockets, opened, tls, admission or Admission(), accept_failed, failed)


async def dial(
    opened: Callable[[TcpConnection], Receiver], host: str, port: int, tls: ssl.SSLContext | None = None
) -> TcpConnection:
    """Connect to a listener; raise ``OSError`` if nothing listens there."""
    loop = asyncio.get_running_loop()
    connecting = loop.create_connection(
        lambda: TcpConnection(opened), host, port, ssl=tls, server_hostname=host if tls else None
    )
    # Not ``wait_for``: before Python 3.12 it loses a cancellation if the connection fails at that moment.
    async with asyncio.timeout(limits.hello_seconds_max):
        _, protocol = await connecting
    return protocol


def tls_identity(connected: ssl.SSLObject | None) -> tuple[bytes, tuple[str, ...]]:
    """Return the binding of a TLS connection, and the names in the other end's certificate. The binding is a value that
    only the two ends know. Without TLS, the binding and the names are empty. If the certificate was not checked, only
    the names are empty.

    The binding is the ``Finished`` message of the client (``tls-unique``). In TLS 1.3 it depends on the keys of this
    connection alone, like an exported key. (Python does not offer exported keys.)
    """
    if connected is None:
        return b"", ()
    # Without a check of the certificate this is empty.
    certificate = connected.getpeercert() or {}
    names = certificate.get("subjectAltName", ())
    return connected.get_channel_binding("tls-unique") or b"", tuple(str(name[1]) for name in names)


def _input_buffer() -> memoryview:
    """Return the memory into which all connections of this thread read. Sharing it is safe, because the bytes of one
    read are copied before the next read begins. Without this shared memory, the event loop would allocate new memory
    for every read."""
    found: memoryview | None = getattr(_of_thread, "input", None)
    if found is None:
        found = _of_thread.input = memoryview(bytearray(_read_bytes))
    return found


def disconnect(descriptor: int) -> None:
    """Replace a socket of this process by ``/dev/null``. Unlike ``close``, this does not free the number of the
    descriptor, which objects of the event loop still have."""
    if descriptor >= 0:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, descriptor, inheritable=False)
        os.close(null)


def peer_text(peer: object) -> str:
    """Return the address of the other end, for logs."""
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "?"


_of_thread = threading.local()
_read_bytes = 256 * 1024
LINGER_SECONDS = 1.0
"""The time that the other end has to read the reason, after this end has closed a connection. Then the connection is
aborted."""
_backlog = 256
_accepted_together = 64
"""The maximal number of connections that are accepted in one iteration of the event loop. Because of this limit,
existing connections do not wait long."""
_reason_chars = 1_000
