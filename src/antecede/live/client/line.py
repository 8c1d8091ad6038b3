"""The line from a bus to a server over TCP: an adapter around :class:`antecede.server.client.ClientLine`.

This adapter opens a connection when the :class:`ClientLine` requests it, and passes all received data to the
:class:`ClientLine`. The :class:`ClientLine` collects the data to send during one iteration of the event loop, and
passes this data to the connection in one call. There are two calls if ``publish`` sends its data immediately and more
data follows in the same iteration. Each call sends one frame of the connection (:mod:`antecede.wire`), or several
frames if the data is too long for one frame.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from random import random
from secrets import token_hex

from antecede import limits
from antecede.access.authoriser import temporary_name
from antecede.access.model import CLIENT
from antecede.access.proof import Keyring
from antecede.errors import AntecedeError, ClosedError, UsageError, again
from antecede.failures import text_of
from antecede.live.client import Bus
from antecede.live.keys import Credentials
from antecede.live.tcp import dial
from antecede.server.client import ClientLine
from antecede.server.connections import Connection
from antecede.topology import Address, is_name
from antecede.wire import TEMPORARY


class TcpLine:
    """A bus's connection to its server over TCP; implements :class:`antecede.live.client.bus.Line`. It does the I/O
    for its :class:`ClientLine`."""

    def __init__(
        self,
        bus: Bus,
        address: Address,
        token: str,
        tls: ssl.SSLContext | None,
        patience: float,
        keyring: Keyring | None = None,
        waits: Callable[[str], None] | None = None,
        resumes: Callable[[str], None] | None = None,
        read_again: Callable[[], None] | None = None,
    ) -> None:
        """``waits``, ``resumes``: see :func:`connect`. ``read_again``: reads the client's credentials again; it is
        called before each attempt to connect, except the first."""
        self._bus = bus
        self._read_again = read_again
        self._address = address
        self._tls = tls
        self._patience = patience
        self._waits = waits
        self._resumes = resumes
        self._dialed = False
        self._waiting = False
        """True if an attempt to connect has failed, and the server has not welcomed this client since then. While this
        is true, ``waits`` is not called again."""
        self.name = bus.name
        self._line = ClientLine(self, token, self._flush_soon, _clock, random, keyring=keyring)
        self._keeper: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        self._closed = asyncio.Event()
        self.publish = self._line.publish
        self.done = self._line.done
        self.listen = self._line.listen
        self.accepted = bus.accepted
        self.refused = bus.refused
        self.delivered = bus.delivered
        self.received = self._line.received
        self.writable = self._line.flush

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._first = self._loop.create_future()
        self._line.start(self._loop.time())
        self._keeper = self._loop.create_task(self._keep())
        try:
            async with asyncio.timeout(self._patience):
                await asyncio.shield(self._first)
        except TimeoutError:
            await self.close()
            raise ClosedError(f"no answer from {self._address}: {self._line.trouble or 'no server is there'}") from None
        except BaseException:
            # Also after a cancellation: otherwise the keeper would take the name later.
            await self.close()
            raise

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        self._line.close()

    def _flush_soon(self) -> None:
        self._loop.call_soon(self._line.flush)

    # The connection.

    async def _keep(self) -> None:
        """Connect, and connect again when the connection breaks, until the line is closed permanently. If an unexpected
        error ends this task, close the line and report the error. If the line stayed open, the bus would wait for
        ever, because only this task connects."""
        try:
            await self._keep_connected()
        except Exception as error:
            self._loop.call_exception_handler({"message": "the line to the server failed", "exception": error})
            self._line.close()
            self.gone(ClosedError(f"the line to the server failed: {type(error).__name__}: {text_of(error)}"))

    async def _keep_connected(self) -> None:
        """Connect at the times that the :class:`ClientLine` sets, and watch each connection until it ends."""
        line, loop = self._line, self._loop
        while line.dial_at is not None:
            await asyncio.sleep(max(0.0, line.dial_at - loop.time()))
            if not line.dials(loop.time()):
                continue
            self._closed.clear()
            if line.moved_to:
                self._address = _address_in(line.moved_to) or self._address
                line.moved_to = ""
            if self._dialed and self._read_again is not None:
                self._read_again()
            self._dialed = True
            try:
                await dial(self._opened, self._address.host, self._address.port, self._tls)
                await self._watch()
            except (OSError, TimeoutError) as error:
                line.dial_failed(why_unreached(error), loop.time())
                # Report that the server cannot be reached: once, until there is a connection again.
                if not self._waiting and self._waits is not None:
                    self._waits(f"{self._address} ({line.trouble})")
                self._waiting = True

    async def _watch(self) -> None:
        """Wait until the connection has ended. Meanwhile, let the :class:`ClientLine` send pings."""
        while not self._closed.is_set():
            try:
                async with asyncio.timeout(limits.heartbeat_seconds):
                    await self._closed.wait()
            except TimeoutError:
                self._line.watch(self._loop.time())

    def _opened(self, connection: Connection) -> "TcpLine":
        self._line.opened(connection)
        return self

    def closed(self, reason: str, now: float) -> None:
        self._line.closed(reason, now)
        self._closed.set()

    # Reports of the line; the bus gets the others directly.

    def welcomed(self, address: str, last: int) -> None:
        """Report to the bus that the server has welcomed the client. Call ``resumes`` if the server could not be
        reached before."""
        self._bus.welcomed(address, last)
        if self._waiting and self._resumes is not None:
            self._resumes(str(self._address))
        self._waiting = False
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    def gone(self, error: AntecedeError) -> None:
        """Report that the line will not connect again. If a caller still waits in ``open`` for the first connection,
        ``open`` raises the error. Otherwise the bus gets the error."""
        final = again(error, str(self._address))
        if self._first is not None and not self._first.done():
            self._first.set_exception(final)
        else:
            self._bus.gone(final)


def _clock() -> float:
    """Return the seconds since the boot of the machine, including the time in which the machine slept. On a system
    without such a clock, return the wall clock time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()


