"""One round of a trial: servers get load, faults happen one after the other, a quiet time follows, then a verdict.

Subclasses define the faults; :class:`Kills` is the simplest subclass. A round's folder is kept if there were errors, so
that it can be examined.
"""

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from random import Random

import msgspec

from antecede.errors import AntecedeError
from antecede.topology import TopologyFile, parse_topology
from campaigns.walks import STOPPED, Figures, Load, Processes, judge_directories, walking

SMALL = """
[servers]
s1 = "tcp://127.0.0.1:7101"
s2 = "tcp://127.0.0.1:7102"
s3 = "tcp://127.0.0.1:7103"
s4 = "tcp://127.0.0.1:7104"
s5 = "tcp://127.0.0.1:7105"
[domains]
A = { servers = ["s1", "s2"], order = "pruned" }
B = { servers = ["s2", "s3", "s4"], order = "updates" }
C = { servers = ["s4", "s5"], order = "matrix" }
"""
"""The default topology of a round: three domains and five servers; two of the servers are routers."""


class Outcome(msgspec.Struct):
    """The counts and errors of one round."""

    seed: int
    faults: dict[str, int]
    figures: Figures

    @property
    def found(self) -> list[str]:
        """The errors that this round has found."""
        return self.figures.found


class Round:
    """One round of a trial. It starts servers and clients, causes faults, and checks the result. The seed determines
    which faults happen."""

    down_max = 2
    """The largest number of servers that are down at the same time. A fault that hits several servers may exceed this
    number."""
    settle_seconds = 60.0
    """A time limit. After the last fault, the round waits until all walks are accepted, then until all walks have
    returned, and then until all servers are idle. Each of these three waits may take at most this time."""
    pause_seconds = 0.005
    """The time that each client waits before it starts more walks."""
    entry = "antecede"
    """The Python module that runs a server, as in ``python -m antecede``."""
    orders: tuple[str, ...] = ("fifo", "causal")
    """The orders that the trace must keep."""

    def __init__(self, folder: Path, seed: int, topology: TopologyFile | None = None, nice: int = 0) -> None:
        """``topology`` contains the servers, and the agents that the load needs. If it is None, the round uses the five
        servers of ``SMALL``, with one walker (:mod:`campaigns.walks`) on each server."""
        self.seed = seed
        self.random = Random(seed)
        self.topology = walking(parse_topology(SMALL)) if topology is None else topology
        self.faults: Counter[str] = Counter()
        self.found: list[str] = []
        self.processes = self.make_processes(folder, nice)
        self.load = Load(self.topology)
        self._folder = folder
        self._gone: list[tuple[float, str]] = []

    def make_processes(self, folder: Path, nice: int) -> Processes:
        """Return the processes of the servers."""
        return Processes(folder, self.topology, self.entry, nice)

    @property
    def recorded(self) -> list[str]:
        """The servers whose data is checked."""
        return list(self.topology.servers)

    async def cause_fault(self, victim: str) -> None:
        """Cause a fault at a running server, and count the fault. If the fault ends the server, call ``lost``."""
        raise NotImplementedError

    def lost(self, server: str) -> None:
        """Record that a server has ended, and choose a time at which ``come_back`` restarts the server."""
        due = asyncio.get_running_loop().time() + self.random.random() * _down_seconds
        self._gone.append((due, server))

    def come_back(self, until: float) -> None:
        """Restart each server whose restart time is ``until`` or earlier. ``lost`` has chosen the restart times."""
        for due, server in list(self._gone):
            if due <= until:
                self._gone.remove((due, server))
                self.processes.start(server)

    async def end(self, server: str, graceful: bool = False) -> None:
        """Kill a server, or stop it gracefully, and count this as a fault."""
        if graceful:
            code = await asyncio.to_thread(self.processes.stop, server)
            if code not in STOPPED:
                self.found.append(f"{server} stopped with exit code {code}")
            self.faults["stops"] += 1
        else:
            await asyncio.to_thread(self.processes.kill, server)
            self.faults["kills"] += 1
        self.lost(server)

    async def run(self, faults: int, counted: str) -> Outcome:
        """Run the round; return its counts and errors. The round causes faults until there were ``faults`` faults of
        the kind ``counted``, for example ``kills``, or until an error is found."""
        load = self.load
        figures = Figures()
        try:
            await self.processes.up(*self.topology.servers)
            await load.begin()
            enough = asyncio.Event()
            travelling = asyncio.create_task(load.travel(enough, self.pause_seconds))
            try:
                await self.disturb(faults, counted)
            finally:
                enough.set()
            if not self.found:
                await self.all_up()
                async with asyncio.timeout(self.settle_seconds):
                    await travelling
                self.found += await load.settle(self.settle_seconds)
            figures = await self.judged()
            figures.walks = sum(len(client.accepted) for client in load.clients)
        except* AntecedeError as group:
            # For instance, a client learned that its server lost accepted publishes, or is gone permanently.
            self.found += [str(error) for error in group.exceptions]
        except* TimeoutError:
            self.found.append(f"some walks or calls were not accepted within {self.settle_seconds:.0f} s")
        finally:
            await load.close()
            self.processes.close()
        figures.found = self.found + figures.found
        if not figures.found:
            shutil.rmtree(self._folder)
        return Outcome(self.seed, dict(self.faults), figures)

    async def judged(self) -> Figures:
        """Stop some servers gracefully and kill the others. Then check the data of the servers; return the counts and
        errors."""
        return await asyncio.to_thread(self._judge)

    async def disturb(self, faults: int, counted: str) -> None:
        """Cause faults at random servers, until there were ``faults`` faults of the kind ``counted`` and all servers
        are started again. Return early if an error is found."""
        while (self.faults[counted] < faults or self._gone) and not self.found:
            await self._cause_faults(self.faults[counted] < faults)

    async def all_up(self) -> None:
        """Wait until all servers listen."""
        for server in self.topology.servers:
            await asyncio.to_thread(self.processes.wait, server)

    async def _cause_faults(self, more: bool) -> None:
        random, loop = self.random, asyncio.get_running_loop()
        up = [server for server in self.topology.servers if server in self.processes.running]
        if more and len(self._gone) < self.down_max and up:
            await self.cause_fault(up[int(random.random() * len(up))])
        await asyncio.sleep(random.random() * _between_seconds)
        self.come_back(loop.time())
        for server in self.processes.ended():
            self.found.append(f"{server} ended by itself: {self.processes.log(server)[-1_000:]}")

    def _judge(self) -> Figures:
        for server in list(self.processes.running):
            if self.random.random() < 0.5:
                self.processes.kill(server)
            elif self.processes.stop(server) != 0 and not self.found:
                self.found.append(f"{server} did not stop gracefully: {self.processes.log(server)[-500:]}")
        figures = judge_directories([self.processes.directory(server) for server in self.recorded], self.orders)
        for server in self.recorded:
            if "Traceback" in self.processes.log(server):
                figures.found.append(f"{server} has a traceback in its log")
        return figures


class Kills(Round):
    """A round that kills random servers, including routers, with kill -9 at random moments. Several servers may be down
    at the same time, and a server may be killed while it recovers.

    A few servers are stopped gracefully instead: such a server writes a snapshot, and refuses clients for a moment.
    """

    async def cause_fault(self, victim: str) -> None:
        await self.end(victim, self.random.random() < _graceful)


_down_seconds = 0.6
_between_seconds = 0.7
_graceful = 0.1
