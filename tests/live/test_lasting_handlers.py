"""Handlers that leave something behind: memory, a task, a copy of the process, a reaction that does not end."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from live_agents import Counted, Parcel, Ping, Report, Word

import antecede
from antecede.errors import AgentError


def _run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main

    asyncio.run(bounded())


def _memory(pid: int) -> int:
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("kind", ["Raiser", "Circular"])
def test_what_handlers_leave_is_collected(
    cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    world = cluster({"A": ["s1"]}, {"agent": ("s1", f"lasting_agents:{kind}")})
    monkeypatch.setattr(world, "program", lambda: [str(Path(__file__).with_name("mortal.py"))])
    world.start()
    before = _memory(world.processes["s1"].pid)

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            for number in range(40):
                await bus.send("agent", Parcel(number=number, body=bytes(4_000_000)))
            await bus.ask("agent", Ping(number=0))

    _run(main())
    world.command("dead", "bury", str(world.file), "--all")
    assert _memory(world.processes["s1"].pid) - before < 120_000_000
    assert world.stop() == [0]


def test_a_handler_that_swallows_its_cancellation(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {"deaf": ("s1", "lasting_agents:Deaf")})
    world.file.write_text(world.file.read_text().replace("deaf = { ", "deaf = { reaction_seconds_max = 0.5, "))
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            await bus.send("deaf", Ping(number=1))

    _run(main())
    world.until(lambda: "deaf" in world.status()["servers"]["s1"]["trouble"], "the status names the agent")
    assert world.status()["servers"]["s1"]["health"] == "in trouble"
    assert world.stop() == [0]


@pytest.mark.parametrize("kind", ["Forking", "AsyncForking"])
def test_a_handler_that_forks(cluster: Callable[..., Any], kind: str) -> None:
    world = cluster({"A": ["s1"]}, {"agent": ("s1", f"lasting_agents:{kind}")})
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            for number in range(20):
                await bus.ask("agent", Ping(number=number))
            assert await bus.ask("agent", Word(text="stay"), expect=Word) == Word(text="stay")

    _run(main())
    copy = int((world.folder / "copy.pid").read_text())
    try:
        assert world.stop() == [0]
        # The copy that stays has neither the port nor the lock.
        world.start("s1")

        async def again() -> None:
            async with antecede.connect(world.addresses["s1"], name="alice") as bus:
                assert (await bus.ask("agent", Report(), expect=Counted)).count == 20

        _run(again())
        world.kill("s1")
        checked = world.command("inspect", str(world.folder / "s1"))
        assert checked.returncode == 0, checked.stderr
    finally:
        os.kill(copy, signal.SIGKILL)


def test_a_request_after_the_reaction_has_ended(cluster: Callable[..., Any]) -> None:
    agents = {"late": ("s1", "lasting_agents:Late"), "nobody": ("s1", "lasting_agents:Nobody")}
    world = cluster({"A": ["s1"]}, agents)
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            await bus.send("late", Word(text="x"))

    _run(main())
    raised = world.folder / "late.txt"
    world.until(lambda: raised.exists() and raised.read_text(), "it has tried")
    assert raised.read_text() == AgentError.code
    assert world.stop() == [0]


def test_an_agent_is_created_only_once(cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    agents = dict.fromkeys(("one", "other", "apart"), ("s1", "lasting_agents:Creator"))
    world = cluster({"A": ["s1"]}, agents)
    monkeypatch.setattr(world, "program", lambda: [str(Path(__file__).with_name("mortal.py"))])
    world.file.write_text(world.file.read_text().replace("apart = { ", 'apart = { isolate = "process", '))
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            assert await bus.ask("one", Word(text="first"), expect=Word) == Word(text="first")
            for agent in agents:
                with pytest.raises(antecede.UnansweredError):
                    await bus.ask(agent, Word(text="first"), expect=Word)
            assert await bus.ask("apart", Word(text="second"), expect=Word) == Word(text="second")
            for agent in agents:
                with pytest.raises(antecede.UnansweredError):
                    await bus.ask(agent, Word(text="second"), expect=Word)

    _run(main())
    world.kill("s1")
    world.start("s1")

    async def again() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            with pytest.raises(antecede.UnansweredError):
                await bus.ask("other", Word(text="first"), expect=Word)

    _run(again())
    dead = json.loads(world.command("dead", "list", str(world.file), "--json").stdout)
    assert len(dead) == 7
    assert world.stop() == [0]