def why_unreached(error: Exception) -> str:
    """Return a text that says why the server could not be reached. If the connection was refused, the text also says
    what to check."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; is `antecede up` or `antecede serve` running?"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return str(error) or type(error).__name__


def connect(
    address: str,
    *,
    name: str | None = None,
    token: str = "",
    tls: ssl.SSLContext | None = None,
    patience: float = 10.0,
    waits: Callable[[str], None] | None = None,
    resumes: Callable[[str], None] | None = None,
    credentials: Credentials | str | Path | None = None,
) -> Bus:
    """Return a bus to the server at ``tcp://HOST:PORT``. Use it with ``async with``, which connects.

    ``name`` is durable: a client that connects again with the same name finds its mailbox. Without a name the client is
    temporary: it gets a unique name, and its mailbox is removed when the client closes. ``patience``: the time limit
    for the first connection, in seconds. ``waits`` is called when the server cannot be reached, at the start or later;
    its argument is a text with the server's address and the reason. ``resumes`` is called with the server's address
    when the server can be reached again. ``credentials``: the folder with the client's credentials, or a
    ``Credentials`` object, for servers with an access file (see ``antecede credentials``). If the folder is replaced,
    the bus uses the new folder for its next connection; a ``Credentials`` object is not read again.
    """
    where = _address_in(address)
    if where is None:
        raise UsageError(f"address {address!r}: expected tcp://HOST:PORT")
    own = _read(credentials)
    if name is None:
        name = TEMPORARY + token_hex(8) if own is None else temporary_name(own.name, token_hex(8))
    elif not is_name(name):
        raise UsageError(f"client name {name!r}: expected 1 to 64 letters, digits, _, . or -")
    if own is None:
        return Bus(name, lambda bus: TcpLine(bus, where, token, tls, patience, None, waits, resumes))
    own.expect(CLIENT)
    # Credentials that were read by the caller stay as they are.
    mine = own is not credentials
    keyring, dialing = own.keyring(renew=own.renew) if mine else own.keyring(), tls or own.dialing()
    again_ = own.read_again if mine else None
    return Bus(name, lambda bus: TcpLine(bus, where, "", dialing, patience, keyring, waits, resumes, again_))


def _address_in(address: str) -> Address | None:
    """Parse an address that a user or a server gave. Return None if it is malformed."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port[:8]) < 65_536:
        return None
    return Address(host.strip("[]"), int(port))


def _read(credentials: Credentials | str | Path | None) -> Credentials | None:
    if credentials is None:
        return None
    return credentials if isinstance(credentials, Credentials) else Credentials(credentials)
