"""A world of servers: one loop of events in virtual time, a network that mistreats frames, clients, and faults.

Two neighbours share one connection at a time. Each end says hello once its links are durable; frames travel when both
hellos were said and heard, and may be lost, repeated and reordered, which is worse than any real connection. When a
connection breaks, what was under way on it is gone. Hellos are neither lost nor overtaken: a connection that loses one
is none.

Everything is drawn from one seed. When the faults' time is over the world is **calm**: what is down comes up, what is
cut off is reached again, nothing more is lost, and the loop runs until nobody has anything to do.
"""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from random import Random
from typing import Any

from antecede.channel import Letter, Outgoing
from antecede.engine import React
from antecede.engine.agents import Agent, Notification
from antecede.errors import UsageError
from antecede.link import Hello
from antecede.server import Accepted, FromPeer, Plan, Refused
from antecede.server.projection import project
from antecede.simulator.servers.client import SimulatedClient
from antecede.simulator.servers.faults import NONE, Faults
from antecede.simulator.servers.server import SimulatedServer
from antecede.trace import Event

_steps_max = 200_000
_effects_between = 40
"""A server that is to crash does so within that many effects."""


class Connection:
    """One connection of two neighbours."""

    def __init__(self, ends: tuple[str, str]) -> None:
        self.said = dict.fromkeys(ends, False)
        self.heard = dict.fromkeys(ends, False)

    @property
    def ready(self) -> bool:
        return all(self.said.values()) and all(self.heard.values())


