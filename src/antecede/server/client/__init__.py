"""A *line*: a client's connection to its server, without I/O. For publishes see
:mod:`antecede.server.client.publishing`.

The owner of the line opens the connection when ``dials`` returns True. Then the line sends the hello. (The owner is a
simulated client, or a ``TcpLine``, which serves a :class:`antecede.live.client.Bus`.) The server accepts the client
with a *welcome*. After a broken connection the line requests another dial, with growing pauses, for as long as the
client exists. The line ends when the server closes the connection permanently, for example because of a wrong token, or
because another client has the same name. The line reads the credentials again in two cases: the client or the server
does not prove its identity, or the client's key is revoked. It then requests another dial only if the credentials have
changed, or if a key was revoked and the client has a second key, or if a server that has once welcomed the client does
not prove its identity.

A client with credentials obeys nothing that comes before the server's proof of its identity: no end and no new address.

A server forgets a temporary client that closes its connection, or that is disconnected for too long. So the line of a
temporary client also ends if the server may have forgotten the client. Otherwise the client would repeat its last
publishes, and the server might accept them as new publishes.

The owner decides what to publish and what to do with letters. A line has no clock and no random numbers: callers pass
them.
"""

from collections.abc import Callable
from typing import Final, Protocol

from antecede import limits, wire
from antecede.access import Refusal
from antecede.access.authoriser import REVOKED
from antecede.access.proof import NOT_PROVEN, Dialing, Keyring
from antecede.channel.letters import Letter, decode_train
from antecede.errors import (
    AntecedeError,
    MailboxFullError,
    NoRouteError,
    NotAllowedError,
    OverloadError,
    RefusedError,
    UnknownAgentError,
    UsageError,
)
from antecede.server.client.publishing import Ticket
from antecede.server.connections import CLOSED_AT_ONCE, NO_WELCOME, Backoff, Connection, keep_alive


class LineOwner(Protocol):
    """The owner of a line: the line calls these methods to report what the server sends."""

    name: str

    def welcomed(self, address: str, last: int) -> None:
        """Handle the server's welcome. The server accepts this client, and has already accepted its publishes up to
        number ``last``."""
        ...

    def accepted(self, upto: int) -> None:
        """Record that the server has accepted all publishes up to this number."""
        ...

    def refused(self, number: int, error: AntecedeError, retry: bool) -> None:
        """Handle the refusal of the publish with this number. The server has not accepted later publishes either.
        ``retry``: whether the server may accept the same publish later."""
        ...

    def delivered(self, letters: list[Letter]) -> None:
        """Handle letters that have arrived."""
        ...

    def gone(self, error: AntecedeError) -> None:
        """Record that the connection was closed permanently, for the reason ``error``."""
        ...


