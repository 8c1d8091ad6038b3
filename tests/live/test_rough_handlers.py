"""Whatever a handler raises, and whatever it makes of its agent, is that reaction's failure: the server goes on."""

import asyncio
import json
import re
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from live_agents import Counted, Ping, Report, Word
from rough_agents import HOWS, Register

import antecede


def _run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(40):
            await main

    asyncio.run(bounded())


def _reasons(world: Any) -> dict[str, str]:
    dead = json.loads(world.command("dead", "list", str(world.file), "--json").stdout)
    return {one["agent"]: one["reason"] for one in dead}


def _failures(log: str) -> int:
    """How many tries failed, by the lines of the log and the numbers of lines that were left out."""
    left_out = re.findall(r"warning reaction-failed .*left_out=(\d+)|lines-left-out.* reaction_failed=(\d+)", log)
    return log.count("warning reaction-failed") + sum(int(one or other) for one, other in left_out)


async def _count(bus: Any, agents: list[str]) -> list[int]:
    counted = await asyncio.gather(*(bus.ask(agent, Report(), expect=Counted) for agent in agents))
    return [one.count for one in counted]


def test_whatever_a_handler_raises_is_a_failed_try(cluster: Callable[..., Any]) -> None:
    agents = dict.fromkeys(HOWS, ("s1", "rough_agents:Rough"))
    agents |= {f"async-{how}": ("s1", "rough_agents:AsyncRough") for how in HOWS}
    world = cluster({"A": ["s1"]}, {**agents, "blocking": ("s1", "rough_agents:Blocking")})
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            for agent in agents:
                for notification in (Ping(number=1), Word(text="fail"), Ping(number=2)):
                    bus.send(agent, notification)
            assert await _count(bus, list(agents)) == [2] * len(agents), "what is before and after it is reacted to"

    _run(main())
    reasons = _reasons(world)
    for prefix in ("", "async-"):
        assert reasons[f"{prefix}exit"].startswith("SystemExit: out of here (rough_agents.py:")
        assert reasons[f"{prefix}interrupt"].startswith("KeyboardInterrupt: stop (rough_agents.py:")
        assert reasons[f"{prefix}cancel"].startswith("CancelledError: gone (rough_agents.py:")
        assert reasons[f"{prefix}generator"].startswith("GeneratorExit: closed (")
        assert reasons[f"{prefix}group"].startswith("BaseExceptionGroup: several (2 sub-exceptions)")
        assert reasons[f"{prefix}mute"].startswith("Mute: its text cannot be read")
        assert reasons[f"{prefix}half"].startswith("ValueError: half a pair: \\ud800")
    world.until(lambda: _failures(world.log("s1")) == 5 * len(agents), "every try is a line, or counted as left out")

    # A real SIGINT, in the middle of a handler, is no failure of it: the server stops.
    async def block() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            bus.send("blocking", Word(text="go"))
            while not (world.folder / "go.began").exists():
                await asyncio.sleep(0.01)
            world.processes["s1"].send_signal(signal.SIGINT)
            (world.folder / "go").touch()

    _run(block())
    assert world.processes["s1"].wait(20) == 0
    assert "agent=blocking" not in world.log("s1")


def test_a_state_that_does_not_fit_fails_before_it_is_committed(cluster: Callable[..., Any]) -> None:
    expected = {
        "text": "AgentError: agent text: field number of Careless cannot be saved: Expected `int`, got `str`",
        "nested": "AgentError: agent nested: field numbers of Careless cannot be saved: Expected `int`, got `str`",
        "subclass": "AgentError: agent subclass: field item of Careless would be read back as another class: "
        "BigItem becomes Item",
        "untyped": "AgentError: agent untyped: field anything['key'][0] of Careless would be read back as another "
        "class: Item becomes dict",
        "lock": "AgentError: agent lock: field anything of Careless cannot be saved: TypeError: Encoding objects",
    }
    world = cluster({"A": ["s1"]}, dict.fromkeys(expected, ("s1", "rough_agents:Careless")))
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            for agent in expected:
                # In one batch: only the one in the middle fails.
                for notification in (Ping(number=1), Word(text="assign"), Ping(number=2)):
                    bus.send(agent, notification)
            assert await _count(bus, list(expected)) == [2] * len(expected)

    _run(main())
    world.kill("s1")
    world.start("s1")

    async def again() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            assert await _count(bus, list(expected)) == [2] * len(expected), "they live on after a restart"

    _run(again())
    reasons = _reasons(world)
    assert {agent: reasons[agent][: len(reason)] for agent, reason in expected.items()} == expected


def test_an_operation_that_interrupts_or_does_not_fit(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1", "s2"]}, {})
    text = world.file.read_text().replace("] }", '], order = "objects" }')
    world.file.write_text(text + 'register = { servers = ["s1", "s2"], class = "rough_agents:Register" }\n')
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            register = bus.object("register", Register)
            await register.assign(7)
            with pytest.raises(antecede.OperationError, match="KeyboardInterrupt: stop"):
                await register.interrupt()
            with pytest.raises(antecede.OperationError, match="attribute value of Register: Expected `int`, got `str`"):
                await register.assign("text")
            assert await register.read() == 7

    _run(main())
    assert world.stop() == [0, 0]
