"""The trace of live servers: recorded as they run, through kills, and judged from their data directories."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from live_agents import Counted, Parcel, Ping, Report

import antecede

_domains = {"A": ["s1", "s2"], "B": ["s2", "s3"]}
_agents = {"relay": ("s3", "live_agents:Relay"), "counter": ("s1", "live_agents:Counter")}


async def _exchange(world: Any, first: int, last: int, then: Callable[[], Any] = lambda: None) -> None:
    """Send numbered pings by way of the relay, and wait until all were counted."""
    async with asyncio.timeout(60), antecede.connect(world.addresses["s1"], name="alice") as bus:
        for number in range(first, last + 1):
            bus.send("relay", Ping(number=number))
            if number % 50 == 0:
                await asyncio.sleep(0.001)
            if number == (first + last) // 2:
                await asyncio.to_thread(then)
        await bus.drain()
        while (counted := await bus.ask("counter", Report(), expect=Counted, timeout=20)).count < last:
            await asyncio.sleep(0.05)
        assert (counted.count, counted.twice, counted.late) == (last, 0, 0)


def _verified(world: Any, *arguments: str) -> dict[str, Any]:
    done = world.command("verify", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["complete"], report["quarantined"]
    assert report["orders"]["causal"]["holds"]
    assert report["orders"]["fifo"]["holds"]
    return report


def test_verified_under_way_and_after_a_kill(cluster: Callable[..., Any]) -> None:
    world = cluster(_domains, _agents)
    world.start(options=("--trace",))
    seen: list[dict[str, Any]] = []

    def look() -> None:
        seen.append(_verified(world, str(world.folder)))

    asyncio.run(_exchange(world, 1, 2000, look))
    assert 0 < seen[0]["messages"] < 4000

    def kill_the_router() -> None:
        world.kill("s2")
        world.start("s2", options=("--trace",))

    asyncio.run(_exchange(world, 2001, 3000, kill_the_router))
    assert world.stop() == [0, 0, 0]
    # All three directories named one by one are the same trace as the folder that they are in.
    after = _verified(world, *(str(world.folder / server) for server in world.servers))
    whole = _verified(world, str(world.folder))
    for key in ("events", "messages", "deliveries", "processes", "undelivered"):
        assert after[key] == whole[key]
    assert whole["undelivered"] == 0
    # Each ping is two messages: to the relay, and from it to the counter. The rest are questions and their answers.
    questions = whole["messages"] - 6000
    assert questions > 0
    assert questions % 2 == 0
    assert whole["processes"] == 3


def test_explained_and_measured_like_any_trace(cluster: Callable[..., Any]) -> None:
    world = cluster(_domains, _agents)
    world.start(options=("--trace",))
    asyncio.run(_exchange(world, 1, 500))
    world.stop()
    done = world.command("explain", str(world.folder), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["late"] == 0
    # The way from s1 to s3 is known from the topology that the servers left beside their traces.
    done = world.command("measure", str(world.folder), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["hops"]["max"] == 2


def test_an_idle_server_that_records_loads_no_arrow(cluster: Callable[..., Any]) -> None:
    world = cluster(_domains, _agents)
    world.start(options=("--trace",))
    asyncio.run(_exchange(world, 1, 10))
    maps = Path(f"/proc/{world.processes['s1'].pid}/maps")
    if not maps.exists():
        pytest.skip("only Linux says what a process has loaded")
    loaded = maps.read_text()
    assert "msgspec" in loaded
    assert not [line for line in loaded.splitlines() if "arrow" in line or "numpy" in line]


def test_what_holds_no_trace_is_one_line(cluster: Callable[..., Any]) -> None:
    world = cluster(_domains, _agents)
    (world.folder / "nothing").mkdir()
    done = world.command("verify", str(world.folder / "nothing"))
    assert done.returncode == 2
    assert "no trace in this directory" in done.stderr
    assert "data directory" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    # A log whose identity is gone is none that anybody may guess at.
    world.start("s1", "s2", "s3", options=("--trace",))
    asyncio.run(_exchange(world, 1, 10))
    world.stop()
    (world.folder / "s1" / "identity").write_bytes(b"something else")
    done = world.command("verify", str(world.folder))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_killed_again_and_again_while_segments_are_converted(cluster: Callable[..., Any]) -> None:
    pytest.importorskip("pyarrow")
    world = cluster({"A": ["s1", "s2"]}, {"counter": ("s1", "live_agents:Counter")})
    command = [sys.executable, str(Path(__file__).with_name("small_segments.py")), str(world.file), "s1"]
    command.append(str(world.folder / "s1"))

    def start() -> None:
        with (world.folder / "s1.log").open("ab") as log:
            world.processes["s1"] = subprocess.Popen(command, stderr=log, env=world.environment, cwd=world.folder)
        world.until(lambda: world.listens("s1"), "s1 listens")

    async def main() -> None:
        dice = Random(2)
        sent = 0
        async with asyncio.timeout(400), antecede.connect(world.addresses["s1"], name="alice", patience=200) as bus:
            for _ in range(6):
                until = asyncio.get_running_loop().time() + dice.uniform(0.2, 0.7)
                while asyncio.get_running_loop().time() < until:
                    for _ in range(100):
                        sent += 1
                        bus.send("counter", Parcel(number=sent, body=bytes(500)))
                    await asyncio.sleep(0.01)
                world.kill("s1")
                await asyncio.to_thread(start)
            await bus.drain()
            while (counted := await bus.ask("counter", Report(), expect=Counted, timeout=20)).count < sent:
                await asyncio.sleep(0.05)
            assert (counted.count, counted.twice, counted.late) == (sent, 0, 0)
            # Two snapshots must cover a segment before it is dropped, and only new records make another one due.
            while first.exists():
                for _ in range(100):
                    sent += 1
                    bus.send("counter", Parcel(number=sent, body=bytes(500)))
                await bus.drain()
                await asyncio.sleep(0.05)
            while (await bus.ask("counter", Report(), expect=Counted, timeout=20)).count < sent:
                await asyncio.sleep(0.05)
        report = _verified(world, str(world.folder))
        assert report["undelivered"] == 0
        assert report["messages"] - sent > 0

    first = world.folder / "s1" / "segment-000000000001.log"
    start()
    asyncio.run(main())
    assert list((world.folder / "s1" / "trace").glob("*.parquet")), "a segment is converted"
    assert world.stop() == [0]
    assert "Traceback" not in world.log("s1")
    assert not list((world.folder / "s1" / "trace").glob("*.new"))
    _verified(world, str(world.folder))
