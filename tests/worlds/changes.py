"""Changes of the topology in a world of whole servers, under load: an operator changes the topology several times.

All the code of a server runs, except the sockets. So a change may come at a difficult moment: items wait in a queue,
frames of an earlier topology have been read but not processed, agents are reacting to letters, or servers are asking
other servers for a decision. The operator's requests take some time. Sometimes the operator's command is killed, and
the operator starts it again. Servers crash and miss changes.

Agents send letters, ask questions and set timers; they send only to agents that their server knows. Some letters become
dead letters, and some letters end the process of the server that handles them. Clients of a removed server continue at
the server that takes over their addresses.
"""

from collections.abc import Callable, Iterator
from random import Random
from traceback import format_exc
from typing import Any

import msgspec

from antecede.engine import React
from antecede.engine.host import Outcome
from antecede.errors import AntecedeError, ClosedError, OverloadError, TopologyError
from antecede.orders import parse
from antecede.server import (
    CODE,
    MOVED,
    UNCONFIRMED,
    Adapter,
    ChangeRequest,
    Command,
    Plan,
    Projection,
    Steps,
    Wait,
    carry_out,
)
from antecede.server import Outcome as ChangeOutcome
from antecede.simulator.draws import stream
from antecede.simulator.servers.judgement import findings
from antecede.simulator.servers.network import Faults
from antecede.simulator.servers.server import SimulatedServer
from antecede.simulator.servers.world import LOOK_SECONDS, ServerWorld
from antecede.topology import TopologyFile, parse_topology, plan_change
from antecede.trace import HOP, Event
from worlds import schedules
from worlds.schedules import dead_letters, states
from worlds.workload import Poisoning, Riddle, SharedData, Work, Worker, decide, decide_once, tried

_tries_max = 5
FAULTS = Faults(
    crashes=4,
    resets=6,
    slow_disks=2,
    partitions=2,
    loss=0.02,
    duplicates=0.02,
    failures=0.02,
    seconds=1.5,
    looks=5,
    operators=2,
)


class _Adapter(Adapter):
    def __init__(self, server: "ChangingServer") -> None:
        self._server = server

    def drop_agents(self, agents: list[str]) -> None:
        self._server.drop_agents(agents)

    def organised(self, file: TopologyFile) -> None:
        self._server.declare()

    def removed(self) -> None:
        server = self._server
        server.core.driver.when_durable(lambda: server.world.leaves(server))

    def indices(self, addresses: list[str]) -> dict[str, int]:
        server = self._server
        projection = Projection(server.name, server.machine.incarnation, server.plan.topology, server.plan.homes)
        for record in server.records():
            projection.rows(record)
        return projection.indices


class ChangingServer(SimulatedServer):
    """A simulated server that gets and loses agents when the topology changes."""

    world: "ChangingWorld"
    vouches = False

    def _recover(self) -> None:
        try:
            super()._recover()
        except TopologyError:
            self.store.close()
            organisation = self.machine.organisation
            if organisation.removed:
                # A server that was removed does not start again.
                self.world.leaves(self)
                self.up = False
                return
            if self.plan.file is None or organisation.topology == self.plan.file.text():
                raise
            # It was started for a change that the operator has left out, and now gets the topology in force.
            self.plan = plan_of(parse_topology(organisation.topology))
            super()._recover()
        self._running: dict[int, React] = {}
        """The batches of letters to which agents are reacting, by ``id()``. If a batch is removed from here, its
        outcome is ignored."""
        self.core.changes.adapter = _Adapter(self)
        self.declare()

    def declare(self) -> None:
        """Add and remove agents, so that the server has exactly its agents of the current topology."""
        for agent, home in self.machine.plan.homes.items():
            if home == self.name:
                self.host.declare(agent, self.world.agent_class)
        for agent in self.world.agents:
            if self.machine.plan.homes.get(agent) != self.name:
                self.host.retire(agent)

    def drop_agents(self, agents: list[str]) -> None:
        """Drop agents from memory, and ignore the outcomes of their batches in progress."""
        for agent in agents:
            self.host.forget(agent)
        self._running = {place: due for place, due in self._running.items() if due.agent not in agents}

    def _run(self, due: React) -> None:
        self._running[id(due)] = due
        shared = Worker.shared = self.world.shared
        shared.agents = self.world.known_agents(self)
        super()._run(due)

    def _reacted(self, due: React, outcome: Outcome, slot: int) -> None:
        if self._running.pop(id(due), None) is not None:
            super()._reacted(due, outcome, slot)
            return
        self.host.forget(due.agent)
        self.shared.goes_on(slot)
        self.shared.settled(due.agent, self)


