"""Who knocks: the first frame of a connection says whether it is a server, a client or an operator.

Before its hello a stranger may send one short frame with one part, and has little time. An operator's request is such a
frame. There is one request per connection, so operators remain strangers, who come and go. Whoever may not come in is
told why, with a code.
"""

import asyncio
import hmac
from typing import Any

from antecede import limits, wire
from antecede.errors import WireError
from antecede.runtime.logs import ServerLog
from antecede.runtime.operations import Operations
from antecede.runtime.peers import Answered, Peers
from antecede.runtime.sessions import RemoteSession, Sessions
from antecede.topology.file import is_name
from antecede.transports import Connection, Receiver
from antecede.transports.admission import Admission
from antecede.wire import AnyPart


class Door:
    """Where connections come in."""

    def __init__(
        self,
        token: str,
        peers: Peers,
        sessions: Sessions,
        operations: Operations,
        log: ServerLog,
        admission: Admission,
    ) -> None:
        self.admission = admission
        self.token = token
        self.peers = peers
        self.sessions = sessions
        self.operations = operations
        self.log = log
        self.shut = ""
        """Why nobody may come in; empty: the door is open."""
        self.inside: set[Visitor] = set()
        self._dropped = 0
        """Strangers that made way for newer ones, as last logged."""

    def opened(self, connection: Connection) -> "Visitor":
        """Somebody knocks."""
        visitor = Visitor(self, connection)
        self.inside.add(visitor)
        connection.expect_a_reader(True)
        if self.shut:
            connection.close(self.shut)
        return visitor

    def cannot_accept(self, reason: str) -> None:
        """No connection can be accepted for a while."""
        self.log.warning("accept-failed", reason=reason, connections=len(self.inside))

    def watch(self, now: float) -> None:
        """Speak where it has been silent, and hang up on whoever is silent for too long."""
        if self.admission.dropped > self._dropped:
            self._dropped = self.admission.dropped
            self.log.warning("strangers-dropped", since_start=self._dropped, strangers=self.admission.strangers)
        for visitor in list(self.inside):
            visitor.watch(now)

    def hold(self, held: bool) -> None:
        """Read nothing from anybody for a while."""
        for visitor in self.inside:
            visitor.connection.hold(held)


class Visitor:
    """One connection: a stranger at first, then what its first word says."""

    def __init__(self, door: Door, connection: Connection) -> None:
        self._door = door
        self.connection = connection
        self._since = asyncio.get_running_loop().time()
        self._known: Receiver | None = None
        self._asked = False
        """An operator's request was answered."""

    def received(self, parts: list[AnyPart]) -> None:
        if self._known is not None:
            self._known.received(parts)
            return
        # One part: the connection reads no more before it is trusted.
        for part in parts:
            self._greet(part)

    def _greet(self, part: AnyPart) -> None:
        door, connection = self._door, self.connection
        if isinstance(part, wire.ServerHello):
            refusal = door.peers.refusal(part)
            if refusal:
                door.peers.refuse(part.server, connection, refusal)
            else:
                self._known = Answered(door.peers, connection, part)
        elif isinstance(part, wire.ClientHello):
            refusal = self._unwelcome(part)
            if refusal:
                door.log.warning("client-refused", client=part.client[:64], remote=connection.remote, reason=refusal)
                connection.close(refusal, final=True)
            elif door.admission.full:
                reason = f"the server has {door.admission.clients} clients, and no place for more: try again later"
                door.log.warning("too-many-connections", client=part.client, remote=connection.remote)
                connection.close(reason, code="too-many-clients")
            else:
                self._known = RemoteSession(
                    door.sessions, connection, part.client, wire.agree(part.version, part.oldest)
                )
        elif isinstance(part, wire.Request):
            if self._asked:
                raise WireError("second request on one connection: expected one", "one-request")
            if not hmac.compare_digest(part.token.encode(), door.token.encode()):
                door.log.warning("operator-refused", remote=connection.remote, reason="wrong token")
                connection.close("wrong token", final=True)
            else:
                self._asked = True
                connection.send([wire.Answer(*door.operations.run(part.command, part.arguments))])
        elif isinstance(part, wire.Bye):
            connection.close("the other end hung up")
        else:
            raise WireError(f"{type(part).__name__} where a hello was expected", "hello-expected")

    def _unwelcome(self, part: wire.ClientHello) -> str:
        try:
            wire.agree(part.version, part.oldest)
        except WireError as error:
            return str(error)
        if not hmac.compare_digest(part.token.encode(), self._door.token.encode()):
            return "wrong token"
        if not is_name(part.client):
            return "a client's name is 1 to 64 letters, digits, _, . or -"
        return self._door.sessions.unwelcome(part.client)

    def closed(self, reason: str) -> None:
        self._door.inside.discard(self)
        if self._known is not None:
            self._known.closed(reason)
        elif reason not in _usual and self.connection.code not in _counted:
            code: dict[str, Any] = {"code": self.connection.code} if self.connection.code else {}
            self._door.log.warning("stranger-gone", remote=self.connection.remote, **code, reason=reason)

    def writable(self) -> None:
        if self._known is not None:
            self._known.writable()

    def watch(self, now: float) -> None:
        connection = self.connection
        if self._known is None:
            if now - self._since > limits.hello_seconds_max:
                connection.close("no hello", code="no-hello")
        else:
            keep_alive(connection, now)


_usual = ("the other end hung up", "wrong token")
_counted = ("too-many-strangers",)
"""Codes of closed connections that are logged as a number now and then, not one by one."""


def keep_alive(connection: Connection, now: float) -> None:
    """A word when there was none for a while; the end of one that says nothing."""
    if now - connection.heard > 3 * limits.heartbeat_seconds:
        connection.close(f"no word for {3 * limits.heartbeat_seconds:.0f} s")
    elif now - connection.spoke >= limits.heartbeat_seconds:
        connection.send([wire.Ping()])
