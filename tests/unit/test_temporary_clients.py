"""Temporary clients: forgotten when they leave, or are away for too long; never taken for new when they repeat."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from antecede import limits, wire
from antecede.engine import Agent, Context, Notification
from antecede.errors import RefusedError
from antecede.live.client import Bus
from antecede.live.client.line import connect
from antecede.live.server import ServerRuntime
from antecede.topology import parse_topology
from helpers.ports import free_ports


class Word(Notification):
    text: str = ""


class Echo(Agent):
    def on_word(self, word: Word, ctx: Context) -> None:
        ctx.send(word.text or ctx.sender, Word())


Play = Callable[[ServerRuntime, Callable[[], Bus]], Awaitable[None]]


def _played(folder: Path, *plays: Play) -> None:
    """Play one after the other, each with a new start of the server."""
    (port,) = free_ports(1)

    async def main(play: Play) -> None:
        text = f'[servers]\ns1 = "tcp://127.0.0.1:{port}"\n[domains]\nA = {{ servers = ["s1"] }}\n'
        text += '[agents]\necho = { server = "s1", class = "nowhere:Echo" }\n'
        runtime = ServerRuntime(parse_topology(text), "s1", str(folder), durability="os", agents={"echo": Echo})
        await runtime.start()
        try:
            async with asyncio.timeout(20):
                await play(runtime, lambda: connect(f"tcp://127.0.0.1:{port}"))
        finally:
            await runtime.stop()

    for play in plays:
        asyncio.run(main(play))


async def _until(true: Callable[[], Any]) -> None:
    while not true():
        await asyncio.sleep(0.01)


def test_one_that_leaves_is_forgotten_and_so_is_what_comes_later(tmp_path: Path) -> None:
    async def play(runtime: ServerRuntime, temporary: Callable[[], Bus]) -> None:
        machine = runtime.machine
        async with temporary() as bus, temporary() as other:
            assert wire.is_temporary(bus.name)
            assert bus.name != other.name
            await bus.send("echo", Word())
            assert list(machine.clients) == [bus.name]
            address = bus.address
        await _until(lambda: not machine.clients and not machine.engine.mailboxes)
        # A letter for one that has left.
        async with runtime.bus("alice") as alice:
            await alice.send("echo", Word(text=address))
        await _until(lambda: address in machine.engine.mailboxes)
        await _until(lambda: not machine.engine.mailboxes)
        assert list(machine.clients) == ["alice"], "a name of one's own is durable"
        assert not machine.engine.dead

    _played(tmp_path / "s1", play)


def test_one_that_is_away_is_forgotten_at_the_bound_also_after_a_restart(tmp_path: Path) -> None:
    async def cut_off(runtime: ServerRuntime, temporary: Callable[[], Bus]) -> None:
        async with temporary() as bus:
            await bus.send("echo", Word())
            bus._line._keeper.cancel()  # type: ignore[attr-defined]
            bus._line._line._connection._transport.abort()  # type: ignore[attr-defined]
            await _until(lambda: not len(runtime.core.sessions))

    async def sweep(runtime: ServerRuntime, temporary: Callable[[], Bus]) -> None:
        [(client, since)] = runtime.core.sessions._temporary.items()
        runtime.core.sessions.sweep(since + limits.temporary_client_seconds_max)
        assert list(runtime.machine.clients) == [client]
        runtime.core.sessions.sweep(since + limits.temporary_client_seconds_max + 0.001)
        await _until(lambda: not runtime.machine.clients and not runtime.machine.engine.mailboxes)

    async def look(runtime: ServerRuntime, temporary: Callable[[], Bus]) -> None:
        assert not runtime.machine.clients

    _played(tmp_path / "s1", cut_off, sweep, look)


@pytest.mark.parametrize("away", [limits.temporary_client_seconds_max / 2 - 5, limits.temporary_client_seconds_max / 2])
def test_one_that_was_cut_off_for_too_long_gives_up(tmp_path: Path, away: float) -> None:
    async def play(runtime: ServerRuntime, temporary: Callable[[], Bus]) -> None:
        async with temporary() as bus:
            await bus.send("echo", Word())
            line: Any = bus._line._line  # type: ignore[attr-defined]
            line._connection._transport.abort()
            await _until(lambda: line._lost_at is not None)
            line._lost_at -= away
            ticket = bus.send("echo", Word())
            if away < limits.temporary_client_seconds_max / 2:
                await ticket
            else:
                with pytest.raises(RefusedError, match="disconnected for too long"):
                    await ticket

    _played(tmp_path / "s1", play)
