"""A load for real servers whose outcome is known, and the servers' processes.

Clients start *walks*: letters that go from agent (*walker*, :mod:`campaigns.walkers`) to agent and return to the
client. At the end, these checks are made:

1. Every accepted walk has returned exactly once.
2. Every walker has handled each expected message once and in order, and no other messages. The names of the walks
   determine the expected messages.
3. The trace, which is made from the servers' logs, contains no invalid rows and no undelivered copies, and keeps FIFO
   and causal order.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random, SystemRandom

import msgspec

import antecede
from antecede.errors import AntecedeError, ClosedError, OverloadError
from antecede.live.client import Bus
from antecede.live.client.line import connect
from antecede.live.client.operator import request
from antecede.recording.segments import gathered
from antecede.topology import Address, AgentHome, TopologyFile
from antecede.trace import verify
from campaigns.walkers import Home, Tell, Told, Walk, Walker, name_of_walker, next_of, reactions_of


def walking(topology: TopologyFile) -> TopologyFile:
    """Return a copy of the topology with two changes: the servers have free local ports, and the only agents are
    walkers (:mod:`campaigns.walkers`), one on each server."""
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
    """Return the environment for a new process that imports the same package and the same campaigns as this one."""
    paths = (Path(antecede.__file__).parents[1], Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}


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


class Figures(msgspec.Struct):
    """Counts of one trial, and its errors."""

    walks: int = 0
    events: int = 0
    messages: int = 0
    deliveries: int = 0
    undelivered: int = 0
    late: int = 0
    set_aside: dict[str, int] = {}
    found: list[str] = []


class WalkClient:
    """A client that starts walks. When ``together`` or more of its walks are under way (accepted, but not yet
    returned), the client waits before it starts more walks."""

    def __init__(self, name: str, bus: Bus, walkers: int, length: int, together: int, slow: bool) -> None:
        self.name = name
        self.accepted: set[str] = set()
        self.returned: Counter[str] = Counter()
        self.refused = 0
        self.wrong: list[str] = []
        self._bus = bus
        self._walkers = walkers
        self._length = length
        self._together = together
        self._number = 0
        self._last: dict[str, int] = {}
        self._changed = asyncio.Event()
        bus.on(Home, self._walk_returned_slowly if slow else self._walk_returned)

    @property
    def _under_way(self) -> int:
        return len(self.accepted) - len(self.returned)

    @property
    def missing(self) -> set[str]:
        """Return the walks that were accepted and have not returned yet."""
        return self.accepted - set(self.returned)

    async def travel(self, enough: asyncio.Event, pause: float) -> None:
        """Start walks, several at a time, until ``enough`` is set. A refused walk is sent again."""
        for count in itertools.count(step=_burst):
            while self._under_way >= self._together and not enough.is_set():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.1)
            if enough.is_set():
                return
            await asyncio.gather(*(self._send(f"{self.name}-{count + place}") for place in range(_burst)))
            await asyncio.sleep(pause)

    async def wait_for_walks(self) -> None:
        """Wait until all walks have returned."""
        while self._under_way:
            self._changed.clear()
            await self._changed.wait()

    async def _send(self, walk: str) -> None:
        while True:
            self._number += 1
            home = f"{self.name}@{self._bus.address.rpartition('@')[2]}"
            notification = Walk(walk, self._length, self._walkers, home, self._number)
            try:
                await self._bus.send(next_of(walk, self._length, self._walkers), notification)
                self.accepted.add(walk)
                return
            except OverloadError:
                self.refused += 1
                await asyncio.sleep(0.05)

    async def _walk_returned_slowly(self, home: Home, letter: object) -> None:
        # A connection may break while a handler waits.
        await asyncio.sleep(0.001)
        self._walk_returned(home, letter)

    def _walk_returned(self, home: Home, letter: object) -> None:
        sender = getattr(letter, "source", "")
        last = self._last.get(sender, 0)
        if home.number <= last:
            self.wrong.append(f"{self.name}: message {home.number} from {sender} came after message {last}")
        self._last[sender] = home.number
        self.returned[home.walk] += 1
        self._changed.set()


class Load:
    """All clients of a trial: one at each server."""

    def __init__(self, topology: TopologyFile, length: int = 4, together: int = 300) -> None:
        self._topology = topology
        self._length = length
        self._together = together
        self._buses: list[Bus] = []
        self.clients: list[WalkClient] = []

    async def begin(self) -> None:
        """Connect to the servers, which must all be up."""
        for place, (server, address) in enumerate(self._topology.servers.items()):
            name = f"client{place}"
            bus = connect(str(address), name=name, patience=60)
            await bus.__aenter__()
            self._buses.append(bus)
            walkers, slow = len(self._topology.servers), place % 2 == 1
            self.clients.append(WalkClient(name, bus, walkers, self._length, self._together, slow))
            assert bus.address == f"{name}@{server}"

    async def travel(self, enough: asyncio.Event, pause: float) -> None:
        """Let all clients start walks (letters that go from agent to agent), even while faults happen. Return when
        ``enough`` is set and all these walks are accepted."""
        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                group.create_task(client.travel(enough, pause))

    async def settle(self, seconds: float) -> list[str]:
        """Wait until all walks have returned. Then check the count and the digest (a checksum) of the messages that
        each walker has handled, and wait until the servers are idle. Return the errors. All servers must be running."""
        found: list[str] = []
        try:
            async with asyncio.timeout(seconds):
                for client in self.clients:
                    await client.wait_for_walks()
        except TimeoutError:
            missing = {client.name: len(client.missing) for client in self.clients if client.missing}
            return [f"walks that did not return within {seconds:.0f} s: {missing}"]
        found += await self._ask(seconds)
        found += await self.idle(seconds)
        return found

    async def idle(self, seconds: float) -> list[str]:
        """Wait until the servers are idle. Return the errors: servers that are not idle in time, and walks that clients
        received out of order or twice."""
        found: list[str] = []
        try:
            async with asyncio.timeout(seconds):
                while busy := await self._busy():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            found.append(f"not idle within {seconds:.0f} s: {busy}")
        for client in self.clients:
            found += client.wrong
            found += (f"{walk} returned {count} times" for walk, count in client.returned.items() if count > 1)
        return found

    async def close(self) -> None:
        """Close all connections."""
        for bus in self._buses:
            await bus.close()

    def reactions(self) -> tuple[Counter[str], Counter[str]]:
        """Return two tables with an entry for each walker: the expected number of handled messages, and the expected
        digest (a checksum) of these messages. Both are computed from the names of the walks that are accepted so
        far."""
        count: Counter[str] = Counter()
        digest: Counter[str] = Counter()
        for client in self.clients:
            for walk in client.accepted:
                for walker, addend in reactions_of(walk, self._length, len(self._topology.servers)):
                    count[walker] += 1
                    digest[walker] += addend
        return count, digest

    async def counts_of(self, walker: str, seconds: float) -> Told:
        """Ask a walker for the count and the digest (a checksum) of the messages that it has handled."""
        return await self._buses[0].ask(walker, Tell(), expect=Told, timeout=seconds)

    async def _ask(self, seconds: float) -> list[str]:
        """Ask every walker for the count and the digest (a checksum) of the messages that it has handled. Compare the
        answers with the expected values (``reactions``), and return the errors."""
        count, digest = self.reactions()
        found: list[str] = []
        for place in range(len(self._topology.servers)):
            walker = name_of_walker(place)
            # Marks end at their destination, so there is no signal when the last of them has arrived.
            reply = Told(-1, 0, [])
            for _ in range(_questions_max):
                reply = await self.counts_of(walker, seconds)
                if reply.count >= count[walker]:
                    break
                await asyncio.sleep(0.1)
            found += (f"{walker}: {line}" for line in reply.wrong)
            if (reply.count, reply.digest) != (count[walker], digest[walker]):
                found.append(
                    f"{walker} reacted {reply.count} times, expected {count[walker]}; "
                    f"digests {reply.digest} and {digest[walker]}"
                )
        return found

    async def _busy(self) -> str:
        """Return a text about the first server that is not idle; an empty text if all servers are idle."""
        for server, address in self._topology.servers.items():
            try:
                status = await request(address, "", "status")
            except ClosedError as error:
                return str(error)
            links = [link for domain in status["domains"].values() for link in domain["links"].values()]
            if status["waiting_letters"] or any(link["unacknowledged"] or link["held"] for link in links):
                return f"{server} has {status['waiting_letters']} letters, links {links}"
            if status["log"]["durable"] < status["log"]["last"]:
                # A kill now would lose the record that a client has handled its last letter.
                return f"{server} has records that are not durable: {status['log']}"
            if status["health"] != "ok":
                return f"{server} is {status['health']}: {status['trouble']} {status['stopped']}"
        return ""


def judge_directories(directories: list[str], orders: tuple[str, ...] = ("fifo", "causal")) -> Figures:
    """Verify the trace in the servers' data directories; return the counts and the errors. ``orders``: the orders that
    the trace must keep."""
    try:
        with gathered(directories) as paths:
            report = verify(paths, orders)
    except AntecedeError as error:
        return Figures(found=[f"the trace cannot be read: {error}"])
    figures = Figures(
        events=report["events"],
        messages=report["messages"],
        deliveries=report["deliveries"],
        undelivered=report["undelivered"],
        late=sum(order["late"] for order in report["orders"].values()),
        set_aside=report["quarantined"],
    )
    figures.found = list(_wrong(figures))
    return figures


def _wrong(figures: Figures) -> Iterator[str]:
    if figures.set_aside:
        yield f"rows that are certainly wrong: {figures.set_aside}"
    if figures.undelivered:
        yield f"{figures.undelivered} accepted copies are not delivered"
    if figures.late:
        yield f"{figures.late} late deliveries"


_burst = 8
"""The number of walks that a client starts before it waits until they are accepted."""
_questions_max = 100