class ChangingWorld(ServerWorld):
    """A world in which an operator changes the topology several times."""

    server_class = ChangingServer
    agent_class: type[Worker] = Worker

    def __init__(
        self, seed: int, texts: list[str], faults: Faults = FAULTS, kill: float = 0.05, away: float = 0.0
    ) -> None:
        """``texts``: the topology files, one after the other. ``kill``: the probability that the operator's command is
        killed before it sends its next batch of requests. ``away``: the probability that a server is killed when the
        command begins, and stays down for a while. Only a server that the change does not need is killed. If ``away``
        is not 0, the operator also skips some of the changes in which the command was killed."""
        self.files = [parse_topology(text) for text in texts]
        self.agents = sorted({agent.name for file in self.files for agent in file.agents})
        self._lasting = {agent.name for agent in self.files[-1].agents}
        self._kill, self._leave = kill, away
        self._away: dict[str, float] = {}
        """For each server that must stay down: the time at which it may start again."""
        self._steps: Steps | None = None
        self._run_number = self._failures = 0
        self._station = 1
        self.outcomes: list[ChangeOutcome] = []
        first = self.files[0]
        names = [name for name in first.servers if all(file.home_of(name) in file.servers for file in self.files)]
        lasting = [agent.name for agent in first.agents if agent.name in self._lasting]
        self.shared = SharedData(stream(seed, "load"), lasting, [], [f"c-{name}@{name}" for name in names])
        self.shared.plain = True
        super().__init__(plan_of(first), {agent.name: self.agent_class for agent in first.agents}, seed, faults)
        for address in self.shared.clients:
            self.client(address)
        Poisoning(seed, faults).join(self, self.shared)

    @property
    def made(self) -> bool:
        """Whether the operator has finished all changes. A change is finished when it was made, skipped or given up."""
        return self._station >= len(self.files)

    @property
    def missed(self) -> int:
        """The number of servers that were down during a change, summed over all changes."""
        return sum(len(one.absent) for one in self.outcomes if one.state == "done")

    def known_agents(self, server: SimulatedServer) -> list[str]:
        """Return the possible destinations for the agents and clients of a server: all agents that the server knows,
        and that still exist in the last topology."""
        return [agent for agent in server.machine.plan.homes if agent in self._lasting]

    def play(self, publishes: int) -> list[str]:
        """Publish, make the changes, and run until nothing is pending. Return the errors, one line each."""
        draw = self.random.random
        for _ in range(publishes):
            self.later(draw() * self.faults.seconds * 1.5, self._publish)
        self.later(draw() * 0.05, self.begin)
        self._look_again()
        self.run()
        decide(self)
        return self.errors or self.findings()

    def _look_again(self) -> None:
        """Make all servers and clients do their regular work, such as checks of connections. Repeat this until the
        operator has finished all changes, and no running server takes part in a change."""
        self._regular.look()
        busy = any(one.up and one.machine.organisation.attempt for one in self.servers.values())
        if not self.made or busy:
            self.later(LOOK_SECONDS, self._look_again)

    def _publish(self) -> None:
        """Let a client publish. It may be a client whose first server was removed."""
        shared = self.shared
        servers = [server for server in self.servers.values() if self._serves(server)]
        if servers:
            server = servers[shared.below(len(servers))]
            moved = [address for address, client in self.clients.items() if client.home is server]
            address = shared.one([f"c-{server.name}@{server.name}", *moved])
            shared.agents = self.known_agents(server)
            if shared.below(15):
                self.send(address, shared.some(), Work(id=shared.id(), depth=shared.below(4)))
            else:
                self.send(address, shared.one(shared.agents), Riddle(id=shared.id()))

    def _serves(self, server: SimulatedServer) -> bool:
        """Return whether clients may publish at a server. The server must be up, and must be in the topology. Every
        later topology must contain this server, or the server to which its clients move."""
        added = server.name in self.files[0].servers or (server.machine.organisation.change > 0)
        later = all(file.home_of(server.name) in file.servers for file in self.files[self._station - 1 :])
        return server.up and server.name not in self.gone and added and later

    def leaves(self, server: ChangingServer) -> None:
        """Stop a server that was removed. Its clients continue at the server that takes over their addresses. But if no
        server knows a client yet, this client ends."""
        self.gone[server.name] = None
        server.later(0.01, server.stop)
        home = parse_topology(server.machine.organisation.topology).home_of(server.name)
        for client in self.clients.values():
            if client.home is not server:
                continue
            known = client.address in self.servers[home].machine.organisation.adopted.values()
            if known or any(publish.state == "accepted" for publish in client.published):
                client.home = self.servers[home]
            else:
                # No server knows it yet, so it would get another address; letters to this one wait for ever.
                client.die()
                self.absent.add(client.address)

    def _come_back(self, server: SimulatedServer) -> None:
        until = 0.0 if self.calm else self._away.get(server.name, 0.0)
        if until > self.now:
            self.later(until - self.now, self._come_back, server)
        else:
            super()._come_back(server)

    def logged(self, server: SimulatedServer, event: str, fields: dict[str, Any]) -> None:
        new = {name for name, one in self.servers.items() if one.up and one.machine.organisation.change == 0}
        if event == "peer-refused" and (
            fields.get("code") == "unknown-server" or {fields.get("claims"), fields.get("peer")} & new
        ):
            # A server that is not added yet, or has not learned yet that it shares no domain with the other one.
            return
        if fields.get("code") == UNCONFIRMED or (event == "stranger-gone" and fields.get("code") in (CODE, MOVED)):
            # The server that must confirm a change is down, or a client connects to a server that is being removed.
            return
        if event not in ("change-abandoned", "change-undecided"):
            super().logged(server, event, fields)

    # The operator.

    def begin(self) -> None:
        """Begin the operator's command for the next change."""
        if self.made:
            return
        file = self.files[self._station]
        for name in file.servers:
            if name not in self.servers:
                server = self.servers[name] = self.server_class(self, name, plan_of(file), {}, "disk")
                server.start()
        if self._leave and not self.calm and self.random.random() < self._leave:
            self._leave_one_out(file)
        self._run_number += 1
        attempt = f"{self.random.getrandbits(32):x}"
        servers = tuple(name for name in self.servers if name not in self.gone)
        self._steps = carry_out(ChangeRequest(file, servers, "system", int(self.now * 1000) + 1, attempt=attempt))
        self._advance(self._run_number, None, None)

    def _leave_one_out(self, file: TopologyFile) -> None:
        """Kill a server that the change does not need, and let it stay down for a while. If possible, choose a server
        that has prepared another change and waits for the decision."""
        newest = max((one.machine.organisation for one in self.servers.values()), key=lambda one: one.change)
        in_force = parse_topology(newest.topology) if newest.change else self.files[0]
        needed = plan_change(in_force, file).needed
        spare = [name for name, one in self.servers.items() if one.up and name not in (*needed, *self.gone)]
        staged = [name for name in spare if self.servers[name].machine.organisation.attempt]
        if spare:
            name, drawn = self._any(staged or spare), self.random.random()
            # Longer than the operator waits for an answer. It may come back before the change is decided. If it has
            # staged another change, the operator first waits until no other operator can be making that one.
            self._away[name] = self.now + 0.1 * _tries_max + (8.0 * drawn if staged else 1.5 * drawn**2)
            self.crash(name, "kill")

    def _failed_to_change(self, reason: str) -> None:
        """React to a failed change. Let an operator decide about the dead letters that block other letters, and try the
        change again. (A blocked letter is held until this decision.) If there are no such dead letters, and the change
        fails too often after the faults have ended, report an error and go on to the next change."""
        decided = decide_once(self)
        self._failures += self.calm and not decided
        if self._failures > _tries_max:
            self.report_error("operator", reason)
            self._station, self._failures = self._station + 1, 0
        self._again()

    def _again(self, seconds: float = 0.3) -> None:
        self._steps = None
        self.later(0.05 + self.random.random() * seconds, self.begin)

    def _advance(
        self, number: int, answers: list[dict[str, object] | None] | None, error: AntecedeError | None
    ) -> None:
        """Begin the operator's command, if neither ``answers`` nor ``error`` is given. Otherwise continue the command
        with the answers to its last batch of requests, or with an error."""
        steps = self._steps
        if steps is None or number != self._run_number:
            return
        if not self.calm and self.random.random() < self._kill:
            if self._leave and self._station < len(self.files) - 1 and self.random.random() < 0.5:
                # The operator makes another change instead.
                self._station += 1
            # Perhaps the servers must end the change by themselves.
            self._again(60.0 if self.random.random() < 0.3 else 0.3)
            return
        try:
            asked = steps.throw(error) if error else next(steps) if answers is None else steps.send(answers)
        except StopIteration as end:
            outcome: ChangeOutcome = end.value
            self.outcomes.append(outcome)
            if outcome.state in ("done", "unchanged"):
                self._station += 1
                self._failures = 0
                self._again()
            else:
                self._failed_to_change(f"refused: {outcome.refusals}")
            return
        except AntecedeError as problem:
            self._failed_to_change(f"the change failed: {problem}")
            return
        if isinstance(asked, Wait):
            self.later(asked.seconds, self._advance, number, [], None)
        else:
            self._give(number, asked)

    def _give(self, number: int, commands: list[Command]) -> None:
        answers: dict[int, dict[str, object] | AntecedeError | None] = {}

        def settle(place: int, answer: dict[str, object] | AntecedeError | None) -> None:
            answers[place] = answer
            if len(answers) == len(commands):
                several = [answers[place] for place in range(len(commands))]
                errors = [one for one in several if isinstance(one, AntecedeError)]
                plain = [one for one in several if not isinstance(one, AntecedeError)]
                self._advance(number, plain, errors[0] if errors else None)

        for place, command in enumerate(commands):
            self._ask(place, command, settle, 0)
        if not commands:
            self._advance(number, [], None)

    def _ask(self, place: int, command: Command, settle: Any, tries: int) -> None:
        def answered(document: Any, error: AntecedeError | None) -> None:
            if error is None:
                settle(place, document)
            elif isinstance(error, ClosedError | OverloadError):
                if command.patient or tries < _tries_max:
                    self.later(0.1, self._ask, place, command, settle, tries + 1)
                else:
                    settle(place, None)
            else:
                settle(place, error)

        self.operators.request(self.servers[command.server], command.name, list(command.arguments), answered)

    # The verdict.

    def findings(self) -> list[str]:
        """Check the world after everything has ended, and return the errors, one line each."""
        logs = self.logs()
        found = findings(self, logs, ("fifo", "causal"), None)
        found += [*_gaps(logs.rows), *dead_letters(self, logs), *tried(self, logs), *states(self, logs, set())]
        for name in self.files[-1].servers:
            machine = self.servers[name].machine
            if machine.epoch != self.files[-1].epoch or machine.organisation.attempt:
                found.append(f"{name} has change {machine.organisation.change}, {machine.organisation.attempt!r}")
        return found


