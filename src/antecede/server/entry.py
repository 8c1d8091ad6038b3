"""Connections that come in: the first part says whether it is a server, a client or an operator.

Before its hello a connection is a *stranger*: it may send one short frame with one part, and has little time. An
operator's request is such a frame. There is one request per connection, so operators remain strangers for their short
stay. A connection that is refused gets the reason and a code.
"""

import hmac
from collections.abc import Callable
from typing import Any

from antecede import limits, wire
from antecede.errors import WireError
from antecede.server.admission import Admission
from antecede.server.connections import NO_HELLO, Connection, Receiver, keep_alive
from antecede.server.peering import Answered, Peering
from antecede.server.sessions import RemoteSession, Sessions
from antecede.server.words import Log, Refusal
from antecede.topology.file import is_name
from antecede.wire import AnyPart

Operate = Callable[[str, list[str], Callable[[wire.Answer], None]], None]
"""Run an operator's command, and answer it at once or later."""


class Entry:
    """All connections that came in."""

    def __init__(
        self,
        token: str,
        peering: Peering,
        sessions: Sessions,
        operate: Operate,
        log: Log,
        admission: Admission,
        speaks: int = wire.VERSION,
    ) -> None:
        """``speaks``: the newest wire version of this server."""
        self.token = token
        self.peering = peering
        self.sessions = sessions
        self.operate = operate
        self.log = log
        self.admission = admission
        self.speaks = speaks
        self.closed = ""
        """The reason why no connections are accepted; empty if they are."""
        self.connections: dict[Incoming, None] = {}
        """The connections, in the sequence in which they came."""
        self._dropped = 0
        """The number of strangers that were closed to make room for newer ones, at the time of the last log line about
        it."""

    def opened(self, connection: Connection, now: float) -> "Incoming":
        """A connection came in."""
        incoming = Incoming(self, connection, now)
        self.connections[incoming] = None
        connection.expect_a_reader(True)
        if self.closed:
            connection.close(self.closed)
        return incoming

    def cannot_accept(self, reason: str) -> None:
        """No connection can be accepted for a while."""
        self.log.warning("accept-failed", reason=reason, connections=len(self.connections))

    def watch(self, now: float) -> None:
        """Send a ping where nothing was sent for a while, and close connections that are silent for too long."""
        if self.admission.dropped > self._dropped:
            self._dropped = self.admission.dropped
            self.log.warning("strangers-dropped", since_start=self._dropped, strangers=self.admission.strangers)
        for incoming in list(self.connections):
            incoming.watch(now)

    def hold(self, held: bool) -> None:
        """Stop reading from all connections, or go on."""
        for incoming in self.connections:
            incoming.connection.hold(held)


class Incoming:
    """One connection: unidentified at first, then of the kind that its first part names."""

    def __init__(self, entry: Entry, connection: Connection, now: float) -> None:
        self._entry = entry
        self.connection = connection
        self._since = now
        self._known: Receiver | None = None
        self._asked = False
        """An operator's request was answered."""
        self._refused = False
        """The refusal was sent and logged."""

    def received(self, parts: list[AnyPart]) -> None:
        if self._known is not None:
            self._known.received(parts)
            return
        # One part: the connection reads no more until it is trusted.
        for part in parts:
            self._greet(part)

    def _greet(self, part: AnyPart) -> None:
        entry, connection = self._entry, self.connection
        if isinstance(part, wire.ServerHello):
            refusal = entry.peering.refusal(part)
            if refusal is not None:
                self._refused = True
                entry.peering.refuse(part.server, connection, refusal)
            elif entry.peering.is_outdated(part.server, connection):
                self._refused = True
                connection.close("a newer connection took its place", code="outdated")
            else:
                self._known = Answered(entry.peering, connection, part)
        elif isinstance(part, wire.ClientHello):
            refusal = self._refusal(part)
            if refusal is not None:
                reason = refusal.reason
                entry.log.warning("client-refused", client=part.client[:64], remote=connection.remote, reason=reason)
                self._refuse(refusal)
            elif entry.admission.full:
                reason = f"the server has {entry.admission.clients} clients, and cannot accept more: try again later"
                entry.log.warning("too-many-connections", client=part.client, remote=connection.remote)
                connection.close(reason, code="too-many-clients")
            else:
                version = wire.agree(part.version, part.oldest, entry.speaks)
                self._known = RemoteSession(entry.sessions, connection, part.client, version)
        elif isinstance(part, wire.Request):
            if self._asked:
                raise WireError("second request on one connection: expected one", "one-request")
            if not hmac.compare_digest(part.token.encode(), entry.token.encode()):
                entry.log.warning("operator-refused", remote=connection.remote, reason=_wrong_token.reason)
                self._refuse(_wrong_token)
            else:
                self._asked = True
                entry.operate(part.command, part.arguments, lambda answer: connection.send([answer]))
        elif isinstance(part, wire.Bye):
            connection.close("")
        else:
            raise WireError(f"{type(part).__name__} where a hello was expected", "hello-expected")

    def _refuse(self, refusal: Refusal) -> None:
        self._refused = True
        self.connection.close(refusal.reason, final=True, code=refusal.code)

    def _refusal(self, part: wire.ClientHello) -> Refusal | None:
        try:
            wire.agree(part.version, part.oldest, self._entry.speaks)
        except WireError as error:
            return Refusal(error.code, str(error))
        if not hmac.compare_digest(part.token.encode(), self._entry.token.encode()):
            return _wrong_token
        if not is_name(part.client):
            return Refusal("bad-name", "a client's name is 1 to 64 letters, digits, _, . or -")
        return self._entry.sessions.refusal(part.client)

    def closed(self, reason: str, now: float) -> None:
        self._entry.connections.pop(self, None)
        if self._known is not None:
            self._known.closed(reason, now)
        elif reason and not self._refused and self.connection.code not in _counted:
            coded: dict[str, Any] = {"code": self.connection.code} if self.connection.code else {}
            self._entry.log.warning("stranger-gone", remote=self.connection.remote, **coded, reason=reason)

    def writable(self) -> None:
        if self._known is not None:
            self._known.writable()

    def watch(self, now: float) -> None:
        """Close the connection if it has been silent for too long; send a ping now and then."""
        connection = self.connection
        if self._known is None:
            if now - self._since > limits.hello_seconds_max:
                connection.close("no hello", code=NO_HELLO)
        else:
            keep_alive(connection, now)


_wrong_token = Refusal("wrong-token", "wrong token")
_counted = ("too-many-strangers",)
"""Codes of closed connections that are logged as a count from time to time, not one by one."""
