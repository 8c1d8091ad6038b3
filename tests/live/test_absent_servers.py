"""A server that is down while the topology changes: real processes. It learns the change when it comes back.

``tests/simulation/test_changes.py`` has the same with crashes everywhere.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from live_agents import Counted, Ping, Pong, Report

from antecede import connect


def test_a_server_that_is_down_during_changes(cluster: Callable[..., Any]) -> None:
    domains = {"A": ["s1", "s2"], "B": ["s2", "s3"], "C": ["s2", "s9"]}
    agents = {"counter": ("s3", "live_agents:Counter"), "far": ("s9", "live_agents:Echo")}
    world = cluster(domains, agents)
    new = world.folder / "new.toml"
    more = world.folder / "more.toml"
    new.write_text(world.text(domains, agents))
    more.write_text(world.text(domains, {**agents, "relay": ("s2", "live_agents:Relay")}))
    text = world.text({"A": ["s1", "s2"], "B": ["s2", "s3"]}, {"counter": agents["counter"]})
    world.file.write_text("\n".join(line for line in text.splitlines() if not line.startswith("s9 =")))
    world.start("s1", "s2", "s3", options=("--trace",))
    asyncio.run(_ping(world, "s1", "counter", 1))
    world.kill("s3")
    old, world.file = world.file, new
    world.start("s9", options=("--trace",))
    # One change adds a server by its own domain, and another one an agent; both are made without s3.
    asyncio.run(_ping(world, "s1", "counter", 2))
    added = world.command("topology", "apply", str(new), "--json")
    assert added.returncode == 0, added.stdout + added.stderr
    document = json.loads(added.stdout)
    assert (document["state"], document["absent"]) == ("done", ["s3"])
    assert document["needed"] == ["s1", "s2", "s9"]
    shown = world.command("topology", "apply", str(more))
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "s3 is not running; it learns the change when it connects" in shown.stdout
    # The letters of the new agent wait until s3 knows it.
    asyncio.run(_ping(world, "s1", "relay", 3))
    world.file = more
    world.start("s3", options=("--trace",))
    world.until(lambda: _changes(world) == {"s1": 2, "s2": 2, "s3": 2, "s9": 2}, "s3 has learned both changes")
    assert asyncio.run(_answered(world)) == (4, 0, 0)
    # A restart with the file of the beginning uses what was learned.
    world.stop("s3")
    world.file = old
    world.start("s3", options=("--trace",))
    history = json.loads(world.command("topology", "history", str(more), "--json").stdout)
    assert [one["change"] for one in history["servers"]["s3"]["epochs"]] == [0, 1, 2]
    world.stop()
    judged = world.command(
        "verify", *(str(world.folder / name) for name in world.servers), "--engine", "plain", "--json"
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    verdict = json.loads(judged.stdout)
    assert (verdict["undelivered"], verdict["complete"]) == (0, True)
    assert [one["change"] for one in verdict["epochs"]] == [0, 1, 2]


async def _ping(world: Any, server: str, to: str, number: int) -> None:
    async with connect(world.addresses[server], name="alice") as bus:
        await bus.send(to, Ping(number=number))


async def _answered(world: Any) -> tuple[int, int, int]:
    """Let a client of s3 ask an agent on the new server, and count what has reached the agent on s3."""
    async with connect(world.addresses["s3"], name="bob") as bus:
        assert (await bus.ask("far", Ping(number=1), expect=Pong, timeout=20)).number == 1
        await bus.send("relay", Ping(number=4))
        async with asyncio.timeout(20):
            while True:
                counted = await bus.ask("counter", Report(), expect=Counted, timeout=20)
                if counted.count == 4:
                    return counted.count, counted.twice, counted.late
                await asyncio.sleep(0.02)


def _changes(world: Any) -> dict[str, int]:
    return {name: (one.get("topology") or {}).get("change") for name, one in world.status()["servers"].items()}
