"""A simulated disk for a real server process, whose power can be cut.

The server's file layer records every operation in a *journal* (a file next to the data directory) before the server
continues. Syncs are only recorded; they do not reach a real disk. The process may be killed at any moment. After its
end, the journal is replayed on a :class:`antecede.store.simulated.SimulatedDisk`, which can lose the same data as a
real disk: if its power is cut, unsynced writes and unsynced changes of file names may be lost, torn or reordered. The
files that remain become the data directory of the next process. Another process writes the trace into subfolders of the
data directory. The files in subfolders are not changed, because they contain only data that was synced.

A second file, next to the journal, can name faults that come and go while the server runs: ``full`` (there is no space
for more data) and ``broken`` (syncs fail, and the data that they should have made durable may be lost).

**Power cuts under load.** No accepted message may be missing after them.

When a server process ends, its simulated machine usually loses power as well. Sometimes all servers are killed
together. Log segments are small and snapshots are frequent, so that power cuts also happen while a server begins a
segment or writes a snapshot. There are two other faults. If the disk of a server fails, the server must end and log
this reason. If the disk is full, the server must wait, and continue when there is space.
"""

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from random import Random
from subprocess import TimeoutExpired
from threading import RLock
from typing import NoReturn

import msgspec

from antecede.store import LOCK, TEMPORARY, Files, Inode, SimulatedDisk
from antecede.topology import TopologyFile
from campaigns.rounds import Round
from campaigns.walks import Processes

_encode = msgspec.msgpack.Encoder().encode
_length_bytes = 4


class TroubledFiles(Files):
    """The file layer of a server in a trial: it records every operation in the journal, and causes the faults that the
    file ``faults`` names."""

    def __init__(self, journal: str, faults: str) -> None:
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._faults = Path(faults)
        self._owner = os.getpid()
        # The commit thread and a snapshot's thread share the disk: the journal has their operations in sequence.
        self._lock = RLock()

    def create(self, path: str) -> int:
        with self._lock:
            file = super().create(path)
            self._note("create", path, file)
            return file

    def open(self, path: str, write: bool = False) -> int:
        with self._lock:
            file = super().open(path, write)
            if path.endswith(TEMPORARY):
                # The process that builds snapshots wrote it, and synced it.
                self._note("create", path, file)
                self._note("write", file, [os.pread(file, self.size(file), 0)], 0)
                self._note("fdatasync", file)
            else:
                self._note("open", path, file)
            return file

    def close(self, file: int) -> None:
        if os.getpid() != self._owner:
            # A copy (by fork) of the server's process closes only its own descriptors.
            super().close(file)
            return
        with self._lock:
            self._note("close", file)
            super().close(file)

    def write(self, file: int, buffers: Sequence[bytes], offset: int) -> None:
        with self._lock:
            self._need(file, offset + sum(map(len, buffers)))
            self._note("write", file, buffers, offset)
            super().write(file, buffers, offset)

    def allocate(self, file: int, size: int) -> None:
        with self._lock:
            self._need(file, size)
            self._note("allocate", file, size)
            super().allocate(file, size)

    def truncate(self, file: int, size: int) -> None:
        with self._lock:
            self._note("truncate", file, size)
            super().truncate(file, size)

    def fdatasync(self, file: int) -> None:
        with self._lock:
            if self._has_fault("broken"):
                self._note("fail", file)
                _fail()
            self._note("fdatasync", file)

    def fsync(self, file: int) -> None:
        self.fdatasync(file)

    def sync_directory(self, path: str) -> None:
        with self._lock:
            self._note("sync_directory", path)

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            self._note("rename", old, new)
            super().rename(old, new)

    def unlink(self, path: str) -> None:
        with self._lock:
            super().unlink(path)
            self._note("unlink", path)

    def _need(self, file: int, size: int) -> None:
        """Raise an error if the disk is full and the file would have to grow. ``size``: the size that the file
        needs."""
        if self._has_fault("full") and size > self.size(file):
            raise OSError(errno.ENOSPC, "no space on the disk of this trial")

    def _has_fault(self, fault: str) -> bool:
        try:
            return fault in self._faults.read_text()
        except FileNotFoundError:
            return False

    def _note(self, *entry: object) -> None:
        body = _encode(entry)
        os.write(self._journal, len(body).to_bytes(_length_bytes, "big") + body)


class TrialDisk:
    """The disk of one server. The trial uses this object, outside the server's process, to cause faults on the disk.
    It uses the same object after each restart of the server."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.journal = directory.with_name(directory.name + ".journal")
        self.faults = directory.with_name(directory.name + ".troubles")
        self._disk = SimulatedDisk()

    def set_fault(self, text: str) -> None:
        """Set the fault ``full`` or ``broken``; an empty text clears it."""
        if text:
            beside = self.faults.with_suffix(".new")
            beside.write_text(text)
            os.replace(beside, self.faults)
        else:
            self.faults.unlink(missing_ok=True)

    def fell(self, random: Random, power: bool) -> None:
        """Handle the end of the server's process, with or without a power cut. Write the files that the disk has kept
        into the data directory, and remove the other files."""
        if self.journal.exists():
            play(self.journal.read_bytes(), self._disk)
            self.journal.unlink()
        if power:
            self._disk.power_cut(random)
        else:
            self._disk.kill(random)
        kept = {Path(path).name: inode for path, inode in self._disk.seen.items()}
        for name in os.listdir(self.directory):
            if name not in kept and name != LOCK and not (self.directory / name).is_dir():
                (self.directory / name).unlink()
        for name, inode in kept.items():
            _leave(self.directory / name, inode)


def _leave(path: Path, inode: Inode) -> None:
    with suppress(FileNotFoundError):
        if path.read_bytes() == inode.seen:
            return
    path.write_bytes(inode.seen)


def play(journal: bytes, disk: SimulatedDisk) -> None:
    """Replay the operations in a process's journal on a simulated disk, up to the last complete operation."""
    files: dict[int, int] = {}
    at = 0
    while at + _length_bytes <= len(journal):
        end = at + _length_bytes + int.from_bytes(journal[at : at + _length_bytes], "big")
        if end > len(journal):
            return
        operation, *given = msgspec.msgpack.decode(journal[at + _length_bytes : end])
        at = end
        if operation in ("create", "open"):
            path, file = given
            files[file] = disk.create(path) if operation == "create" else disk.open(path)
        elif operation == "unlink" and given[0].endswith(TEMPORARY) and given[0] not in disk.seen:
            # A process that builds snapshots for an earlier server left it behind.
            continue
        elif operation in ("rename", "unlink", "sync_directory"):
            getattr(disk, operation)(*given)
        elif given[0] in files:
            file = files.pop(given[0]) if operation == "close" else files[given[0]]
            if operation != "fail":
                getattr(disk, operation)(file, *given[1:])
                continue
            disk.script = _fail
            with suppress(OSError):
                disk.fdatasync(file)
            disk.script = None


def _fail(*_: object) -> NoReturn:
    raise OSError(errno.EIO, "the disk of this trial fails")


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
        entry: str = "campaigns.serve",
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

    entry = "campaigns.serve"
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
