"""The servers of one topology as processes of this machine, started, killed and started again."""

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
from antecede.topology import Address, TopologyFile
from antecede.topology.file import AgentHome
from antecede.walks.walkers import Walker, name_of_walker


def walking(topology: TopologyFile) -> TopologyFile:
    """The same organisation on ports that nobody uses, with a walker on each server and nothing else."""
    # Not from the round's seed: another round may use the same at this moment, and while one of its servers is down
    # its port looks free.
    ports = free_ports(len(topology.servers), SystemRandom())
    servers = {name: Address("127.0.0.1", port) for name, port in zip(topology.servers, ports, strict=True)}
    kind = f"{Walker.__module__}:{Walker.__qualname__}"
    agents = tuple(AgentHome(name_of_walker(place), server, kind) for place, server in enumerate(topology.servers))
    return msgspec.structs.replace(topology, servers=servers, agents=agents, module=None)


def free_ports(count: int, random: Random) -> list[int]:
    """Ports to listen on. None from which the system gives ports to those who dial: while a server is down somebody
    might get its port that way, or even reach itself by dialing it."""
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


STOPPED = (0, -signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes after SIGTERM; the last two of a server that had not come up yet, so that there was nothing to finish."""


class Processes:
    """One process for each server that is up; data directories, logs and the topology file share a folder."""

    def __init__(self, folder: Path, topology: TopologyFile, entry: str = "antecede", nice: int = 0) -> None:
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.topology = topology
        self.file = folder / "topology.toml"
        self.file.write_text(topology.text())
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._entry = entry
        self._nice = nice

    def directory(self, server: str) -> str:
        """Where a server keeps its data."""
        return str(self.folder / server)

    def log(self, server: str) -> str:
        """What a server has said in all its lives."""
        path = self.folder / f"{server}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, server: str, *options: str) -> None:
        """Start a server that is down; it listens a little later."""
        assert server not in self.running
        command = [sys.executable, "-m", self._entry, "serve", str(self.file), "--server", server, "--trace"]
        command += ["--data", self.directory(server), *options]
        # The servers run the very code that this process runs, wherever it was found.
        source = str(Path(antecede.__file__).parent.parent)
        environment = {**os.environ, "PYTHONPATH": source}
        with (self.folder / f"{server}.log").open("ab") as log:
            self.running[server] = subprocess.Popen(
                ["nice", "-n", str(self._nice), *command] if self._nice else command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
            )

    def kill(self, server: str) -> None:
        """kill -9."""
        process = self.running.pop(server)
        process.kill()
        process.wait()

    def stop(self, server: str, seconds: float = 30.0) -> int:
        """SIGTERM; the exit code. One that does not stop in that time is killed, and that is its exit code."""
        process = self.running.pop(server)
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def ended(self) -> Iterable[str]:
        """Servers that are gone though nobody ended them."""
        return [server for server, process in self.running.items() if process.poll() is not None]

    def wait(self, server: str, seconds: float = 60.0) -> None:
        """Until a server listens."""
        end = time.monotonic() + seconds
        address = self.topology.servers[server]
        while time.monotonic() < end:
            if self.running[server].poll() is not None:
                break
            with socket.socket() as one:
                if one.connect_ex((address.host, address.port)) == 0:
                    return
            time.sleep(0.02)
        raise ClosedError(f"{server} does not listen: {self.log(server)[-2_000:]}")

    def close(self) -> None:
        """End whatever still runs."""
        for server in list(self.running):
            self.kill(server)
