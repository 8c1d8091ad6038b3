"""Real servers in one event loop, under load: a client publishes through a router to an agent that sums."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from antecede.backups import FORMAT, Backup, Manifest, NewBackup, SavedFile
from antecede.live import ServerRuntime
from antecede.live.client.operator import Remote
from antecede.topology import TopologyFile, parse_topology
from helpers.ports import free_ports
from helpers.summing import Add, Sum

NAMES = ("s1", "s2", "s3")


def routed_topology() -> TopologyFile:
    """s2 is a router between s1, where clients are, and s3, where the agent is."""
    servers = "\n".join(f'{name} = "tcp://127.0.0.1:{port}"' for name, port in zip(NAMES, free_ports(3), strict=True))
    return parse_topology(
        f'[servers]\n{servers}\n[domains]\nA = {{ servers = ["s1", "s2"] }}\nB = {{ servers = ["s2", "s3"] }}\n'
        '[agents]\nsum = { server = "s3", class = "helpers.summing:Sum" }\n'
    )


class System:
    """The servers of a topology, in this event loop."""

    def __init__(self, file: TopologyFile, folder: Path, trace: bool = True) -> None:
        self.file = file
        folder.mkdir(exist_ok=True)
        self.servers = {
            name: ServerRuntime(
                file, name, str(folder / name), agents={"sum": Sum} if name == "s3" else {}, trace=trace
            )
            for name in NAMES
        }

    async def __aenter__(self) -> "System":
        for server in self.servers.values():
            await server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self.servers.values():
            await server.stop()

    async def connected(self) -> None:
        """Wait until every server is connected to all its peers; publishes are accepted before that."""
        while not all(peer.ready for server in self.servers.values() for peer in server.core.peering.peers.values()):
            await asyncio.sleep(0.005)

    async def load(self, started: asyncio.Event) -> None:
        """Let a client publish until it is cancelled."""
        async with self.servers["s1"].bus("alice") as bus:
            amount = 0
            while True:
                amount += 1
                await bus.send("sum", Add(amount=amount))
                if amount == 50:
                    started.set()

    async def backup(self, path: Path) -> Backup:
        """Back up the running system."""
        with NewBackup(str(path)) as new:
            remote = Remote(self.file.servers, "", None, None)
            try:
                saved = await remote.copy(await remote.cut(), new, lambda done, total: None)
            finally:
                await remote.end()
            return new.complete(manifest_of(self.file, saved), self.file.text())


def manifest_of(file: TopologyFile, saved: dict[str, Any]) -> Manifest:
    """Return the manifest of a backup."""
    return Manifest(FORMAT, "0", "2026-01-01T00:00:00Z", file.epoch, saved, SavedFile("topology.toml", 0, ""))


def run_bounded(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test, for a minute at most."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())


async def under_load(folder: Path, file: TopologyFile, act: Callable[[System], Awaitable[None]]) -> None:
    """Start the servers and the load, act, and stop all of it."""
    async with System(file, folder) as system:
        started = asyncio.Event()
        load = asyncio.create_task(system.load(started))
        try:
            await started.wait()
            await system.connected()
            await act(system)
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
