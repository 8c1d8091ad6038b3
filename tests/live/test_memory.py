"""The memory of real server processes: after a restart, and when more is sent than anybody reads."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from live_agents import Ping

import antecede

_subscribers = 400
_messages = 70


def _resident_bytes(world: Any, server: str) -> int:
    status = Path(f"/proc/{world.processes[server].pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def _waiting(world: Any) -> int:
    letters: int = world.status()["servers"]["s1"]["waiting_letters"]
    return letters


async def _subscribe(address: str) -> None:
    """Subscribe clients to the topic, a few at a time; none stays."""
    gate = asyncio.Semaphore(10)

    async def subscribe(number: int) -> None:
        async with gate, antecede.connect(address, name=f"absent-{number:04}") as bus:
            await bus.subscribe("news", lambda ping: None)

    await asyncio.gather(*(subscribe(number) for number in range(_subscribers)))


async def _publish(address: str) -> None:
    async with antecede.connect(address, name="publisher") as bus:
        for number in range(_messages):
            await bus.send("news", Ping(number=number))


def test_a_restart_needs_no_more_memory_than_before(cluster: Callable[..., Any]) -> None:
    """A topic whose subscribers are away: each message is one letter in all their mailboxes, also in the snapshot and
    after a restart."""
    world = cluster({"A": ["s1"]}, {"news": ("s1", "antecede:Topic")})
    world.start()
    entries = _subscribers * _messages
    asyncio.run(_subscribe(world.addresses["s1"]))
    asyncio.run(_publish(world.addresses["s1"]))
    world.until(lambda: _waiting(world) == entries, "all mailboxes are full")
    before = _resident_bytes(world, "s1")
    assert world.stop() == [0]
    (snapshot,) = (world.folder / "s1").glob("snapshot-*")
    body = 16
    assert snapshot.stat().st_size <= 2 * (_messages * body + 64 * entries)
    world.start()
    assert _waiting(world) == entries
    assert _resident_bytes(world, "s1") < 2 * before

    async def read() -> list[int]:
        numbers: list[int] = []
        async with antecede.connect(world.addresses["s1"], name="absent-0123") as bus:
            bus.on(Ping, lambda ping: numbers.append(ping.number))
            while len(numbers) < _messages:
                await asyncio.sleep(0.01)
        return numbers

    assert asyncio.run(asyncio.wait_for(read(), 30)) == list(range(_messages))
