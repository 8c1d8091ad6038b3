"""The bare world: orders, reliable links that may reorder, virtual time. Made to be fast.

A world is a heap of what happens next: the arrival of a packet, or the waking of a process by its workload. Each
happening is handed to one order, whose effects are carried out at once. Loss, duplication, crashes and partitions
need links and durable state: :mod:`antecede.simulator.faults` adds them.
"""

from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Protocol

from antecede.messages import COPY, Deliver, Effects, Message, Packet, Send, Sent, Verdict
from antecede.orders import OrderSpec
from antecede.orders.contract import Order
from antecede.simulator.draws import Draw
from antecede.simulator.figures import Figures


class Observer(Protocol):
    """Whoever wants to see every event (a trace writer, a test)."""

    def sent(self, process: int, message: Message, packets: list[Packet], now: float) -> None: ...

    def arrived(self, process: int, packet: Packet, now: float) -> None: ...

    def delivered(self, process: int, message: Message, now: float) -> None: ...


class Workload(Protocol):
    """What the application does: when it wakes, and what it makes of a delivery."""

    def start(self, world: "World") -> None: ...

    def wake(self, world: "World", process: int) -> None: ...

    def delivered(self, world: "World", process: int, message: Message) -> None: ...


class World:
    """Orders of one kind on reliable links."""

    def __init__(
        self,
        spec: OrderSpec,
        processes: int,
        delay: Draw,
        *,
        fifo_links: bool = False,
        figures: Figures | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.spec = spec
        self.processes = processes
        self.orders = self._create_orders()
        self.now = 0.0
        self.figures = figures or Figures()
        self.observer = observer
        self._delay = delay
        self._happenings: list[tuple[float, int, object]] = []
        self._tie = count().__next__
        self._last_arrival: dict[tuple[int, int], float] | None = {} if fifo_links else None
        self._sends = 0
        self._workload: Workload | None = None

    def _create_orders(self) -> list[Order]:
        return [self.spec.create(member, self.processes) for member in range(self.processes)]

    # What a workload may do.

    def wake_after(self, seconds: float, process: int) -> None:
        """Wake this process's workload later."""
        heappush(self._happenings, (self.now + seconds, self._tie(), process))

    def send(self, process: int, to: int, payload: bytes = b"") -> Message:
        """The application at ``process`` sends to the members of the mask ``to``."""
        message = Message(f"m{self._sends}", process, to, payload)
        effects = self.orders[process].send(message)
        self._sends += 1
        self._carry_out(process, effects)
        return message

    # Time.

    def run(self, workload: Workload, until: float = inf) -> None:
        """Let everything happen until nothing is left to happen, or until that time."""
        self._workload = workload
        workload.start(self)
        happenings = self._happenings
        while happenings and happenings[0][0] <= until:
            self.now, _, happening = heappop(happenings)
            if type(happening) is Packet:
                self._arrive(happening)
            elif type(happening) is int:
                workload.wake(self, happening)
            else:
                self._happen(happening)

    def _happen(self, happening: object) -> None:
        raise AssertionError(f"nothing else happens in a world without faults: {happening}")

    def _arrive(self, packet: Packet) -> None:
        target = packet.target
        verdict, effects = self.orders[target].receive(packet)
        self.figures.arrived(packet, verdict is Verdict.HOLD)
        if self.observer is not None and packet.kind == COPY:
            self.observer.arrived(target, packet, self.now)
        if effects:
            self._carry_out(target, effects)

    def _carry_out(self, process: int, effects: Effects) -> None:
        figures, observer, workload = self.figures, self.observer, self._workload
        order = self.orders[process]
        delivered: list[Message] = []
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                packet = effect.packet  # type: ignore[union-attr]
                figures.posted(order, packet)
                self._transmit(packet)
            elif kind is Deliver:
                message = effect.message  # type: ignore[union-attr]
                figures.delivered(message, self.now)
                if observer is not None:
                    observer.delivered(process, message, self.now)
                delivered.append(message)
            elif kind is Sent:
                message = effect.message  # type: ignore[union-attr]
                figures.sent(message, self.now)
                if observer is not None:
                    packets = [e.packet for e in effects if type(e) is Send and e.packet.subject == message.id]
                    observer.sent(process, message, packets, self.now)
        # The application reacts when the step is done: the order's state has all its deliveries, so must its trace.
        if workload is not None:
            for message in delivered:
                workload.delivered(self, process, message)

    def _transmit(self, packet: Packet) -> None:
        self._later_arrival(self._delay(), packet)

    def _later_arrival(self, seconds: float, packet: Packet) -> None:
        arrival = self.now + seconds
        if self._last_arrival is not None:
            link = (packet.source, packet.target)
            arrival = max(arrival, self._last_arrival.get(link, 0.0))
            self._last_arrival[link] = arrival
        heappush(self._happenings, (arrival, self._tie(), packet))
