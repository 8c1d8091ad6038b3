"""Clients that are here: over a connection, or in the same process.

A session is one presence of a client. A client has at most one; a newer one takes its place. Publishes become inputs of
the machine; what the machine says of them, and letters for the client, leave when they are durable. Letters are handed
out again from the first that was not taken off the mailbox when a session begins to listen.

A temporary client (see :mod:`antecede.wire`) is forgotten when it has left: its mailbox is emptied, and the number of
its last publish goes. One that was killed is forgotten when it has been away for long enough; a letter that comes for
one that has left is dropped.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic, time
from typing import Any, Protocol

from antecede import limits, wire
from antecede.channel import Letter, couple
from antecede.channel.envelopes import envelope_fault
from antecede.client import Bus, Ticket
from antecede.engine import React, Reaction, died
from antecede.errors import RefusedError, WireError
from antecede.runtime.intake import Intake
from antecede.runtime.logs import ServerLog
from antecede.server import Accepted, AgentServer, Refused
from antecede.server.items import Buried, Left, Published, PublishedMany, Reacted
from antecede.transports import Connection

OPERATOR = "dead-letters"
"""The client as which dead letters are sent again."""


class Session(Protocol):
    """A client that is here, as the server sees it."""

    client: str
    address: str
    """``client@server``, once it has begun."""
    listening: bool
    handed: list[str]
    """The letters that it has and has not yet said to have handled."""

    def welcome(self, address: str, last: int) -> None: ...

    def reply(self, reply: Accepted | Refused) -> None: ...

    def deliver(self, letters: list[Letter]) -> None: ...

    def end(self, reason: str) -> None: ...


class Sessions:
    """All clients of a server that are here."""

    def __init__(
        self,
        machine: AgentServer,
        intake: Intake,
        poke: Callable[[], None],
        when_stepped: Callable[[Callable[[], None]], None],
        when_durable: Callable[[Callable[[], None]], None],
        log: ServerLog,
    ) -> None:
        self._machine = machine
        self.intake = intake
        self._submit = intake.submit
        self._poke = poke
        self._when_stepped = when_stepped
        self._when_durable = when_durable
        self._log = log
        self._here: dict[str, Session] = {}
        """By address."""
        self._temporary = {client: monotonic() for client in machine.clients if wire.is_temporary(client)}
        """Temporary clients that are known, or that letters came for, and since when each may be away."""
        self.dead = 0
        """Letters that clients could not handle."""

    def __len__(self) -> int:
        return len(self._here)

    @property
    def names(self) -> list[str]:
        """Who is here."""
        return sorted(session.client for session in self._here.values())

    def unwelcome(self, client: str) -> str:
        """Why nobody may come under that name; empty: one may. An agent's name stands for its own mailbox."""
        machine = self._machine
        if client in machine.channel.objects:
            return f"{client} is the name of a replicated object: a client needs another"
        if client in machine.plan.homes or f"{client}@{machine.name}" in machine.engine.born:
            return f"{client} is the name of an agent: a client needs another"
        return f"{client} is who sends dead letters again" if client == OPERATOR else ""

    def is_away(self, address: str) -> bool:
        """Whether this is the mailbox of a client that nobody reads now."""
        return address not in self._here

    def begin(self, session: Session) -> None:
        """A client came: it is welcomed once the publishes of its last session have been taken or refused."""
        address = session.address = f"{session.client}@{self._machine.name}"
        before = self._here.get(address)
        if before is not None:
            before.end(f"another client came as {session.client}")
        self._here[address] = session
        self._may_be_away(session.client)

        def welcome() -> None:
            last = self._machine.clients.get(session.client, 0)
            self._when_durable(lambda: session.welcome(address, last))

        self._when_stepped(welcome)

    def finish(self, session: Session, reason: str = "", code: str = "") -> None:
        """A client went; if it did not simply go, why, and which rule it broke."""
        if reason not in _usual:
            coded: dict[str, Any] = {"code": code} if code else {}
            self._log.warning("client-gone", client=session.client, **coded, reason=reason)
        if self._here.get(session.address) is session:
            del self._here[session.address]
            self._may_be_away(session.client)

    def leave(self, session: Session) -> None:
        """A client goes for good."""
        if self.is_here(session) and wire.is_temporary(session.client):
            del self._here[session.address]
            self._forget(session.client)

    def sweep(self, now: float) -> None:
        """Forget the temporary clients that have been away for too long."""
        for client, since in list(self._temporary.items()):
            if f"{client}@{self._machine.name}" in self._here:
                continue
            # Who has left, or has never sent, does not come back for what is in its mailbox.
            if client not in self._machine.clients or now - since > limits.temporary_client_seconds_max:
                self._forget(client)

    def _may_be_away(self, client: str) -> None:
        if wire.is_temporary(client):
            self._temporary[client] = monotonic()

    def _forget(self, client: str) -> None:
        self._temporary.pop(client, None)
        self.drop(f"{client}@{self._machine.name}", "the temporary client that it was for has left")
        self._submit(Left(client))

    def drop(self, address: str, reason: str) -> int:
        """Empty the mailbox of a client for good; how many letters were in it."""
        letters = [letter.id for letter in self._machine.engine.mailboxes.get(address, ())]
        if letters:
            # All in one step: a client that comes back meanwhile finds an empty mailbox, or none was dropped.
            reactions = tuple(Reaction(letter, dead=reason) for letter in letters)
            self._submit(Reacted(address, reactions, None, int(time() * 1000)))
            for letter in letters:
                self._submit(Buried(f"{letter} {address}"))
        return len(letters)

    def is_here(self, session: Session) -> bool:
        """Whether no newer session took its place."""
        return self._here.get(session.address) is session

    def listen(self, session: Session) -> None:
        """From now on letters are handed out to this session."""
        if self.is_here(session):
            session.listening = True
            session.handed = []
            self._machine.engine.abandon(session.address)
            self._poke()

    def malformed(self, client: str, part: wire.Publish) -> str:
        """Return which rule of the client library this publish breaks; empty: none. What an application can do wrong
        is refused by the machine instead, and the client goes on."""
        count = len(part.bodies)
        if not count or not part.to:
            return "no destination" if count else "no notification"
        if part.number < 1 or (part.ask and count > 1):
            return f"number {part.number}" if part.number < 1 else f"one question with {count} notifications"
        if len(part.context) > limits.trace_context_chars_max:
            return f"trace context of {len(part.context)} characters, expected at most {limits.trace_context_chars_max}"
        # A batch may be begun when the window is nearly full.
        window = self._machine.clients.get(client, 0) + limits.publish_window_max + limits.publish_batch_max
        if part.number + count - 1 > window:
            return f"number {part.number + count - 1}, expected at most {window} before more is accepted"
        return ""

    def publish(self, session: Session, part: wire.Publish | Ticket) -> None:
        """A client sends."""
        if not self.is_here(session):
            return
        kind = part.kind if isinstance(part, Ticket) else part.type
        bodies, to = part.bodies, part.to
        # What cannot be sent is refused by the machine, which knows whether it is this publish's turn.
        if not envelope_fault(to, kind):
            to = self._machine.channel.checked(to) or to
        if len(bodies) == 1:
            self._submit(Published(session.client, part.number, to, kind, bodies[0], part.ask, context=part.context))
            return
        # A batch for many is cut, so that no step makes too many copies.
        most = max(1, limits.step_letters_max // len(to))
        for at in range(0, len(bodies), most):
            some = bodies if len(bodies) <= most else bodies[at : at + most]
            self._submit(PublishedMany(session.client, part.number + at, to, kind, some, part.context))

    def done(self, session: Session, letters: list[str], dead: str) -> None:
        """A client has handled letters; those that it was not handed, or handled in an earlier session, don't count."""
        if not self.is_here(session) or not letters or session.handed[: len(letters)] != letters:
            return
        del session.handed[: len(letters)]
        reactions = [Reaction(letter) for letter in letters]
        address = session.address
        if dead:
            self.dead += 1
            reason, mailbox = dead[:_reason_chars], self._machine.engine.mailboxes.get(address, ())
            last = next((letter for letter in mailbox if letter.id == letters[-1]), None)
            if last is not None:
                reactions[-1] = died(last, reason, self._machine.channel.check)
            self._log.warning("dead-letter", agent=session.client, letter=letters[-1], reason=reason)
        self._submit(Reacted(address, tuple(reactions), None, int(time() * 1000)))

    def due(self, due: React) -> None:
        """Letters for a client; if it is not here they wait in its mailbox."""
        session = self._here.get(due.agent)
        if session is None or not session.listening:
            if session is None and wire.is_temporary(due.agent):
                self._temporary.setdefault(due.agent.rpartition("@")[0], monotonic())
            return
        if len(due.letters) == 1 and not session.handed:
            letters = list(due.letters)
            session.handed = [letters[0].id]
            self._when_durable(lambda: session.deliver(letters))
            return
        fresh: list[Letter] = []
        size = 0
        for letter in due.letters[len(session.handed) :]:
            # Also its addresses: a topic has many, and one frame must be able to carry all of it.
            size += len(letter.body) + sum(map(len, letter.to))
            if fresh and size > limits.deliver_bytes_wanted:
                break
            fresh.append(letter)
        if fresh:
            session.handed += [letter.id for letter in fresh]
            self._when_durable(lambda: session.deliver(fresh))

    def replies(self, replies: list[Accepted | Refused]) -> None:
        """What the machine says of publishes; of several acceptances of a client only the last counts."""
        if len(replies) == 1:
            self._tell(replies[0])
            return
        newest: dict[str, Accepted | Refused] = {}
        for reply in replies:
            before = newest.get(reply.client)
            if before is not None and not (isinstance(before, Accepted) and isinstance(reply, Accepted)):
                self._tell(before)
            newest[reply.client] = reply
        for reply in newest.values():
            self._tell(reply)

    def _tell(self, reply: Accepted | Refused) -> None:
        session = self._here.get(f"{reply.client}@{self._machine.name}")
        if session is not None:
            session.reply(reply)

    def end(self, reason: str) -> None:
        """Send all away."""
        for session in list(self._here.values()):
            session.end(reason)


class RemoteSession:
    """A client at the other end of a connection."""

    def __init__(self, sessions: Sessions, connection: Connection, client: str, version: int) -> None:
        self.client = client
        self._version = version
        self.address = ""
        self.listening = False
        self.handed: list[str] = []
        self._sessions = sessions
        self._connection = connection
        self._welcomed = False
        self._rest: deque[wire.AnyPart] = deque()
        """Parts that have arrived and are still to be handled."""
        connection.trust(server=False)
        sessions.begin(self)

    def welcome(self, address: str, last: int) -> None:
        self._welcomed = True
        self._connection.send([wire.Welcome(self._version, address.rpartition("@")[2], address, last)])
        self._connection.speak(self._version)

    def reply(self, reply: Accepted | Refused) -> None:
        if not self._welcomed:
            return
        if isinstance(reply, Accepted):
            self._connection.send([wire.Accepted(reply.number)])
        else:
            self._connection.send([wire.Refused(reply.number, reply.count, reply.reason, reply.retry)])

    def deliver(self, letters: list[Letter]) -> None:
        if self._sessions.is_here(self):
            self._connection.send([wire.Deliver(couple(letters))])

    def end(self, reason: str) -> None:
        self._connection.close(reason, final=reason.startswith("another"))

    # From the connection.

    def received(self, parts: list[wire.AnyPart]) -> None:
        if self._rest:
            self._rest.extend(parts)
        elif len(parts) > limits.session_parts_max:
            self._rest.extend(parts)
            self._connection.busy(True)
            self._take_turn()
        else:
            self._handle(parts)

    def _take_turn(self) -> None:
        """Handle some of the parts that are left, and the others in the next turns of the event loop."""
        rest = self._rest
        self._handle([rest.popleft() for _ in range(min(len(rest), limits.session_parts_max))])
        if rest:
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self._connection.busy(False)

    def _go_on(self) -> None:
        if self._rest:
            try:
                self._take_turn()
            except WireError as error:
                self._rest.clear()
                self._connection.close(str(error), final=True, code=error.code)

    def _handle(self, parts: list[wire.AnyPart]) -> None:
        intake = self._sessions.intake
        gathers = intake.gather()
        try:
            self._sort(parts)
        finally:
            if gathers:
                intake.go()

    def _sort(self, parts: list[wire.AnyPart]) -> None:
        pinged = False
        for part in parts:
            if isinstance(part, wire.Publish):
                fault = self._sessions.malformed(self.client, part)
                if fault:
                    raise WireError(f"malformed publish from client {self.client}: {fault}", "bad-publish")
                self._sessions.publish(self, part)
            elif isinstance(part, wire.Done):
                self._sessions.done(self, part.letters, part.dead)
            elif isinstance(part, wire.Listen):
                self._sessions.listen(self)
            elif isinstance(part, wire.Ping):
                pinged = True
            elif isinstance(part, wire.Bye):
                if part.final:
                    self._sessions.leave(self)
            elif not isinstance(part, wire.Pong):
                raise WireError(f"{type(part).__name__} from client {self.client}", "unexpected-part")
        if pinged:
            self._connection.send([wire.Pong()])

    def closed(self, reason: str) -> None:
        self._rest.clear()
        self._sessions.finish(self, reason, self._connection.code)

    def writable(self) -> None:
        return


class LocalSession:
    """A client in the server's own process: its bus, and the bus's line (:class:`antecede.client.Line`)."""

    def __init__(self, sessions: Sessions, bus: Bus) -> None:
        self.client = bus.name
        self.address = ""
        self.listening = False
        self.handed: list[str] = []
        self._sessions = sessions
        self._bus = bus
        self._welcomed = asyncio.Event()

    async def open(self) -> None:
        unwelcome = self._sessions.unwelcome(self.client)
        if unwelcome:
            raise RefusedError(unwelcome)
        self._sessions.begin(self)
        await self._welcomed.wait()

    def publish(self, ticket: Ticket, last: bool) -> None:
        self._sessions.publish(self, ticket)

    def done(self, letters: list[str], dead: str) -> None:
        self._sessions.done(self, letters, dead)

    def listen(self) -> None:
        self._sessions.listen(self)

    async def close(self) -> None:
        self._sessions.finish(self)

    # From the server.

    def welcome(self, address: str, last: int) -> None:
        self._bus.welcomed(address, last)
        self._welcomed.set()

    def reply(self, reply: Accepted | Refused) -> None:
        if isinstance(reply, Accepted):
            self._bus.accepted(reply.number)
        else:
            self._bus.refused(reply.number, reply.reason, reply.retry)

    def deliver(self, letters: list[Letter]) -> None:
        if self._sessions.is_here(self):
            self._bus.delivered(letters)

    def end(self, reason: str) -> None:
        self._sessions.finish(self)
        self._bus.gone(RefusedError(reason))


_usual = ("", "the other end hung up", "the server stops")
_reason_chars = 1_000
