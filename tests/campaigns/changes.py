"""Changes of the topology of a running system under load, while servers and ``topology apply`` are killed.

A *pass* (one of the ``--rounds`` of the campaign) makes several changes. At the end of a pass, the
topology is the same as at the beginning. The steps are: one domain → a *bus* (one domain connects the other domains) →
one more server → an agent moves to the added server → one domain is split → one domain again, without the added server.
Meanwhile clients start walks. Servers are killed, and started again with the topology file that
they had at first. The command ``topology apply`` is interrupted at random moments, as if it were killed, and is then
run again. Some servers that a change does not need are down until the change is made, and learn about the change
afterwards. The checks are those of :mod:`campaigns.rounds`: no message is lost, delivered twice or late, and the
states of agents are right.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from time import time

from antecede.errors import AntecedeError
from antecede.live.client.operator import RunningServers
from antecede.server import ChangeRequest, carry_out
from antecede.server import Outcome as ChangeOutcome
from antecede.topology import Address, AgentHome, DomainEntry, TopologyFile, plan_change
from campaigns.rounds import Round
from campaigns.walkers import Walker, name_of_walker
from campaigns.walks import Load, free_ports


class Journey:
    """The topologies of a trial, one after the other."""

    def __init__(self, servers: int) -> None:
        self.base = [f"s{number + 1}" for number in range(servers)]
        self._ports = dict(zip(self.base, free_ports(servers), strict=True))

    def _topology(self, domains: dict[str, list[str]], homes: dict[int, str], extra: str = "") -> TopologyFile:
        names = [*self.base, extra] if extra else self.base
        agents = {name_of_walker(place): homes.get(place, server) for place, server in enumerate(self.base)}
        if extra:
            agents[f"agent-{extra}"] = extra
        addresses = {name: Address("127.0.0.1", self._ports[name]) for name in names}
        entries = tuple(DomainEntry(name, tuple(members), "matrix") for name, members in domains.items())
        kind = f"{Walker.__module__}:{Walker.__qualname__}"
        return TopologyFile(addresses, entries, tuple(AgentHome(name, at, kind) for name, at in agents.items()))

    @property
    def flat(self) -> TopologyFile:
        """The topology with all servers in one domain."""
        return self._topology({"A": self.base}, {})

    def topologies(self, extra: str) -> list[TopologyFile]:
        """Return the topologies of one pass, in order. The last topology has only one domain, like the first topology
        of the trial. ``extra`` is the name of the server that is added and removed again."""
        self._ports[extra] = free_ports(1)[0]
        groups = [self.base[at : at + 3] for at in range(0, len(self.base), 3)]
        routers = [group[0] for group in groups]
        bus = {"bus": routers} if len(routers) > 1 else {}
        bus |= {f"L{number}": group for number, group in enumerate(groups) if len(group) > 1}
        more = {**bus, "X": [self.base[-1], extra]}
        split = {name: members for name, members in more.items() if name != "L0"}
        split |= {"L0": groups[0][:2], "M0": groups[0][1:]}
        return [
            self._topology(bus, {}),
            self._topology(more, {}, extra),
            self._topology(more, {1: extra}, extra),
            self._topology(split, {1: extra}, extra),
            self.flat,
        ]


class Changes(Round):
    """A round that changes the topology again and again. One pass through all topologies counts as one fault."""

    pause_seconds = 0.01

    def __init__(self, folder: Path, seed: int, servers: int = 8, nice: int = 0, kills: float = 1.0) -> None:
        """``kills`` is the approximate number of kills per change. Kills of servers and kills of ``topology apply`` are
        counted together."""
        self.journey = Journey(servers)
        self._kills = kills
        self._extras: list[str] = []
        self._present: str = ""
        """The name of the added server while this server is part of the topology; otherwise empty."""
        self._force = self.journey.flat
        super().__init__(folder, seed, self.journey.flat, nice)
        self.load = Load(self.topology, together=_together)

    async def disturb(self, faults: int, counted: str) -> None:
        for number in range(faults):
            if not self.found:
                await self._round(f"x{number + 1}")
                self.faults[counted] += 1

    async def _round(self, extra: str) -> None:
        for topology in self.journey.topologies(extra):
            if extra in topology.servers and extra not in self._extras:
                path = self.processes.folder / f"{extra}.toml"
                path.write_text(topology.text())
                self.processes.files[extra] = path
                self.processes.topology = topology
                self.processes.start(extra)
                self._extras.append(extra)
                self._present = extra
            await self._change(topology)
            if self.found:
                return
            if self._present and self._present not in topology.servers:
                await self._removed(self._present)

    async def _removed(self, extra: str) -> None:
        self._present = ""
        if extra not in self.processes.running:
            return
        code = await asyncio.to_thread(self.processes.stop, extra)
        if code:
            self.found.append(f"{extra} was removed and ended with {code}: {self.processes.log(extra)[-500:]}")

    async def _change(self, topology: TopologyFile) -> None:
        """Make one change of the topology. Meanwhile kill servers and the command ``topology apply``."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _change_seconds_max
        outcome: ChangeOutcome | None = None
        absent = self._take_down(topology)
        while outcome is None or outcome.state not in ("done", "unchanged"):
            if loop.time() > end:
                why = "" if outcome is None else "; ".join(outcome.refusals)
                self.found.append(f"a change was not made within {_change_seconds_max:.0f} s: {why}")
                return
            striking = asyncio.create_task(self._strike_soon())
            try:
                outcome = await self._apply(topology)
            except AntecedeError:
                # A server was down at the wrong moment.
                self.faults["failures"] += 1
                outcome = None
            await striking
            await self.all_up()
        self._force = topology
        self.faults["changes"] += 1
        if absent:
            self.faults["absences"] += absent in outcome.absent
            self.processes.start(absent)
            await self.all_up()

    def _take_down(self, topology: TopologyFile) -> str:
        """With some probability, kill a server that the next change does not need. Return the name of the killed
        server, or an empty string if none was killed."""
        spare = sorted(set(self.processes.running) - set(plan_change(self._force, topology).needed))
        if not spare or self.random.random() > 2 * self._kills:
            return ""
        absent = self.random.choice(spare)
        self.processes.kill(absent)
        return absent

    async def _apply(self, topology: TopologyFile) -> ChangeOutcome | None:
        request = ChangeRequest(
            topology, tuple(topology.servers), token_hex(8), int(time() * 1000), attempt=token_hex(8)
        )
        servers = RunningServers([topology])
        applying = asyncio.create_task(servers.drive(carry_out(request)))
        if self.random.random() < self._kills / 3:
            with suppress(TimeoutError):
                # Its connections are closed, as if its process were killed.
                return await asyncio.wait_for(applying, self.random.random() ** 2 * _command_seconds)
            self.faults["commands"] += 1
            return None
        return await asyncio.wait_for(applying, _change_seconds_max)

    async def _strike_soon(self) -> None:
        if self.random.random() < self._kills / 2:
            await asyncio.sleep(self.random.random() ** 2 * _command_seconds)
            victim = self.random.choice(sorted(self.processes.running))
            self.processes.kill(victim)
            self.faults["kills"] += 1
            await asyncio.sleep(self.random.random() * _down_seconds)
            self.processes.start(victim)

    async def all_up(self) -> None:
        """Wait until all servers listen. Report each server that ended although it belongs to the topology."""
        for server in self.processes.ended():
            if server == self._present or server in self.topology.servers:
                self.found.append(f"{server} ended by itself: {self.processes.log(server)[-1_000:]}")
            self.processes.running.pop(server)
        for server in list(self.processes.running):
            await asyncio.to_thread(self.processes.wait, server)

    @property
    def recorded(self) -> list[str]:
        return [*self.topology.servers, *self._extras]


_together = 60
_command_seconds = 0.4
_down_seconds = 0.3
_change_seconds_max = 120.0
