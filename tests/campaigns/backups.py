"""Backups of a running system under load, with kills; each backup is restored, started and verified.

Between backups, servers are killed and started again. Some servers are killed during a backup. If the backup command
fails because of such a kill, it must leave no files. At the end of a round, each backup is restored on other ports. The
restored servers must deliver all messages that were in transit when the backup was taken, and the clients must be able
to connect and fetch the messages in their mailboxes.

The load consists of *walks*: messages that agents (*walkers*) forward from one to the next (:mod:`campaigns.walks`). A
restored system passes if

- its trace shows that no copy of a message is undelivered, repeated or late,
- no walker or client received messages of one sender in a wrong sequence, and
- its walkers have handled all messages of the walks that were accepted before the backup began.
"""

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path
from shutil import rmtree

from antecede.topology import TopologyFile
from campaigns.rounds import Round
from campaigns.walkers import name_of_walker
from campaigns.walks import Figures, Load, Processes, environment, judge_directories, walking


class Backups(Round):
    """A round with backups of a running system, which are restored and verified at the end."""

    down_max = 1
    settle_seconds = 120.0

    def __init__(self, folder: Path, seed: int, topology: TopologyFile | None = None, nice: int = 0) -> None:
        super().__init__(folder, seed, topology, nice)
        self._expected: list[Counter[str]] = []
        """For each backup, a number of messages for each walker. In the restored system, the walker must have handled
        at least this number: these messages belong to walks that were accepted before the backup began."""

    async def cause_fault(self, victim: str) -> None:
        if self.random.random() < _kills:
            await self.end(victim)
        elif len(self.processes.running) == len(self.topology.servers):
            await self._back_up(victim)

    async def _back_up(self, victim: str) -> None:
        await self.all_up()
        kept = self._kept(self.faults["backups"])
        expected, _ = self.load.reactions()
        command = asyncio.create_task(self._command("backup", str(self.processes.file), str(kept)))
        killed = self.random.random() < _kills
        if killed:
            await asyncio.sleep(self.random.random() * _command_seconds)
            if not command.done():
                await self.end(victim)
        failure = await command
        if not failure:
            self._expected.append(expected)
            self.faults["backups"] += 1
        elif killed and not kept.exists():
            self.faults["failures"] += 1
        else:
            self.found.append(failure)

    def _kept(self, number: int) -> Path:
        return self.processes.folder / f"backup{number}"

    async def judged(self) -> Figures:
        """Check the data of the servers. Then restore each backup as a separate system, and check this system, too."""
        figures = await super().judged()
        for number, expected in enumerate(self._expected):
            restored = await self._restored(number, expected)
            figures.found += (f"backup {number}: {line}" for line in restored.found)
            figures.messages += restored.messages
            figures.deliveries += restored.deliveries
            figures.events += restored.events
            figures.undelivered += restored.undelivered
            figures.late += restored.late
        return figures

    async def _restored(self, number: int, expected: Counter[str]) -> Figures:
        """Restore a backup, start its servers, wait until they have delivered all messages in transit, and check their
        data."""
        topology, folder = walking(self.topology), self.processes.folder / f"restored{number}"
        elsewhere = self.processes.folder / f"restored{number}.toml"
        elsewhere.write_text(topology.text())
        kept = str(self._kept(number))
        if failure := await self._command("restore", kept, str(folder), "--topology", str(elsewhere)):
            return Figures(found=[failure])
        processes, load, found = Processes(folder, topology), Load(topology), list[str]()
        try:
            await processes.up(*topology.servers)
            await load.begin()
            found += await load.idle(self.settle_seconds)
            for place in range(len(topology.servers)):
                walker = name_of_walker(place)
                reply = await load.counts_of(walker, self.settle_seconds)
                found += reply.wrong
                if reply.count < expected[walker]:
                    found.append(f"{walker} reacted {reply.count} times, expected at least {expected[walker]}")
            await load.close()
            for server in topology.servers:
                if await asyncio.to_thread(processes.stop, server):
                    found.append(f"{server} did not stop gracefully: {processes.log(server)[-500:]}")
        finally:
            await load.close()
            processes.close()
        figures = await asyncio.to_thread(judge_directories, [processes.directory(name) for name in topology.servers])
        figures.found = found + figures.found
        if not figures.found:
            rmtree(folder)
            rmtree(kept)
        return figures

    async def _command(self, *arguments: str) -> str:
        """Run a command; return its output if it failed, else an empty text."""
        command = [sys.executable, "-m", self.entry, *arguments]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=False, env=environment()
        )
        return f"{arguments[0]}: exit {done.returncode}: {done.stdout}{done.stderr}" if done.returncode else ""


_kills = 0.3
_command_seconds = 2.0
