"""Changes of the topology in a small world: servers, agents and clients under load, while the topology changes.

The machines, the commands of a change and the recovery are those that ship. This world has what is around them: a
network with connections that break, servers that crash before or after a record is durable, and an operator whose
command is killed and started again. It is deterministic: a seed gives one schedule.

Each agent keeps a list of the letters that it has handled. At the end, when the changes are made and nothing is in
transit, the world is judged (:mod:`antecede.simulator.servers.changes_judged`).
"""

from collections.abc import Callable
from random import Random

import msgspec

from antecede.engine import React
from antecede.errors import AntecedeError
from antecede.link import Ack, Frame, Hello
from antecede.orders import parse
from antecede.server import AgentServer, FromPeer, Input, Plan
from antecede.server.change_requests import Command
from antecede.server.changing import Outcome, Steps, Wait, Wish, carry_out
from antecede.server.learning import believes, lesson_of
from antecede.server.participation import Participant
from antecede.server.recovery import replay, resume
from antecede.simulator.servers.changes_judged import judged, projected
from antecede.simulator.servers.changes_load import Load, Server
from antecede.simulator.servers.changes_meeting import agree, continue_, is_behind, pair_of, shared
from antecede.topology import TopologyFile, parse_topology, plan_change

Content = Frame | Ack | Hello


class _Server:
    """One server: its log, and its machine while it is up."""

    def __init__(self, world: "ChangeWorld", name: str, plan: Plan, incarnation: int) -> None:
        self.world, self.name, self.plan, self.incarnation = world, name, plan, incarnation
        self.log: list[bytes] = []
        self.snapshot: tuple[bytes, int] | None = None
        """A snapshot, and the number of records that it covers."""
        self.up = True
        self.lives = 0
        self.due: list[React] = []
        self.start()

    def start(self) -> None:
        self.up = True
        self.lives += 1
        self.due = []
        self.machine = AgentServer(self.name, self.plan, self.incarnation)
        assert self.plan.file is not None
        snapshot, covered = self.snapshot or (None, 0)
        known = replay(self.machine, snapshot, self.log[covered:], self.plan.file.epoch, self.world.now)
        ended = self.world.load.ended(self)
        self.log.append(resume(self.machine, ended=ended) if known else self.machine.begin(self.plan.file.epoch))
        self.machine.begin_life(self.lives)
        self.participant = Participant(self.machine, self._feed, indices=self.indices)
        self.step([])

    def indices(self, addresses: list[str]) -> dict[str, int]:
        found = projected(self.name, self.incarnation, self.plan, self.log)[1]
        return {address: found.get(address, 0) for address in addresses}

    def _feed(self, given: Input) -> None:
        self.step([given])
        if not self.up:
            raise _Down(self.name)

    def step(self, inputs: list[Input]) -> None:
        """Take a step; the server may crash before or after its record is durable."""
        world = self.world
        machine, change = self.machine, self.machine.organisation.applied
        step = machine.step(inputs, world.now, world.clock_ms)
        if world.crashes(self):
            world.down(self)
            return
        if step.record is not None:
            self.log.append(step.record)
            if world.random.random() < _snapshot_share:
                self.snapshot = (machine.snapshot(), len(self.log))
        if world.crashes(self):
            world.down(self)
            return
        if step.faults:
            world.wrongs.append(f"{self.name}: {step.faults[0]}")
        if machine.organisation.applied != change:
            world.changed(self)
        self.due += step.due
        for one in step.outgoing:
            world.post(self.name, one.peer, FromPeer(one.domain, self.name, one.content))


class _Down(AntecedeError):
    """The server crashed while it carried out a command."""


