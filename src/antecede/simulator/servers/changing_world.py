"""Changes of the topology in a world of whole servers: connections, hellos, drivers, operators' commands, clients.

:mod:`antecede.simulator.servers.changes` has the machines alone, and is quick. Here every class up to the socket takes
part: items that wait in a queue behind others, frames of an earlier topology that were read and not taken yet,
reactions in progress, servers that ask others for a decision, and an operator whose requests take their time.
"""

from contextlib import suppress
from typing import Any
from zlib import crc32

import msgspec

from antecede.engine import React
from antecede.engine.agents import Agent, Notification
from antecede.engine.context import Context
from antecede.engine.host import Outcome
from antecede.errors import AntecedeError, ClosedError, OverloadError, UnknownAgentError
from antecede.server.change_requests import Command
from antecede.server.changing import Outcome as ChangeOutcome
from antecede.server.changing import Steps, Wait, Wish, carry_out
from antecede.server.lessons import UNCONFIRMED
from antecede.server.reorganising import Adapter
from antecede.simulator.servers.changes import plan_of
from antecede.simulator.servers.changes_judged import projected
from antecede.simulator.servers.faults import Faults
from antecede.simulator.servers.regular import LOOK_SECONDS
from antecede.simulator.servers.server import SimulatedServer
from antecede.simulator.servers.stopping import stop
from antecede.simulator.servers.world import ServerWorld
from antecede.topology import TopologyFile, parse_topology, plan_change
from antecede.trace import DELIVER, LOCAL, SEND, Event, judge, match

FAULTS = Faults(
    crashes=4, resets=6, slow_disks=2, partitions=2, loss=0.02, duplicates=0.02, failures=0.02, seconds=1.5, looks=5
)


class Note(Notification):
    """A note that causes others."""

    seed: int
    depth: int
    to: tuple[str, ...]
    """The agents among which the next ones are chosen."""


class Scribe(Agent):
    """Counts notes, and sends others."""

    count: int = 0

    def on_note(self, note: Note, ctx: Context) -> None:
        """Count a note, and send up to two others."""
        self.count += 1
        for place in range(2 if note.depth else 0):
            seed = crc32(f"{note.seed}/{place}".encode())
            # A server that has missed a change does not know the newest agents.
            if seed % 3:
                with suppress(UnknownAgentError):
                    ctx.send(note.to[seed % len(note.to)], Note(seed, note.depth - 1, note.to))


class _Adapter(Adapter):
    def __init__(self, server: "ChangingServer") -> None:
        self._server = server

    def disown(self, agents: list[str]) -> None:
        self._server.disown(agents)

    def organised(self, file: TopologyFile) -> None:
        self._server.declare()

    def removed(self) -> None:
        server = self._server
        server.core.driver.when_durable(lambda: server.world.leaves(server))

    def indices(self, addresses: list[str]) -> dict[str, int]:
        server = self._server
        return projected(server.name, server.machine.incarnation, server.plan, server.records())[1]


class ChangingServer(SimulatedServer):
    """A server whose agents come and go."""

    world: "ChangingWorld"

    def _recover(self) -> None:
        super()._recover()
        self._running: dict[int, React] = {}
        """The batches whose outcomes count."""
        self.core.changes.adapter = _Adapter(self)
        self.declare()

    def declare(self) -> None:
        """Let the agents of the topology in force live here, and no others."""
        for agent, home in self.machine.plan.homes.items():
            if home == self.name:
                self.host.declare(agent, Scribe)
        for agent in self.world.agents:
            if self.machine.plan.homes.get(agent) != self.name:
                self.host.retire(agent)

    def disown(self, agents: list[str]) -> None:
        """Drop agents from memory, and the outcomes of their batches."""
        for agent in agents:
            self.host.forget(agent)
        self._running = {place: due for place, due in self._running.items() if due.agent not in agents}

    def _run(self, due: React) -> None:
        self._running[id(due)] = due
        super()._run(due)

    def _reacted(self, due: React, outcome: Outcome, slot: int) -> None:
        if self._running.pop(id(due), None) is not None:
            super()._reacted(due, outcome, slot)
            return
        self.host.forget(due.agent)
        self.shared.goes_on(slot)
        self.shared.settled(due.agent, self)


