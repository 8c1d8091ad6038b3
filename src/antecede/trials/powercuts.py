"""Power cuts under load. A power cut loses, tears or reorders unsynced data, but no accepted message may be missing.

When a server process ends, its simulated machine usually loses power as well. Sometimes all servers are killed
together. Log segments are small and snapshots are frequent, so that power cuts also happen while a server begins a
segment or writes a snapshot. There are two other faults. If the disk of a server fails, the server must end and log
this reason. If the disk is full, the server must wait, and continue when there is space.
"""

import asyncio
from collections import Counter
from math import inf
from pathlib import Path
from random import Random
from subprocess import TimeoutExpired

from antecede.topology import TopologyFile
from antecede.trials.disks import TrialDisk
from antecede.trials.rounds import Round
from antecede.walks.processes import Processes

_limits = {
    "store_segment_bytes": 2 << 20,
    "store_group_bytes_max": 1 << 20,
    "store_pending_bytes_max": 1 << 20,
    "record_piece_bytes_max": 1 << 19,
    "snapshot_log_bytes": 1 << 19,
}


class CutProcesses(Processes):
    """Server processes on simulated machines. When a process ends, its machine usually loses power."""

    def __init__(
        self,
        folder: Path,
        topology: TopologyFile,
        random: Random,
        faults: Counter[str],
        nice: int = 0,
        entry: str = "antecede.trials",
    ) -> None:
        super().__init__(folder, topology, entry, nice)
        self._random = random
        self._faults = faults
        self.disks = {server: TrialDisk(Path(self.directory(server))) for server in topology.servers}

    def start(self, server: str, *options: str) -> None:
        disk = self.disks[server]
        limits = [part for name, value in _limits.items() for part in ("--limit", f"{name}={value}")]
        super().start(server, "--journal", str(disk.journal), "--troubles", str(disk.faults), *limits, *options)

    def kill(self, server: str) -> None:
        super().kill(server)
        self._fell(server)

    def stop(self, server: str, seconds: float = 30.0) -> int:
        code = super().stop(server, seconds)
        self._fell(server)
        return code

    def died(self, server: str, seconds: float = 30.0) -> int:
        """Wait until a server ends by itself; return its exit code."""
        code = self.running[server].wait(seconds)
        del self.running[server]
        self._fell(server)
        return code

    def _fell(self, server: str) -> None:
        power = self._random.random() < _cut
        self._faults["cuts"] += power
        self.disks[server].fell(self._random, power)


class PowerCuts(Round):
    """A round of a trial: servers are killed, machines lose power, and disks fail or are full."""

    entry = "antecede.trials"
    processes: CutProcesses

    def make_processes(self, folder: Path, nice: int) -> Processes:
        return CutProcesses(folder, self.topology, self.random, self.faults, nice, self.entry)

    async def cause_fault(self, victim: str) -> None:
        drawn = self.random.random()
        if drawn < _blackout:
            self.faults["blackouts"] += 1
            for server in list(self.processes.running):
                await self.end(server)
        elif drawn < _blackout + _broken:
            await self._break(victim)
        elif drawn < _blackout + _broken + _full:
            await self._fill(victim)
        else:
            await self.end(victim, self.random.random() < _graceful)

    async def _break(self, server: str) -> None:
        """Make the syncs of a server's disk fail. The server must then end with exit code 2, and log the reason.
        Otherwise report an error."""
        disk = self.processes.disks[server]
        count_before = self.processes.log(server).count("the disk of this trial fails")
        disk.set_fault("broken")
        # While another server is down, all walks may wait for it, and this server has nothing to write.
        self.come_back(inf)
        try:
            code = await asyncio.to_thread(self.processes.died, server)
        except TimeoutExpired:
            self.found.append(f"{server} continues although its disk fails")
            return
        finally:
            disk.set_fault("")
        self.faults["broken"] += 1
        if code != 2 or self.processes.log(server).count("the disk of this trial fails") == count_before:
            self.found.append(f"{server} ended with {code}: expected 2, and a line in its log that its disk fails")
        self.lost(server)

    async def _fill(self, server: str) -> None:
        """Make the disk of a server full for a while. The server must wait, and continue when there is space again."""
        self.faults["full"] += 1
        disk = self.processes.disks[server]
        disk.set_fault("full")
        await asyncio.sleep(self.random.random() * _full_seconds)
        disk.set_fault("")


_cut = 0.9
_blackout = 0.06
_broken = 0.08
_full = 0.08
_graceful = 0.15
_full_seconds = 2.0