class ClientLine:
    """The connection of a client to its server. The same object is used for all reconnections."""

    def __init__(
        self,
        owner: LineOwner,
        token: str,
        flush_soon: Callable[[], None],
        clock: Callable[[], float],
        random: Callable[[], float],
        keyring: Keyring | None = None,
    ) -> None:
        """``flush_soon``: called when there is something to write. The owner must then call ``flush`` soon. ``clock``:
        a clock in seconds that continues while the machine sleeps. ``random``: returns numbers from 0 to 1, which vary
        the pauses before dialing. ``keyring``:
        the client's identity, for servers with an access file."""
        self._owner = owner
        self._keyring = keyring
        self._proof: Dialing | None = None
        """The proof of identity that is in progress, or None if no proof is in progress."""
        self._left = False
        """True if this client has closed the connection because the server did not prove its identity."""
        self._token = token
        self._flush_soon = flush_soon
        self._clock = clock
        self._random = random
        self._temporary = wire.is_temporary(owner.name)
        self._known = False
        """True after the first welcome. From then on, no program that cannot prove to be the server ends the line."""
        self._lost_at: float | None = None
        """The time at which the last accepted connection ended. (The server accepts a connection by sending a welcome.)
        It is None while an accepted connection is open, and before the first accepted connection."""
        self._connection: Connection | None = None
        self._parts: list[wire.Part] = []
        self._backoff = Backoff()
        self._flushing = False
        self.welcomed = False
        self.dial_at: float | None = None
        """The time at which to dial next, or None if no dial is planned."""
        self.trouble = ""
        """The reason why the last attempt to connect failed, or why the last connection ended."""
        self.refusal = ""
        """The reason why the server or this client closed the connection permanently. It is empty if the connection was
        not closed permanently."""
        self._refusal_code = ""
        self.closed_here = False
        self.moved_to = ""
        """The new address to dial. It is empty if the server has not sent a new address."""

    def start(self, now: float) -> None:
        """Request the first dial."""
        self.dial_at = now

    def dials(self, now: float) -> bool:
        """Return True if the caller must dial now. After dialing, the caller must call ``opened`` or
        ``dial_failed``."""
        if self.dial_at is None or self.dial_at > now:
            return False
        self.dial_at = None
        return True

    def dial_failed(self, reason: str, now: float) -> None:
        """Record that the connection could not be made. Request a dial after a pause, which grows each time."""
        self.trouble = reason
        self._dial_later(now)

    def _dial_later(self, now: float) -> None:
        if not self.closed_here and not self.refusal:
            self.dial_at = now + self._backoff.next(self._random())

    def close(self) -> None:
        """Write the parts (messages of the wire protocol) that wait, and close the connection."""
        self.closed_here, self.dial_at = True, None
        if self._connection is not None:
            self.flush()
            self._connection.close("done", final=self._temporary)

    # Writing.

    def publish(self, ticket: Ticket, last: bool) -> None:
        """Send a ticket (a batch of publishes) if the server has accepted the connection with a welcome. Otherwise the
        owner sends the ticket after the next welcome. ``last``: true if no other publish follows at this moment. Then
        everything that waits is written immediately."""
        if self.welcomed:
            bodies = list(ticket.bodies)
            sent = ticket.number, ticket.to, ticket.kind, bodies, ticket.ask
            self._parts.append(wire.Publish(*sent, context=ticket.context, begun=ticket.begun))
            if last:
                self.flush()
            else:
                self._soon()

    def done(self, letters: list[str], dead: str) -> None:
        """Report letters as handled. ``dead``: the reason why the last of these letters is dead. It is empty if this
        letter is not dead."""
        self._put(wire.Done(letters, dead))

    def listen(self) -> None:
        """Tell the server that it may send letters on this connection from now on."""
        self._put(wire.Listen())

    def _put(self, part: wire.Part) -> None:
        """Send a part (a message of the wire protocol) if the server has accepted the connection with a welcome.
        Otherwise drop the part. After the next welcome, the owner repeats everything that is still needed."""
        if self.welcomed:
            self._parts.append(part)
            self._soon()

    def _soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._flush_soon()

    def flush(self) -> None:
        """Write the parts (messages of the wire protocol) that wait, unless the connection is full."""
        self._flushing = False
        if self._connection is None or not self._parts or self._connection.full:
            return
        parts, self._parts = self._parts, []
        self._connection.send(parts)

    # The connection.

    def opened(self, connection: Connection) -> "ClientLine":
        """Use a new connection to the server. With a keyring, send our introduction, which begins the proof of
        identity. The hello is sent after the proof. Without a keyring, send the hello. Return this line, which receives
        everything that comes on the connection."""
        self._connection = connection
        self.trouble = NO_WELCOME
        self._left = False
        if self._keyring is not None:
            self._proof = Dialing(self._keyring, connection)
            connection.send([self._proof.introduction])
            return self
        connection.trust(server=True)
        self._greet(connection)
        return self

    def _greet(self, connection: Connection) -> None:
        connection.send([wire.ClientHello(self._token, self._owner.name)])

    def _prove(self, dialing: Dialing, connection: Connection, part: wire.AnyPart) -> None:
        """Check the proof of the server's identity. If it is correct, send our proof and the hello. Otherwise close the
        connection."""
        proof = dialing.answer(part)
        if isinstance(proof, Refusal):
            self._left = True
            self.trouble = proof.reason
            if not self._renews(proof.code) and not self._known:
                self.refusal, self._refusal_code = proof.reason, proof.code
            connection.close(proof.reason, final=True, code=proof.code)
            return
        self._proof = None
        connection.trust(server=True)
        connection.send([proof])
        self._greet(connection)

    def _renews(self, code: str) -> bool:
        """Read the credentials again if an identity was not proven or a key was revoked. Return True if the client must
        dial again. ``code``: the code of the refusal."""
        return code in (NOT_PROVEN, REVOKED) and self._keyring is not None and self._keyring.renew(code)

    def received(self, parts: list[wire.AnyPart]) -> None:
        """Handle parts that the server has sent."""
        owner, connection = self._owner, self._connection
        if self._proof is not None and connection is not None:
            first = parts[0]
            if isinstance(first, wire.Bye):
                # Any program can answer at this address: its reason is only shown.
                self.trouble = first.reason[: limits.reason_chars_max]
            elif not self._left:
                self._prove(self._proof, connection, first)
            return
        for part in parts:
            if isinstance(part, wire.Accepted):
                owner.accepted(part.upto)
            elif isinstance(part, wire.Deliver):
                owner.delivered(decode_train(part.train))
            elif isinstance(part, wire.Refused):
                owner.refused(part.number, refusal_of(part.reason, part.code, part.retry), part.retry)
            elif isinstance(part, wire.Welcome):
                self._welcome(part)
            elif isinstance(part, wire.Ping):
                self._put(wire.Pong())
            elif isinstance(part, wire.Bye):
                self.trouble = part.reason
                if part.at and not part.final:
                    # The server has moved, or was removed and another one has our mailbox.
                    self.moved_to = part.at
                    self._backoff.reset()
                if part.final and not self._left and not self._renews(part.code):
                    self.refusal, self._refusal_code = part.reason, part.code or "refused"

    def _welcome(self, part: wire.Welcome) -> None:
        away = 0.0 if self._lost_at is None else self._clock() - self._lost_at
        if self._temporary and away > limits.temporary_client_seconds_max / 2:
            self.refusal = "disconnected for too long: it is not known whether the last publishes were accepted"
            self._refusal_code = "away-too-long"
            if self._connection is not None:
                self._connection.close(self.refusal)
            return
        self._lost_at = None
        self._known = True
        self.trouble = ""
        self.welcomed = True
        self._backoff.reset()
        self._owner.welcomed(part.address, part.last)

    def closed(self, reason: str, now: float) -> None:
        """Record that the connection has ended. If it was closed permanently, report the reason (``refusal``) to the
        owner. Otherwise dial again later. If ``close`` was called, do neither."""
        self._connection = None
        # On the next connection they would come before the welcome, and then again: the owner repeats them.
        self._parts = []
        if self.welcomed:
            self._lost_at = self._clock()
        self.welcomed = False
        known = "" if self.trouble == NO_WELCOME else self.trouble
        self.trouble = known or reason or CLOSED_AT_ONCE
        if self.refusal and not self.closed_here:
            self._owner.gone(RefusedError(self.refusal, self._refusal_code))
        else:
            self._dial_later(now)

    def writable(self) -> None:
        """Continue writing, because the connection has room again."""
        self.flush()

    def watch(self, now: float) -> None:
        """Send a ping from time to time, and close a connection that is silent."""
        if self._connection is not None:
            keep_alive(self._connection, now)


def refusal_of(reason: str, code: str, retry: bool) -> AntecedeError:
    """Return the error for a publish that the server refused. ``code``: the reason in one word."""
    if retry:
        return OverloadError(reason)
    return _refusals.get(code, UsageError)(reason)


_refusals: Final = {
    kind.code: kind for kind in (UsageError, UnknownAgentError, NoRouteError, NotAllowedError, MailboxFullError)
}
