"""The live part of the demo: run three servers under load, kill one of them, and keep the trace of all three.

The topology is ``s1 –A– s2 –B– s3``. Messages between s1 and s3 pass through the router s2, and s2 is the server that
is killed. The load comes from :mod:`antecede.walks`: letters walk from agent to agent and return to their client. The
messages that each agent must receive can be computed in advance, so a lost or repeated message is noticed.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antecede.errors import ClosedError
from antecede.topology import parse_topology
from antecede.walks.load import Load
from antecede.walks.processes import Processes, walking

_topology = """
[servers]
s1 = "tcp://127.0.0.1:7101"
s2 = "tcp://127.0.0.1:7102"
s3 = "tcp://127.0.0.1:7103"
[domains]
A = { servers = ["s1", "s2"], order = "pruned" }
B = { servers = ["s2", "s3"], order = "pruned" }
"""
_victim = "s2"
_load_seconds = 1.5
_down_seconds = 0.7
_settle_seconds = 60.0


def run_live(folder: Path, show: Callable[[str], None]) -> dict[str, Any]:
    """Run three servers, kill one of them under load, and return the result. The data directories of the servers are in
    ``folder``, and are not deleted."""
    return asyncio.run(_Live(folder, show).run())


class _Live:
    def __init__(self, folder: Path, show: Callable[[str], None]) -> None:
        self._topology = walking(parse_topology(_topology))
        self._processes = Processes(folder, self._topology)
        self._load = Load(self._topology)
        self._began = time.monotonic()
        self._show = show

    def _say(self, text: str) -> None:
        self._show(f"{time.monotonic() - self._began:5.1f} s  {text}")

    async def run(self) -> dict[str, Any]:
        try:
            await self._processes.up(*self._topology.servers)
            self._say("s1, s2 and s3 are running, each as a process with its own log. A client at each sends letters,")
            self._say("which go from agent to agent and return. Between s1 and s3 all of them pass through s2.")
            await self._load.begin()
            enough = asyncio.Event()
            travelling = asyncio.create_task(self._load.travel(enough, 0.005))
            try:
                under_way = await self._kill_and_restart()
                await asyncio.sleep(_load_seconds)
            finally:
                enough.set()
            await travelling
            found = await self._load.settle(_settle_seconds)
            walks = sum(len(client.accepted) for client in self._load.clients)
            if not found:
                self._say(f"All {walks:,} letters returned, each once, and every agent reacted as often as it must.")
            codes = [await asyncio.to_thread(self._processes.stop, server) for server in self._topology.servers]
            if any(codes):
                found.append(f"servers ended with exit codes {codes}")
            return {"servers": len(codes), "killed": _victim, "walks": walks, "under_way": under_way, "found": found}
        finally:
            await self._load.close()
            self._processes.close()

    async def _kill_and_restart(self) -> int:
        """Kill the router under load and restart it. Return the number of walks that were not finished when the router
        was killed. A *walk* is a letter that goes from agent to agent and returns to its client."""
        await asyncio.sleep(_load_seconds)
        self._processes.kill(_victim)
        under_way = sum(len(client.missing) for client in self._load.clients)
        self._say(
            f"kill -9 {_victim}, the router, while {under_way:,} letters are in transit. The others keep its messages."
        )
        await asyncio.sleep(_down_seconds)
        await self._processes.up(_victim)
        self._say(f"{_victim} is back. It replayed its log and continues after the last record on its disk.")
        if ended := list(self._processes.ended()):
            raise ClosedError(
                f"server {ended[0]} ended by itself; the end of its log: {self._processes.log(ended[0])[-500:]}"
            )
        return under_way
