"""A client's end of the protocol, without I/O: its publishes and their numbers, and the line to its own server.

**Publishes** are numbered 1, 2, 3 … without gaps and kept until the server has accepted them. After a broken connection
the server's welcome says which ones it has; the others are sent again, so none is sent twice. The server skips the
publishes after a refused one; they get new numbers.

**The line** dials the server, sends the hello, and dials again after a broken connection, with growing pauses, for as
long as the client exists. A server that closes the connection for good (a wrong token, another client with the same
name) ends the line. A temporary client closes its connection for good, and is then forgotten. If it was disconnected
for so long that its server may have forgotten it, it gives up: publishes that it repeats might count as new.

The owner of a line (:class:`antecede.live.client.Bus`, or a simulated client) decides what to publish and what to do
with letters. ``now`` and randomness are arguments.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from antecede import limits, wire
from antecede.access import Refusal
from antecede.access.proof import Dialing, Keyring
from antecede.channel.letters import Letter, uncouple
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
from antecede.server.connections import CLOSED_AT_ONCE, Connection, keep_alive
from antecede.server.pauses import Backoff


class Ticket:
    """A batch of publishes: one or several notifications of one type to the same destinations."""

    __slots__ = ("ask", "bodies", "bytes", "context", "kind", "number", "target", "to")

    def __init__(
        self, number: int, target: str | tuple[str, ...], to: tuple[str, ...], kind: str, ask: bool, context: str = ""
    ) -> None:
        self.number = number
        """The number of the first publish."""
        self.target = target
        """The destinations as the caller gave them."""
        self.to = to
        self.kind = kind
        self.ask = ask
        self.context = context
        """The span that all of them were sent in, as a W3C trace context; empty: none."""
        self.bodies: list[bytes] = []
        self.bytes = 0

    def drop(self, count: int) -> None:
        """Remove the first publishes of the batch, which were accepted; the rest becomes a new batch."""
        self.number += count
        del self.bodies[:count]


T = TypeVar("T", bound=Ticket)


class Numbering(Generic[T]):
    """The publishes of one client that are not accepted yet, and the next number."""

    def __init__(self, settled: Callable[[T, AntecedeError | None], None]) -> None:
        """``settled``: called for each ticket that is accepted, or fails with an error."""
        self._settled = settled
        self.next = 1
        """The number of the next publish."""
        self.accepted_upto = 0
        self.open: T | None = None
        """The batch that is being filled; it has a number, but was not sent yet."""
        self.tickets: deque[T] = deque()
        """Batches that were sent and are not accepted yet, by number."""
        self.asks: dict[int, T] = {}
        """Questions that wait for an answer, by the number that an answer quotes."""

    def keep(self, ticket: T) -> None:
        """Keep a complete ticket until it is accepted."""
        self.next = ticket.number + len(ticket.bodies)
        self.tickets.append(ticket)

    @property
    def last(self) -> int:
        """The number of the newest publish."""
        return self.next - 1 + (0 if self.open is None else len(self.open.bodies))

    @property
    def outstanding(self) -> int:
        """How many publishes are not accepted yet."""
        return self.last - self.accepted_upto

    def accepted(self, upto: int) -> None:
        """Settle all publishes up to this number, which the server has."""
        self.accepted_upto = max(self.accepted_upto, upto)
        tickets = self.tickets
        while tickets and tickets[0].number <= upto:
            ticket = tickets[0]
            known = upto + 1 - ticket.number
            if known < len(ticket.bodies):
                # After a broken connection the server may have only a part of a batch.
                ticket.drop(known)
                return
            tickets.popleft()
            self._settled(ticket, None)

    def welcomed(self, last: int) -> AntecedeError | None:
        """Process a welcome: the server has our publishes up to ``last``. Number the others again from there; they must
        then be sent again. Return why the client cannot continue, if it cannot."""
        if self.tickets and last >= self.next:
            return UsageError("another client publishes under the same name: expected one at a time")
        if last < self.accepted_upto:
            lost = f"it had accepted {self.accepted_upto} publishes and now has {last}"
            return RefusedError(f"the server lost its data: {lost}", "data-lost")
        self.accepted(last)
        self.next = last + 1
        self._renumber()
        return None

    def refused(self, number: int, error: AntecedeError, retry: bool) -> AntecedeError | None:
        """Process a refusal of the publish with this number and all after it. With ``retry`` all of them fail, and
        their owners may try again later. Otherwise only this one fails, and the others get new numbers and must be sent
        again. Return why the client cannot continue, if it cannot."""
        tickets = self.tickets
        if not tickets or tickets[0].number != number:
            return UsageError(f"the server refused publish {number}, which is not the next")
        self.next = number
        if retry:
            self.tickets = deque()
            for ticket in tickets:
                self._settled(ticket, error)
        else:
            self._settled(tickets.popleft(), error)
        self._renumber()
        return None

    def fail(self, error: AntecedeError) -> None:
        """Let everything that is not accepted fail, because there is no server any more."""
        tickets, self.tickets = self.tickets, deque()
        if self.open is not None:
            tickets.append(self.open)
            self.open = None
        self.next = self.accepted_upto + 1
        for ticket in tickets:
            self._settled(ticket, error)

    def _renumber(self) -> None:
        tickets, self.tickets = self.tickets, deque()
        moved = [*tickets, *([] if self.open is None else [self.open])]
        asks = {id(ticket): self.asks.pop(ticket.number) for ticket in moved if ticket.number in self.asks}
        for ticket in moved:
            ticket.number = self.next
            if id(ticket) in asks:
                self.asks[ticket.number] = ticket
            if ticket is not self.open:
                self.keep(ticket)


class LineOwner(Protocol):
    """The methods that a line calls."""

    name: str

    def welcomed(self, address: str, last: int) -> None:
        """The server accepted our hello, and has our publishes up to this number."""
        ...

    def accepted(self, upto: int) -> None:
        """All publishes up to this number are on the server's disk."""
        ...

    def refused(self, number: int, error: AntecedeError, retry: bool) -> None:
        """The publish of this number was not accepted, nor any after it."""
        ...

    def delivered(self, letters: list[Letter]) -> None:
        """Letters arrived."""
        ...

    def gone(self, error: AntecedeError) -> None:
        """The server closed the connection for good."""
        ...


