"""The line from a bus to a server over the network: hello, heartbeats, and coming back after a broken connection.

What is written within one turn of the event loop leaves in one frame. A connection that breaks is made again, with
growing pauses and some jitter, for as long as the bus is open; the server says which publishes it has, and the bus
sends the others again. A server that says good-bye for good (a wrong token, another client of the same name) ends the
bus.

A temporary client says good-bye for good when it closes, and is forgotten. One that was cut off for so long that its
server may have forgotten it gives up: what it would repeat might be taken for new.
"""

import asyncio
import ssl
from collections.abc import Callable
from random import uniform
from secrets import token_hex
from time import monotonic, time

from antecede import limits, wire
from antecede.channel.letters import uncouple
from antecede.client import Bus, Ticket
from antecede.errors import ClosedError, RefusedError, UsageError
from antecede.topology import Address
from antecede.topology.file import is_name
from antecede.transports import Connection
from antecede.transports.tcp import dial


class TcpLine:
    """A bus's connection to its home server; see :class:`antecede.client.Line`."""

    def __init__(
        self,
        bus: Bus,
        address: Address,
        token: str,
        tls: ssl.SSLContext | None,
        patience: float,
        waits: Callable[[str], None] | None = None,
    ) -> None:
        self._bus = bus
        self._address = address
        self._token = token
        self._tls = tls
        self._patience = patience
        self._waits = waits
        self._connection: Connection | None = None
        self._welcomed = False
        self._parts: list[wire.Part] = []
        self._scheduled = False
        self._keeper: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        self._broken = asyncio.Event()
        self._last_words = ""
        self._refused = ""
        self._temporary = wire.is_temporary(bus.name)
        self._broke: tuple[float, float] | None = None
        """When the last connection broke that the server had welcomed: the wall clock, which counts also while this
        machine sleeps, and the monotonic one, which nobody sets back."""

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._first = self._loop.create_future()
        self._keeper = self._loop.create_task(self._keep())
        try:
            async with asyncio.timeout(self._patience):
                await asyncio.shield(self._first)
        except TimeoutError:
            await self.close()
            raise ClosedError(f"no answer from {self._address}: {self._last_words or 'nobody is there'}") from None
        except RefusedError:
            await self.close()
            raise

    def publish(self, ticket: Ticket, last: bool) -> None:
        if self._welcomed:
            bodies, context = list(ticket.bodies), ticket.context
            part = wire.Publish(ticket.number, ticket.to, ticket.kind, bodies, ticket.ask, context=context)
            if last:
                self._parts.append(part)
                self._flush()
            else:
                self._put(part)

    def done(self, letters: list[str], dead: str) -> None:
        self._put(wire.Done(letters, dead))

    def listen(self) -> None:
        self._put(wire.Listen())

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        if self._connection is not None:
            self._flush()
            self._connection.close("done", final=self._temporary)

    # The connection.

    async def _keep(self) -> None:
        """Connect, watch, connect again."""
        pause = _pause_first
        while not self._refused:
            self._broken.clear()
            try:
                await dial(self._opened, self._address.host, self._address.port, self._tls)
                await self._watch()
                pause = _pause_first if self._last_words != "refused" else pause
            except (OSError, TimeoutError) as error:
                self._last_words = why_unreached(error)
                self._wait()
            if not self._refused:
                await asyncio.sleep(uniform(pause / 2, pause))
                pause = min(2 * pause, limits.dial_seconds_max)
        refusal = RefusedError(f"{self._address}: {self._refused}")
        if self._first is not None and not self._first.done():
            self._first.set_exception(refusal)
        else:
            self._bus.gone(refusal)

    def _wait(self) -> None:
        """Nobody was there, the first time: say so, once, to who wants to know."""
        waits, self._waits = self._waits, None
        if waits is not None and self._first is not None and not self._first.done():
            waits(f"{self._address} ({self._last_words})")

    async def _watch(self) -> None:
        """Until the connection breaks: speak now and then, and listen whether the server still does."""
        while not self._broken.is_set():
            try:
                async with asyncio.timeout(limits.heartbeat_seconds):
                    await self._broken.wait()
            except TimeoutError:
                connection, now = self._connection, self._loop.time()
                if connection is not None and now - connection.heard > 3 * limits.heartbeat_seconds:
                    connection.close("no word from the server")
                elif connection is not None and now - connection.spoke >= limits.heartbeat_seconds:
                    connection.send([wire.Ping()])

    def _opened(self, connection: Connection) -> "TcpLine":
        self._connection = connection
        connection.trust(server=True)
        connection.send([wire.ClientHello(wire.VERSION, wire.VERSION_OLDEST, self._token, self._bus.name)])
        return self

    def received(self, parts: list[wire.AnyPart]) -> None:
        for part in parts:
            if isinstance(part, wire.Accepted):
                self._bus.accepted(part.upto)
            elif isinstance(part, wire.Deliver):
                self._bus.delivered(uncouple(part.train))
            elif isinstance(part, wire.Refused):
                self._bus.refused(part.number, part.reason, part.retry)
            elif isinstance(part, wire.Welcome):
                self._welcome(part)
            elif isinstance(part, wire.Ping):
                self._put(wire.Pong())
            elif isinstance(part, wire.Bye):
                self._last_words = part.reason
                if part.final:
                    self._refused = part.reason

    def _welcome(self, part: wire.Welcome) -> None:
        version = wire.agree(part.version, part.version)
        if self._connection is not None:
            self._connection.speak(version)
        away = 0.0 if self._broke is None else max(time() - self._broke[0], monotonic() - self._broke[1])
        if self._temporary and away > limits.temporary_client_seconds_max / 2:
            self._refused = "cut off for too long: whether what was sent has been accepted is not known"
            if self._connection is not None:
                self._connection.close(self._refused)
            return
        self._broke = None
        self._parts = []
        self._welcomed = True
        self._bus.welcomed(part.address, part.last)
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    def closed(self, reason: str) -> None:
        self._connection = None
        if self._welcomed:
            self._broke = (time(), monotonic())
        self._welcomed = False
        self._last_words = self._last_words or reason
        self._broken.set()

    def writable(self) -> None:
        self._flush()

    def _put(self, part: wire.Part) -> None:
        """What cannot be said now is not kept: after the next welcome the bus says it again."""
        if not self._welcomed:
            return
        self._parts.append(part)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._scheduled = False
        self._flush()

    def _flush(self) -> None:
        if self._connection is None or not self._parts or self._connection.full:
            return
        parts, self._parts = self._parts, []
        self._connection.send(parts)


def why_unreached(error: Exception) -> str:
    """Why nobody could be reached, and what most often is the matter."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; is `antecede up` or `antecede serve` running?"
    return str(error) or type(error).__name__


_pause_first = 0.05


def connect(
    address: str,
    *,
    name: str | None = None,
    token: str = "",
    tls: ssl.SSLContext | None = None,
    patience: float = 10.0,
    waits: Callable[[str], None] | None = None,
) -> Bus:
    """A bus to the server at ``tcp://HOST:PORT``, to be entered with ``async with``.

    ``name`` is durable: whoever comes back under it finds its mailbox. Without one the client is temporary: its name is
    like no other's, and its mailbox is gone when it closes. ``patience`` is how long to try the first time;
    ``waits`` is told once, with the address and why, if nobody is there at first.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise UsageError(f"address {address!r}: expected tcp://HOST:PORT")
    if name is None:
        name = wire.TEMPORARY + token_hex(8)
    elif not is_name(name):
        raise UsageError(f"client name {name!r}: expected 1 to 64 letters, digits, _, . or -")
    where = Address(host.strip("[]"), int(port))
    return Bus(name, lambda bus: TcpLine(bus, where, token, tls, patience, waits))