def _gaps(rows: list[Event]) -> Iterator[str]:
    """Yield an error for each process whose events do not have the indices 0, 1, 2 … without gaps. A process that moves
    to another server must continue its indices there."""
    lines: dict[str, set[int]] = {}
    for row in rows:
        if row.kind != HOP:
            lines.setdefault(row.process, set()).add(row.index)
    for process, line in lines.items():
        if len(line) != max(line) + 1:
            yield f"the indices of {process} have gaps: {sorted(line)[:50]}"


def plan_of(file: TopologyFile) -> Plan:
    """Return the plan of a topology file, without importing the classes of its agents."""
    orders = {domain.name: parse(domain.order) for domain in file.domains}
    homes = {agent.name: agent.server for agent in file.agents}
    return Plan(file.organisation, orders, homes, 1.0, file.mailboxes, file)


# Random changes of random topologies: each seed gives one schedule with several changes under load.
#
# Each topology is made from the one before it by random edits: agents are added and moved, servers are added and
# removed, domains are split, merged and connected through another server, and domains get other orders. In every third
# schedule the changes are *mild*: only a few servers must take part in each change. During most mild changes, one of
# the other servers is down. ``play(SEED)`` returns the outcome, with the errors.


_orders = ("matrix", "updates", "pruned", "direct")
_servers_max = 6


