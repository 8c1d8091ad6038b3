"""A world of servers: one loop of events in virtual time, a network with faults, clients, and faults of servers.

Servers and clients use the same code as in a live system. :mod:`antecede.simulator.servers.network` connects them.

One seed determines all random choices. When the time of faults is over, the world is **calm**: servers restart,
connections are made again, nothing more is lost, and the loop runs until nothing is pending.
"""

from collections.abc import Callable, Iterable

import msgspec

from antecede.engine.agents import Agent, Notification
from antecede.errors import UsageError
from antecede.server import Plan
from antecede.server.items import Item, decode_record
from antecede.server.projection import project
from antecede.simulator.draws import stream
from antecede.simulator.servers.client import Operators, SimulatedClient
from antecede.simulator.servers.network import NONE, End, Faults, connect
from antecede.simulator.servers.server import SIZES, SimulatedServer, Surroundings
from antecede.store import Sizes
from antecede.trace import Event

# The regular work of a simulated world: the work that servers and clients do every few seconds.
#
# Only regular work closes silent connections, forgets temporary clients that are gone, lets letters above a quota
# expire, and tries a failed snapshot again. In a calm world (when all faults are over), regular work stops when none of
# these tasks is left. If regular work continued, the world would never become idle.


LOOK_SECONDS = 4.0
"""The number of seconds between two rounds of regular work in a calm world. This interval is shorter than the interval
of heartbeats."""
_rounds_max = 200
"""The largest number of rounds of regular work in a calm world. If regular work still has a task after these rounds,
the world reports an error. The task that needs the most rounds is to forget a temporary client."""


class RegularWork:
    """The scheduler of the regular work in one world."""

    def __init__(self, world: "ServerWorld") -> None:
        self._world = world
        self.mute: list[End] = []
        """The mute connections: everything that is sent on them is lost."""
        self._planned = False

    def look(self) -> None:
        """Let all servers and clients do their regular work."""
        for server in self._world.servers.values():
            server.attend()
        for client in self._world.clients.values():
            if not client.over:
                client.watch()

    def go_on(self) -> None:
        """Schedule a round of regular work if there is a task that only regular work can do."""
        if not self._planned and self._unsettled():
            self._plan(0)

    def _unsettled(self) -> str:
        self.mute = [end for end in self.mute if end.lingers]
        if self.mute:
            return f"a connection to {self.mute[0].remote} is silent, but was not closed"
        for server in self._world.servers.values():
            if server.up and (work := server.unsettled_work()):
                return f"{server.name}: {work}"
        return ""

    def _plan(self, rounds: int) -> None:
        self._planned = True
        if not rounds:
            self._world.attended = self._world.now
        self._world.later(LOOK_SECONDS, self._round, rounds)

    def _round(self, rounds: int) -> None:
        self._planned = False
        unsettled = self._unsettled()
        if unsettled and rounds >= _rounds_max:
            self._world.report_error("regular work", unsettled)
            for end in self.mute:
                end.disconnect()
        elif unsettled:
            self.look()
            self._plan(rounds + 1)


_effects_between = 40
"""A planned crash comes after at most this number of calls of ``effect`` (one for each step, frame, disk operation)."""


class Logs(msgspec.Struct):
    """The records of each server's log, the items in them, and the trace rows that result from all logs."""

    records: dict[str, list[bytes]]
    items: dict[str, list[Item]]
    rows: list[Event]


