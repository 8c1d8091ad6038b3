"""Incoming connections: the hello shows whether the other end is a server or a client. An operator sends a request
instead of a hello.

Before its hello a connection is a *stranger*: it may send only short frames with one part each, and is closed if the
hello does not come soon. If the server has an access file, the other end must first prove its identity
(:mod:`antecede.access.proof`), and the hello must fit this identity. If a connection is refused, the other end gets the
reason and a code.

An operator sends one request per connection, and no hello. So the connection of an operator is a stranger until it is
closed, and the request must be a short frame. An operator with a long request first sends the command ``LONG``. After
this command, the operator may send longer frames.
"""

from collections.abc import Callable
from typing import Any, Final

from antecede import limits, wire
from antecede.access import TOKEN, Refusal, Who
from antecede.access.authoriser import CONNECT, LINK
from antecede.access.model import CLIENT, OPERATOR, SERVER
from antecede.access.proof import Answering
from antecede.errors import WireError
from antecede.server.admission import Admission, Guard
from antecede.server.connections import NO_HELLO, Connection, Receiver, keep_alive
from antecede.server.inputs import Log
from antecede.server.peering import CODE, Answered, Peering
from antecede.server.sessions import MOVED, STOPPING, RemoteSession, Sessions
from antecede.topology import is_name
from antecede.wire import AnyPart

LONG: Final = "long"
"""The command with which an operator announces that the next request is long."""
Operate = Callable[[Who, str, str, list[str], Callable[[wire.Answer], None]], None]
"""A function that runs a command of an operator, and answers immediately or later. Its arguments: the identity and the
network address of the operator, the command, the arguments of the command, and the function to call with the answer."""


class Entry:
    """All incoming connections of one server."""

    def __init__(
        self,
        guard: Guard,
        peering: Peering,
        sessions: Sessions,
        operate: Operate,
        log: Log,
        admission: Admission,
    ) -> None:
        self.guard = guard
        self.peering = peering
        self.sessions = sessions
        self.operate = operate
        self.log = log
        self.admission = admission
        self.closed = ""
        """The reason why new connections are not accepted. It is empty if new connections are accepted."""
        self.connections: dict[Incoming, None] = {}
        """The connections, in the sequence in which they came."""
        self._dropped = 0
        """The value of ``admission.dropped`` when this number was last written to the log."""

    def opened(self, connection: Connection, now: float) -> "Incoming":
        """Register a new incoming connection; return its receiver."""
        incoming = Incoming(self, connection, now)
        self.connections[incoming] = None
        connection.expect_a_reader(True)
        if self.closed:
            connection.close(self.closed)
        return incoming

    def cannot_accept(self, reason: str) -> None:
        """Log that no new connection can be accepted for a while."""
        self.log.warning("accept-failed", reason=reason, connections=len(self.connections))

    def handshake_failed(self, remote: str, reason: str) -> None:
        """Record that the TLS handshake on a connection failed: the other end has no certificate that this server
        accepts, or does not accept this server's certificate."""
        self.guard.refused_stranger(remote, "", Refusal("tls", reason), None)

    def watch(self, now: float) -> None:
        """Send a ping on each connection on which nothing was sent for a while. Close connections that are silent for
        too long, or whose hello does not come in time."""
        if self.admission.dropped > self._dropped:
            self._dropped = self.admission.dropped
            self.log.warning("strangers-dropped", since_start=self._dropped, strangers=self.admission.strangers)
        for incoming in list(self.connections):
            incoming.watch(now)

    def review(self) -> None:
        """Close each connection if the identity of its other end was revoked, or if the key of this identity has
        expired."""
        for incoming in list(self.connections):
            incoming.review()

    def hold(self, held: bool) -> None:
        """Stop reading from all connections if ``held`` is true. If it is false, continue to read."""
        for incoming in self.connections:
            incoming.connection.hold(held)


