"""A ring of agents whose queues are all at their bound drains: no reaction waits for room at the next agent."""

import asyncio
import shutil
from pathlib import Path
from random import Random

from live_agents import Counted, Lap, Report

import antecede
from antecede.topology import parse_topology
from campaigns.walks import Processes, free_ports

_here = Path(__file__).resolve().parent
_limits = {
    "backlog_letters_max": 40,
    "backlog_frames_max": 20,
    "link_window_frames_max": 8,
    "link_resend_frames_max": 8,
    "reactions_together_max": 4,
    "deferred_frames_max": 4,
}
_laps = 400
_length = 11


def test_a_ring_with_full_queues_drains(tmp_path: Path) -> None:
    ports = free_ports(4, Random(str(tmp_path)))
    text = f"""
        [servers]
        s0 = "tcp://127.0.0.1:{ports[0]}"
        s1 = "tcp://127.0.0.1:{ports[1]}"
        s2 = "tcp://127.0.0.1:{ports[2]}"
        s3 = "tcp://127.0.0.1:{ports[3]}"
        [domains]
        A = {{ servers = ["s0", "s1"] }}
        B = {{ servers = ["s1", "s2", "s3"] }}
        [agents]
        ring0 = {{ server = "s0", class = "live_agents:Ring" }}
        ring1 = {{ server = "s1", class = "live_agents:Ring" }}
        ring2 = {{ server = "s2", class = "live_agents:Ring" }}
        ring3 = {{ server = "s3", class = "live_agents:Ring" }}
    """
    servers = Processes(tmp_path / "servers", parse_topology(text), "campaigns.serve")
    shutil.copy(_here / "live_agents.py", servers.folder)
    options = [part for name, value in _limits.items() for part in ("--limit", f"{name}={value}")]
    try:
        for server in servers.topology.servers:
            servers.start(server, *options)
        for server in servers.topology.servers:
            servers.wait(server)
        refused = asyncio.run(_go_round(servers))
        said = [servers.log(server) for server in servers.topology.servers]
    finally:
        servers.close()
    assert refused, "no client was told to wait"
    assert all("overloaded" in log for log in said), "a queue never was at its bound"
    assert any("peers-held" in log for log in said)


async def _go_round(servers: Processes) -> int:
    """From each server a client sends laps round the ring, in batches that fill it; how often one was refused."""
    refused = 0

    async def send(place: int) -> None:
        nonlocal refused
        address = servers.topology.servers[f"s{place}"]
        async with antecede.connect(str(address), name=f"client{place}") as bus:
            for number in range(_laps // 4):
                ticket = bus.send(f"ring{place}", Lap(left=_length, number=number))
                while not ticket.settled and not bus.trouble:
                    await asyncio.sleep(0.001)
                refused += bool(bus.trouble)
                await ticket

    async with asyncio.timeout(100):
        await asyncio.gather(*(send(place) for place in range(4)))
        for place in range(4):
            await _passed(servers, place)
    return refused


async def _passed(servers: Processes, place: int) -> None:
    """Every agent has passed every lap on three times, not more and not less."""
    expected = _laps * (_length + 1) // 4
    async with antecede.connect(str(servers.topology.servers[f"s{place}"]), name="asker") as bus:
        while True:
            counted = await bus.ask(f"ring{place}", Report(), expect=Counted, timeout=60)
            if counted.count >= expected:
                break
            await asyncio.sleep(0.1)
    assert counted.count == expected
