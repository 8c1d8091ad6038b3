"""A payment that is repeated after a crash has the same key: ``ctx.reaction_id`` survives the crash."""

import asyncio
from collections.abc import Callable
from typing import Any

from live_agents import Ping, Pong

import antecede

AGENTS = {"plain": "Payer", "slow": "Slowly", "apart": "Apart"}


def test_the_id_of_a_reaction_is_the_same_after_a_crash(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {name: ("s1", f"paying_agents:{kind}") for name, kind in AGENTS.items()})
    text = world.file.read_text()
    world.file.write_text(text.replace("apart = {", 'apart = { isolate = "process",'))
    world.start()

    async def main() -> None:
        async with asyncio.timeout(120), antecede.connect(world.addresses["s1"], name="alice") as bus:
            for name in AGENTS:
                answer = asyncio.create_task(bus.ask(name, Ping(number=1), expect=Pong, timeout=100))
                await asyncio.to_thread(world.processes["s1"].wait, 60)
                await asyncio.to_thread(world.start)
                assert (await answer).number == 1
                assert (await bus.ask(name, Ping(number=2), expect=Pong)).number == 2

    asyncio.run(main())
    for name in AGENTS:
        first, again, second = (world.folder / f"{name}.keys").read_text().split()
        assert first == again, "the same payment"
        assert second != first, "another payment"