class ServerWorld(Surroundings):
    """A simulated world in virtual time: servers, the network between them, their clients, and faults of all these."""

    server_class: type[SimulatedServer] = SimulatedServer
    events_max = 200_000
    """A world that is not idle after this number of events is taken for one that never becomes idle."""

    def __init__(
        self,
        plan: Plan,
        agents: dict[str, type[Agent]],
        seed: int,
        faults: Faults = NONE,
        durability: str = "disk",
        sizes: Sizes = SIZES,
    ) -> None:
        super().__init__(stream(seed, "servers"), faults, sizes)
        self.plan = plan
        self.prepare(seed)
        self.servers: dict[str, SimulatedServer] = {}
        self.clients: dict[str, SimulatedClient] = {}
        self.absent: set[str] = set()
        """Clients that are gone and never return."""
        self.gone: dict[str, None] = {}
        """Servers that were removed from the topology, in the sequence of their removal."""
        self.operators = Operators(self)
        self.crashes = 0
        self._regular = RegularWork(self)
        self._cut: set[frozenset[str]] = set()
        self._connections: dict[frozenset[str], End] = {}
        """For each pair of peers, the end that dialed their latest connection."""
        domains = plan.topology.domains.values()
        self._pairs = sorted({(one, two) for own in domains for one in own.servers for two in own.servers if one < two})
        for name in plan.topology.servers:
            mine = {agent: kind for agent, kind in agents.items() if plan.homes[agent] == name}
            self.servers[name] = self.server_class(self, name, plan, mine, durability)
        for server in self.servers.values():
            server.start()

    def prepare(self, seed: int) -> None:
        """Do nothing. A subclass can override this method to prepare something before the servers start."""

    # The loop.

    def run(self, seconds: float | None = None) -> None:
        """Run until the fault period is over and nothing is pending. If no fault period is in progress, begin one. If
        ``seconds`` is given, stop after this number of virtual seconds. If the fault period is not over at that time,
        the next call continues it."""
        if self.calm:
            self._plan_faults()
        self._until(None if seconds is None else self.now + seconds)

    def settle(self) -> None:
        """Run until nothing is pending, without planning new faults."""
        self._until(None)

    def _until(self, end: float | None) -> None:
        kernel = self._kernel
        for _ in range(self.events_max):
            if not kernel.events and end is None and not self.errors:
                self._regular.go_on()
            if not kernel.events or (end is not None and kernel.events[0][0] > end):
                break
            self.step()
        else:
            raise AssertionError(f"the world does not become idle within {self.events_max:,} events")
        if end is not None:
            kernel.now = max(kernel.now, end)

    # Faults.

    def _plan_faults(self) -> None:
        faults, draw = self.faults, self.random.random
        if faults == NONE:
            return
        self.calm = False
        self.later(faults.seconds, self._calm_down)
        several: list[tuple[int, Callable[[], None]]] = [
            (faults.crashes, lambda: self._plan_crash(self._some_server())),
            (faults.stops, lambda: self.servers[self._some_server()].stop()),
            (faults.partitions, self._partition),
            (faults.resets, self._reset),
            (faults.slow_disks, lambda: self._slow_disk(self._some_server())),
            (faults.full_disks, lambda: self._fill_disk(self._some_server())),
            (faults.overloads, lambda: self._crowd(self._some_server())),
            (faults.operators, lambda: self.operators.settle_dead(self.servers[self._some_server()])),
            (faults.client_kills, lambda: self._to_client(SimulatedClient.kill)),
            (faults.takeovers, lambda: self._to_client(SimulatedClient.take_over)),
            (faults.stalls, self._stall),
            (faults.silences, self._silence),
            (faults.clock_jumps, lambda: self.servers[self._some_server()].set_clock(int((draw() - 0.5) * 4000))),
            (faults.looks, lambda: self.servers[self._some_server()].attend()),
        ]
        for count, happens in several:
            for _ in range(count):
                self.later(draw() * faults.seconds, happens)

    def _calm_down(self) -> None:
        self.calm = True
        self._cut.clear()
        for server in self.servers.values():
            server.spare()
            server.commit_seconds = 0.001
            server.disk_full = False
            server.crowd(False)
            if not server.up and server.name not in self.gone:
                server.start()
        self._regular.go_on()

    def _some_server(self) -> str:
        return self._any(list(self.servers))

    def _any(self, names: list[str]) -> str:
        return names[int(self.random.random() * len(names))]

    def _plan_crash(self, name: str) -> None:
        """Plan the crash of a server after a random number of calls of ``effect`` (steps, frames, disk operations)."""
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
        """Crash a server now; it restarts by itself."""
        server = self.servers[name]
        if server.up:
            server.how = how
            server.crash()

    def cut(self, one: str, other: str, seconds: float) -> None:
        """Cut the connection between two servers for this number of seconds."""
        pair = frozenset((one, other))
        if tuple(sorted(pair)) not in self._pairs:
            raise UsageError(f"{one} and {other} share no domain, so there is no connection to cut")
        self._cut.add(pair)
        self._disconnect(pair)
        self.later(seconds, self._cut.discard, pair)

    def _disconnect(self, pair: frozenset[str]) -> None:
        end = self._connections.pop(pair, None)
        if end is not None:
            end.disconnect()

    def _partition(self) -> None:
        if self._pairs and not self.calm:
            pair = self._pairs[int(self.random.random() * len(self._pairs))]
            self.cut(*pair, self.random.random() * 0.5)

    def _reset(self) -> None:
        if self.calm:
            return
        which = int(self.random.random() * (len(self._pairs) + len(self.clients)))
        if which < len(self._pairs):
            self._disconnect(frozenset(self._pairs[which]))
        else:
            list(self.clients.values())[which - len(self._pairs)].reset()

    def _slow_disk(self, name: str) -> None:
        if not self.calm:
            self.servers[name].commit_seconds = 0.2

    def _fill_disk(self, name: str) -> None:
        if not self.calm:
            self.servers[name].disk_full = True
            self.later(self.random.random() * 0.3, setattr, self.servers[name], "disk_full", False)

    def _crowd(self, name: str) -> None:
        if not self.calm:
            self.servers[name].crowd(True)
            self.later(self.random.random() * 0.3, self.servers[name].crowd, False)

    def reset_domain(self, name: str) -> None:
        """Reset an idle domain at all members, as an operator does. Its order and links start from the beginning."""
        self._resetting = True
        self.operators.reset(name, [self.servers[server] for server in self.plan.topology.domains[name].servers])

    def _to_client(self, strikes: Callable[[SimulatedClient], None]) -> None:
        if self.clients and not self.calm:
            strikes(self.clients[self._any(list(self.clients))])

    def _some_end(self) -> End | None:
        """Return the dialing end of a random connection; None if there is no connection, or if the world is calm."""
        ends = [end for end in (*self._connections.values(), *(one.end for one in self.clients.values())) if end]
        return None if not ends or self.calm else ends[int(self.random.random() * len(ends))]

    def _silence(self) -> None:
        end = self._some_end()
        if end is not None and end.open:
            end.mute()
            self._regular.mute.append(end)

    def _stall(self) -> None:
        end = self._some_end()
        if end is None:
            return
        if self.random.random() < 0.5:
            end = end.other
        end.stall(True)
        self.later(self.random.random() * 0.3, end.stall, False)

    # Regular work.

    def pass_time(self, seconds: float) -> None:
        """Let this time pass; meanwhile all servers and clients do their regular work."""
        end = self.now + seconds
        self.attended = self.now
        while self.now < end:
            self._until(min(end, self.now + LOOK_SECONDS))
            self._regular.look()

    # Called by servers.

    def went(self, server: SimulatedServer) -> None:
        """Count the crash or stop of a server, and schedule its restart."""
        self.crashes += 1
        self.later(0.002 + self.random.random() ** 2 * 0.3, self._come_back, server)

    def _come_back(self, server: SimulatedServer) -> None:
        if server.up or server.name in self.gone:
            return
        if not self.calm and self.random.random() < 0.2:
            # A second crash while it recovers, or soon after.
            server.how = "kill" if server.durability == "os" or self.random.random() < 0.5 else "power"
            server.effects_left = 1 + int(self.random.random() * 40)
        server.start()

    # The network.

    def dial(self, server: SimulatedServer, peer: str) -> None:
        """Let a server dial a peer."""
        server.later(self.delay(), self._dialed, server, peer)

    def _dialed(self, server: SimulatedServer, peer: str) -> None:
        other, pair = self.servers[peer], frozenset((server.name, peer))
        if not other.listens or pair in self._cut:
            server.dial_failed(peer)
            return
        mine, theirs = server.end(peer), other.end(server.name)
        connect(mine, theirs)
        self._connections[pair] = mine
        other.guard(other.life, other.accept, theirs)
        server.dialed(peer, mine)

    # Clients.

    def client(self, address: str) -> SimulatedClient:
        """Return the client with the address ``name@server``; the first call for an address creates the client."""
        known = self.clients.get(address)
        if known is None:
            name, _, home = address.rpartition("@")
            if not name or home not in self.servers:
                raise UsageError(f"client {address!r}: expected name@server, with a server of the topology")
            known = self.clients[address] = SimulatedClient(self, name, self.servers[home])
        return known

    def send(self, source: str, to: str | Iterable[str], notification: Notification) -> None:
        """Let the client with the address ``source`` publish a notification to one or more addresses."""
        client = self.client(source)
        targets = (to,) if isinstance(to, str) else tuple(sorted(set(to)))
        # The server refuses unreachable addresses; here the caller gets the error at once.
        client.home.machine.channel.check(targets)
        client.send(targets, notification)

    # The trace.

    def logs(self) -> Logs:
        """Read all servers' logs, as they are on the disks now."""
        logs = Logs({}, {}, [])
        # Clients of a removed server have published there first.
        for name in dict.fromkeys([*self.gone, *self.servers]):
            server = self.servers[name]
            records = logs.records[name] = server.records()
            logs.items[name] = [item for record in records for item in decode_record(record)]
            logs.rows += project(records, name, server.machine.incarnation, server.plan.topology, server.plan.homes)
        return logs

    def trace(self) -> list[Event]:
        """Return the trace rows that result from the logs of all servers."""
        return self.logs().rows
