"""One simulated run, from its settings to its figures: what ``antecede simulate`` does, as a function.

A run is decided by its :class:`Setup` alone. Each purpose (gaps, delays, destinations, faults) draws from a stream of
its own, so that two orders under one seed meet the same application and, where they send the same packets, the same
network.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from antecede import limits
from antecede.errors import BroadcastOnlyError, UsageError
from antecede.orders import OrderSpec
from antecede.simulator.draws import parse_draw, stream
from antecede.simulator.faults import FaultyWorld
from antecede.simulator.figures import Figures
from antecede.simulator.recorder import Recorder
from antecede.simulator.workloads import SHAPES, PingPong, RequestReply, Spontaneous
from antecede.simulator.world import Workload, World
from antecede.trace import Event

WORKLOADS = (*SHAPES, "request-reply", "ping-pong")


class Setup(msgspec.Struct, frozen=True):
    """Everything that decides a run."""

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

    def check(self) -> None:
        """Refuse what cannot be meant, before anything runs."""
        _within("processes", self.processes, 2, limits.members_max)
        _within("messages", self.messages, 0, limits.simulated_messages_max)
        _within("warmup", self.warmup, 0, self.messages)
        for name in ("loss", "duplicate", "crash", "partition"):
            share = getattr(self, name)
            if not 0.0 <= share <= 0.9:
                raise UsageError(f"{name} {share}: expected a share from 0 to 0.9")
        if self.workload not in WORKLOADS:
            raise UsageError(f"unknown workload {self.workload!r}: expected one of {', '.join(WORKLOADS)}")
        if "broadcast" in self.order.kind.needs and self.workload != "broadcast":
            raise BroadcastOnlyError(f"order {self.order.name} serves broadcasts only: add --broadcast")
        if self.fifo_links and self.faulty():
            raise UsageError("links that lose, duplicate or crash cannot be FIFO: leave one of them out")
        self.order.create(0, self.processes)

    def faulty(self) -> bool:
        """Whether the run needs links and disks."""
        return any((self.loss, self.duplicate, self.crash, self.partition))


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(f"{name} {value}: expected {least} to {most}")


def simulate(setup: Setup, sink: Callable[[Event], None] | None = None) -> dict[str, Any]:
    """Run it to the end; its figures. Every event goes to ``sink``."""
    setup.check()
    recorder = None if sink is None else Recorder(setup.processes, sink)
    world = _world(setup, recorder)
    if recorder is not None:
        recorder.orders = world.orders
    world.run(_workload(setup))
    report = world.figures.report()
    return {"order": str(setup.order), "processes": setup.processes, **report}


def _world(setup: Setup, recorder: Recorder | None) -> World:
    delay = parse_draw(setup.delay, stream(setup.seed, "delay"))
    figures = Figures(setup.warmup)
    if not setup.faulty():
        return World(
            setup.order, setup.processes, delay, fifo_links=setup.fifo_links, figures=figures, observer=recorder
        )
    return FaultyWorld(
        setup.order,
        setup.processes,
        delay,
        stream(setup.seed, "faults"),
        loss=setup.loss,
        duplicate=setup.duplicate,
        crash=setup.crash,
        partition=setup.partition,
        figures=figures,
        observer=recorder,
    )


def _workload(setup: Setup) -> Workload:
    if setup.workload == "ping-pong":
        return PingPong(setup.messages)
    gap = parse_draw(setup.gap, stream(setup.seed, "gap"))
    rng = stream(setup.seed, "destinations")
    if setup.workload == "request-reply":
        return RequestReply(setup.messages, gap, SHAPES["unicast"](setup.processes, rng))
    return Spontaneous(setup.messages, gap, SHAPES[setup.workload](setup.processes, rng))