class ClientLine:
    """The connection of a client to its home server, through all reconnections."""

    def __init__(
        self,
        owner: LineOwner,
        token: str,
        flush_soon: Callable[[], None],
        clock: Callable[[], float],
        random: Callable[[], float],
        speaks: int = wire.VERSION,
        keyring: Keyring | None = None,
        to: str = "",
    ) -> None:
        """``flush_soon``: called when there is something to write; ``flush`` must follow. ``clock``: a clock in seconds
        that continues while the machine sleeps. ``random``: returns numbers from 0 to 1, for the jitter of dialing.
        ``speaks``: the newest wire version that this client supports. ``keyring``: the client's identity, for servers
        with an access file. ``to``: the name of the server, if it is known."""
        self._owner = owner
        self._keyring = keyring
        self._to = to
        self._proof: Dialing | None = None
        """The proof that is not complete yet."""
        self._speaks = speaks
        self._token = token
        self._flush_soon = flush_soon
        self._clock = clock
        self._random = random
        self._temporary = wire.is_temporary(owner.name)
        self._lost_at: float | None = None
        """The end of the last connection with a welcome from the server."""
        self._connection: Connection | None = None
        self._parts: list[wire.Part] = []
        self._backoff = Backoff()
        self._flushing = False
        self.welcomed = False
        self.dial_at: float | None = None
        """The time to dial; None: not now."""
        self.trouble = ""
        """The reason why the last connection could not be made, or ended."""
        self.refusal = ""
        """The reason why the server closed the connection for good; empty: it did not."""
        self._refusal_code = ""
        self.closed_here = False
        self.moved_to = ""
        """The address to dial from now on, as the server said; empty: as before."""

    def start(self, now: float) -> None:
        """Dial the server."""
        self.dial_at = now

    def dials(self, now: float) -> bool:
        """Whether to dial now; ``opened`` or ``dial_failed`` must follow."""
        if self.dial_at is None or self.dial_at > now:
            return False
        self.dial_at = None
        return True

    def dial_failed(self, reason: str, now: float) -> None:
        """Schedule another attempt later, with growing pauses, because there was no answer."""
        self.trouble = reason
        self._dial_later(now)

    def _dial_later(self, now: float) -> None:
        if not self.closed_here and not self.refusal:
            self.dial_at = now + self._backoff.next(self._random())

    def close(self) -> None:
        """Write what waits, and close the connection."""
        self.closed_here, self.dial_at = True, None
        if self._connection is not None:
            self.flush()
            self._connection.close("done", final=self._temporary)

    # Writing.

    def publish(self, ticket: Ticket, *, flush: bool = False) -> None:
        """Send a ticket, if there is a connection; otherwise it is sent after the next welcome."""
        if self.welcomed:
            bodies = list(ticket.bodies)
            self._parts.append(
                wire.Publish(ticket.number, ticket.to, ticket.kind, bodies, ticket.ask, context=ticket.context)
            )
            if flush:
                self.flush()
            else:
                self._soon()

    def done(self, letters: list[str], dead: str) -> None:
        """Report letters as handled."""
        self._put(wire.Done(letters, dead))

    def listen(self) -> None:
        """Ask for letters."""
        self._put(wire.Listen())

    def _put(self, part: wire.Part) -> None:
        """Send a part, if there is a connection. Otherwise it is dropped: the owner repeats it after the next
        welcome."""
        if self.welcomed:
            self._parts.append(part)
            self._soon()

    def _soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._flush_soon()

    def flush(self) -> None:
        """Write what waits, unless the connection is full."""
        self._flushing = False
        if self._connection is None or not self._parts or self._connection.full:
            return
        parts, self._parts = self._parts, []
        self._connection.send(parts)

    # The connection.

    def opened(self, connection: Connection) -> "ClientLine":
        """The server answered: send the hello, or first our introduction."""
        self._connection = connection
        if self._keyring is not None:
            self._proof = Dialing(self._keyring, connection, self._to)
            connection.send([self._proof.introduction])
            return self
        connection.trust(server=True)
        self._greet(connection)
        return self

    def _greet(self, connection: Connection) -> None:
        connection.send([wire.ClientHello(self._speaks, wire.VERSION_OLDEST, self._token, self._owner.name)])

    def _prove(self, dialing: Dialing, connection: Connection, part: wire.AnyPart) -> None:
        """Let the server prove its identity, and prove ours."""
        proof = dialing.answer(part)
        if isinstance(proof, Refusal):
            self.refusal, self._refusal_code = proof.reason, proof.code
            connection.close(proof.reason, final=True, code=proof.code)
            return
        self._proof = None
        connection.trust(server=True)
        connection.send([proof])
        self._greet(connection)

    def received(self, parts: list[wire.AnyPart]) -> None:
        """Take what the server sent."""
        owner, connection = self._owner, self._connection
        if self._proof is not None and connection is not None and not isinstance(parts[0], wire.Bye):
            if not self.refusal:
                self._prove(self._proof, connection, parts[0])
            return
        for part in parts:
            if isinstance(part, wire.Accepted):
                owner.accepted(part.upto)
            elif isinstance(part, wire.Deliver):
                owner.delivered(uncouple(part.train))
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
                if part.final:
                    self.refusal, self._refusal_code = part.reason, part.code or "refused"

    def _welcome(self, part: wire.Welcome) -> None:
        version = wire.agree(part.version, part.version, self._speaks)
        if self._connection is not None:
            self._connection.speak(version)
        away = 0.0 if self._lost_at is None else self._clock() - self._lost_at
        if self._temporary and away > limits.temporary_client_seconds_max / 2:
            self.refusal = "disconnected for too long: it is not known whether the last publishes were accepted"
            self._refusal_code = "away-too-long"
            if self._connection is not None:
                self._connection.close(self.refusal)
            return
        self._lost_at = None
        self._parts = []
        self.welcomed = True
        self._backoff.reset()
        self._owner.welcomed(part.address, part.last)

    def closed(self, reason: str, now: float) -> None:
        """Process the end of the connection: dial again, unless the server closed it for good."""
        self._connection = None
        if self.welcomed:
            self._lost_at = self._clock()
        self.welcomed = False
        self.trouble = self.trouble or reason or CLOSED_AT_ONCE
        if self.refusal and not self.closed_here:
            self._owner.gone(RefusedError(self.refusal, self._refusal_code))
        else:
            self._dial_later(now)

    def writable(self) -> None:
        """Continue writing: the connection has room again."""
        self.flush()

    def watch(self, now: float) -> None:
        """Send a ping from time to time; close a connection that is silent."""
        if self._connection is not None:
            keep_alive(self._connection, now)


def refusal_of(reason: str, code: str, retry: bool) -> AntecedeError:
    """Return the error of a publish that the server refused. An older server sends no code."""
    if retry:
        return OverloadError(reason)
    return _refusals.get(code, UsageError)(reason)


_refusals: Final = {
    kind.code: kind for kind in (UsageError, UnknownAgentError, NoRouteError, NotAllowedError, MailboxFullError)
}
