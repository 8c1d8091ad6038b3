"""Servers are killed with kill -9 while clients call replicated objects. Every call that was answered must take effect
exactly once at each replica.

There are three servers, a table with a replica on each server, another table with two replicas, and many callers. Each
call has a unique name and enters this name into a table. There are five operations: ``add``; ``jot``, which is like
``add`` with ``confirm=False``; ``tell``, which returns a value; ``put``; and ``move``, which also calls the other
table. Two calls of ``put`` conflict, and so do two calls of ``move``. Random servers are killed, one or two at a time,
even while they recover. At the end, the replicas are restored from the data directories alone. The replicas of a table
must be equal. They must contain the name of every answered call, and must not contain any name twice. The trace must be
in significant order.
"""

import asyncio
from collections import Counter
from collections.abc import Generator
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final

from antecede.errors import CallTimeoutError, OverloadError
from antecede.live.application import plan_of
from antecede.live.client.line import connect
from antecede.objects import Call, ReplicatedObject, operation
from antecede.server import AgentServer, recover
from antecede.store import open_store
from antecede.topology import Address, DomainEntry, ObjectHome, TopologyFile
from campaigns.rounds import Round
from campaigns.walks import Figures, Load, free_ports

_servers: Final = ("s1", "s2", "s3")
_homes: Final = {"table": ("s1", "s2", "s3"), "other": ("s2", "s3")}


class Table(ReplicatedObject):
    """A replicated table that counts how often each name was entered."""

    names: dict[str, int]
    puts: int = 0

    def __init__(self) -> None:
        self.names = {}

    @operation
    def add(self, name: str) -> None:
        self.names[name] = self.names.get(name, 0) + 1

    @operation(confirm=False)
    def jot(self, name: str) -> None:
        self.names[name] = self.names.get(name, 0) + 1

    @operation
    def tell(self, name: str) -> str:
        self.names[name] = self.names.get(name, 0) + 1
        return name

    @operation(conflicts_with=["put"])
    def put(self, name: str) -> int:
        self.names[name] = self.names.get(name, 0) + 1
        self.puts += 1
        return self.puts

    @operation(conflicts_with=["move"])
    def move(self, name: str, to: str) -> Generator[Call, Any, None]:
        self.names[name] = self.names.get(name, 0) + 1
        yield Call(to, "add", (name,))


class Calls(Load):
    """A load: clients that call the replicated tables. It records which names each table must contain at the end."""

    def __init__(self, topology: TopologyFile, callers: int, seed: int) -> None:
        super().__init__(topology)
        self.answered = 0
        self.late = 0
        self._callers = callers
        self._seed = seed
        self._calls: Counter[str] = Counter()
        self.expected: dict[str, set[str]] = {name: set() for name in _homes}
        """For each table, the names that it must contain at the end: those of the answered calls."""
        self.possible: set[str] = set()
        """The names of calls without an answer. A table may contain these names or not."""

    async def begin(self) -> None:
        """Do nothing: each client connects when it begins to call."""

    async def travel(self, enough: asyncio.Event, pause: float) -> None:
        """Let all clients call the replicated objects until ``enough`` is set. Then wait until their calls have
        ended."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._callers):
                group.create_task(self._call(number, enough))

    async def _call(self, number: int, enough: asyncio.Event) -> None:
        """Call the replicated objects as a client of one server, until ``enough`` is set."""
        random = Random(f"{number} {self._seed}")
        address = str(self._topology.servers[_servers[number % 3]])
        async with connect(address, name=f"caller{number}") as bus:
            while not enough.is_set():
                kind = random.choice(_kinds)
                one, other = random.sample(sorted(_homes), 2)
                self._calls[kind] += 1
                name = f"{number} {kind} {self._calls[kind]}"
                remote = bus.object(one, Table, timeout=_call_seconds)
                try:
                    await getattr(remote, kind)(name, *((other,) if kind == "move" else ()))
                except (CallTimeoutError, OverloadError):
                    self.late += 1
                    self.possible.add(name)
                else:
                    self.answered += 1
                    for table in (one, other) if kind == "move" else (one,):
                        self.expected[table].add(name)

    async def settle(self, seconds: float) -> list[str]:
        """Wait at most ``seconds`` until the servers are idle. Return the errors, for example a server that stays
        busy."""
        return await self.idle(seconds)


class ObjectKills(Round):
    """A round in which servers are killed while clients call objects."""

    settle_seconds = 120.0
    orders = ("significant",)
    load: Calls

    def __init__(self, folder: Path, seed: int, callers: int, nice: int = 0) -> None:
        super().__init__(folder, seed, _topology(), nice)
        self.load = Calls(self.topology, callers, seed)

    async def cause_fault(self, victim: str) -> None:
        if self.random.random() < 0.7:
            # Otherwise it is killed while others are down or recover, and few calls are answered.
            self.come_back(inf)
            await self.all_up()
            await asyncio.sleep(self.random.random() * _between_seconds)
        await self.end(victim)

    async def judged(self) -> Figures:
        """Check the trace, and then the replicas."""
        figures = await super().judged()
        figures.found += await asyncio.to_thread(self._replicas)
        return figures

    def _replicas(self) -> list[str]:
        found: list[str] = []
        states: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in _homes}
        for server in _servers:
            for name, state in self._states(server).items():
                states[name][server] = state
        for name, replicas in states.items():
            first = next(iter(replicas.values()))
            found += [f"{name} at {server} differs" for server, state in replicas.items() if state != first]
            entered, expected = first["names"], self.load.expected[name]
            found += [f"the call {entry} is {count} times in {name}" for entry, count in entered.items() if count != 1]
            found += [f"the call {entry} was answered, but is not in {name}" for entry in expected - entered.keys()]
            unknown = entered.keys() - expected - self.load.possible
            found += [f"the call {entry} was not made, but is in {name}" for entry in unknown]
        return found

    def _states(self, server: str) -> dict[str, dict[str, Any]]:
        """Return the states of the replicas of a server, from its data directory."""
        store = open_store(self.processes.directory(server))
        try:
            machine = AgentServer(server, plan_of(self.topology), store.incarnation)
            log = store.recovered
            snapshot = None if log.snapshot is None else log.snapshot.data()
            recover(machine, snapshot, (record for _, record in log.records()), self.topology.epoch, 0.0)
            site = machine.calls.site
            assert site is not None
            return {name: site.state_of(name) for name, servers in _homes.items() if server in servers}
        finally:
            store.close()


def _topology() -> TopologyFile:
    ports = free_ports(len(_servers))
    addresses = {name: Address("127.0.0.1", port) for name, port in zip(_servers, ports, strict=True)}
    tables = tuple(ObjectHome(name, servers, f"{__name__}:Table") for name, servers in _homes.items())
    return TopologyFile(addresses, (DomainEntry("A", _servers, "objects"),), objects=tables)


_kinds: Final = ("add", "add", "jot", "tell", "put", "move")
_call_seconds: Final = 60.0
_between_seconds: Final = 1.0
