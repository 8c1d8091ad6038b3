"""Kill -9 under load: random servers, routers too, at random moments, several at a time, also while they recover.

A few of the victims are stopped gracefully instead (a snapshot is kept, and clients are refused for a moment), and some
are killed again before they have come up. When all the kills are done every server comes back, and the trial waits for
calm.
"""

import asyncio
import shutil
from pathlib import Path
from random import Random

import msgspec

from antecede.topology import TopologyFile, parse_topology
from antecede.trials.load import Figures, Load, judge_directories
from antecede.trials.processes import Processes, walking

SMALL = """
[servers]
s1 = "tcp://127.0.0.1:7101"
s2 = "tcp://127.0.0.1:7102"
s3 = "tcp://127.0.0.1:7103"
s4 = "tcp://127.0.0.1:7104"
s5 = "tcp://127.0.0.1:7105"
[domains]
A = { servers = ["s1", "s2"], order = "pruned" }
B = { servers = ["s2", "s3", "s4"], order = "updates" }
C = { servers = ["s4", "s5"], order = "matrix" }
"""
"""Five servers, of which two are routers, and three domains."""


class Outcome(msgspec.Struct):
    """One trial."""

    seed: int
    kills: int
    stops: int
    figures: Figures

    @property
    def found(self) -> list[str]:
        """What was wrong."""
        return self.figures.found


async def trial(
    folder: Path, seed: int, kills: int, topology: TopologyFile | None = None, *, down: int = 2, nice: int = 0
) -> Outcome:
    """One round of kills; the folder stays if something was found, so that it can be looked into."""
    random = Random(seed)
    plan = walking(topology or parse_topology(SMALL), random)
    processes = Processes(folder, plan, nice=nice)
    outcome = Outcome(seed, 0, 0, Figures())
    load = Load(plan)
    try:
        for server in plan.servers:
            processes.start(server)
        for server in plan.servers:
            await asyncio.to_thread(processes.wait, server)
        await load.begin()
        enough = asyncio.Event()
        travelling = asyncio.create_task(load.travel(enough, _pause_seconds))
        try:
            found = await _kill(processes, random, outcome, kills, down)
        finally:
            enough.set()
        if not found:
            async with asyncio.timeout(_settle_seconds):
                await travelling
            found = await load.settle(_settle_seconds)
        outcome.figures = await asyncio.to_thread(_judge, processes, random, plan)
        outcome.figures.found = found + outcome.figures.found
        outcome.figures.walks = sum(len(traveller.out) for traveller in load.travellers)
    except TimeoutError:
        outcome.figures.found.append(f"some walks were not accepted within {_settle_seconds:.0f} s")
    finally:
        await load.close()
        processes.close()
    if not outcome.found:
        shutil.rmtree(folder)
    return outcome


async def _kill(processes: Processes, random: Random, outcome: Outcome, kills: int, down: int) -> list[str]:
    servers = list(processes.topology.servers)
    gone: list[tuple[float, str]] = []
    loop = asyncio.get_running_loop()
    while outcome.kills < kills or gone:
        up = [server for server in servers if server in processes.running]
        if outcome.kills < kills and len(gone) < down and up:
            victim = up[int(random.random() * len(up))]
            if random.random() < _graceful:
                outcome.stops += 1
                code = await asyncio.to_thread(processes.stop, victim)
                if code not in (0, -15):
                    return [f"{victim} stopped with exit code {code}"]
            else:
                outcome.kills += 1
                processes.kill(victim)
            gone.append((loop.time() + random.random() * _down_seconds, victim))
        await asyncio.sleep(random.random() * _between_seconds)
        for due, server in list(gone):
            if due <= loop.time():
                gone.remove((due, server))
                processes.start(server)
        for server in processes.ended():
            return [f"{server} ended by itself: {processes.log(server)[-1_000:]}"]
    for server in servers:
        await asyncio.to_thread(processes.wait, server)
    return []


def _judge(processes: Processes, random: Random, plan: TopologyFile) -> Figures:
    """End the servers, some by force, and read what they left."""
    for server in list(processes.running):
        if random.random() < 0.5:
            processes.kill(server)
        else:
            processes.stop(server)
    figures = judge_directories([processes.directory(server) for server in plan.servers], plan)
    for server in plan.servers:
        if "Traceback" in processes.log(server):
            figures.found.append(f"{server} has a traceback in its log")
    return figures


_pause_seconds = 0.005
_graceful = 0.1
_down_seconds = 0.6
_between_seconds = 0.7
_settle_seconds = 60.0
