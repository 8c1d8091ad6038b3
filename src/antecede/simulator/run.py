"""One simulated run, from its settings to its figures: ``antecede simulate`` as a function.

The settings in :class:`Setup` determine everything that happens in a run. The times between sends, the delays, the
destinations and the faults are each drawn from a separate stream of random numbers. So two runs with the same seed but
different orders have the same sends of the application, unless the application reacts to deliveries. If the two orders
also send the same packets, the two runs have the same delays and faults.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from antecede import limits
from antecede.errors import BroadcastOnlyError, UsageError
from antecede.orders import OrderSpec
from antecede.simulator.bare import BareWorld
from antecede.simulator.channels import ChannelWorld, FaultyWorld
from antecede.simulator.draws import parse_draw, stream
from antecede.simulator.figures import Figures
from antecede.simulator.kernel import Workload, World
from antecede.simulator.recorder import Recorder, process_names
from antecede.simulator.workloads import SHAPES, PingPong, RequestReply, Spontaneous
from antecede.topology import Topology
from antecede.trace import Event

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


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(f"{name} {value}: expected {least} to {most}")


def figures_of(setup: Setup) -> Figures:
    """Return the counters for a run. Another thread may read them during the run."""
    return Figures(setup.warmup, routed=setup.organisation is not None)


def simulate(
    setup: Setup, sink: Callable[[Event], None] | None = None, figures: Figures | None = None
) -> dict[str, Any]:
    """Run a simulation to its end and return the figures. Every event goes to ``sink``."""
    setup.check()
    figures = figures_of(setup) if figures is None else figures
    observer = None if sink is None else Recorder(setup.names(), sink)
    _world(setup, figures, observer).run(_workload(setup))
    return {"order": ", ".join(map(str, setup.used())), "processes": setup.processes, **figures.report()}


def _world(setup: Setup, figures: Figures, observer: Recorder | None) -> World:
    delay = parse_draw(setup.delay, stream(setup.seed, "delay"))
    if setup.organisation is not None:
        specs = {name: setup.orders.get(name, setup.order) for name in setup.organisation.domains}
        fifo = setup.fifo_links
        return ChannelWorld(setup.organisation, specs, delay, fifo_links=fifo, figures=figures, observer=observer)
    if not setup.faulty():
        fifo = setup.fifo_links
        return BareWorld(setup.order, setup.processes, delay, fifo_links=fifo, figures=figures, observer=observer)
    random = stream(setup.seed, "faults")
    return FaultyWorld(
        setup.order, setup.processes, delay, random, **setup.faults(), figures=figures, observer=observer
    )


def _workload(setup: Setup) -> Workload:
    if setup.workload == "ping-pong":
        return PingPong(setup.messages)
    gap = parse_draw(setup.gap, stream(setup.seed, "gap"))
    rng = stream(setup.seed, "destinations")
    if setup.workload == "request-reply":
        return RequestReply(setup.messages, gap, SHAPES["unicast"](setup.processes, rng))
    return Spontaneous(setup.messages, gap, SHAPES[setup.workload](setup.processes, rng))
