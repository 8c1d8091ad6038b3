"""A simulated client: the shipped line and numbering, with an application that can be killed.

Publishes that were not accepted are sent again after a reconnection. Letters may be handed out again (a client's
handlers run at least once), and ``inbox`` holds each once. A client that is killed forgets everything, including which
of its publishes were accepted, and starts again under the same name. A client that is taken over learns that another
has its name.
"""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from antecede import wire
from antecede.channel import Letter
from antecede.engine.agents import Notification, name_of
from antecede.errors import AntecedeError, OverloadError
from antecede.server.client import ClientLine, Numbering, Ticket
from antecede.simulator.servers.network import End, Loop, connect
from antecede.simulator.servers.server import SimulatedServer

_encode = msgspec.msgpack.Encoder().encode


class ClientWorld(Loop, Protocol):
    """The interface of its world that a client uses."""

    def wrong(self, where: str, reason: str) -> None: ...


class Publish(msgspec.Struct):
    """A publish of a client, and its state."""

    to: tuple[str, ...]
    kind: str
    body: bytes
    ask: bool = False
    state: str = "sent"
    """``sent``, ``accepted``; ``unknown``: the client was killed before the answer; ``refused``."""


class SimulatedTicket(Ticket):
    """A ticket that remembers what it publishes."""

    __slots__ = ("publishes",)
    publishes: list[Publish]

    def drop(self, count: int) -> None:
        for publish in self.publishes[:count]:
            publish.state = "accepted"
        del self.publishes[:count]
        super().drop(count)


class Receives(Protocol):
    """Called with each letter, before it is acknowledged."""

    def __call__(self, letter: Letter) -> None: ...


