"""A fast simulated world: it runs orders (ordering protocols) without links and disks, on a network that loses nothing.

Each packet that arrives is handed to one order, and the order's effects are carried out immediately. This world
cannot simulate loss, duplicates, crashes and domains, because they need links and durable state. Another world
(:mod:`antecede.simulator.channels`) simulates all of these: it runs the channel of real servers. The fast world is kept
for two reasons: it is many times faster than a world with links, and an order must keep its guarantees without the help
of links.
"""

from antecede.messages import Deliver, Effects, Message, Packet, Send, Sent, Verdict
from antecede.orders import OrderSpec
from antecede.simulator.draws import Draw
from antecede.simulator.figures import Figures
from antecede.simulator.kernel import Observer, World
from antecede.simulator.network import Network


class BareWorld(World):
    """One order per process, all of the same kind, on a network that loses nothing."""

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
        super().__init__(processes)
        self.orders = [spec.create(member, processes) for member in range(processes)]
        self.figures = figures
        self.observer = observer
        self._delay = delay
        self._carry_in = Network(self, delay, fifo=fifo_links).carry_in
        self._arrival = self._arrive
        self._sends = 0

    def send(self, process: int, to: int, payload: bytes = b"") -> Message:
        message = Message(f"m{self._sends}", process, to, payload)
        effects = self.orders[process].send(message)
        self._sends += 1
        self._carry_out(process, effects)
        return message

    def _arrive(self, packet: Packet) -> tuple[Verdict, Effects]:
        target = packet.target
        order = self.orders[target]
        verdict, effects = order.receive(packet)
        figures, observer = self.figures, self.observer
        if figures is not None:
            figures.arrived(packet, verdict is Verdict.HOLD)
        if observer is not None:
            message = packet.message
            # A copy on a detour also reaches the order of a process that is not a destination.
            if message is not None and message.to >> target & 1:
                observer.arrived(target, message, order.size(packet) if observer.weighs else None, self.now)
        if effects:
            self._carry_out(target, effects)
        return verdict, effects

    def _carry_out(self, process: int, effects: Effects) -> None:
        figures, observer = self.figures, self.observer
        order = self.orders[process]
        delivered: list[Message] = []
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                packet = effect.packet  # type: ignore[union-attr]
                if figures is not None:
                    figures.posted(order, packet)
                self._transmit(packet)
            elif kind is Deliver:
                message = effect.message  # type: ignore[union-attr]
                if figures is not None:
                    figures.delivered(message, self.now)
                if observer is not None:
                    observer.delivered(process, message, self.now)
                delivered.append(message)
            elif kind is Sent:
                message = effect.message  # type: ignore[union-attr]
                if figures is not None:
                    figures.sent(message, self.now)
                if observer is not None:
                    packets = [e.packet for e in effects if type(e) is Send] if observer.weighs else []
                    sizes = [order.size(p) for p in packets if p.subject == message.id]
                    observer.sent(process, message, sizes, self.now)
        # The application reacts when the step is done, when both the order's state and its trace have all deliveries.
        if delivered:
            self._react(process, delivered)

    def _react(self, process: int, delivered: list[Message]) -> None:
        if self._workload is not None:
            for message in delivered:
                self._workload.delivered(self, process, message)

    def _transmit(self, packet: Packet) -> None:
        self._carry_in(self._delay(), packet.source, packet.target, self._arrival, packet)

    def _transmit_in(self, seconds: float, packet: Packet) -> None:
        """Let a packet arrive after this number of seconds."""
        self._carry_in(seconds, packet.source, packet.target, self._arrival, packet)
