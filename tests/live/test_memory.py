"""The memory of real server processes: after a restart, and when more is sent than anybody reads."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_agents import Ping, Word

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


_bound_bytes = 16 * 1024 * 1024


@pytest.fixture
def bounded(cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return one server that runs with a small bound for the memory of its letters."""
    world = cluster({"A": ["s1"]}, {})
    monkeypatch.setattr(world, "program", lambda: ["-m", "campaigns.serve"])
    bounds = (f"backlog_letter_bytes_max={_bound_bytes}", "mailbox_clients_share_max=100")
    world.start(options=[part for bound in bounds for part in ("--limit", bound)])
    return world


async def _fill(address: str, text: str, together: int) -> int:
    """Send a long letter and then an empty one to one absent client after the other, some together, until the server
    refuses one; return how many bytes were sent before."""
    sent = 0
    async with antecede.connect(address, name="publisher") as bus:
        while sent < 4 * _bound_bytes:
            for _ in range(together):
                sent += len(text)
                bus.send(f"absent-{sent}@s1", Word(text=text))
                bus.send(f"absent-{sent}@s1", Word(text=""))
            while bus.outstanding and not bus.trouble:
                await asyncio.sleep(0.001)
            if bus.trouble:
                await bus.close()
                with pytest.raises(antecede.ClosedError):
                    await bus.drain()
                return sent
    raise AssertionError(f"{sent} bytes were sent and none was refused")


@pytest.mark.parametrize(("length", "together"), [(1_000_000, 1), (1_000, 50)], ids=["large", "small"])
def test_letters_fill_a_server_up_to_its_bound(bounded: Any, length: int, together: int) -> None:
    """The newest letter of each mailbox is a small one, and small letters take more memory than their bodies. At the
    bound clients are refused, and the process takes at most three times the bound besides what it took when empty."""
    before = _resident_bytes(bounded, "s1")
    assert asyncio.run(_fill(bounded.addresses["s1"], "x" * length, together)) < 1.5 * _bound_bytes
    assert _resident_bytes(bounded, "s1") - before < 3 * _bound_bytes
    assert bounded.status()["servers"]["s1"]["health"] == "overloaded"
