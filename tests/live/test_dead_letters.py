"""A reaction that fails is tried again, then its letter is dead: listed, shown, replayed, buried."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from live_agents import Counted, Ping, Report, Word

import antecede


def _run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(40):
            await main

    asyncio.run(bounded())


def test_dead_letters(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1", "s2"]}, {"picky": ("s2", "live_agents:Picky")})
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            for number in (12, 13, 14):
                bus.send("picky", Ping(number=number))
            await bus.post("picky", "Nonsense", {"a": 1})
            await bus.post("picky", "Ping", {"number": "many"})
            counted = await bus.ask("picky", Report(), expect=Counted)
            assert counted.count == 2, "what follows a dead letter is reacted to"

    _run(main())
    dead = json.loads(world.command("dead", "list", str(world.file), "--json").stdout)
    assert [one["reason"].partition(":")[0] for one in dead] == [
        "ValueError",
        "Picky has no handler for Nonsense",
        "the content of Ping does not fit its fields",
    ]
    assert world.log("s2").count("reaction-failed") == 5
    shown = json.loads(world.command("dead", "show", str(world.file), dead[0]["id"]).stdout)
    assert shown["fields"] == {"number": 13}

    # A kill does not bring them back to life.
    world.kill("s2")
    world.start("s2")
    assert world.command("dead", "bury", str(world.file), dead[1]["id"]).returncode == 0
    assert world.command("dead", "bury", str(world.file), dead[1]["id"]).returncode == 2

    async def be_brave() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            await bus.send("picky", Word(text="be brave"))
            await bus.ask("picky", Report(), expect=Counted)

    _run(be_brave())
    assert world.command("dead", "replay", str(world.file), dead[0]["id"]).returncode == 0

    async def count() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            assert (await bus.ask("picky", Report(), expect=Counted)).count == 3

    _run(count())
    assert len(json.loads(world.command("dead", "list", str(world.file), "--json").stdout)) == 1


def test_no_text_of_a_client_controls_the_terminal_of_an_operator(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {"picky": ("s1", "live_agents:Picky")})
    world.start()
    kind = "Nonsense\x1b]0;owned\x07\x1b[2J\r\n\x9b31m"

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as alice:
            await alice.post("picky", kind, {})
            await alice.post("nobody\n  refused: s2@s1", "Word", {})

    _run(main())
    where = str(world.file)
    listed = world.command("dead", "list", where)
    unknown = world.command("dead", "show", where, kind)
    status = world.command("status", where)
    clients = world.command("client", "list", where)
    for printed in (listed.stdout, unknown.stderr, status.stdout, clients.stdout, world.log("s1")):
        assert printed
        assert not re.search("[\x00-\x08\x0b-\x1f\x80-\x9f]", printed), printed
    assert len(listed.stdout.splitlines()) == 1, "a client cannot write a line that looks like a letter"
    assert len(clients.stdout.splitlines()) == 2
    assert not [line for line in status.stdout.splitlines() if line.startswith("  refused")]
    (dead,) = json.loads(world.command("dead", "list", where, "--json").stdout)
    assert dead["type"] == kind


def test_a_client_without_a_handler(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {})
    world.start()

    async def main() -> None:
        heard: list[int] = []
        async with antecede.connect(world.addresses["s1"], name="bob") as bob:
            await bob.send("bob@s1", Word(text="what?"))
            await bob.send("bob@s1", Ping(number=3))
            bob.on(Ping, lambda ping: heard.append(ping.number))
            while not heard:
                await asyncio.sleep(0.01)
        assert heard == [3]

    _run(main())
    for where in (str(world.file), world.addresses["s1"]):
        _run(_write_to_nobody(world))
        assert "mailbox of carol@s1: 1, a disconnected client" in world.command("status", str(world.file)).stdout
        dropped = json.loads(world.command("dead", "drop", where, "carol@s1").stdout)
        assert dropped == {"server": "s1", "dropped": 1, "client": "carol@s1"}
    assert world.command("dead", "drop", str(world.file), "carol@s1").returncode == 2, "there is nothing left"
    assert world.command("dead", "drop", str(world.file), "carol@s9").returncode == 2
    dead = json.loads(world.command("dead", "list", world.addresses["s1"], "--json").stdout)
    assert [one["reason"] for one in dead] == ["client bob has no handler for Word"]


async def _write_to_nobody(world: Any) -> None:
    async with antecede.connect(world.addresses["s1"], name="alice") as alice:
        await alice.send("carol@s1", Word(text="are you there?"))


def test_a_client_that_is_removed(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1", "s2"]}, {"news": ("s2", "antecede:Topic")})
    world.start()
    heard: list[str] = []

    async def subscribed() -> None:
        async with antecede.connect(world.addresses["s1"], name="carol") as carol:
            await carol.subscribe("news", heard.append)
            refused = await asyncio.to_thread(world.command, "client", "remove", str(world.file), "carol@s1")
            assert refused.returncode == 2
            assert "client carol@s1 is connected: only a disconnected client can be removed" in refused.stderr
            await carol.post("news", "Word", {"text": "still subscribed"})
            while not heard:
                await asyncio.sleep(0.01)

    async def publish(texts: list[str]) -> None:
        async with antecede.connect(world.addresses["s2"], name="alice") as alice:
            for text in texts:
                await alice.post("news", "Word", {"text": text})
            # A question behind them: when it is answered, the topic has handled them.
            with suppress(antecede.UnansweredError, TimeoutError):
                await alice.ask("news", Word(text="?"), timeout=0.2)

    def waiting() -> int:
        clients = json.loads(world.command("client", "list", str(world.file), "--json").stdout)
        return sum(one["waiting"] for one in clients if one["client"] == "carol@s1")

    _run(subscribed())
    _run(publish(["one", "two"]))
    world.until(lambda: waiting() >= 2, "news wait for carol")
    removed = json.loads(world.command("client", "remove", str(world.file), "carol@s1").stdout)
    assert removed["client"] == "carol@s1"
    assert removed["dropped"] >= 2
    assert removed["unsubscribed"] == ["news"]
    _run(publish(["three"]))
    assert waiting() == 0
    gone = world.command("client", "remove", str(world.file), "carol@s1")
    assert (gone.returncode, "no client 'carol@s1' on s1" in gone.stderr) == (2, True)

    async def new() -> None:
        async with antecede.connect(world.addresses["s1"], name="carol") as carol:
            assert carol.last_accepted == 0, "she is a new client"

    _run(new())