class ChangingWorld(ServerWorld):
    """A world whose operator goes through topologies."""

    server_class = ChangingServer

    def __init__(
        self, seed: int, texts: list[str], faults: Faults = FAULTS, kill: float = 0.05, away: float = 0.0
    ) -> None:
        """``texts``: the topologies, one after the other. ``kill``: the probability that the operator's command is
        killed before one of its batches. ``away``: the probability that a server that is not needed is down when the
        command begins; then agents that are added get letters, too."""
        self._files = [parse_topology(text) for text in texts]
        self.agents = sorted({agent.name for file in self._files for agent in file.agents})
        self._gone: set[str] = set()
        self._kill, self._leave = kill, away
        self._away: dict[str, float] = {}
        """Servers that stay down until this time."""
        self._steps: Steps | None = None
        self._run_number = 0
        self._station = 1
        self.outcomes: list[ChangeOutcome] = []
        first = self._files[0]
        super().__init__(plan_of(first), {agent.name: Scribe for agent in first.agents}, seed, faults)

    def play(self, publishes: int) -> list[str]:
        """Publish, change, and come to rest. Return what went wrong."""
        draw = self.random.random
        for _ in range(publishes):
            self.later(draw() * self.faults.seconds * 1.5, self._publish)
        self.later(draw() * 0.05, self._begin)
        self._look_again()
        self.run()
        return self.wrongs or self._findings()

    def _look_again(self) -> None:
        """Let all servers look around as long as there is a change to make."""
        self._regular.look()
        busy = any(one.up and one.machine.organisation.attempt for one in self.servers.values())
        if self._station < len(self._files) or busy:
            self.later(LOOK_SECONDS, self._look_again)

    def _publish(self) -> None:
        draw = self.random.random
        # Clients of servers that stay.
        names = [name for name in self._files[0].servers if all(name in file.servers for file in self._files)]
        to = tuple(sorted(agent.name for agent in self._files[0].agents))
        target, known = to[int(draw() * len(to))], tuple(self.agents) if self._leave else to
        self.client(f"client@{self._any(names)}").send((target,), Note(int(draw() * 2**31), 3, known))

    def leaves(self, server: ChangingServer) -> None:
        """Stop a server that was removed."""
        self._gone.add(server.name)
        server.later(0.01, stop, server)

    def wrong(self, where: str, reason: str) -> None:
        # Looks are rare in this world, so a log may wait longer for the group that vouches for its last one.
        if not reason.startswith("a quiet log"):
            super().wrong(where, reason)

    def _come_back(self, server: SimulatedServer) -> None:
        until = 0.0 if self.calm else self._away.get(server.name, 0.0)
        if until > self.now:
            self.later(until - self.now, self._come_back, server)
        elif server.name not in self._gone:
            super()._come_back(server)

    def _calm_down(self) -> None:
        for name in self._gone:
            # It must not be started again.
            self.servers[name].up = True
        super()._calm_down()
        for name in self._gone:
            self.servers[name].up = False

    def logged(self, server: SimulatedServer, event: str, fields: dict[str, Any]) -> None:
        new = {name for name, one in self.servers.items() if one.up and one.machine.organisation.change == 0}
        if event == "peer-refused" and {fields.get("claims"), fields.get("peer")} & new:
            # A server that is not added yet.
            return
        if fields.get("code") == UNCONFIRMED:
            # The server that must confirm a change is down.
            return
        if event not in ("change-abandoned", "change-undecided"):
            super().logged(server, event, fields)

    # The operator.

    def _begin(self) -> None:
        if self._station >= len(self._files):
            return
        file = self._files[self._station]
        for name in file.servers:
            if name not in self.servers:
                server = self.servers[name] = ChangingServer(self, name, plan_of(file), {}, "disk")
                server.start()
        if self._leave and not self.calm and self.random.random() < self._leave:
            needed = plan_change(self._files[self._station - 1], file).needed
            spare = [name for name, one in self.servers.items() if one.up and name not in (*needed, *self._gone)]
            if spare:
                name = self._any(spare)
                self._away[name] = self.now + 0.1 + self.random.random() * 1.5
                self.crash(name, "kill")
        self._run_number += 1
        attempt = f"{self.random.getrandbits(32):x}"
        servers = tuple(name for name in self.servers if name not in self._gone)
        self._steps = carry_out(Wish(file, servers, "system", int(self.now * 1000) + 1, attempt=attempt))
        self._advance(self._run_number, None, None)

    def _again(self, seconds: float = 0.3) -> None:
        self._steps = None
        self.later(0.05 + self.random.random() * seconds, self._begin)

    def _advance(
        self, number: int, answers: list[dict[str, object] | None] | None, error: AntecedeError | None
    ) -> None:
        """Continue a run of the command with the answers of a batch, or begin it."""
        steps = self._steps
        if steps is None or number != self._run_number:
            return
        if not self.calm and self.random.random() < self._kill:
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
            elif self.calm and not any("does not answer" in one for one in outcome.refusals):
                self.wrong("operator", f"refused: {outcome.refusals}")
            self._again()
            return
        except AntecedeError:
            self._again()
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
        server = self.servers[command.server]

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

        if server.listens:
            self.operators.request(server, command.name, list(command.arguments), answered)
        else:
            self.later(0.0, answered, None, ClosedError("it does not listen"))

    # The verdict.

    def _findings(self) -> list[str]:
        rows: list[Event] = []
        for server in self.servers.values():
            rows += projected(server.name, server.machine.incarnation, server.plan, server.records())[0]
        found = self._rows(rows)
        final = self._files[-1]
        for agent in final.agents:
            state = self.servers[agent.server].machine.engine.states.get(agent.name)
            counted = 0 if state is None else msgspec.msgpack.decode(state, type=Scribe).count
            delivered = sum(row.kind == DELIVER and row.process == agent.name for row in rows)
            if counted != delivered:
                found.append(f"{agent.name} has counted {counted} notes, and {delivered} were delivered")
        for name in final.servers:
            organisation = self.servers[name].machine.organisation
            if (organisation.change, organisation.attempt) != (len(self._files) - 1, ""):
                found.append(f"{name} has change {organisation.change}, attempt {organisation.attempt!r}")
        return found

    def _rows(self, rows: list[Event]) -> list[str]:
        found: list[str] = []
        lines: dict[str, list[int]] = {}
        for row in rows:
            if row.kind in (SEND, DELIVER, LOCAL):
                lines.setdefault(row.process, []).append(row.index)
        found += [
            f"the indices of {process} are {sorted(line)[:20]}"
            for process, line in lines.items()
            if sorted(line) != list(range(len(line)))
        ]
        sent = {(row.message, to) for row in rows if row.kind == SEND for to in row.to or ()}
        delivered = [(row.message, row.process) for row in rows if row.kind == DELIVER]
        if len(set(delivered)) < len(delivered):
            found.append("a letter was delivered twice")
        if sent != set(delivered):
            found.append(f"lost: {sorted(map(str, sent - set(delivered)))[:3]} of {len(sent)}")
        if not found:
            verdict = judge(match(rows), ("fifo", "causal"))
            found += [f"late: {late}" for late in (*verdict.fifo[:1], *verdict.causal[:1])]
        return found


_tries_max = 5
