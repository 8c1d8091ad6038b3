"""What is noted of a routed run: the rows of its trace, and its figures, both end to end.

Processes are servers. A message has one send, and at each destination arrivals and a delivery, whatever lies between;
what its routers do are ``hop`` rows, numbered apart: the router, the domain that the message enters, how many hops it
has behind it, and the mean stamp of the copies that leave. A send row has the mean stamp of the copies that leave the
source.

What a message **weighs** is the stamps of *all* its packets divided by its destinations: for a unicast the sum over its
hops. ``held`` counts every arrival at every stop. Latency is from the send to the delivery at a destination.
"""

from collections.abc import Callable
from math import ceil
from typing import Any

import msgspec

from antecede.messages import COPY, Message, Packet, members_of
from antecede.orders.contract import Order
from antecede.simulator.figures import Course, Figures
from antecede.simulator.recorder import nanoseconds
from antecede.trace import ARRIVE, DELIVER, HOP, SEND, Event


class RoutedFigures(Figures):
    """Counts over all hops."""

    def __init__(self, warmup: int = 0) -> None:
        super().__init__(warmup)
        self.packets = 0

    def sent(self, message: Message, now: float) -> None:
        super().sent(message, now)
        course = self._under_way.get(message.id)
        if course is not None and course.counted:
            course.copies = message.to.bit_count()

    def posted(self, order: Order, packet: Packet) -> None:
        course = self._under_way.get(packet.subject)
        if packet.kind != COPY or course is None or not course.counted:
            return
        self.packets += 1
        course.bytes += order.size(packet)
        course.dependents += order.dependents(packet)
        course.paper_bytes += order.paper_bytes(packet)

    def _weigh(self, course: Course) -> None:
        super()._weigh(course)
        if course.copies:
            self.bytes_max = max(self.bytes_max, ceil(course.bytes / course.copies))

    def report(self) -> dict[str, Any]:
        report = super().report()
        report["hops"] = {"mean": self.packets / self.copies if self.copies else 0.0}
        return report


class RoutedRecorder:
    """A watcher that hands every event to ``sink`` as a row of a trace; hops have their server's own numbering."""

    def __init__(self, names: tuple[str, ...], sink: Callable[[Event], None]) -> None:
        self.names = names
        self._sink = sink
        self._next = [0] * len(names)
        self._hops = [0] * len(names)

    def sent(self, server: int, message: Message, sizes: list[int], now: float) -> None:
        to = tuple(self.names[target] for target in members_of(message.to))
        self._row(server, SEND, message, now, _mean(sizes), to)

    def hopped(self, server: int, message: Message, domain: str, hop: int, sizes: list[int], now: float) -> None:
        index = self._hops[server]
        self._hops[server] += 1
        row = Event(self.names[server], index, HOP, message.id, time=nanoseconds(now), stamp_bytes=_mean(sizes))
        self._sink(msgspec.structs.replace(row, domain=domain, hop=hop))

    def arrived(self, server: int, message: Message, size: int, now: float) -> None:
        self._row(server, ARRIVE, message, now, size)

    def delivered(self, server: int, message: Message, now: float) -> None:
        self._row(server, DELIVER, message, now)

    def _row(
        self,
        server: int,
        kind: str,
        message: Message,
        now: float,
        size: int | None = None,
        to: tuple[str, ...] | None = None,
    ) -> None:
        index = self._next[server]
        self._next[server] += 1
        self._sink(Event(self.names[server], index, kind, message.id, to, nanoseconds(now), stamp_bytes=size))


def _mean(sizes: list[int]) -> int | None:
    return round(sum(sizes) / len(sizes)) if sizes else None
