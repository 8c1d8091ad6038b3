"""The processes of Antecede in ``./run bench objects``: a server with a replica of each table, and a program that
makes calls.

The program is a client of server s1. It calls a table that has a replica on each of the three servers. There are five
kinds of calls:

* *compatible*: ``add``, which is in conflict with no operation;
* *unconfirmed*: ``add_unconfirmed``, which works like ``add``, but the caller gets its answer as soon as server s1 has
  the call on disk;
* *shared*: ``share``, which is compatible with itself. It is in conflict with ``audit``, but ``audit`` is never called;
* *conflicting*: ``put``, which is in conflict with itself;
* *nested*: ``move``, which is in conflict with itself. When a replica executes ``move``, it calls the other table.
"""

import asyncio
import os
from collections.abc import Generator
from time import perf_counter
from typing import Any

from antecede import Call, ReplicatedObject, ServerRuntime, connect, operation
from antecede.topology import Address, DomainEntry, ObjectHome, TopologyFile, parse_topology
from benchmarks.common import act, cpu_seconds, figures, say, settle_memory, until_told

SERVERS = ("s1", "s2", "s3")
_entry = "x" * 100
_adding = {"compatible": "add", "unconfirmed": "add_unconfirmed", "shared": "share"}


class Table(ReplicatedObject):
    """A table with many short entries, and with counts. A measured operation changes one entry or one count."""

    entries: dict[str, str]
    counts: dict[str, int]

    def __init__(self) -> None:
        self.entries = {}
        self.counts = {}

    @operation(conflicts_with=["put", "move"])
    def fill(self, first: int, last: int) -> int:
        """Add the entries with the numbers from ``first`` to ``last - 1``, to make the state large."""
        for number in range(first, last):
            self.entries[f"filled {number:08}"] = _entry
        return len(self.entries)

    @operation
    def add(self, name: str, amount: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    @operation(confirm=False)
    def add_unconfirmed(self, name: str, amount: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    @operation(conflicts_with=["audit"])
    def share(self, name: str, amount: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    @operation
    def audit(self) -> int:
        return sum(self.counts.values())

    @operation(conflicts_with=["put"])
    def put(self, name: str, value: str) -> None:
        self.entries[name] = value

    @operation(conflicts_with=["move"])
    def move(self, to: str, name: str, amount: int) -> Generator[Call, Any, None]:
        self.counts[name] = self.counts.get(name, 0) - amount
        yield Call(to, "add", (name, amount))


def topology_text(ports: list[int]) -> str:
    """Return the text of the topology: three servers, one domain, and two tables with a replica on each server."""
    addresses = {name: Address("127.0.0.1", port) for name, port in zip(SERVERS, ports, strict=True)}
    tables = tuple(ObjectHome(name, SERVERS, f"{__name__}:Table") for name in ("table", "other"))
    return TopologyFile(addresses, (DomainEntry("A", SERVERS, "objects"),), objects=tables).text()


async def server(topology: str, name: str, data: str | None = None) -> None:
    """Run a server until standard input ends. For each line of input, report the counts of the server."""
    file = parse_topology(topology)
    tables = {"table": Table, "other": Table}
    runtime = ServerRuntime(file, name, data, durability="memory" if data is None else "disk", agents=tables)
    await runtime.start()
    settle_memory()
    say(ready=True)
    await until_told(lambda: say(**counts(runtime)))
    await runtime.stop(0.1)


def counts(runtime: ServerRuntime) -> dict[str, int]:
    """Return how many frames, records, syncs and bytes of log a server has produced so far."""
    links = [link for one in runtime.machine.channel.consumers.values() for link in one.links.values()]
    return {
        "frames": sum(link.sent for link in links),
        "records": runtime.store.last,
        "syncs": runtime.store.figures.syncs.count,
        "log_bytes": runtime.store.figures.durable_bytes,
    }


async def filled(topology: str, bytes_: int) -> None:
    """Add entries to the table until its state has about this number of bytes."""
    address = str(parse_topology(topology).servers["s1"])
    async with connect(address, name="filler") as bus:
        table = bus.object("table", timeout=120.0)
        wanted, done = bytes_ // (len(_entry) + 18), 0
        while done < wanted:
            last = min(done + 20_000, wanted)
            await table.fill(done, last)
            done = last
        say(entries=done)


async def caller(topology: str, kind: str, calls: int, under_way: int, pids: list[int], warm: int = 50) -> None:
    """Call operations of the replicated object ``table`` from a client of server s1, ``under_way`` calls at a time, and
    report the figures."""
    address = str(parse_topology(topology).servers["s1"])
    async with connect(address, name=f"caller-{kind}-{under_way}-{os.getpid()}") as bus:
        table = bus.object("table", timeout=60.0)
        settle_memory()

        async def one(number: int) -> None:
            name = f"key {number % 100}"
            if kind == "conflicting":
                await table.put(name, _entry)
            elif kind == "nested":
                await table.move("other", name, 1)
            else:
                await getattr(table, _adding[kind])(name, 1)

        say(**await timed(one, calls, under_way, pids, warm))


async def timed(one: Any, calls: int, under_way: int, pids: list[int], warm: int) -> dict[str, float]:
    """Call the function ``one``: first some times to warm up, then ``calls`` times for the measurement. At most
    ``under_way`` calls run at a time. Return the rate and the latency of the measured calls, and the CPU time that the
    processes ``pids`` needed per call."""
    times: list[float] = []
    left = [0]

    async def work() -> None:
        while left[0] > 0:
            left[0] -= 1
            started = perf_counter()
            await one(left[0])
            times.append(perf_counter() - started)

    for count in (max(warm, under_way), calls):
        times.clear()
        left[0] = count
        cpu, started = cpu_seconds(*pids), perf_counter()
        await asyncio.gather(*(work() for _ in range(min(under_way, count))))
        seconds = perf_counter() - started
    spent = cpu_seconds(*pids) - cpu
    return {**figures(times), "per_second": calls / seconds, "cpu_us": spent / calls * 1e6}


if __name__ == "__main__":
    act({"server": server, "filled": filled, "caller": caller})
