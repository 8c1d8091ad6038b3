"""The connections of a live server, and their receivers, which pass the input to the server's core."""

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from antecede.live.tcp import LINGER_SECONDS, TcpConnection
from antecede.server.connections import Receiver
from antecede.server.sessions import STOPPING
from antecede.wire import AnyPart

if TYPE_CHECKING:
    from antecede.live.server import ServerRuntime


class Fed:
    """The receiver of one connection. It passes the input to the server's core. If ``core.received`` returns True, the
    receiver calls ``ServerRuntime.tick``, which immediately processes all waiting inputs."""

    __slots__ = ("_receiver", "_runtime")

    def __init__(self, runtime: "ServerRuntime", receiver: Receiver) -> None:
        self._runtime = runtime
        self._receiver = receiver

    def received(self, parts: list[AnyPart]) -> None:
        if self._runtime.core.received(self._receiver, parts, monotonic()):
            self._runtime.tick()

    def closed(self, reason: str, now: float) -> None:
        self._receiver.closed(reason, now)
        self._runtime.set_timer()

    def writable(self) -> None:
        self._receiver.writable()


class Connections:
    """The connections of a server. A connection is removed from here when both of its directions have ended."""

    def __init__(self, runtime: "ServerRuntime") -> None:
        self._runtime = runtime
        self._open: set[TcpConnection] = set()

    def accepted(self, connection: TcpConnection) -> Fed:
        """Register an incoming connection; return its receiver."""
        connection.join(self._open)
        return Fed(self._runtime, self._runtime.core.entry.opened(connection, monotonic()))

    def dialed(self, peer: str, connection: TcpConnection) -> Fed:
        """Register a connection to a peer; return its receiver."""
        connection.join(self._open)
        return Fed(self._runtime, self._runtime.core.peering.dialed(peer, connection))

    def copied(self) -> None:
        """Let this process have no part in the connections: it is a copy of the server's process."""
        for connection in self._open:
            connection.copied()

    async def close(self, reason: str) -> None:
        """Close all connections that are still open. These are the connections of operators, and connections on which
        no hello has arrived yet; the connections of clients and peers were closed before. Then wait for a short time,
        so that clients and servers can read why this server ends and can close their ends. Without this wait, the
        operating system would reset each connection that has unread input, and the reason would be lost."""
        for connection in list(self._open):
            connection.close(reason, code=STOPPING)
        until = monotonic() + LINGER_SECONDS
        while any(connection.lingers for connection in self._open) and monotonic() < until:
            await asyncio.sleep(0.002)
