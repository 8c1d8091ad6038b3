"""A simulated client: a durable name at a home server, publishes numbered 1, 2, 3 …, letters handed to handlers.

What was not accepted is sent again, in sequence, on the next connection: sometimes all of it, as by a client that lost
the welcome. Letters may be handed out again after a disconnection (a client's handlers run at least once); ``inbox``
holds each once.
"""

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Protocol

import msgspec

from antecede.channel import Letter
from antecede.engine import React, Reaction
from antecede.engine.agents import Notification, name_of
from antecede.server import Accepted, Refused
from antecede.server.items import Published, PublishedMany, Reacted
from antecede.simulator.servers.server import SimulatedServer, Surroundings

_encode = msgspec.msgpack.Encoder().encode


class _Session:
    """One presence of a client at its server."""

    def __init__(self) -> None:
        self.welcomed = False
        self.listening = False
        """Known to the server a little later."""
        self.handed: list[str] = []


class Receives(Protocol):
    """What a client does with a letter, before it is acknowledged."""

    def __call__(self, letter: Letter) -> None: ...


class SimulatedClient:
    """Somebody outside, through all connections."""

    def __init__(self, world: Surroundings, name: str, home: SimulatedServer) -> None:
        self.world = world
        self.name = name
        self.home = home
        self.address = f"{name}@{home.name}"
        self.published: list[Published] = []
        self.accepted = 0
        self.inbox: list[Letter] = []
        self.on_letter: list[Receives] = []
        self.session: _Session | None = None
        self._seen: set[str] = set()
        self._out_at = 0.0
        self._in_at = 0.0

    def send(self, to: tuple[str, ...], notification: Notification, *, ask: bool = False, replays: str = "") -> int:
        """Publish; the number of it."""
        return self._publish(to, name_of(type(notification)), _encode(notification), ask, replays)

    def call(self, object_: str, operation: str, arguments: tuple[Any, ...], timeout: float) -> int:
        """Call an operation of a replicated object; the number of the publish. What it returned comes as a letter."""
        return self._publish((f"{object_}()",), operation, _encode((round(timeout * 1000), arguments)), True)

    def _publish(self, to: tuple[str, ...], kind: str, body: bytes, ask: bool, replays: str = "") -> int:
        number = len(self.published) + 1
        self.published.append(Published(self.name, number, to, kind, body, ask, "", replays))
        if self.session is not None and self.session.welcomed:
            self._transmit(self.session, self.home.submit, self.published[-1])
        return number

    # Connections.

    def connect(self) -> None:
        """Come to the home server, if it is there; else try again."""
        if self.session is not None:
            return
        if not self.home.up:
            self.world.later(0.02, self.connect)
            return
        session = self.session = _Session()
        self._transmit(session, self.home.when_stepped, lambda: self._welcome(session))

    def disconnect(self) -> None:
        """The connection breaks; it will come again."""
        self.session = None
        self.world.later(0.005 + self.world.random.random() * 0.05, self.connect)

    def _welcome(self, session: _Session) -> None:
        last = self.home.machine.clients.get(self.name, 0)
        self.home.when_durable(lambda: self._answer(session, self._welcomed, last))

    def _welcomed(self, last: int) -> None:
        session = self.session
        assert session is not None
        if self.world.random.random() < 0.7:
            self.accepted = max(self.accepted, last)
        for publish in self._batches(self.published[self.accepted :]):
            self._transmit(session, self.home.submit, publish)
        session.welcomed = True
        self._transmit(session, self._listen, session)

    def _batches(self, publishes: list[Published]) -> Iterator[Published | PublishedMany]:
        """Runs of one type to the same destinations as one, where that is possible."""
        for (to, kind), several in groupby(publishes, lambda publish: (publish.to, publish.type)):
            run = list(several)
            if len(run) > 1 and not any(one.ask or one.replays for one in run):
                yield PublishedMany(self.name, run[0].number, to, kind, [one.body for one in run])
            else:
                yield from run

    def _listen(self, session: _Session) -> None:
        session.listening = True
        session.handed = []
        self.home.machine.engine.abandon(self.address)
        self.home.poke()

    def _transmit(self, session: _Session, call: Callable[..., None], *given: Any) -> None:
        """To the server, in sequence; what is under way when the connection breaks is lost."""
        self._out_at = max(self._out_at, self.world.now + self.world.random.random() * 0.002)
        self.world.later(self._out_at - self.world.now, self._arrive, session, self.home.life, call, *given)

    def _arrive(self, session: _Session, life: int, call: Callable[..., None], *given: Any) -> None:
        if session is self.session:
            self.home.guard(life, call, *given)

    def _answer(self, session: _Session, call: Callable[..., None], *given: Any) -> None:
        """From the server, in sequence."""
        self._in_at = max(self._in_at, self.world.now + self.world.random.random() * 0.002)
        self.world.later(self._in_at - self.world.now, self._hear, session, call, *given)

    def _hear(self, session: _Session, call: Callable[..., None], *given: Any) -> None:
        if session is self.session:
            call(*given)

    # From the server.

    def reply(self, reply: Accepted | Refused) -> None:
        """The server says what became of publishes."""
        if self.session is not None:
            self._answer(self.session, self._replied, reply)

    def _replied(self, reply: Accepted | Refused) -> None:
        if isinstance(reply, Refused):
            self.world.misbehaved(self.home, f"publish {reply.number} of {self.address} was refused: {reply.reason}")
        else:
            self.accepted = max(self.accepted, reply.number)

    def due(self, due: React) -> None:
        """Letters for this client."""
        session = self.session
        if session is None or not session.listening:
            return
        fresh = list(due.letters[len(session.handed) :])
        if fresh:
            session.handed += [letter.id for letter in fresh]
            self.home.when_durable(lambda: self._answer(session, self._deliver, fresh))

    def _deliver(self, letters: list[Letter]) -> None:
        session = self.session
        assert session is not None
        for letter in letters:
            if letter.id not in self._seen:
                self._seen.add(letter.id)
                self.inbox.append(letter)
                for receives in self.on_letter:
                    receives(letter)
        self._transmit(session, self._done, session, [letter.id for letter in letters])

    def _done(self, session: _Session, letters: list[str]) -> None:
        if session.handed[: len(letters)] == letters:
            del session.handed[: len(letters)]
            reactions = tuple(Reaction(letter) for letter in letters)
            self.home.submit(Reacted(self.address, reactions, None, self.home.clock_ms))
