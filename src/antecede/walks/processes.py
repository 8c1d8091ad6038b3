"""Run the servers of one topology as processes on this machine. Each can be stopped or killed, and started again."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random, SystemRandom

import msgspec

import antecede
from antecede.errors import ClosedError
from antecede.topology import Address, AgentHome, TopologyFile
from antecede.walks.walkers import Walker, name_of_walker


def walking(topology: TopologyFile) -> TopologyFile:
    """Return a copy of the topology with two changes: the servers have free local ports, and the only agents are
    walkers (:mod:`antecede.walks.walkers`), one on each server."""
    # Not from the round's seed: another round may use the same ports now, and while one of its servers is down its port
    # looks free.
    ports = free_ports(len(topology.servers))
    servers = {name: Address("127.0.0.1", port) for name, port in zip(topology.servers, ports, strict=True)}
    kind = f"{Walker.__module__}:{Walker.__qualname__}"
    agents = tuple(AgentHome(name_of_walker(place), server, kind) for place, server in enumerate(topology.servers))
    return msgspec.structs.replace(topology, servers=servers, agents=agents, module=None)


_system = SystemRandom()


def free_ports(count: int, random: Random = _system) -> list[int]:
    """Return free ports to listen on. They are outside the range from which the system takes ports for outgoing
    connections. Otherwise, while a server is down, the system could give the server's port to an outgoing connection of
    another process. A client of the server could even get this port itself, and then be connected to itself."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def environment() -> dict[str, str]:
    """Return the environment for a new process that imports the same code as this one."""
    return {**os.environ, "PYTHONPATH": str(Path(antecede.__file__).parent.parent)}


STOPPED = (0, -signal.SIGTERM, 128 + signal.SIGTERM)
"""The exit codes that a server may have after SIGTERM. The last two occur if the server was still starting, and so had
nothing to finish."""


class Processes:
    """The server processes of one topology. ``folder`` contains the topology file, and the data directory and the log
    of each server."""

    def __init__(
        self, folder: Path, topology: TopologyFile, entry: str = "antecede", nice: int = 0, trace: bool = True
    ) -> None:
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.topology = topology
        self.file = folder / "topology.toml"
        self.file.write_text(topology.text())
        self.files: dict[str, Path] = {}
        """The servers that have their own topology file, with its path. All other servers are started with
        ``self.file``."""
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._entry = entry
        self._nice = nice
        self._trace = trace

    def directory(self, server: str) -> str:
        """Return the data directory of a server."""
        return str(self.folder / server)

    def log(self, server: str) -> str:
        """Return everything that a server has logged since its first start."""
        path = self.folder / f"{server}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, server: str, *options: str) -> None:
        """Start a server that is down; it listens a little later."""
        assert server not in self.running
        command = [
            sys.executable,
            "-m",
            self._entry,
            "serve",
            str(self.files.get(server, self.file)),
            "--server",
            server,
        ]
        command += ["--trace"] if self._trace else []
        command += ["--data", self.directory(server), *options]
        with (self.folder / f"{server}.log").open("ab") as log:
            self.running[server] = subprocess.Popen(
                ["nice", "-n", str(self._nice), *command] if self._nice else command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                cwd=self.folder,
            )

    def kill(self, server: str) -> None:
        """Kill a server with kill -9."""
        process = self.running.pop(server)
        process.kill()
        process.wait()

    def stop(self, server: str, seconds: float = 30.0) -> int:
        """Stop a server with SIGTERM; return its exit code. If it does not stop in time, it is killed."""
        process = self.running.pop(server)
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def ended(self) -> Iterable[str]:
        """Return the servers that ended by themselves."""
        return [server for server, process in self.running.items() if process.poll() is not None]

    def wait(self, server: str, seconds: float = 60.0) -> None:
        """Wait until a server listens. Raise ClosedError if it ends, or does not listen within ``seconds``."""
        end = time.monotonic() + seconds
        address = self.topology.servers[server]
        while time.monotonic() < end:
            if self.running[server].poll() is not None:
                break
            with socket.socket() as one:
                if one.connect_ex((address.host, address.port)) == 0:
                    return
            time.sleep(0.02)
        raise ClosedError(f"{server} does not listen at {address}; the end of its log: {self.log(server)[-2_000:]}")

    async def up(self, *servers: str, options: Iterable[str] = ()) -> None:
        """Start servers that are down, and wait until all of them listen."""
        for server in servers:
            self.start(server, *options)
        for server in servers:
            await asyncio.to_thread(self.wait, server)

    def close(self) -> None:
        """End all processes that still run."""
        for server in list(self.running):
            self.kill(server)