class ChangeWorld:
    """A world in which the topology changes."""

    def __init__(
        self,
        seed: int,
        topologies: list[str],
        crash: float = 0.01,
        kill: float = 0.02,
        rough: bool = True,
        away: float = 0.0,
    ) -> None:
        """``topologies``: the texts of the topologies, one after the other. ``crash``: the probability that a server
        crashes at an effect; ``kill``: that the operator's command is killed before one of its commands. ``rough``:
        whether letters die and reactions end the process. ``away``: the probability that a server is down for long when
        the operator begins; then the operator also leaves changes out."""
        self.random = Random(seed)
        self.load = Load(self.random, *((0.08, 0.02) if rough else (0.0, 0.0)))
        self.load.agents_known = self.known_agents
        self.topologies = [parse_topology(text) for text in topologies]
        self.now = 0.0
        self.wrongs: list[str] = []
        self._crash, self._kill, self._leave = crash, kill, away
        self._flights: dict[tuple[str, str], list[FromPeer]] = {}
        self._connected: set[tuple[str, str]] = set()
        self.servers: dict[str, _Server] = {}
        self._calm = False
        self.operations = 0
        self.crashed = 0
        """How often a server has crashed."""
        self._steps: Steps | None = None
        self._pending: list[Command] = []
        self._answers: list[dict[str, object] | None] = []
        self._target = 0
        self.away_operations = (50, 400)
        self._away: dict[str, int] = {}
        """Servers that stay down for a while, until this number of operations."""
        self.missed = 0
        """Changes that were made without a server."""
        self.outcomes: list[Outcome] = []
        for name in self.topologies[0].servers:
            self._create(name, self.topologies[0])

    @property
    def made(self) -> bool:
        """Whether all changes are made."""
        return self._target >= len(self.topologies)

    @property
    def clock_ms(self) -> int:
        """The wall clock of all servers."""
        return 1_000_000 + int(self.now * 1000)

    def _create(self, name: str, file: TopologyFile) -> None:
        self.servers[name] = _Server(self, name, plan_of(file), self.random.getrandbits(62) + 1)

    # Faults.

    def crashes(self, server: _Server) -> bool:
        """Whether a server crashes here."""
        return not self._calm and self.random.random() < self._crash

    def down(self, server: _Server) -> None:
        """A server crashes: its connections are gone."""
        server.up = False
        self.crashed += 1
        for pair in [pair for pair in self._connected if server.name in pair]:
            self._disconnect(pair)

    def _disconnect(self, pair: tuple[str, str]) -> None:
        self._connected.discard(pair)
        self._flights.pop(pair, None)
        self._flights.pop(pair[::-1], None)

    # Network.

    def post(self, source: str, target: str, content: FromPeer) -> None:
        """Send something over a connection, if there is one."""
        if pair_of(source, target) in self._connected:
            self._flights.setdefault((source, target), []).append(content)

    def changed(self, server: _Server) -> None:
        """A server has applied an item about a change: connections that must not continue are closed."""
        for one in [one for one in self._connected if server.name in one]:
            other = self.servers[one[0] if one[1] == server.name else one[1]]
            if not continue_(server.machine, other.machine):
                self._disconnect(one)

    def connect(self, one: _Server, other: _Server) -> None:
        """Let two servers connect, if their hellos agree."""
        two = pair_of(one.name, other.name)
        if two in self._connected or not (one.up and other.up):
            return
        for me, peer in ((one, other), (other, one)):
            if is_behind(me.machine, peer.machine) and believes(me.machine, peer.name):
                self._learn(me, peer)
        if not (one.up and other.up) or not agree(one.machine, other.machine):
            return
        self._connected.add(two)
        for me, peer in ((one, other), (other, one)):
            for domain in shared(one.machine, other.machine):
                hello = peer.machine.channel.consumers[domain].links[me.name].hello()
                self._flights.setdefault((peer.name, me.name), []).append(FromPeer(domain, peer.name, hello))

    def _learn(self, me: _Server, teacher: _Server) -> None:
        """Let a server that is behind learn from another one."""
        try:
            me.participant.learn(lesson_of(teacher.machine.organisation).decode())
        except _Down:
            pass
        except AntecedeError as error:
            self.wrongs.append(f"{me.name} cannot learn from {teacher.name}: {error}")

    def _deliver(self) -> bool:
        ways = [way for way, contents in self._flights.items() if contents]
        if not ways:
            return False
        way = self.random.choice(ways)
        # A connection keeps the sequence; hellos are first.
        self.hand_over(way, self.random.randint(1, min(4, len(self._flights[way]))))
        return True

    def ways(self) -> list[tuple[str, str]]:
        """Return the connections with something in flight, each as its source and its target."""
        return sorted(way for way, contents in self._flights.items() if contents)

    def hand_over(self, way: tuple[str, str], count: int) -> None:
        """Let the first contents in flight arrive, in one step."""
        contents = self._flights[way]
        taken, self._flights[way] = contents[:count], contents[count:]
        self.servers[way[1]].step(list(taken))

    # Load.

    def _publish(self) -> None:
        server = self.random.choice([one for one in self.servers.values() if _serves(one)] or [None])
        if server is not None:
            self.load.publish(server)

    def known_agents(self, server: Server) -> list[str]:
        """Return the agents to which a server's agents and clients send."""
        return list(server.machine.plan.homes)

    def _react(self) -> bool:
        ready = [server for server in self.servers.values() if server.up and server.due]
        if not ready:
            return False
        server = self.random.choice(ready)
        self.load.react(server, self.clock_ms, self._calm)
        if not server.up:
            self.down(server)
        return True

    def _decide(self, everything: bool = False) -> None:
        """Let an operator look at dead letters."""
        serving = [one for one in self.servers.values() if _serves(one)]
        for server in serving if everything else serving and [self.random.choice(serving)]:
            self.load.decide(server, everything)

    # The operator.

    def operate(self) -> None:
        """Give the next command of the change in progress, or begin the next change."""
        if self._steps is not None and not self._calm and self.random.random() < self._kill:
            self._steps = None
            if self._leave and 0 < self._target < len(self.topologies) - 1 and self.random.random() < 0.5:
                # The operator makes another change instead.
                self._target += 1
            return
        if self._steps is None:
            if all(one.up or one.name in self._away for one in self.servers.values()) or self.random.random() < 0.1:
                self._begin()
            return
        if self._pending:
            answer = self._command(self._pending[0])
            if answer is _again:
                return
            self._pending.pop(0)
            if isinstance(answer, AntecedeError):
                self._advance(lambda steps: steps.throw(answer))
                return
            assert answer is None or isinstance(answer, dict)
            self._answers.append(answer)
        if not self._pending:
            answers, self._answers = self._answers, []
            self._advance(lambda steps: steps.send(answers))

    def _begin(self) -> None:
        new = self.topologies[self._target]
        for name in new.servers:
            if name not in self.servers:
                self._create(name, new)
        if self._leave and not self._calm and self.random.random() < self._leave:
            needed = plan_change(self.topologies[max(0, self._target - 1)], new).needed
            # One that is not needed, so that the change is made without it; best one that has staged another change.
            spare = [one for one in self.servers.values() if one.up and one.name not in needed]
            staged = [one for one in spare if one.machine.organisation.attempt]
            for server in self.random.sample(staged or spare, 1 if spare else 0):
                self._away[server.name] = self.operations + self.random.randint(*self.away_operations)
                self.down(server)
        attempt = f"{self.random.getrandbits(32):x}"
        wish = Wish(new, tuple(self.servers), "system", self.clock_ms, attempt=attempt)
        self._steps = carry_out(wish)
        self._advance(lambda steps: next(steps))

    def _advance(self, call: "Callable[[Steps], list[Command] | Wait]") -> None:
        assert self._steps is not None
        try:
            asked = call(self._steps)
            self._pending = [] if isinstance(asked, Wait) else list(asked)
            self._answers = []
        except StopIteration as end:
            self._steps = None
            self._pending = []
            self.outcomes.append(end.value)
            self.missed += len(end.value.absent) if end.value.state == "done" else 0
            if end.value.state in ("done", "unchanged"):
                self._target += 1
            elif self._calm and not any("held behind" in one for one in end.value.refusals):
                # An operator decides about dead letters first.
                self.wrongs.append(f"refused: {end.value.refusals[0]}")
                self._target += 1
        except AntecedeError as error:
            self._steps = None
            self._pending = []
            if self._calm and not isinstance(error, _Down) and "held behind" not in str(error):
                self.wrongs.append(f"the change failed: {error}")
                self._target += 1

    def _command(self, command: Command) -> object:
        server = self.servers.get(command.server)
        if server is None or not server.up:
            return _again if command.patient else None
        try:
            answer: object = server.participant.commands[command.name][1](*command.arguments)
            return answer
        except _Down:
            return _again if command.patient else None
        except AntecedeError as error:
            return error

    # Runs.

    def run(self, operations: int) -> None:
        """Run a schedule: load with changes for a number of operations, then until everything comes to rest."""
        draw = self.random.random
        for _ in range(operations):
            self.operations += 1
            self.now += 0.01
            which = draw()
            if which < 0.1:
                self._publish()
            elif which < 0.3:
                self._react()
            elif which < 0.55:
                self._deliver()
            elif which < 0.57:
                self._decide()
            elif which < 0.65:
                self._restart()
            elif which < 0.73:
                self._connect_some()
            elif self._target < len(self.topologies):
                self.operate()
        self.settle()

    def settle(self) -> None:
        """Finish the changes without faults, and run until everything comes to rest."""
        self._calm, self._steps = True, None
        for _ in range(_rest_operations):
            self.now += 0.05
            self._restart(all_=True)
            if self._target < len(self.topologies):
                self.operate()
            for one in self.servers.values():
                for other in self.servers.values():
                    if one.name < other.name:
                        self.connect(one, other)
            if not self.made:
                # Changes are made under load, too.
                if self.random.random() < 0.2:
                    self._publish()
                for _ in range(3):
                    (self._deliver if self.random.random() < 0.6 else self._react)()
                if self.random.random() < 0.1:
                    self._decide()
            else:
                while self._deliver() or self._react():
                    pass
                self._decide(everything=True)
            for server in self.servers.values():
                if server.up:
                    server.step([])
            if self._target >= len(self.topologies) and self._rests():
                return
        self.wrongs.append("the world does not come to rest")

    def _rests(self) -> bool:
        # Acknowledgements are not in the log: a removed server that starts again does not know that all has arrived.
        machines = [one.machine for one in self.servers.values() if not one.machine.organisation.removed]
        return not any(
            machine.channel.in_transit(list(machine.channel.consumers))
            or len(machine.timers)
            or machine.channel.returns.waiting
            or machine.engine.dead
            or any(agent in machine.plan.homes for agent in machine.engine.mailboxes)
            for machine in machines
        )

    def handled(self) -> int:
        """Return how many letters agents have handled."""
        states = [state for one in self.servers.values() for state in one.machine.engine.states.values()]
        return sum(len(msgspec.msgpack.decode(state)) for state in states if isinstance(state, bytes))

    def findings(self) -> list[str]:
        """Return what went wrong, one line each."""
        logs = {one.name: (one.incarnation, one.plan, one.log) for one in self.servers.values()}
        machines = {one.name: one.machine for one in self.servers.values()}
        return self.wrongs + self.load.wrongs + judged(machines, logs, self.topologies[-1], self.load.numbers)

    def _restart(self, all_: bool = False) -> None:
        self._away = {} if all_ else {one: until for one, until in self._away.items() if until > self.operations}
        for server in self.servers.values():
            if not server.up and server.name not in self._away and (all_ or self.random.random() < 0.5):
                server.start()

    def _connect_some(self) -> None:
        names = list(self.servers)
        for _ in range(4):
            one, other = self.random.choice(names), self.random.choice(names)
            if one != other:
                self.connect(self.servers[one], self.servers[other])
        if not self._calm and self._connected and self.random.random() < 0.1:
            self._disconnect(self.random.choice(sorted(self._connected)))


def plan_of(file: TopologyFile) -> Plan:
    """Return the plan of a topology without classes."""
    orders = {domain.name: parse(domain.order) for domain in file.domains}
    homes = {agent.name: agent.server for agent in file.agents}
    return Plan(file.organisation, orders, homes, 1.0, file.mailboxes, file)


def _serves(server: _Server) -> bool:
    organisation = server.machine.organisation
    first = server.name in server.world.topologies[0].servers
    return server.up and not organisation.removed and (first or organisation.change > 0)


_again = object()
_rest_operations = 3_000
_snapshot_share = 0.03
"""The share of steps after which a snapshot is taken."""