class Schedule(schedules.Outcome):
    """The outcome of a schedule with changes."""

    changes: int = 0
    """The number of changes that were made."""
    missed: int = 0
    """The number of servers that were down during a change, summed over all changes."""
    campaign: str = "test_changes_simulated.py"


def play(seed: int) -> Schedule:
    """Play the schedule of one seed. Return its outcome, with the errors that were found."""
    random = stream(seed, "changes")
    mild = seed % 3 == 0
    topologies = journey(random, mild)
    faults = msgspec.structs.replace(
        FAULTS,
        crashes=random.choice((0, 2, 6)),
        stops=random.choice((0, 0, 1)),
        looks=random.choice((5, 15)),
        seconds=(1.0 if mild else 0.4) * len(topologies),
    )
    kill, away = random.choice((0.0, 0.02, 0.1)), 0.8 if mild else random.choice((0.0, 0.3, 0.6))
    world = ChangingWorld(seed, topologies, faults, kill, away)
    traceback = ""
    try:
        found = world.play(random.randint(10, 20) * len(topologies))
    except Exception as error:
        # Any exception is an error, and the seed shows it again.
        found, traceback = [*world.errors, f"{type(error).__name__}: {error}"], format_exc()
    made = sum(one.state == "done" for one in world.outcomes)
    letters = len(world.letters)
    return Schedule(seed, found[:5], world.crashes, letters, traceback=traceback, changes=made, missed=world.missed)


