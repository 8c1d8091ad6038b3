"""Kill -9 under calls of replicated objects: every call that was answered counts once at all replicas.

Three servers, a table with a replica on each, another with two, and many callers. Each call enters its own name, by one
of five kinds of operations: compatible ones, confirmed or not, one that returns a value, one that conflicts with
itself, and one that calls the other table. Random servers are killed, also while they recover, one or two at a time. At
the end the logs alone must give equal replicas, in which every answered call is entered once, no call is entered twice,
and the trace must be in significant order.
"""

import asyncio
import shutil
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from antecede.errors import AntecedeError, CallTimeoutError, OverloadError
from antecede.live.application import plan_of
from antecede.live.client.line import connect
from antecede.objects.hosting import ReplicatedObject
from antecede.objects.model import Call, operation
from antecede.recording.gathering import gathered
from antecede.server import AgentServer
from antecede.server.recovery import recover
from antecede.store import open_store
from antecede.topology import Address, TopologyFile
from antecede.topology.file import DomainEntry, ObjectHome
from antecede.trace import verify
from antecede.walks.processes import Processes, free_ports

_servers: Final = ("s1", "s2", "s3")
_homes: Final = {"table": ("s1", "s2", "s3"), "other": ("s2", "s3")}


class Table(ReplicatedObject):
    """Names, and how often each was entered."""

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


class Result(msgspec.Struct):
    """The counts and errors of a trial."""

    kills: int = 0
    answered: int = 0
    late: int = 0
    deliveries: int = 0
    found: list[str] = []


class ObjectKills:
    """One trial: servers, callers and kills from one seed."""

    def __init__(self, folder: Path, seed: int, callers: int, nice: int = 0) -> None:
        self._folder = folder
        self._random = Random(seed)
        self._topology = _topology()
        self._processes = Processes(folder, self._topology, nice=nice)
        self._callers = callers
        self._enough = False
        self.result = Result()
        self._calls: Counter[str] = Counter()
        self._expected: dict[str, set[str]] = {name: set() for name in _homes}
        """For each table the names that must be there."""
        self._possible: set[str] = set()
        """The names of calls that may have taken place."""

    async def run(self, kills: int) -> Result:
        """Kill servers that many times, then let all calls end, and judge the data."""
        result = self.result
        try:
            await self._processes.up(*_servers)
            calling = [asyncio.create_task(self._call(number)) for number in range(self._callers)]
            while result.kills < kills and not any(task.done() for task in calling):
                await self._kill(min(1 + (self._random.random() < 0.2), kills - result.kills))
            self._enough = True
            await self._all_up()
            for ended in await asyncio.gather(*calling, return_exceptions=True):
                if isinstance(ended, BaseException):
                    result.found.append(f"a caller failed: {type(ended).__name__}: {ended}")
            for server in _servers:
                self._processes.stop(server)
            await asyncio.to_thread(self._judge)
        except AntecedeError as error:
            result.found.append(str(error))
        finally:
            self._processes.close()
        if not result.found:
            shutil.rmtree(self._folder)
        return result

    async def _kill(self, count: int) -> None:
        await asyncio.sleep(self._random.random() * _between_seconds)
        victims = self._random.sample(_servers, count)
        for victim in victims:
            if victim in self._processes.ended():
                self.result.found.append(f"{victim} ended by itself: {self._processes.log(victim)[-1_000:]}")
            self._processes.kill(victim)
            self.result.kills += 1
        await asyncio.sleep(self._random.random() * _down_seconds)
        for victim in victims:
            self._processes.start(victim)
        if self._random.random() < 0.7:
            # Otherwise the next one is killed while these recover.
            await self._all_up()

    async def _all_up(self) -> None:
        for server in _servers:
            await asyncio.to_thread(self._processes.wait, server)

    async def _call(self, number: int) -> None:
        """Call until it is enough, at one server."""
        random = Random(f"{number} {self._random.random()}")
        address = str(self._topology.servers[_servers[number % 3]])
        async with connect(address, name=f"caller{number}") as bus:
            while not self._enough:
                kind = random.choice(_kinds)
                one, other = random.sample(sorted(_homes), 2)
                self._calls[kind] += 1
                name = f"{number} {kind} {self._calls[kind]}"
                remote = bus.object(one, Table, timeout=_call_seconds)
                try:
                    await getattr(remote, kind)(name, *((other,) if kind == "move" else ()))
                except (CallTimeoutError, OverloadError):
                    self.result.late += 1
                    self._possible.add(name)
                else:
                    self.result.answered += 1
                    for table in (one, other) if kind == "move" else (one,):
                        self._expected[table].add(name)

    def _judge(self) -> None:
        found = self.result.found
        states: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in _homes}
        for server in _servers:
            if "Traceback" in self._processes.log(server):
                found.append(f"{server} has a traceback in its log")
            for name, state in self._states(server).items():
                states[name][server] = state
        for name, replicas in states.items():
            first = next(iter(replicas.values()))
            found += [f"{name} at {server} differs" for server, state in replicas.items() if state != first]
            entered = first["names"]
            found += [f"{entry}: {count} times in {name}" for entry, count in entered.items() if count != 1]
            found += [f"{entry} was answered, and is not in {name}" for entry in self._expected[name] - entered.keys()]
            unknown = entered.keys() - self._expected[name] - self._possible
            found += [f"{entry} was not called, and is in {name}" for entry in unknown]
        with gathered([self._processes.directory(server) for server in _servers]) as paths:
            report = verify(paths, ("significant",))
        self.result.deliveries = report["deliveries"]
        wrong = {"late": report["orders"]["significant"]["late"], "set aside": report["quarantined"]}
        wrong["undelivered"] = report["undelivered"]
        found += [f"in the trace: {what} {count}" for what, count in wrong.items() if count]

    def _states(self, server: str) -> dict[str, dict[str, Any]]:
        """Return the states of the replicas of a server, from its data directory."""
        store = open_store(self._processes.directory(server))
        try:
            machine = AgentServer(server, plan_of(self._topology), store.incarnation)
            log = store.recovered
            snapshot = None if log.snapshot is None else log.snapshot.data()
            recover(machine, snapshot, (record for _, record in log.records()), self._topology.epoch, 0.0)
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
_down_seconds: Final = 0.3
