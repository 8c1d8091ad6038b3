"""A program that gives up while it connects leaves nothing that connects later."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import antecede


def test_a_cancelled_connect_leaves_the_name_to_others(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {})

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3), antecede.connect(world.addresses["s1"], name="alice"):
                raise AssertionError("there is no server yet")
        await asyncio.to_thread(world.start)
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            # An abandoned task would dial within its longest pause, and take the name.
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(6):
                    await bus.until_closed()

    asyncio.run(main())
    assert world.stop() == [0]
