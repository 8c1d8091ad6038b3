"""The load of a world whose topology changes: clients, agents that react, and an operator for their dead letters.

Clients number their publishes and repeat the last one until it is accepted, at the server that has their address then.
Agents send letters, ask questions and set timers. Some letters die; an operator sends them again. Some mailboxes have a
limit, so that letters expire. The first tries of some letters end the process of their server.

The load knows what must be true at any time: a client's number never goes back, a letter keeps its tries.
"""

from collections.abc import Callable
from random import Random
from typing import Protocol

import msgspec

from antecede.channel import Letter
from antecede.engine import Alarm, Outbound, React, Reaction, died
from antecede.errors import AntecedeError
from antecede.server import AgentServer, Input
from antecede.server.items import Published, Reacted
from antecede.server.organisation import client_address
from antecede.server.progress import ENDED_WELL, Interrupted
from antecede.server.words import Look, Replay

ANSWERED = "?"
"""In the state of an agent, this mark is in front of the questions that were answered or have timed out; letters have
no mark."""
_on_answer = "on_answer"


class Server(Protocol):
    """A server of the world, as the load sees it."""

    name: str
    machine: AgentServer
    up: bool
    lives: int
    due: list[React]

    def step(self, inputs: list[Input]) -> None:
        """Take a step; the server may crash in it."""
        ...


class Load:
    """The events of a world besides changes."""

    def __init__(self, random: Random, dying: float = 0.0, ending: float = 0.0) -> None:
        """``dying``: the share of letters that die; ``ending``: the share of reactions that end the process."""
        self._random, self._dying, self._ending = random, dying, ending
        self.wrongs: list[str] = []
        self.numbers: dict[str, int] = {}
        """The last accepted publish of each client, by address."""
        self._tried: dict[tuple[str, str], int] = {}
        """For letters whose reaction has ended a process: how often."""
        self.interrupted: dict[str, Interrupted] = {}
        """For each server the calls that were in progress when it ended."""
        self.agents_known: Callable[[Server], list[str]] = lambda server: list(server.machine.plan.homes)
        """Returns the agents to which a server's agents and clients send."""

    def ended(self, server: Server) -> Interrupted:
        """Return the calls that were in progress when the last life of a server ended."""
        return self.interrupted.pop(server.name, ENDED_WELL)

    # Clients.

    def publish(self, server: Server) -> None:
        """Let a client of a server publish."""
        machine = server.machine
        names = [f"c-{server.name}", *machine.organisation.adopted]
        client = self._random.choice(names)
        address = client_address(machine, client)
        number = self.numbers.get(address, 0) + 1
        known = machine.clients.get(client, 0)
        if not number - 1 <= known <= number and not machine.organisation.closed:
            self.wrongs.append(f"{server.name}: {address} has published {number - 1}, and its server knows {known}")
        agents = self.agents_known(server)
        to = tuple(self._random.sample(agents, self._random.randint(1, min(3, len(agents)))))
        try:
            to = machine.channel.check(to)
        except AntecedeError:
            return
        server.step([Published(client, number, to, "Note", bytes([self._random.randint(1, 3)]))])
        if server.up and machine.clients.get(client, 0) >= number:
            self.numbers[address] = number

    # Agents.

    def react(self, server: Server, clock_ms: int, calm: bool) -> None:
        """Let an agent of a server react."""
        due = server.due.pop(self._random.randrange(len(server.due)))
        machine = server.machine
        expected = machine.engine.expects(due.agent, [one.id for one in due.letters])
        if due.agent not in machine.plan.homes or not expected:
            # It has moved, or an operator was faster.
            return
        for letter in due.letters:
            known, tried = machine.engine.tries.of(due.agent, letter.id), self._tried.get((due.agent, letter.id), 0)
            if known != tried:
                self.wrongs.append(f"{server.name}: {due.agent} knows {known} of {tried} tries of {letter.id}")
        if not calm and self._random.random() < self._ending:
            # The process ends in the handler of the first letter.
            letter = due.letters[0]
            self._tried[due.agent, letter.id] = self._tried.get((due.agent, letter.id), 0) + 1
            self.interrupted[server.name] = Interrupted(server.lives, ((due.agent, letter.id),))
            server.up = False
            return
        handled: list[str] = [] if due.state is None else msgspec.msgpack.decode(due.state, type=list[str])
        reactions = []
        for letter, handler in zip(due.letters, due.handlers, strict=True):
            if not calm and letter.type == "Note" and not letter.replays and self._random.random() < self._dying:
                reactions.append(died(letter, "it failed", machine.channel.check))
                break
            handled.append(letter.id)
            if letter.answers and handler == _on_answer:
                handled.append(ANSWERED + letter.answers)
            reactions.append(self._reaction(server, letter))
        server.step([Reacted(due.agent, tuple(reactions), msgspec.msgpack.encode(handled), clock_ms)])
        if server.up and len(reactions) < len(due.letters):
            # The letters behind a dead one are handed out again.
            machine.engine.abandon(due.agent)
            server.step([])

    def _reaction(self, server: Server, letter: Letter) -> Reaction:
        depth = letter.body[0] if letter.type == "Note" else 0
        if letter.ask:
            try:
                server.machine.channel.check((letter.source,))
            except AntecedeError:
                return Reaction(letter.id)
            return Reaction(letter.id, (Outbound((letter.source,), "Answer", b"", answers=letter.ask),))
        if not depth:
            return Reaction(letter.id)
        agents = self.agents_known(server)
        outbound, alarms = [], []
        for _ in range(self._random.randint(0, 2)):
            to = tuple(self._random.sample(agents, self._random.randint(1, min(2, len(agents)))))
            try:
                to = server.machine.channel.check(to)
            except AntecedeError:
                continue
            asks = len(to) == 1 and self._random.random() < 0.3
            question = (_on_answer, self._random.randint(100, 3_000)) if asks else ("", 0)
            outbound.append(Outbound(to, "Note", bytes([depth - 1]), *question))
        if self._random.random() < 0.2:
            alarms.append(Alarm(self._random.randint(1, 3_000), "Alarm", b""))
        return Reaction(letter.id, tuple(outbound), tuple(alarms))

    # The operator.

    def decide(self, server: Server, everything: bool = False) -> bool:
        """Let letters of a server expire, and send a dead letter again, or all; return whether there was one."""
        server.step([Look()])
        if not server.up:
            return False
        keys = list(server.machine.engine.dead)
        for key in keys if everything else keys[:1]:
            dead = server.machine.engine.dead.get(key)
            if dead is None or not server.up:
                continue
            try:
                to = server.machine.channel.check((dead.agent,))
            except AntecedeError:
                continue
            server.step([Replay(key, to, "dead-letters")])
        return bool(keys)