class Incoming:
    """One incoming connection: a stranger at first, and after its hello the connection of a server or a client."""

    def __init__(self, entry: Entry, connection: Connection, now: float) -> None:
        self._entry = entry
        self.connection = connection
        self._since = now
        self._known: Receiver | None = None
        self._asked = False
        """Whether an operator's request has come. A second request is an error. The command ``LONG`` is not counted."""
        self._long = False
        self._patience = limits.hello_seconds_max
        """The connection is closed after this number of seconds if no hello of a server or a client was accepted."""
        self._refused = False
        """Whether the connection was refused, or was used only to exchange a topology. In both cases, all further parts
        are ignored."""
        self._teacher = ""
        """The name of the server at the other end, if that server has a newer topology and will send it next. In all
        other cases, the name is empty."""
        self._proof: Answering | None = None
        self._who: Who | None = None
        """The identity that the other end has proved, or None if it has proved none."""
        self._counted = False
        """Whether the guard has counted this connection for the identity of the other end."""

    def received(self, parts: list[AnyPart]) -> None:
        known = self._known
        if known is not None and not self._refused:
            known.received(parts)
            return
        # One part, until the connection is trusted. What follows a refusal, or a lesson, does not count.
        for part in parts:
            if not self._refused:
                self._greet(part)

    def _greet(self, part: AnyPart) -> None:
        if self._teacher and not isinstance(part, wire.Bye):
            self._refused = True
            self._entry.peering.lessons.take(self._teacher, part, self.connection)
        elif isinstance(part, wire.ServerHello):
            self._greet_server(part)
        elif isinstance(part, wire.ClientHello):
            self._greet_client(part)
        elif isinstance(part, wire.Request):
            self._greet_operator(part)
        elif isinstance(part, wire.Introduce) and self._proof is None:
            self._challenge(part)
        elif isinstance(part, wire.Proof) and self._proof is not None and self._who is None:
            self._check(self._proof, part)
        elif isinstance(part, wire.Bye):
            self.connection.close("")
        else:
            raise WireError(f"{type(part).__name__} where a hello was expected", "hello-expected")

    # The proof.

    def _challenge(self, part: wire.Introduce) -> None:
        proof = self._entry.guard.answering(self.connection, part)
        answer = proof if isinstance(proof, Refusal) else proof.challenge()
        if isinstance(answer, Refusal):
            self._refuse_stranger(part.role, part.name, answer)
            return
        assert isinstance(proof, Answering)
        self._proof = proof
        self.connection.send([answer])

    def _check(self, proof: Answering, part: wire.Proof) -> None:
        who, asked = proof.check(part), proof.introduction
        if isinstance(who, Refusal):
            self._refuse_stranger(asked.role, asked.name, who)
            return
        refusal = self._entry.guard.enter(who)
        if refusal is not None:
            self._entry.guard.refused(self.connection.remote, who.label, refusal, who)
            self.connection.close(refusal.reason, code=refusal.code)
            self._refused = True
            return
        self._who, self._counted = who, True

    def _identify(self, role: str, token: str) -> Who | Refusal:
        """Return the identity of the other end, or the reason why it is refused. ``role``, ``token``: the role and the
        token in its hello or request."""
        refusal = self._entry.guard.authoriser.token_refusal(token)
        if refusal is None:
            return TOKEN
        if self._who is None or refusal.code != "proof-required":
            return refusal
        if self._who.role != role:
            return Refusal("wrong-role", f"{self._who.label} may not connect in the role {role}")
        return self._who

    # Hellos.

    def _greet_server(self, part: wire.ServerHello) -> None:
        entry, connection = self._entry, self.connection
        who = self._identify(SERVER, part.token)
        stranger = who if isinstance(who, Refusal) else entry.guard.authoriser.refusal(who, LINK, part.server)
        if stranger is not None:
            self._refuse_stranger(SERVER, part.server, stranger)
            self._note_claim(part.server, stranger)
            return
        if entry.peering.decide(part):
            self._refused = True
            connection.close("the topology changes", code=CODE)
            return
        lessons = entry.peering.lessons
        if lessons.are_due_to(part):
            self._refused = True
            lessons.give(part, connection, dialed=False)
            return
        if lessons.are_due_from(part):
            if lessons.expect(part, connection, dialed=False):
                self._teacher = part.server
            else:
                self._refused = True
            return
        refusal = entry.peering.refusal(part)
        if refusal is not None and entry.peering.inquiries.answers(part, refusal):
            self._refused = True
            entry.peering.inquiries.answer(part, connection, refusal)
        elif refusal is not None:
            self._refused = True
            entry.guard.refused(connection.remote, f"server {part.server}", refusal, self._who)
            entry.peering.refuse(part.server, connection, refusal)
        elif entry.peering.is_outdated(part.server, connection):
            self._refused = True
            connection.close("a newer connection took its place", code="outdated")
        else:
            self._connected(part.server)
            self._known = Answered(entry.peering, connection, part)

    def _greet_client(self, part: wire.ClientHello) -> None:
        entry, connection = self._entry, self.connection
        who = self._identify(CLIENT, part.token)
        refusal = who if isinstance(who, Refusal) else self._client_refusal(part, who)
        if isinstance(who, Refusal) or refusal is not None:
            assert refusal is not None
            reason = refusal.reason
            entry.log.warning("client-refused", claims=part.client[:64], remote=connection.remote, reason=reason)
            entry.guard.refused(connection.remote, f"client {part.client}", refusal, self._who)
            self._refuse(refusal)
        elif entry.sessions.moved_to:
            connection.send([wire.Bye("the server has moved", False, MOVED, entry.sessions.moved_to)])
            connection.close("the server has moved", code=MOVED)
        elif entry.sessions.must_wait(part.client):
            connection.close("the topology changes: try again", code=CODE)
        elif entry.admission.full:
            reason = f"the server has {entry.admission.clients} clients, and cannot accept more: try again later"
            entry.log.warning("too-many-connections", client=part.client, remote=connection.remote)
            connection.close(reason, code="too-many-clients")
        else:
            self._connected(part.client)
            self._known = session = RemoteSession(entry.sessions, connection, part.client, who)
            session.rights.denied = lambda one: entry.guard.refused(connection.remote, part.client, one, who)

    def _client_refusal(self, part: wire.ClientHello, who: Who) -> Refusal | None:
        if not is_name(part.client):
            return Refusal("bad-name", "a client's name is not valid: expected 1 to 64 letters, digits, _, . or -")
        refusal = self._entry.guard.authoriser.refusal(who, CONNECT, part.client)
        return refusal or self._entry.sessions.refusal(part.client)

    def _greet_operator(self, part: wire.Request) -> None:
        entry, connection = self._entry, self.connection
        if self._asked:
            raise WireError("second request on one connection: open a new connection for each request", "one-request")
        who = self._identify(OPERATOR, part.token)
        if isinstance(who, Refusal):
            entry.log.warning("operator-refused", remote=connection.remote, reason=who.reason)
            entry.guard.refused(connection.remote, OPERATOR, who, self._who)
            self._refuse(who)
        elif part.command == LONG and not self._long:
            # The next request of this operator may be long, and take long.
            self._long, self._patience = True, limits.change_command_seconds_max
            connection.trust(server=False)
            connection.send([wire.Answer(True, b"{}")])
        else:
            self._asked = True
            entry.operate(who, connection.remote, part.command, part.arguments, lambda one: connection.send([one]))

    def _connected(self, name: str) -> None:
        if self._who is not None:
            self._entry.guard.note("connected", self._who, self.connection.remote, named=name)

    def _refuse_stranger(self, role: str, name: str, refusal: Refusal) -> None:
        """Refuse a connection whose other end did not prove the name that it claims. Nothing is stored under this
        name."""
        claims = f"{role[:16]} {name[:64]}"
        self._entry.guard.refused_stranger(self.connection.remote, claims, refusal, self._who)
        self._refuse(refusal)

    def _note_claim(self, name: str, refusal: Refusal) -> None:
        """Show in the status that a program with a wrong token claims to be a peer. The program may really be the
        peer, with a wrong configuration. The claim is only shown, and has no other effect. Do nothing if this peer is
        connected, or if this server has an access file."""
        peer = self._entry.peering.peers.get(name)
        if peer is not None and peer.connection is None and self._entry.guard.keyring is None:
            host = self.connection.remote.rpartition(":")[0]
            peer.claim = f"{refusal.reason} ({host} claims to be {name})"

    def _refuse(self, refusal: Refusal) -> None:
        self._refused = True
        self.connection.close(refusal.reason, final=True, code=refusal.code)

    def review(self) -> None:
        """Close the connection if the identity of its other end is no longer valid."""
        guard = self._entry.guard
        refusal = guard.lapse(self._who)
        if refusal is None or self._refused:
            return
        assert self._who is not None
        guard.note("revoked", self._who, self.connection.remote, reason=refusal.reason)
        self._entry.log.warning(
            "credentials-revoked", identity=self._who.label, remote=self.connection.remote, reason=refusal.reason
        )
        self._refuse(refusal)

    def closed(self, reason: str, now: float) -> None:
        self._entry.connections.pop(self, None)
        if self._counted and self._who is not None:
            self._counted = False
            self._entry.guard.leave(self._who)
        if self._known is not None:
            self._known.closed(reason, now)
        elif (
            reason
            and (not self._refused or self.connection.code == wire.UNREADABLE)
            and self.connection.code not in _unlogged
        ):
            # What is taught a change of the topology counts as refused, but can still break the protocol.
            coded: dict[str, Any] = {"code": self.connection.code} if self.connection.code else {}
            self._entry.log.warning("stranger-gone", remote=self.connection.remote, **coded, reason=reason)

    def writable(self) -> None:
        if self._known is not None:
            self._known.writable()

    def watch(self, now: float) -> None:
        """Close the connection if its hello does not come in time. After the hello, send pings, and close the
        connection if it is silent for too long."""
        connection = self.connection
        if self._known is None:
            if now - self._since > self._patience:
                connection.close("no hello", code=NO_HELLO)
        else:
            keep_alive(connection, now)


_unlogged = ("too-many-strangers", STOPPING)
"""The codes of closed connections that are not logged one by one. ``Entry.watch`` logs from time to time how many
strangers were closed."""
