"""A study of the delays that the order ``objects`` avoids, because it orders only conflicting messages.

Every process sends requests at its own intervals, as in Jang et al. §6.2. A request calls either ``set``, which
conflicts with itself, or ``add``, which conflicts with nothing. The share of requests that call ``set`` is the
*density*. Each request is marked as sent by an instance of the same operation: for example, an instance of ``set``
sends a request to call ``set``. A request is computed as soon as it is delivered. At density 1 all requests conflict,
so every message must be delivered after all messages on which it depends, as in causal order. At density 0, messages
need not wait for each other.

Every order is tested with the same messages, the same destinations, and the same delay of each copy. Control packets
have separate delays from the same distribution. The report has three figures for each of the two operations: the share
of copies that were held, the mean time for which a copy was held (zero for a copy that was not held), and the mean time
from send to delivery.
"""

from math import log
from random import Random
from typing import Any, ClassVar

import msgspec

from antecede.messages import COPY, REQUEST, Label, Message, Packet
from antecede.orders import parse
from antecede.simulator.draws import parse_draw, stream
from antecede.simulator.observers import Figures
from antecede.simulator.run import SHAPES, Spontaneous
from antecede.simulator.worlds import BareWorld

DENSITIES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
ORDERS = ("objects:conflicts=set~set", "objects:clocks=asked,conflicts=set~set", "pruned", "skeen")
_mean_delay = 0.1

_labels = {name: Label(REQUEST, name, "", name) for name in ("set", "add")}


class Meter:
    """A meter of two times, for each operation separately: how long copies of messages were held at their destination,
    and how long they took from send to delivery."""

    weighs: ClassVar[bool] = False

    def __init__(self, warmup: int) -> None:
        self._warmup = warmup
        self._sent: dict[str, tuple[float, str]] = {}
        self._arrived: dict[tuple[str, int], float] = {}
        self._seen = 0
        self.copies = {"set": 0, "add": 0}
        self.held = {"set": 0, "add": 0}
        self.hold = {"set": 0.0, "add": 0.0}
        self.latency = {"set": 0.0, "add": 0.0}

    def sent(self, process: int, message: Message, sizes: list[int], now: float) -> None:
        self._seen += 1
        if self._seen > self._warmup and message.label is not None:
            self._sent[message.id] = (now, message.label.operation)

    def arrived(self, process: int, message: Message, size: int | None, now: float) -> None:
        if message.id in self._sent:
            self._arrived.setdefault((message.id, process), now)

    def delivered(self, process: int, message: Message, now: float) -> None:
        found = self._sent.get(message.id)
        if found is None:
            return
        time, name = found
        waited = now - self._arrived.pop((message.id, process))
        self.copies[name] += 1
        self.held[name] += waited > 0
        self.hold[name] += waited
        self.latency[name] += now - time

    def report(self, name: str) -> dict[str, Any] | None:
        """Return the figures of one operation; None if it did not occur."""
        copies = self.copies[name]
        if not copies:
            return None
        return {
            "copies": copies,
            "held": self.held[name] / copies,
            "hold_seconds": self.hold[name] / copies,
            "latency_seconds": self.latency[name] / copies,
        }


class StudyWorld(BareWorld):
    """A simulated world for the study. The delay of a copy depends only on the seed, the message and the destination,
    so it is the same with every order."""

    def __init__(self, order: str, processes: int, density: float, seed: int, meter: Meter, figures: Figures) -> None:
        delay = parse_draw(f"exponential:{_mean_delay}", stream(seed, "control"))
        super().__init__(parse(order), processes, delay, figures=figures, observer=meter)
        self._seed = seed
        self._kinds = stream(seed, "operations")
        self._density = density
        self.controls = 0

    def send(self, process: int, to: int, payload: bytes = b"") -> Message:
        name = "set" if self._kinds.random() < self._density else "add"
        message = Message(f"m{self._sends}", process, to, payload, _labels[name])
        self._sends += 1
        self._carry_out(process, self.orders[process].send(message))
        return message

    def _transmit(self, packet: Packet) -> None:
        if packet.kind == COPY:
            drawn = Random(f"{self._seed}/{packet.subject}/{packet.target}").random()
            self._transmit_in(-_mean_delay * log(1.0 - drawn), packet)
        else:
            self.controls += 1
            self._transmit_in(self._delay(), packet)


class Study(msgspec.Struct, frozen=True):
    """The settings of a study."""

    processes: int = 20
    messages: int = 1_000
    warmup: int = 250
    workload: str = "multicast"
    seed: int = 1
    densities: tuple[float, ...] = DENSITIES
    orders: tuple[str, ...] = ORDERS

    def run(self, order: str, density: float) -> dict[str, Any]:
        """Run the workload with this order and this share of conflicting requests (``density``). Return the figures."""
        meter, figures = Meter(self.warmup), Figures(self.warmup)
        world = StudyWorld(order, self.processes, density, self.seed, meter, figures)
        gap = parse_draw("exponential:0.1", stream(self.seed, "gap"))
        destinations = SHAPES[self.workload](self.processes, stream(self.seed, "destinations"))
        world.run(Spontaneous(self.messages, gap, destinations))
        report = figures.report()
        return {
            "order": order,
            "density": density,
            "undelivered": report["undelivered"],
            "conflicting": meter.report("set"),
            "compatible": meter.report("add"),
            "stamp_bytes_mean": report["stamp"]["bytes_mean"],
            "control_packets_per_message": world.controls / self.messages,
        }
