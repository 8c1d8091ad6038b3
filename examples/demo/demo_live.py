"""The live part of the demo: run three servers under load, kill one of them, and keep the trace of all three.

The topology is ``s1 –A– s2 –B– s3``. Messages between s1 and s3 pass through the router s2, and s2 is the server that
is killed. At each server, a client starts walks (:mod:`demo_agents`).
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from demo_agents import Home, Letter, Tell, Told, agents_of, next_of

from antecede import Bus, ClosedError, connect

_servers = ("s1", "s2", "s3")
_topology = """
[servers]
s1 = "tcp://127.0.0.1:{}"
s2 = "tcp://127.0.0.1:{}"
s3 = "tcp://127.0.0.1:{}"
[domains]
A = {{ servers = ["s1", "s2"], order = "pruned" }}
B = {{ servers = ["s2", "s3"], order = "pruned" }}
[agents]
walker0 = {{ server = "s1", class = "demo_agents:Walker" }}
walker1 = {{ server = "s2", class = "demo_agents:Walker" }}
walker2 = {{ server = "s3", class = "demo_agents:Walker" }}
"""
_victim = "s2"
_length = 4
"""The number of times that a letter is forwarded."""
_together = 8
"""A client starts this number of walks at a time, and waits until they are accepted."""
_under_way_max = 300
_load_seconds = 1.5
_down_seconds = 0.7
_settle_seconds = 60.0


def run_live(folder: Path, show: Callable[[str], None]) -> dict[str, Any]:
    """Run three servers, kill one of them under load, and return the result. The data directories of the servers are in
    ``folder``, and are not deleted."""
    return asyncio.run(_Live(folder, show).run())


class _Client:
    """A client that starts walks, and counts those that return."""

    def __init__(self, name: str, bus: Bus) -> None:
        self.accepted: set[str] = set()
        self.returned: Counter[str] = Counter()
        self._name = name
        self._bus = bus
        bus.on(Home, lambda home: self.returned.update([home.walk]))

    @property
    def under_way(self) -> int:
        return len(self.accepted) - len(self.returned)

    async def travel(self, enough: asyncio.Event) -> None:
        while not enough.is_set():
            if self.under_way < _under_way_max:
                await asyncio.gather(*(self._start() for _ in range(_together)))
            await asyncio.sleep(0.005)

    async def _start(self) -> None:
        walk = f"{self._name}-{len(self.accepted)}"
        self.accepted.add(walk)
        await self._bus.send(
            next_of(walk, _length, len(_servers)), Letter(walk, _length, len(_servers), self._bus.address)
        )


class _Live:
    def __init__(self, folder: Path, show: Callable[[str], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ports = _free_ports(len(_servers))
        self._file = folder / "topology.toml"
        self._file.write_text(_topology.format(*self._ports))
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._began = time.monotonic()
        self._show = show

    def _say(self, text: str) -> None:
        self._show(f"{time.monotonic() - self._began:5.1f} s  {text}")

    async def run(self) -> dict[str, Any]:
        try:
            await self._up(*_servers)
            self._say("s1, s2 and s3 are running, each as a process with its own log. A client at each sends letters,")
            self._say("which go from agent to agent and return. Between s1 and s3 all of them pass through s2.")
            async with AsyncExitStack() as stack:
                buses = []
                for number, port in enumerate(self._ports):
                    bus = connect(f"tcp://127.0.0.1:{port}", name=f"client{number}", patience=_settle_seconds)
                    buses.append(await stack.enter_async_context(bus))
                clients = [_Client(f"client{number}", bus) for number, bus in enumerate(buses)]
                under_way = await self._load(clients)
                found = await self._settle(clients, buses[0])
            walks = sum(len(client.accepted) for client in clients)
            if not found:
                self._say(f"All {walks:,} letters returned, each once, and every agent reacted as often as it must.")
            codes = [await asyncio.to_thread(self._stop, server) for server in _servers]
            if any(codes):
                found.append(f"servers ended with exit codes {codes}")
            return {"servers": len(codes), "killed": _victim, "walks": walks, "under_way": under_way, "found": found}
        finally:
            for process in self._running.values():
                process.kill()
                process.wait()

    async def _load(self, clients: list[_Client]) -> int:
        """Let the clients start walks, kill the router meanwhile and restart it. Return the number of walks that were
        not finished when the router was killed."""
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.travel(enough))
            await asyncio.sleep(_load_seconds)
            router = self._running.pop(_victim)
            router.kill()
            router.wait()
            under_way = sum(client.under_way for client in clients)
            self._say(
                f"kill -9 {_victim}, the router, while {under_way:,} letters are in transit. "
                "The others keep its messages."
            )
            await asyncio.sleep(_down_seconds)
            await self._up(_victim)
            self._say(f"{_victim} is back. It replayed its log and continues after the last record on its disk.")
            await asyncio.sleep(_load_seconds)
            enough.set()
        return under_way

    async def _settle(self, clients: list[_Client], bus: Bus) -> list[str]:
        """Wait until all walks have returned, and return what is wrong then."""
        try:
            async with asyncio.timeout(_settle_seconds):
                while any(client.under_way for client in clients):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            return [f"{client.under_way} letters of client{at} did not return" for at, client in enumerate(clients)]
        found = [f"{walk} returned {n} times" for client in clients for walk, n in client.returned.items() if n > 1]
        wanted = Counter(
            agent for client in clients for walk in client.accepted for agent in agents_of(walk, _length, len(_servers))
        )
        for agent, count in wanted.items():
            told = await bus.ask(agent, Tell(), expect=Told, timeout=_settle_seconds)
            if told.count != count:
                found.append(f"{agent} reacted {told.count} times, expected {count}")
        return found

    async def _up(self, *servers: str) -> None:
        """Start servers, and wait until they listen."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(_here), *sys.path]))}
        for server in servers:
            options = ["--server", server, "--data", str(self._folder / server), "--trace"]
            with self._log(server).open("ab") as log:
                self._running[server] = subprocess.Popen(
                    [sys.executable, "-m", "antecede", "serve", str(self._file), *options],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                )
        for server in servers:
            port = self._ports[_servers.index(server)]
            while not _listens(port):
                if self._running[server].poll() is not None:
                    raise ClosedError(f"{server} ended; the end of its log: {self._log(server).read_text()[-500:]}")
                await asyncio.sleep(0.02)

    def _log(self, server: str) -> Path:
        return self._folder / f"{server}.log"

    def _stop(self, server: str) -> int:
        process = self._running.pop(server)
        process.send_signal(signal.SIGTERM)
        return process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _free_ports(count: int) -> list[int]:
    """Return free ports. They are below those that the system gives to outgoing connections: while the killed server is
    down, nobody else may get its port."""
    found: list[int] = []
    candidates = iter(range(20_000 + os.getpid() % 10_000, 32_000))
    while len(found) < count:
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port := next(candidates)))
            except OSError:
                continue
        found.append(port)
    return found


_here = Path(__file__).resolve().parent
