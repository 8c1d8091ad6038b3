"""Messages between real servers: send, ask, topics, routes, nothing lost and nothing twice across kills."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from live_agents import Counted, Ping, Pong, Report, Word

import antecede

_two = {"A": ["s1", "s2"]}


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main

    asyncio.run(bounded())


def test_two_servers_and_a_client(cluster: Callable[..., Any]) -> None:
    world = cluster(_two, {"echo": ("s2", "live_agents:Echo"), "counter": ("s2", "live_agents:Counter")})
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            pong = await bus.ask("echo", Ping(number=7), expect=Pong, timeout=10)
            assert pong.number == 7
            for number in range(1, 1001):
                bus.send("counter", Ping(number=number))
            await bus.drain()
            counted = await bus.ask("counter", Report(), expect=Counted)
            assert (counted.count, counted.twice, counted.late) == (1000, 0, 0)
            with pytest.raises(antecede.UsageError, match="unknown agent 'nobody'"):
                await bus.send("nobody", Ping(number=1))
            await bus.send("counter", Ping(number=1001))

    run(main())
    status = world.status()
    assert status["well"]
    assert status["servers"]["s2"]["reactions"] >= 1002
    assert world.stop() == [0, 0]
    assert "stopped" in world.log("s1")


def test_a_router_between_three_domains(cluster: Callable[..., Any]) -> None:
    world = cluster(
        {"A": ["s1", "s2"], "B": ["s2", "s3"], "C": ["s3", "s4"]},
        {"relay": ("s4", "live_agents:Relay"), "counter": ("s1", "live_agents:Counter")},
    )
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            for number in range(1, 501):
                bus.send("relay", Ping(number=number))
            await bus.drain()
            counted = await _counted(bus, 500)
            assert (counted.count, counted.twice, counted.late) == (500, 0, 0)

    run(main())


async def _counted(bus: antecede.Bus, expected: int, agent: str = "counter") -> Counted:
    """Ask until all have been counted."""
    while True:
        counted = await bus.ask(agent, Report(), expect=Counted, timeout=20)
        if counted.count >= expected:
            return counted
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("victim", ["s1", "s2"])
def test_killed_in_the_middle(cluster: Callable[..., Any], victim: str) -> None:
    world = cluster(_two, {"counter": ("s2", "live_agents:Counter")})
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            for number in range(1, 5001):
                bus.send("counter", Ping(number=number))
                if number % 50 == 0:
                    await asyncio.sleep(0.001)
                if number == 2500:
                    world.kill(victim)
                if number == 3500:
                    await asyncio.to_thread(world.start, victim)
            await bus.drain()
            counted = await _counted(bus, 5000)
            assert (counted.count, counted.twice, counted.late, counted.last) == (5000, 0, 0, 5000)

    run(main())


def test_a_topic(cluster: Callable[..., Any]) -> None:
    world = cluster(_two, {"news": ("s2", "antecede:Topic")})
    world.start()

    async def main() -> None:
        heard: list[str] = []
        others: list[Any] = []
        async with (
            antecede.connect(world.addresses["s1"], name="alice") as alice,
            antecede.connect(world.addresses["s2"], name="bob") as bob,
        ):

            def hear(word: Word) -> None:
                heard.append(word.text)

            await alice.subscribe("news", hear)
            await bob.subscribe("news", others.append)
            for text in ("one", "two", "three"):
                await alice.send("news", Word(text=text))
            while len(heard) < 3 or len(others) < 3:
                await asyncio.sleep(0.01)
        assert heard == ["one", "two", "three"]
        assert [one.fields["text"] for one in others] == heard

    run(main())


def test_ask_and_timeout(cluster: Callable[..., Any]) -> None:
    agents = {
        "echo": ("s2", "live_agents:SlowEcho"),
        "mute": ("s2", "live_agents:Mute"),
        "asker": ("s1", "live_agents:Asker"),
    }
    world = cluster(_two, agents)
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            answers = await asyncio.gather(*(bus.ask("echo", Ping(number=n), expect=Pong) for n in range(20)))
            assert [pong.number for pong in answers] == list(range(20))
            with pytest.raises(TimeoutError):
                await bus.ask("mute", Ping(number=1), timeout=0.2)
            await bus.send("asker", Word(text="echo"))
            await bus.send("asker", Word(text="mute"))
            while True:
                counted = await bus.ask("asker", Report(), expect=Counted)
                if counted.twice:
                    break
                await asyncio.sleep(0.05)
            assert (counted.count, counted.twice) == (1, 1)

    run(main())


def test_a_client_comes_back_to_its_letters(cluster: Callable[..., Any]) -> None:
    """What is sent to a client that is away waits for it, across a kill of its home."""
    world = cluster(_two, {})
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as alice:
            for number in range(300):
                alice.send("bob@s2", Ping(number=number))
        world.kill("s2")
        await asyncio.to_thread(world.start, "s2")
        heard: list[int] = []
        async with antecede.connect(world.addresses["s2"], name="bob") as bob:
            bob.on(Ping, lambda ping: heard.append(ping.number))
            while len(heard) < 300:
                await asyncio.sleep(0.01)
        assert heard == list(range(300))

    run(main())