class _Sketch(msgspec.Struct):
    """A topology that is changed step by step by random edits. ``text`` writes the topology as a topology file."""

    domains: dict[str, list[int]]
    orders: dict[str, str]
    agents: dict[str, int]
    moved: dict[int, int] = {}
    alone: list[int] = []
    """Servers without a domain."""
    last: int = 0
    """The number of the server that was added last."""
    names: int = 0
    ports: int = 7000
    kind: str = "Agent"
    hold: str = ""
    """The agent with the setting ``dead_follow = "hold"``, or an empty text if no agent has this setting. A letter to
    this agent is held if the letter depends on a dead letter of the agent."""

    @property
    def servers(self) -> list[int]:
        """The numbers of all servers."""
        return sorted({*self.alone, *(one for members in self.domains.values() for one in members)})

    def domains_of(self, server: int) -> list[str]:
        """Return the domains of a server."""
        return [name for name, members in self.domains.items() if server in members]

    def new_server(self) -> int:
        """Return the number of a new server."""
        self.last += 1
        return self.last

    def new_domain(self, members: list[int], random: Random) -> None:
        """Add a domain of these servers, with a random order."""
        self.names += 1
        self.domains[f"D{self.names}"] = members
        self.orders[f"D{self.names}"] = random.choice(_orders)

    def text(self) -> str:
        """Return the text of the topology file."""
        lines = ["[servers]", *(f's{one} = "tcp://127.0.0.1:{self.ports + one}"' for one in self.servers), "[domains]"]
        for name, members in self.domains.items():
            named = ", ".join(f'"s{one}"' for one in members)
            lines.append(f'{name} = {{ servers = [{named}], order = "{self.orders[name]}" }}')
        lines.append("[agents]")
        for name, server in self.agents.items():
            hold = ', dead_follow = "hold"' if name == self.hold else ""
            lines.append(f'{name} = {{ server = "s{server}", class = "nowhere:{self.kind}"{hold} }}')
        if self.moved:
            lines += ["[moved]", *(f's{one} = "s{other}"' for one, other in self.moved.items())]
        return "\n".join(lines) + "\n"


def journey(random: Random, mild: bool = False) -> list[str]:
    """Return the texts of several topology files. Each topology is made from the one before it by random edits. If
    ``mild`` is true, use only edits that need few running servers."""
    sketch = _Sketch({}, {}, {})
    sketch.alone = [sketch.new_server()]
    for _ in range(random.randint(3, 4) if mild else random.randint(1, 4)):
        _add_server(sketch, random)
    for name in "abcd"[: random.randint(2, 4)]:
        sketch.agents[name] = random.choice(sketch.servers)
    if random.random() < 0.3:
        sketch.hold = "a"
    texts = [sketch.text()]
    while len(texts) < 2 or (len(texts) < 8 and random.random() < 0.8):
        edits = _mild_edits if mild else _edits
        random.choice(edits)(sketch, random)
        if random.random() < 0.2:
            random.choice(edits)(sketch, random)
        if sketch.text() != texts[-1]:
            texts.append(sketch.text())
    return texts