class SimulatedClient:
    """A client, through all its connections and restarts."""

    def __init__(self, world: ClientWorld, name: str, home: SimulatedServer) -> None:
        self.world = world
        self.name = name
        self.home = home
        self.address = f"{name}@{home.name}"
        self.published: list[Publish] = []
        self.inbox: list[Letter] = []
        self.on_letter: list[Receives] = []
        self.end: End | None = None
        self._seen: set[str] = set()
        self._life = 0
        self._handled_at = 0.0
        self._begin()

    def _begin(self) -> None:
        """Start a new process of this client: it knows only its name."""
        self._life += 1
        self._started = False
        """Whether this process was ever welcomed; before that it publishes nothing."""
        life = self._life
        self._numbering: Numbering[SimulatedTicket] = Numbering(self._settled)
        self._line = ClientLine(
            _Owner(self, life),
            "",
            lambda: self._later(0.0, self._line.flush),
            lambda: self.world.now,
            self.world.random.random,
        )
        self._line.start(self.world.now)
        self._later(0.0, self._dial)

    def _later(self, seconds: float, call: Callable[..., None], *given: Any) -> None:
        """Call something later, if this process still exists."""
        self.world.later(seconds, self._guard, self._life, call, *given)

    def _guard(self, life: int, call: Callable[..., None], *given: Any) -> None:
        if life == self._life:
            call(*given)

    # Publishing.

    def send(self, to: tuple[str, ...], notification: Notification) -> None:
        """Publish a notification."""
        self._publish(Publish(to, name_of(type(notification)), _encode(notification)))

    def call(self, object_: str, operation: str, arguments: tuple[Any, ...], timeout: float) -> None:
        """Call an operation of a replicated object. What it returned comes as a letter."""
        body = _encode((round(timeout * 1000), arguments))
        self._publish(Publish((f"{object_}()",), operation, body, True))

    def _publish(self, publish: Publish) -> None:
        self.published.append(publish)
        if self._started:
            self._put(publish)

    def _put(self, publish: Publish) -> None:
        numbering = self._numbering
        ticket = numbering.open
        if ticket is not None and (publish.ask or (ticket.to, ticket.kind) != (publish.to, publish.kind)):
            self._flush()
            ticket = None
        if ticket is None:
            ticket = SimulatedTicket(numbering.next, publish.to, publish.to, publish.kind, publish.ask)
            ticket.publishes = []
            numbering.open = ticket
            self._later(self.world.random.random() * 0.001, self._flush)
        ticket.bodies.append(publish.body)
        ticket.publishes.append(publish)
        if publish.ask:
            self._flush()

    def _flush(self) -> None:
        ticket, self._numbering.open = self._numbering.open, None
        if ticket is not None:
            self._numbering.keep(ticket)
            self._line.publish(ticket)

    def _settled(self, ticket: SimulatedTicket, error: AntecedeError | None) -> None:
        if error is None:
            for publish in ticket.publishes:
                publish.state = "accepted"
        elif isinstance(error, OverloadError):
            # Try again, as the application would, one after the other.
            for publish in ticket.publishes:
                self._later(0.05, self._put_again, publish)
        else:
            for publish in ticket.publishes:
                publish.state = "refused"
            self.world.wrong(self.address, f"a publish was refused: {error}")

    def _put_again(self, publish: Publish) -> None:
        # Publishes that are repeated come after those published meanwhile.
        self.published = [one for one in self.published if one is not publish]
        self._publish(publish)

    # Connections.

    def _dial(self) -> None:
        if not self._line.dials(self.world.now):
            return
        if self.home.up:
            self._later(self.world.delay(), self._connect)
        else:
            self._line.dial_failed("connection refused", self.world.now)
            self._dial_at()

    def _dial_at(self) -> None:
        if self._line.dial_at is not None:
            self._later(max(0.0, self._line.dial_at - self.world.now), self._dial)

    def _connect(self) -> None:
        if not self.home.up:
            self._line.dial_failed("connection refused", self.world.now)
            self._dial_at()
            return
        life = self._life
        mine = End(
            self.world,
            self.home.name,
            lambda end, parts: self._guard(life, self._received, end, parts),
            lambda end, reason: self._guard(life, self._closed, end, reason),
            lambda end: self._guard(life, self._line.writable),
        )
        theirs = self.home.end(self.address)
        connect(mine, theirs)
        self.end = mine
        self.home.guard(self.home.life, self.home.accept, theirs)
        mine.receiver = self._line.opened(mine)

    def _received(self, end: End, parts: list[wire.AnyPart]) -> None:
        self._line.received(parts)

    def _closed(self, end: End, reason: str) -> None:
        if end is self.end:
            self.end = None
        self._line.closed(reason, self.world.now)
        self._dial_at()

    def reset(self) -> None:
        """Break the connection; the line dials again."""
        if self.end is not None:
            self.end.snap()

    def kill(self) -> None:
        """Kill the client's process; another one starts under the same name."""
        if self._line.welcomed and self.end is not None:
            self.end.vanish()
            self._forget()
            self._begin()

    def take_over(self) -> None:
        """Connect another process under the same name, which ends this one's connection."""
        if self._line.welcomed:
            self._forget()
            self._begin()

    def _forget(self) -> None:
        self._life += 1
        self.end = None
        for publish in self.published:
            if publish.state == "sent":
                publish.state = "unknown"

    # From the line.

    def welcomed(self, last: int) -> None:
        """The server has our publishes up to this number."""
        numbering = self._numbering
        error = numbering.welcomed(last)
        if error is not None:
            self.world.wrong(self.address, str(error))
            return
        for ticket in numbering.tickets:
            self._line.publish(ticket)
        if not self._started:
            self._started = True
            for publish in self.published:
                if publish.state == "sent":
                    self._put(publish)
        self._line.listen()

    def accepted(self, upto: int) -> None:
        """All publishes up to this number are on the server's disk."""
        self._numbering.accepted(upto)

    def refused(self, number: int, error: AntecedeError, retry: bool) -> None:
        """The publish of this number was not accepted, nor any after it."""
        numbering = self._numbering
        wrong = numbering.refused(number, error, retry)
        if wrong is not None:
            self.world.wrong(self.address, str(wrong))
        elif not retry:
            for ticket in numbering.tickets:
                self._line.publish(ticket)

    def delivered(self, letters: list[Letter]) -> None:
        """Letters arrived."""
        for letter in letters:
            if letter.id not in self._seen:
                self._seen.add(letter.id)
                self.inbox.append(letter)
                for receives in self.on_letter:
                    receives(letter)
        self._handled_at = max(self._handled_at, self.world.now + self.world.random.random() * 0.002)
        ids = [letter.id for letter in letters]
        self.world.at(self._handled_at, self._guard, self._life, self._line.done, ids, "")


class _Owner:
    """One process of a client, as its line sees it."""

    def __init__(self, client: SimulatedClient, life: int) -> None:
        self.name = client.name
        self._client = client
        self._life = life

    def welcomed(self, address: str, last: int) -> None:
        self._client.welcomed(last)

    def accepted(self, upto: int) -> None:
        self._client.accepted(upto)

    def refused(self, number: int, error: AntecedeError, retry: bool) -> None:
        self._client.refused(number, error, retry)

    def delivered(self, letters: list[Letter]) -> None:
        self._client.delivered(letters)

    def gone(self, error: AntecedeError) -> None:
        self._client.world.wrong(self._client.address, str(error))