class ServerWorld:
    """Servers, their network, their clients."""

    server_class: type[SimulatedServer] = SimulatedServer

    def __init__(
        self,
        plan: Plan,
        agents: dict[str, type[Agent]],
        seed: int,
        faults: Faults = NONE,
        durability: str = "disk",
    ) -> None:
        self.random = Random(f"{seed}/servers")
        self.now = 0.0
        self.faults = faults
        self.calm = True
        self.plan = plan
        self.classes: dict[str, type[Agent]] = {}
        """Of agents that were created at run time."""
        self.servers: dict[str, SimulatedServer] = {}
        self.clients: dict[str, SimulatedClient] = {}
        self.letters: dict[str, Letter] = {}
        """Every letter that was ever handed out, by its id."""
        self.wrongs: list[str] = []
        """What servers and clients complained about."""
        self.crashes = 0
        self._failed: set[str] = set()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._posted = 0
        self._steps = 0
        self._cut: set[frozenset[str]] = set()
        self._connections: dict[frozenset[str], Connection] = {}
        self._neighbours: dict[frozenset[str], list[str]] = {}
        for name, domain in plan.topology.domains.items():
            for one in domain.servers:
                for other in domain.servers:
                    if one < other:
                        self._neighbours.setdefault(frozenset((one, other)), []).append(name)
        self._pairs = sorted((min(pair), max(pair)) for pair in self._neighbours)
        for name in plan.topology.servers:
            mine = {agent: kind for agent, kind in agents.items() if plan.homes[agent] == name}
            self.servers[name] = self.server_class(self, name, plan, mine, durability)
        for server in self.servers.values():
            server.start()

    # The loop.

    def later(self, seconds: float, call: Callable[..., None], *given: Any) -> None:
        """Do something later."""
        self._posted += 1
        heappush(self._heap, (self.now + seconds, self._posted, call, given))

    def run(self, seconds: float | None = None) -> None:
        """Let faults happen for their time, then let everything come to rest; or run for so many seconds only, faults
        included, so that several runs may share one time of faults."""
        if self.calm:
            self._plan_faults()
        self._until(None if seconds is None else self.now + seconds)

    def _until(self, end: float | None) -> None:
        heap = self._heap
        budget = self._steps + _steps_max
        while heap and (end is None or heap[0][0] <= end):
            self.now, _, call, given = heappop(heap)
            call(*given)
            self._steps += 1
            if self._steps > budget:
                raise AssertionError(f"the world does not come to rest: {_steps_max} events, and more to do")
        if end is not None:
            self.now = max(self.now, end)

    # Faults.

    def _plan_faults(self) -> None:
        faults, draw = self.faults, self.random.random
        if faults == NONE:
            return
        self.calm = False
        self.later(faults.seconds, self._calm_down)
        names = list(self.servers)
        several: list[tuple[int, Callable[[], None]]] = [
            (faults.crashes, lambda: self._doom(self._any(names))),
            (faults.partitions, self._partition),
            (faults.resets, self._reset),
            (faults.slow_disks, lambda: self._slow_disk(self._any(names))),
            (faults.clock_jumps, lambda: self._jump(self._any(names))),
            (faults.snapshots, lambda: self._snapshot(self._any(names))),
        ]
        for count, happens in several:
            for _ in range(count):
                self.later(draw() * faults.seconds, happens)

    def _calm_down(self) -> None:
        self.calm = True
        self._cut.clear()
        for server in self.servers.values():
            server.effects_left = 0
            server.commit_seconds = 0.001
            if not server.up:
                server.start()
        for pair in self._pairs:
            self._connect(pair)

    def _any(self, names: list[str]) -> str:
        return names[int(self.random.random() * len(names))]

    def _doom(self, name: str) -> None:
        """A server will be gone after some effects."""
        server, draw = self.servers[name], self.random.random
        if self.calm or server.effects_left:
            return
        kind = draw()
        if server.durability == "os":
            server.how = "kill"
        elif kind < self.faults.broken_syncs:
            server.how = "sync"
        else:
            server.how = "power" if draw() < self.faults.powercuts else "kill"
        server.effects_left = 1 + int(draw() ** 2 * _effects_between)

    def crash(self, name: str, how: str = "power") -> None:
        """A server is gone now; it comes back by itself."""
        server = self.servers[name]
        if server.up:
            server.how = how
            server.crash()

    def cut(self, one: str, other: str, seconds: float) -> None:
        """Two neighbours cannot reach each other for a while."""
        pair = frozenset((one, other))
        if pair not in self._neighbours:
            raise UsageError(f"{one} and {other} are no neighbours")
        self._cut.add(pair)
        self._connections.pop(pair, None)
        self.later(seconds, self._heal, (one, other))

    def _heal(self, pair: tuple[str, str]) -> None:
        self._cut.discard(frozenset(pair))
        self._connect(pair)

    def _partition(self) -> None:
        if self._pairs and not self.calm:
            pair = self._pairs[int(self.random.random() * len(self._pairs))]
            self.cut(*pair, self.random.random() * 0.5)

    def _reset(self) -> None:
        if self.calm:
            return
        which = int(self.random.random() * (len(self._pairs) + len(self.clients)))
        if which < len(self._pairs):
            self._connections.pop(frozenset(self._pairs[which]), None)
            self.later(self.random.random() * 0.05, self._connect, self._pairs[which])
        else:
            list(self.clients.values())[which - len(self._pairs)].disconnect()

    def _slow_disk(self, name: str) -> None:
        if not self.calm:
            self.servers[name].commit_seconds = 0.2

    def _jump(self, name: str) -> None:
        self.servers[name].set_clock(int((self.random.random() - 0.5) * 4000))

    def _snapshot(self, name: str) -> None:
        server = self.servers[name]
        server.guard(server.life, server.take_snapshot)

    # What servers ask for.

    def went(self, server: SimulatedServer) -> None:
        """A server is gone: its connections are, too, and it comes back later."""
        self.crashes += 1
        for pair in self._pairs:
            if server.name in pair:
                self._connections.pop(frozenset(pair), None)
        for client in self.clients.values():
            if client.home is server and client.session is not None:
                client.disconnect()
        self.later(0.002 + self.random.random() ** 2 * 0.3, self._come_back, server)

    def _come_back(self, server: SimulatedServer) -> None:
        if server.up:
            return
        if not self.calm and self.random.random() < 0.2:
            # One that crashes again while it recovers, or soon after.
            server.how = "kill" if server.durability == "os" or self.random.random() < 0.5 else "power"
            server.effects_left = 1 + int(self.random.random() * 40)
        server.start()

    def came(self, server: SimulatedServer) -> None:
        """A server is there (again)."""
        for pair in self._pairs:
            if server.name in pair:
                self.later(self.random.random() * 0.01, self._connect, pair)

    def misbehaved(self, server: SimulatedServer, reason: str) -> None:
        """Something that must not happen, whatever the faults."""
        self.wrongs.append(f"{server.name}: {reason}")

    def born(self, kind: str, agent: type[Agent]) -> None:
        """A reaction creates an agent of this class; a server that comes back must find it again."""
        self.classes[kind] = agent

    def class_of(self, kind: str) -> type[Agent]:
        """The class of an agent that was created at run time."""
        return self.classes[kind]

    def handed_out(self, due: React) -> None:
        """Letters reach an agent or a client."""
        for letter in due.letters:
            self.letters[letter.id] = letter

    def fails(self, due: React) -> bool:
        """Whether this batch is to fail: at its first try, and never the same letter twice."""
        letter = due.letters[0].id
        if self.calm or letter in self._failed or self.random.random() >= self.faults.failures:
            return False
        self._failed.add(letter)
        return True

    # Connections of servers.

    def _connect(self, pair: tuple[str, str]) -> None:
        key = frozenset(pair)
        if key in self._cut or key in self._connections:
            return
        ends = [self.servers[name] for name in pair]
        if not all(end.up for end in ends):
            return
        connection = self._connections[key] = Connection(pair)
        for me, peer in (ends, ends[::-1]):
            me.guard(me.life, self._say_hello, connection, me, peer)

    def _say_hello(self, connection: Connection, me: SimulatedServer, peer: SimulatedServer) -> None:
        hellos = [
            (domain, me.machine.channel.consumers[domain].links[peer.name].hello())
            for domain in self._neighbours[frozenset((me.name, peer.name))]
        ]
        me.when_durable(lambda: self._hello_leaves(connection, me, peer, hellos))

    def _hello_leaves(
        self, connection: Connection, me: SimulatedServer, peer: SimulatedServer, hellos: list[tuple[str, Hello]]
    ) -> None:
        connection.said[me.name] = True
        self.later(self._delay(), self._hello_arrives, connection, me, peer, hellos)

    def _hello_arrives(
        self, connection: Connection, me: SimulatedServer, peer: SimulatedServer, hellos: list[tuple[str, Hello]]
    ) -> None:
        if self._connections.get(frozenset((me.name, peer.name))) is not connection:
            return
        for domain, hello in hellos:
            peer.submit(FromPeer(domain, me.name, hello))
        connection.heard[peer.name] = True

    def leaves(self, server: SimulatedServer, outgoing: Outgoing) -> None:
        """A frame or an acknowledgement enters the network."""
        connection = self._connections.get(frozenset((server.name, outgoing.peer)))
        if connection is None or not connection.ready:
            return
        copies = 1
        if not self.calm:
            if self.random.random() < self.faults.loss:
                return
            copies += self.random.random() < self.faults.duplicates
        for _ in range(copies):
            self.later(self._delay(), self._arrives, connection, server.name, outgoing)

    def _arrives(self, connection: Connection, source: str, outgoing: Outgoing) -> None:
        if self._connections.get(frozenset((source, outgoing.peer))) is connection:
            self.servers[outgoing.peer].submit(FromPeer(outgoing.domain, source, outgoing.content))

    def _delay(self) -> float:
        draw = self.random.random
        return 0.0005 + draw() * 0.002 if draw() < 0.8 else draw() * 0.05

    # Clients.

    def client(self, address: str) -> SimulatedClient:
        """The client of that address, ``name@server``; it is there from its first mention on."""
        known = self.clients.get(address)
        if known is None:
            name, _, home = address.rpartition("@")
            if not name or home not in self.servers:
                raise UsageError(f"client {address!r}: expected name@server, and a server of the topology")
            known = self.clients[address] = SimulatedClient(self, name, self.servers[home])
            known.connect()
        return known

    def send(self, source: str, to: str | Iterable[str], notification: Notification) -> None:
        """A client publishes, to one or several."""
        client = self.client(source)
        targets = (to,) if isinstance(to, str) else tuple(sorted(set(to)))
        # Addresses that cannot be reached are refused by the server; here whoever asks is told at once.
        client.home.machine.channel.check(targets)
        client.send(targets, notification)

    def replies(self, server: SimulatedServer, reply: Accepted | Refused) -> None:
        """A server answers a client's publish."""
        client = self.clients.get(f"{reply.client}@{server.name}")
        if client is not None:
            client.reply(reply)

    def due_client(self, server: SimulatedServer, due: React) -> None:
        """A server has letters for a client."""
        client = self.clients.get(due.agent)
        if client is not None:
            client.due(due)

    # The trace.

    def trace(self) -> list[Event]:
        """The rows of all servers' logs, as they are on the disks now."""
        rows: list[Event] = []
        for server in self.servers.values():
            incarnation = server.machine.incarnation
            rows += project(server.records(), server.name, incarnation, self.plan.topology, self.plan.homes)
        return rows
