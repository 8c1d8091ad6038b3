"""Disks that are full or fail: said by name, clients are told, nothing accepted is lost, and life goes on after it."""

import asyncio
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from live_agents import Counted, Report, Word

import antecede
from antecede.live.client.operator import request
from antecede.topology import parse_topology
from campaigns.disks import CutProcesses
from campaigns.walks import Processes, free_ports

_here = Path(__file__).resolve().parent


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[CutProcesses]:
    """Two servers on small disks; s2 counts."""
    random = Random(str(tmp_path))
    one, other = free_ports(2, random)
    text = f"""
        [servers]
        s1 = "tcp://127.0.0.1:{one}"
        s2 = "tcp://127.0.0.1:{other}"
        [domains]
        A = {{ servers = ["s1", "s2"] }}
        [agents]
        counter = {{ server = "s2", class = "live_agents:WordCounter" }}
    """
    made = CutProcesses(tmp_path / "servers", parse_topology(text), random, Counter())
    shutil.copy(_here / "live_agents.py", made.folder)
    for server in ("s1", "s2"):
        made.start(server)
    for server in ("s1", "s2"):
        made.wait(server)
    yield made
    made.close()


async def _until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.02)


async def _send(bus: antecede.Bus, accepted: list[int], refused: list[str]) -> None:
    """Send twenty kilobytes. If the server refuses them for now, they stay on their way."""
    ticket = bus.send("counter", Word(text="x" * 20_000))
    while not ticket.settled and not bus.trouble:
        await asyncio.sleep(0.002)
    if bus.trouble:
        refused.append(bus.trouble)
    else:
        await ticket
    accepted.append(1)


async def _counted(bus: antecede.Bus, expected: int) -> None:
    async with asyncio.timeout(60):
        while (counted := await bus.ask("counter", Report(), expect=Counted)).count < expected:
            await asyncio.sleep(0.05)
    assert counted.count == expected


@pytest.mark.parametrize("full", ["s1", "s2"])
def test_a_full_disk(servers: CutProcesses, full: str) -> None:
    """Clients are refused by name while there is no room, and what is under way goes on when there is again."""

    async def main() -> None:
        accepted: list[int] = []
        refused: list[str] = []
        address = servers.topology.servers["s1"]
        async with antecede.connect(str(address), name="alice") as bus:
            await _send(bus, accepted, refused)
            servers.disks[full].set_fault("full")
            async with asyncio.timeout(60):
                while not refused and len(accepted) < 400:
                    await _send(bus, accepted, refused)
            if full == "s1":
                assert "no space for the next segment" in refused[0]
                status = await request(address, "", "status")
                assert status["health"] == "in trouble"
                assert "no space for the next segment" in status["trouble"]
            else:
                # What the client sends is on the disk of s1, and waits there.
                await _until(lambda: "disk-full" in servers.log("s2"))
                assert not refused
            servers.disks[full].set_fault("")
            async with asyncio.timeout(60):
                await bus.drain()
                for _ in range(20):
                    await _send(bus, accepted, refused)
            await _counted(bus, len(accepted))

    asyncio.run(main())
    assert "disk-full" in servers.log(full)
    assert "room-again" in servers.log(full)


def test_a_server_on_a_full_disk_does_not_start(servers: CutProcesses) -> None:
    servers.kill("s1")
    shutil.rmtree(servers.directory("s1"))
    Path(servers.directory("s1")).mkdir()
    servers.disks["s1"].set_fault("full")
    servers.start("s1")
    assert servers.running.pop("s1").wait(30) == 2
    assert "no space on the disk of this trial" in servers.log("s1")


@pytest.mark.parametrize("broken", ["s1", "s2"])
def test_a_failing_disk(servers: CutProcesses, broken: str) -> None:
    """The server ends by name, tells who is there, and after a new start nothing that was accepted is missing."""

    async def main() -> None:
        accepted: list[int] = []
        async with antecede.connect(str(servers.topology.servers["s1"]), name="alice") as bus:
            for _ in range(20):
                await _send(bus, accepted, [])
            # By then the servers know each other, and one can tell the other.
            await _counted(bus, 20)
            servers.disks[broken].set_fault("broken")
            last = asyncio.create_task(_send(bus, accepted, []))
            assert await asyncio.to_thread(servers.died, broken) == 2
            if broken == "s1":
                assert len(accepted) == 20, "accepted, though the sync failed"
            servers.disks[broken].set_fault("")
            servers.start(broken)
            await last
            assert len(accepted) == 21
            await _counted(bus, 21)

    asyncio.run(main())
    said = servers.log(broken)
    assert "disk-failed" in said
    assert "antecede: " in said, "the last word on standard error"
    assert "the disk of this trial fails" in servers.log("s2" if broken == "s1" else "s1")


def test_a_file_system_without_room(tmp_path: Path) -> None:
    """The same on a real file system, which only an administrator can make: it has room for two segments."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(place)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        _fill_and_free(place)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _fill_and_free(place: Path) -> None:
    (port,) = free_ports(1, Random(str(place)))
    text = f"""
        [servers]
        s1 = "tcp://127.0.0.1:{port}"
        [domains]
        A = {{ servers = ["s1"] }}
        [agents]
        counter = {{ server = "s1", class = "live_agents:WordCounter" }}
    """
    servers = Processes(place, parse_topology(text))
    shutil.copy(_here / "live_agents.py", place)
    (place / "ballast").write_bytes(bytes(40 << 20))
    accepted: list[int] = []
    refused: list[str] = []

    async def main() -> None:
        async with antecede.connect(str(servers.topology.servers["s1"]), name="alice") as bus, asyncio.timeout(100):
            while not refused:
                await asyncio.gather(*(_send(bus, accepted, refused) for _ in range(20)))
            (place / "ballast").unlink()
            before = len(accepted)
            while len(accepted) < before + 20:
                await _send(bus, accepted, refused)
            await _counted(bus, len(accepted))

    try:
        servers.start("s1")
        servers.wait("s1")
        asyncio.run(main())
        assert "No space left on device" in refused[0]
        assert "disk-full" in servers.log("s1")
        assert "room-again" in servers.log("s1")
    finally:
        servers.close()
