"""The processes of Antecede in ``./run bench channel``: a server with agents, a program on the bus of a server, and a
client.

With ``--against``, this file also runs with the package of another version. So it uses only public names, and imports
only what the oldest compared version has.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from time import clock_gettime, perf_counter, process_time
from typing import Any

import antecede
from antecede import Agent, Bus, Context, Notification, ServerRuntime, connect, parse_topology
from benchmarks import payload
from benchmarks.common import act, figures, resident_bytes, say, settle_memory, until_told


class Item(Notification):
    """A message of the benchmark. If ``last`` is set, the receiver answers with :class:`Done`."""

    body: bytes
    last: bool = False


class Done(Notification):
    """The receiver's answer to the last message."""


class Serve(Notification):
    """The request to :class:`Player` to begin an exchange. ``count``: the number of round trips to measure. The player
    does not read ``count``, because it finds the number of round trips in variables of this module."""

    count: int


class Sink(Agent):
    """An agent that accepts every message and has no state."""

    def on_item(self, item: Item, ctx: Context) -> None:
        if item.last:
            ctx.reply(Done())


class Ledger(Agent):
    """An agent that counts messages. It has a state, which is saved with every reaction."""

    items: int = 0
    bytes: int = 0

    def on_item(self, item: Item, ctx: Context) -> None:
        self.items += 1
        self.bytes += len(item.body)
        if item.last:
            ctx.reply(Done())


class Wall(Agent):
    """An agent that sends every message back to its sender."""

    def on_item(self, item: Item, ctx: Context) -> None:
        ctx.reply(item)


class Player(Agent):
    """An agent that exchanges one letter with the agent ``wall``, back and forth, until all round trips are done."""

    def on_serve(self, serve: Serve, ctx: Context) -> None:
        _instants.append(perf_counter())
        ctx.send("wall", Item(body=payload))

    def on_item(self, item: Item, ctx: Context) -> None:
        _instants.append(perf_counter())
        if len(_instants) == _instants_warm[0]:
            _meter.start()
        if len(_instants) <= _instants_wanted[0]:
            ctx.send("wall", Item(body=payload))
        else:
            _over.set()


class Meter:
    """Measures the CPU time (user time and system time) that this process and the receiver's process use after
    ``start``."""

    def __init__(self) -> None:
        self.receiver: int | None = None
        """The process id of the receiver. If it is None, nothing is measured."""
        self._started = (0.0, 0.0)

    def start(self) -> None:
        if self.receiver is not None:
            self._started = self._now(self.receiver)

    def figures(self, messages: int) -> dict[str, float]:
        """Return three CPU times since ``start``, in microseconds per message: the time of this process, the time of
        the receiver's process, and their sum. If nothing is measured, the result is empty."""
        if self.receiver is None:
            return {}
        spent = [now - then for now, then in zip(self._now(self.receiver), self._started, strict=True)]
        return {
            "sender_cpu_us": spent[0] / messages * 1e6,
            "receiver_cpu_us": spent[1] / messages * 1e6,
            "cpu_us": sum(spent) / messages * 1e6,
        }

    def _now(self, receiver: int) -> tuple[float, float]:
        # Linux's name for the CPU clock of another process, see clock_getcpuclockid(3).
        return process_time(), clock_gettime(~receiver << 3 | 2)


_meter = Meter()
_soak_parts = 10
_instants: list[float] = []
_instants_wanted = [0]
_instants_warm = [0]
_over = asyncio.Event()

_agents: dict[str, dict[str, type[Agent]]] = {
    "s1": {"player": Player},
    "s2": {"sink": Sink, "ledger": Ledger, "wall": Wall},
}


def topology_text(ports: list[int]) -> str:
    """Return the text of the topology: two servers, one domain, and the agents."""
    homes = [(agent, server, kind) for server, agents in _agents.items() for agent, kind in agents.items()]
    return "\n".join(
        [
            "[servers]",
            *(f's{number} = "tcp://127.0.0.1:{port}"' for number, port in enumerate(ports, 1)),
            "[domains]",
            'A = { servers = ["s1", "s2"], order = "pruned" }',
            "[agents]",
            *(f'{a} = {{ server = "{s}", class = "{k.__module__}:{k.__qualname__}" }}' for a, s, k in homes),
        ]
    )


async def _start(topology: str, server: str, data: str | None, trace: bool, keys: str | None = None) -> ServerRuntime:
    more: dict[str, Any] = {"durability": "memory" if data is None else "disk", "trace": trace}
    if keys is not None:
        from antecede.live.keys import Credentials, ServerSecurity

        own = Credentials(f"{keys}/{server}")
        more["security"] = ServerSecurity(f"{keys}/access.toml", own, server)
    runtime = ServerRuntime(parse_topology(topology), server, data, agents=dict(_agents[server]), **more)
    await runtime.start()
    settle_memory()
    return runtime


async def server(topology: str, data: str | None = None, trace: bool = False, keys: str | None = None) -> None:
    """Run the receiver: server s2 with its agents. ``keys``: the folder with the access file and the credentials of the
    server."""
    runtime = await _start(topology, "s2", data, trace, keys)
    say(ready=True, package=antecede.__file__)
    await until_told()
    await runtime.stop(0.1)