def _add_agent(sketch: _Sketch, random: Random) -> None:
    if len(sketch.agents) < 6:
        sketch.agents[f"x{sketch.names}{len(sketch.agents)}"] = random.choice(sketch.servers)


def _move_agent(sketch: _Sketch, random: Random) -> None:
    sketch.agents[random.choice(list(sketch.agents))] = random.choice(sketch.servers)


def _add_server(sketch: _Sketch, random: Random) -> None:
    if len(sketch.servers) >= _servers_max:
        return
    at, new = random.choice(sketch.servers), sketch.new_server()
    if at in sketch.alone:
        sketch.alone.remove(at)
    own = sketch.domains_of(at)
    if own and random.random() < 0.5:
        sketch.domains[random.choice(own)].append(new)
    else:
        sketch.new_domain([at, new], random)


def _remove_server(sketch: _Sketch, random: Random) -> None:
    leaves = [one for one in sketch.servers if len(sketch.domains_of(one)) == 1]
    if len(sketch.servers) < 3 or not leaves:
        return
    gone = random.choice(leaves)
    (name,) = sketch.domains_of(gone)
    stays = [one for one in sketch.servers if one != gone]
    sketch.domains[name].remove(gone)
    if len(sketch.domains[name]) == 1:
        (left,) = sketch.domains.pop(name)
        if not sketch.domains_of(left):
            sketch.alone.append(left)
    successor = random.choice(stays)
    sketch.agents = {agent: random.choice(stays) if at == gone else at for agent, at in sketch.agents.items()}
    sketch.moved = {one: successor if other == gone else other for one, other in sketch.moved.items()} | {
        gone: successor
    }


def _split(sketch: _Sketch, random: Random) -> None:
    large = [name for name, members in sketch.domains.items() if len(members) > 2]
    if not large:
        return
    name = random.choice(large)
    members = random.sample(sketch.domains[name], len(sketch.domains[name]))
    cut = random.randint(1, len(members) - 2)
    # They share one server, which is a router from now on.
    sketch.domains[name] = members[: cut + 1]
    sketch.new_domain(members[cut:], random)


def _merge(sketch: _Sketch, random: Random) -> None:
    routers = [one for one in sketch.servers if len(sketch.domains_of(one)) > 1]
    if not routers:
        return
    one, other = random.sample(sketch.domains_of(random.choice(routers)), 2)
    sketch.domains[one] = list(dict.fromkeys(sketch.domains[one] + sketch.domains.pop(other)))


def _connect_elsewhere(sketch: _Sketch, random: Random) -> None:
    """Choose a random domain that has exactly one router (a server that is also in other domains). In this domain,
    replace the router by a server that was not in the domain. If this is not possible, change nothing."""
    for name, members in random.sample(list(sketch.domains.items()), len(sketch.domains)):
        routers = [one for one in members if len(sketch.domains_of(one)) > 1]
        others = [one for one in sketch.servers if one not in members]
        if len(routers) == 1 and others:
            sketch.domains[name] = [random.choice(others) if one == routers[0] else one for one in members]
            return


def _reorder(sketch: _Sketch, random: Random) -> None:
    if sketch.domains:
        sketch.orders[random.choice(list(sketch.domains))] = random.choice(_orders)


def _other_class(sketch: _Sketch, random: Random) -> None:
    sketch.kind += "s"


def _rename(sketch: _Sketch, random: Random) -> None:
    """Change the addresses of all servers, and the class of all agents."""
    sketch.ports += 100
    sketch.kind += "s"


_Edit = Callable[[_Sketch, Random], None]
_edits: tuple[_Edit, ...] = (
    *(_add_agent, _move_agent, _move_agent, _add_server, _remove_server, _split, _merge),
    *(_connect_elsewhere, _connect_elsewhere, _reorder, _rename),
)
_mild_edits: tuple[_Edit, ...] = (_add_agent, _add_agent, _add_server, _reorder, _other_class)
