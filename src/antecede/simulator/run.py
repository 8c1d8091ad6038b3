"""One simulated run, from its settings to its figures: ``antecede simulate`` as a function.

The settings in :class:`Setup` determine everything that happens in a run. The times between sends, the delays, the
destinations and the faults are each drawn from a separate stream of random numbers. So two runs with the same seed but
different orders have the same sends of the application, unless the application reacts to deliveries. If the two orders
also send the same packets, the two runs have the same delays and faults.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from antecede import limits
from antecede.errors import BroadcastOnlyError, UsageError
from antecede.messages import Message
from antecede.orders import OrderSpec
from antecede.simulator.draws import Draw, below, parse_draw, stream, subset
from antecede.simulator.kernel import Workload, World
from antecede.simulator.observers import Figures, Recorder, process_names
from antecede.simulator.worlds import BareWorld, ChannelWorld, FaultyWorld
from antecede.topology import Topology
from antecede.trace import Event

# Workloads. A workload decides which process sends to which other processes, and when.
#
# ``uniform`` and ``multicast`` are the set-up of Jang et al. §6.2: every process sends at its own intervals. A
# multicast goes to k different processes. All values of k from 1 to n − 1 have the same probability, where n is the
# number of processes. So the mean of k is n / 2. ``broadcast`` sends each message to all other processes. The other
# workloads imitate real systems: requests and replies, a ping-pong, groups that communicate mostly among themselves.


Destinations = Callable[[int], int]
"""A function that gets the number of a process, and returns the destinations of its next message as a bit mask."""


def uniform(processes: int, rng: Random) -> Destinations:
    """Return a function that chooses one of the other processes. Each of them has the same probability."""

    def choose(process: int) -> int:
        other = below(rng, processes - 1)
        return 1 << (other + (other >= process))

    return choose


def multicast(processes: int, rng: Random) -> Destinations:
    """Return a function that chooses some of the other processes. Every number of destinations from 1 to ``processes``
    − 1 has the same probability."""
    others = [[other for other in range(processes) if other != process] for process in range(processes)]

    def choose(process: int) -> int:
        return subset(rng, others[process], 1 + below(rng, processes - 1))

    return choose


def broadcast(processes: int, rng: Random) -> Destinations:
    """Return a function that chooses all other processes."""
    everyone = (1 << processes) - 1
    return lambda process: everyone & ~(1 << process)


def clusters(processes: int, rng: Random, size: int = 4, locality: float = 0.9) -> Destinations:
    """Return a function that chooses one other process. With the probability ``locality``, it chooses from the sender's
    group of ``size`` consecutive processes. Otherwise it chooses from all other processes."""
    anywhere = uniform(processes, rng)

    def choose(process: int) -> int:
        first = process - process % size
        near = [other for other in range(first, min(first + size, processes)) if other != process]
        if near and rng.random() < locality:
            return 1 << near[below(rng, len(near))]
        return anywhere(process)

    return choose


SHAPES: dict[str, Callable[[int, Random], Destinations]] = {
    "unicast": uniform,
    "multicast": multicast,
    "broadcast": broadcast,
    "clusters": clusters,
}


class Spontaneous:
    """A workload: every process sends at its own intervals, until ``messages`` messages have been sent in total."""

    payload = b""

    def __init__(self, messages: int, gap: Draw, destinations: Destinations) -> None:
        self._left = messages
        self._gap = gap
        self._destinations = destinations

    def start(self, world: World) -> None:
        for process in range(world.processes):
            world.wake_after(self._gap(), process)

    def wake(self, world: World, process: int) -> None:
        if self._left:
            self._left -= 1
            world.send(process, self._destinations(process), self.payload)
            world.wake_after(self._gap(), process)

    def delivered(self, world: World, process: int, message: Message) -> None:
        pass


class RequestReply(Spontaneous):
    """A workload: every process sends requests at its own intervals, and every receiver of a request sends a reply. The
    workload ends when ``messages`` requests and replies have been sent in total."""

    payload = b"request"

    def delivered(self, world: World, process: int, message: Message) -> None:
        if message.payload == self.payload and self._left:
            self._left -= 1
            world.send(process, 1 << message.source, b"reply")


class PingPong:
    """A workload: process 0 sends one message to every other process. From then on, every receiver of a message answers
    immediately (Laumay et al. §6.1), until ``messages`` messages have been sent in total."""

    def __init__(self, messages: int) -> None:
        self._left = messages

    def start(self, world: World) -> None:
        if world.processes < 2:
            raise UsageError("the workload ping-pong needs at least two processes")
        for other in range(1, world.processes):
            self._send(world, 0, other)

    def wake(self, world: World, process: int) -> None:
        pass

    def delivered(self, world: World, process: int, message: Message) -> None:
        self._send(world, process, message.source)

    def _send(self, world: World, process: int, to: int) -> None:
        if self._left:
            self._left -= 1
            world.send(process, 1 << to)


WORKLOADS = (*SHAPES, "request-reply", "ping-pong")


class Setup(msgspec.Struct, frozen=True):
    """All settings of a run."""

    order: OrderSpec
    processes: int = 8
    messages: int = 1_000
    workload: str = "unicast"
    gap: str = "exponential:0.1"
    delay: str = "exponential:0.1"
    fifo_links: bool = False
    loss: float = 0.0
    duplicate: float = 0.0
    crash: float = 0.0
    partition: float = 0.0
    warmup: int = 0
    seed: int = 1
    organisation: Topology | None = None
    """The topology of the run: each of its servers is one process. The caller must have checked the topology. If it is
    None, all processes form one domain."""
    orders: dict[str, OrderSpec] = {}
    """The order of each domain of the topology, by the domain's name. A domain without an entry uses ``order``."""

    def check(self) -> None:
        """Refuse settings that make no sense, before anything runs."""
        _within("processes", self.processes, 2, limits.members_max)
        _within("messages", self.messages, 0, limits.simulated_messages_max)
        _within("warmup", self.warmup, 0, self.messages)
        for name, share in self.faults().items():
            if not 0.0 <= share <= 0.9:
                raise UsageError(f"{name} {share}: expected a share from 0 to 0.9")
        if self.workload not in WORKLOADS:
            raise UsageError(f"unknown workload {self.workload!r}: expected one of {', '.join(WORKLOADS)}")
        for spec in (self.gap, self.delay):
            parse_draw(spec, stream(self.seed, "unused"))
        for order in self.used():
            if "broadcast" in order.kind.needs and self.workload != "broadcast":
                raise BroadcastOnlyError(f"order {order.name} supports broadcasts only: add --broadcast")
        if self.organisation is not None:
            self._check_organised(self.organisation)
        if self.fifo_links and self.faulty():
            raise UsageError("--fifo-links cannot be combined with loss, duplicates, crashes or partitions")
        if self.organisation is None:
            self.order.create(0, self.processes)

    def _check_organised(self, organisation: Topology) -> None:
        if self.processes != len(organisation.servers):
            raise UsageError(f"processes {self.processes}: expected {len(organisation.servers)}, one for each server")
        if self.faulty():
            raise UsageError("--topology cannot be combined with loss, duplicates, crashes or partitions")
        if len(organisation.trees) > 1:
            apart = next(iter(sorted(organisation.trees[1])))
            raise UsageError(
                f"there is no route from {organisation.servers[0]} to {apart}: simulate needs one connected topology"
            )

    def used(self) -> list[OrderSpec]:
        """Return the orders that the run uses, without duplicates."""
        if self.organisation is None:
            return [self.order]
        chosen = [self.orders.get(name, self.order) for name in self.organisation.domains]
        return list({str(order): order for order in chosen}.values())

    def names(self) -> list[str]:
        """Return the names that the processes have in the trace."""
        return process_names(self.processes) if self.organisation is None else list(self.organisation.servers)

    def faults(self) -> dict[str, float]:
        """Return four settings by name. ``loss``: the share of frames that are lost. ``duplicate``: the share of frames
        that arrive twice. ``crash``: the share of steps with a crash. ``partition``: the share of sends at which a
        network partition begins."""
        return {"loss": self.loss, "duplicate": self.duplicate, "crash": self.crash, "partition": self.partition}

    def faulty(self) -> bool:
        """Return whether the run has faults. If so, it needs simulated links and disks."""
        return any(self.faults().values())

    def counters(self) -> Figures:
        """Return the counters for a run. Another thread may read them during the run."""
        return Figures(self.warmup, routed=self.organisation is not None)

    def world(self, figures: Figures, observer: Recorder | None) -> World:
        """Return the world of a run, with its faults and delays."""
        delay = parse_draw(self.delay, stream(self.seed, "delay"))
        if self.organisation is not None:
            specs = {name: self.orders.get(name, self.order) for name in self.organisation.domains}
            fifo = self.fifo_links
            return ChannelWorld(self.organisation, specs, delay, fifo_links=fifo, figures=figures, observer=observer)
        if not self.faulty():
            fifo = self.fifo_links
            return BareWorld(self.order, self.processes, delay, fifo_links=fifo, figures=figures, observer=observer)
        random = stream(self.seed, "faults")
        return FaultyWorld(
            self.order, self.processes, delay, random, **self.faults(), figures=figures, observer=observer
        )

    def application(self) -> Workload:
        """Return the workload of a run, which decides what is sent."""
        if self.workload == "ping-pong":
            return PingPong(self.messages)
        gap = parse_draw(self.gap, stream(self.seed, "gap"))
        rng = stream(self.seed, "destinations")
        if self.workload == "request-reply":
            return RequestReply(self.messages, gap, SHAPES["unicast"](self.processes, rng))
        return Spontaneous(self.messages, gap, SHAPES[self.workload](self.processes, rng))


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(f"{name} {value}: expected {least} to {most}")


def simulate(
    setup: Setup, sink: Callable[[Event], None] | None = None, figures: Figures | None = None
) -> dict[str, Any]:
    """Run a simulation to its end and return the figures. Every event goes to ``sink``."""
    setup.check()
    figures = setup.counters() if figures is None else figures
    observer = None if sink is None else Recorder(setup.names(), sink)
    setup.world(figures, observer).run(setup.application())
    return {"order": ", ".join(map(str, setup.used())), "processes": setup.processes, **figures.report()}