async def pipelined(
    topology: str,
    messages: int,
    to: str,
    data: str | None = None,
    trace: bool = False,
    warm: int = 2_000,
    pid: int | None = None,
) -> None:
    """Run server s1, and a program that is connected to its bus. The program sends messages to the agent ``to``,
    without waiting for each one. Report the rate."""
    runtime = await _start(topology, "s1", data, trace)
    async with runtime.bus("program") as bus:
        done = asyncio.Event()
        bus.on(Done, lambda _: done.set())
        await _send_all(bus, to, warm)
        await done.wait()
        done.clear()
        _meter.receiver = pid
        _meter.start()
        started = perf_counter()
        await _send_all(bus, to, messages)
        await done.wait()
        seconds = perf_counter() - started
        say(per_second=messages / seconds, **_meter.figures(messages))
    await runtime.stop(0.1)


async def soak(topology: str, messages: int, pid: int, data: str | None = None) -> None:
    """Send the messages in ten parts, and report the memory of both servers after each part."""
    runtime = await _start(topology, "s1", data, False)
    async with runtime.bus("program") as bus:
        done = asyncio.Event()
        bus.on(Done, lambda _: done.set())
        for _ in range(_soak_parts):
            await _send_all(bus, "sink", messages // _soak_parts)
            await done.wait()
            done.clear()
            say(sender_mib=resident_bytes(os.getpid()) / 2**20, receiver_mib=resident_bytes(pid) / 2**20)
    await runtime.stop(0.1)


async def _send_all(bus: Bus, to: str, messages: int) -> None:
    for _ in range(messages - 1):
        bus.send(to, Item(body=payload))
        await bus.ready()
    bus.send(to, Item(body=payload, last=True))
    await bus.drain()


def _connect(topology: str, credentials: str | None) -> AbstractAsyncContextManager[Bus]:
    proof: dict[str, Any] = {} if credentials is None else {"credentials": credentials}
    return connect(str(parse_topology(topology).servers["s2"]), name="program", **proof)


async def accepted(
    topology: str, messages: int, warm: int = 200, pid: int | None = None, credentials: str | None = None
) -> None:
    """Run a client that sends messages one after the other, and waits until each one is accepted."""
    async with _connect(topology, credentials) as bus:
        settle_memory()
        say(**await _one_by_one(lambda: bus.send("sink", Item(body=payload)), messages, warm, pid))


async def taker(topology: str, messages: int) -> None:
    """Run a client that receives this number of messages, and reports the time at which it handled the last one."""
    done = asyncio.Event()
    count = 0

    def take(item: Item) -> None:
        nonlocal count
        count += 1
        if count == messages:
            say(at=perf_counter())
            done.set()

    async with connect(str(parse_topology(topology).servers["s2"]), name="taker") as bus:
        bus.on(Item, take)
        # Its own letter comes back: the server hands letters out from here on.
        await bus.ask("wall", Item(body=payload), expect=Item)
        settle_memory()
        say(ready=True)
        await done.wait()
        await until_told()


async def giver(topology: str, messages: int, together: int = 500) -> None:
    """Run a client that sends messages to another client of the same server. Each call sends ``together``
    notifications."""
    async with connect(str(parse_topology(topology).servers["s2"]), name="giver") as bus:
        settle_memory()
        started = perf_counter()
        for start in range(0, messages, together):
            bus.send_many("taker@s2", [Item(body=payload) for _ in range(min(together, messages - start))])
            await bus.ready()
        await bus.drain()
        say(started=started, at=perf_counter())


async def ask(topology: str, messages: int, data: str | None = None, warm: int = 500, pid: int | None = None) -> None:
    """Run server s1, and a program that is connected to its bus. The program sends questions to an agent of server s2,
    and waits for each answer."""
    runtime = await _start(topology, "s1", data, False)
    async with runtime.bus("program") as bus:
        say(**await _one_by_one(lambda: bus.ask("wall", Item(body=payload), expect=Item), messages, warm, pid))
    await runtime.stop(0.1)


async def ask_as_client(
    topology: str, messages: int, warm: int = 500, pid: int | None = None, credentials: str | None = None
) -> None:
    """Run a client of server s2. The client sends questions to an agent of the same server, and waits for each
    answer."""
    async with _connect(topology, credentials) as bus:
        settle_memory()
        say(**await _one_by_one(lambda: bus.ask("wall", Item(body=payload), expect=Item), messages, warm, pid))


async def _one_by_one(
    act: Callable[[], Awaitable[object]], messages: int, warm: int, pid: int | None
) -> dict[str, float]:
    """Call ``act`` for one message after the other, and wait for each call. Return the figures of the messages after
    the first ``warm`` messages."""
    _meter.receiver = pid
    times = []
    for number in range(warm + messages):
        if number == warm:
            _meter.start()
        started = perf_counter()
        await act()
        times.append(perf_counter() - started)
    cpu = _meter.figures(messages)
    return figures(times[warm:]) | cpu


async def exchange(
    topology: str, messages: int, data: str | None = None, warm: int = 200, pid: int | None = None
) -> None:
    """Run server s1 with an agent that exchanges one letter, back and forth, with an agent of server s2."""
    _instants_wanted[0], _instants_warm[0] = warm + messages, warm + 1
    _meter.receiver = pid
    runtime = await _start(topology, "s1", data, False)
    async with runtime.bus("program") as bus:
        await bus.send("player", Serve(count=messages))
        await _over.wait()
        cpu = _meter.figures(messages)
    times = [after - before for before, after in pairwise(_instants)]
    say(**figures(times[warm:]), **cpu)
    await runtime.stop(0.1)


if __name__ == "__main__":
    act(
        {
            "server": server,
            "pipelined": pipelined,
            "accepted": accepted,
            "ask": ask,
            "ask-as-client": ask_as_client,
            "exchange": exchange,
            "giver": giver,
            "taker": taker,
            "soak": soak,
        }
    )
