"""The simulated worlds of orders: a fast one without links and disks, and one of machines with links and disks.

:class:`BareWorld` hands each packet that arrives to one order, and carries out the order's effects immediately, on a
network that loses nothing. It cannot simulate loss, duplicates, crashes and domains, because they need links and
durable state. :class:`ChannelWorld` simulates all of these: it runs the channel of real servers. The fast world is kept
for two reasons: it is many times faster than a world with links, and an order must keep its guarantees without the help
of links.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from antecede import limits
from antecede.channel import Channel, Letter
from antecede.messages import COPY, Deliver, Effects, Message, Packet, Send, Sent, Verdict, mask_of, members_of
from antecede.orders import OrderSpec
from antecede.orders.contract import Order
from antecede.simulator.draws import Draw, below
from antecede.simulator.kernel import Network, Observer, World
from antecede.simulator.machine import (
    FLAT,
    Asked,
    Delivered,
    Event,
    FlatChannel,
    InTransit,
    Machine,
    Received,
    RoutedChannel,
    Step,
    letter_of,
    send_by,
)
from antecede.simulator.observers import Figures, Recorder, process_names
from antecede.topology import Domain, Topology


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


# A simulated world of machines that run the channel of real servers. Frames are lost and repeated, machines crash, and
# networks split.
#
# The world has two uses:
#
# * With one domain and a :class:`~antecede.simulator.machine.FlatChannel`, it runs one order on links and disks.
# * With a topology, it runs servers in domains, and the channel forwards messages between the domains. A send event is
#   then the send of the application, not the send of a domain's order.
#
# A machine crashes at one of three moments:
#
# * between two steps;
# * within a step, before the step is durable: the crash undoes the step, with its send events and deliveries;
# * within a step, after the step is durable: the step is on disk, but its packets have not left.
#
# An order may return effects before the effect ``Persist``, which makes the step durable. A crash does not undo these
# effects: their packets have left, and their events stay recorded. If a crash undoes an application's send, the
# application sends again when its machine is back. If a process delivers the same message a second time, this delivery
# is recorded only in ``twice``.
#
# The topology may contain a cycle. The world then shows why servers need a forest, which is a topology without cycles.


class ChannelWorld(World):
    """A simulated world in which each process runs the channel of real servers on its own machine. The network and the
    machines can fail."""

    def __init__(
        self,
        topology: Topology,
        specs: dict[str, OrderSpec],
        delay: Draw,
        faults: Random | None = None,
        *,
        channel: type[Channel] = RoutedChannel,
        fifo_links: bool = False,
        loss: float = 0.0,
        duplicate: float = 0.0,
        crash: float = 0.0,
        down_seconds: float = 1.0,
        partition: float = 0.0,
        figures: Figures | None = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(len(topology.servers))
        self.topology = topology
        self.names = topology.servers
        self.figures = figures
        self.observer = observer
        self.crashes = 0
        self.twice: list[tuple[int, str]] = []
        """The repeated deliveries: (process, id of the message) for each delivery of a message that the process had
        already delivered. This list must stay empty."""
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._routed = issubclass(channel, RoutedChannel)
        self._reliable = self._routed and not (loss or duplicate or crash or partition)
        """True if the world has a topology and no faults. In such a world nothing can be lost. So acknowledgements take
        no time, and links wait as long as possible before they resend a frame (``link_resend_seconds_max``)."""
        self._network = Network(self, delay, faults, fifo=fifo_links, loss=loss, duplicate=duplicate)
        self._faults = faults or Random(0)
        self._crash = crash
        self._down_seconds = down_seconds
        self._partition = partition
        self._sends = 0
        self._under_way: dict[str, tuple[Message, int]] = {}
        """The messages that some destinations have not delivered yet, by id. Each value is (the message, the mask of
        these destinations)."""
        self._timers: list[float | None] = [None] * self.processes
        self._backlog: list[list[Callable[[], object]]] = [[] for _ in self.names]
        """For each process: the actions of its application that wait until its machine is up again."""
        self.machines = [self._machine(name, specs, channel) for name in self.names]

    def _machine(self, name: str, specs: dict[str, OrderSpec], channel: type[Channel]) -> Machine:
        resend_after = limits.link_resend_seconds_max if self._reliable else 0.5
        return Machine(name, self.topology, specs, channel, crashes=self._crash > 0, resend_after=resend_after)

    @property
    def orders(self) -> list[Order]:
        """The orders of all machines as they are now."""
        return [order for machine in self.machines for order in machine.orders()]

    # What a workload may do.

    def send(self, process: int, to: int, payload: bytes = b"") -> Message:
        message = Message(f"m{self._sends}", process, to, payload)
        names = tuple([self.names[member] for member in members_of(to)])
        letter = Letter(message.id, self.names[process], names, "", payload)
        self.machines[process].channel.check(names)
        self._sends += 1
        self._under_way[message.id] = (message, to)
        self._maybe_cut()
        self._send(message, letter)
        return message

    def _send(self, message: Message, letter: Letter) -> None:
        self._act(
            message.source,
            lambda channel: send_by(channel, self.topology, letter),
            lambda: self._send(message, letter),
            message,
        )

    def _act(
        self,
        process: int,
        act: Callable[[Channel], object],
        again: Callable[[], object],
        sending: Message | None = None,
    ) -> None:
        """Let the application at a process use its channel: call ``act``. If the machine of the process is down, or if
        a crash undoes this action, call ``again`` when the machine is back."""
        machine = self.machines[process]
        if not machine.up or not self._step(process, lambda: machine.step(act, self.now), sending):
            self._backlog[process].append(again)

    # Steps.

    def _step(self, process: int, take: Callable[[], Step], sending: Message | None = None) -> bool:
        """Take a step and carry out its effects; the machine may crash within the step. Return whether the step is
        durable."""
        machine = self.machines[process]
        crashed = self._strikes(process)
        moment = below(self._faults, 3) if crashed else -1
        if moment == 0:
            machine.save()
        step = take()
        events, frames, acks = step.events, step.frames, step.acks
        if moment == 0:
            events = events[: step.leaked_events]
        if moment in (0, 1):
            frames, acks = frames[: step.leaked_frames], []
        if sending is not None and self._routed:
            self._note_send(process, sending, step)
        delivered = [message for event in events if (message := self._happened(process, step, event)) is not None]
        for sent in frames:
            self._network.carry(process, self._numbers[sent.peer], self._arrive, (process, sent))
        for sent in acks:
            if self._reliable:
                self._acknowledge((process, sent))
            else:
                self._network.carry(process, self._numbers[sent.peer], self._acknowledge, (process, sent))
        if crashed:
            self._go_down(process, saved=moment == 0)
        self._set_timer(process)
        # The application reacts when the step is done, or if the machine is down, when it is back.
        if self._workload is not None:
            for message in delivered:
                self._workload.delivered(self, process, message)
        return moment != 0

    def _arrive(self, arrival: tuple[int, InTransit]) -> None:
        source, sent = arrival
        process = self._numbers[sent.peer]
        machine = self.machines[process]
        if machine.up:
            self._step(process, lambda: machine.receive(self.names[source], sent, self.now))

    def _acknowledge(self, arrival: tuple[int, InTransit]) -> None:
        source, sent = arrival
        machine = self.machines[self._numbers[sent.peer]]
        if machine.up:
            machine.acknowledged(self.names[source], sent, self.now)

    # Recording the events of a step.

    def _happened(self, process: int, step: Step, event: Event) -> Message | None:
        """Record one event of a step. If the event is the first delivery of a message at this process, return the
        message; otherwise return None."""
        what, order = event.what, event.order
        kind = type(what)
        if kind is Delivered:
            return self._deliver(process, self._message(what.letter))
        assert order is not None
        if kind is Send:
            if self.figures is not None and what.packet.kind == COPY:
                self.figures.posted(order, _named(what.packet))
        elif kind is Received:
            self._note_arrival(process, order, what)
        elif kind is Asked and self._routed:
            self._note_hop(process, step, event.domain, letter_of(what.message))
        elif kind is Sent and not self._routed:
            self._note_send(process, self._message(letter_of(what.message)), step)
        return None

    def _message(self, letter: Letter) -> Message:
        """Return the application's message that travels in this letter."""
        found = self._under_way.get(letter.id)
        if found is not None:
            return found[0]
        to = mask_of(self._numbers[name] for name in letter.to)
        return Message(letter.id, self._numbers[letter.source], to, letter.body)

    def _note_send(self, process: int, message: Message, step: Step) -> None:
        if not message.to:
            del self._under_way[message.id]
        if self.figures is not None:
            self.figures.sent(message, self.now)
        if self.observer is not None:
            sizes = step.sizes(message.id) if self.observer.weighs else []
            self.observer.sent(process, message, sizes, self.now)

    def _note_hop(self, process: int, step: Step, domain: str, letter: Letter) -> None:
        if letter.source == self.names[process] or not isinstance(self.observer, Recorder):
            return
        hop = len(self.topology.route(letter.source, self.names[process])) - 1
        sizes = step.sizes(letter.id, domain)
        self.observer.hopped(process, self._message(letter), domain, hop, sizes, self.now)

    def _note_arrival(self, process: int, order: Order, received: Received) -> None:
        packet = received.packet
        if packet.message is None:
            return
        if self.figures is not None:
            self.figures.arrived(_named(packet), received.verdict is Verdict.HOLD)
        # A copy on a detour, within its domain or on its way to other domains, also reaches orders of other processes.
        observer, letter = self.observer, letter_of(packet.message)
        if observer is not None and packet.message.to >> order.me & 1 and self.names[process] in letter.to:
            size = order.size(packet) if observer.weighs else None
            observer.arrived(process, self._message(letter), size, self.now)

    def _deliver(self, process: int, message: Message) -> Message | None:
        """Record the delivery of a message at a process, and return the message. If the process has already delivered
        the message, only add the delivery to ``twice``, and return None."""
        _, missing = self._under_way.get(message.id, (message, 0))
        if not missing >> process & 1:
            self.twice.append((process, message.id))
            return None
        if missing == 1 << process:
            del self._under_way[message.id]
        else:
            self._under_way[message.id] = (message, missing ^ 1 << process)
        if self.figures is not None:
            self.figures.delivered(message, self.now)
        if self.observer is not None:
            self.observer.delivered(process, message, self.now)
        return message

    # Faults.

    def crash(self, process: int, seconds: float) -> None:
        """Crash a machine between two steps; it restarts after this number of seconds."""
        self._crash_now(process)
        self.at(self.now + seconds, self._restart, process)

    def _crash_now(self, process: int, saved: bool = False) -> None:
        self.crashes += 1
        self.machines[process].crash(saved=saved)

    def _strikes(self, process: int) -> bool:
        """Decide whether the machine crashes within the current step."""
        return bool(self._crash) and self._faults.random() < self._crash

    def _go_down(self, process: int, saved: bool) -> None:
        self._crash_now(process, saved)
        self.at(self.now + self._down_seconds * self._faults.random(), self._restart, process)

    def _restart(self, process: int) -> None:
        machine = self.machines[process]
        # Everything that it needs to come back is already on disk: a crash within this step changes nothing.
        self._step(process, lambda: machine.restart(self.now))
        backlog, self._backlog[process] = self._backlog[process], []
        for act in backlog:
            act()

    def _maybe_cut(self) -> None:
        if self._partition and not self._network.cut and self._faults.random() < self._partition:
            size = 1 + below(self._faults, max(self.processes - 1, 1))
            self._network.cut = {below(self._faults, self.processes) for _ in range(size)}
            self.at(self.now + self._down_seconds * self._faults.random(), self._end_partition, None)

    def _end_partition(self, _: None) -> None:
        """End the partition of the network."""
        self._network.cut = set()

    # Timers.

    def _set_timer(self, process: int) -> None:
        due = self.machines[process].deadline()
        timer = self._timers[process]
        if due is not None and (timer is None or due < timer):
            due = max(due, self.now)
            self._timers[process] = due
            self.at(due, self._tick, process)

    def _tick(self, process: int) -> None:
        if self._timers[process] == self.now:
            self._timers[process] = None
        machine = self.machines[process]
        if machine.up:
            self._step(process, lambda: machine.tick(self.now))


def _named(packet: Packet) -> Packet:
    """Return a copy of the packet. The ``subject`` of the copy is the id of the packet's letter. :class:`Figures` finds
    messages by this id."""
    assert packet.message is not None
    return msgspec.structs.replace(packet, subject=letter_of(packet.message).id)


class FaultyWorld(ChannelWorld):
    """A world with a single domain and one order. Its links resend lost frames, and its machines can crash."""

    def __init__(self, spec: OrderSpec, processes: int, delay: Draw, faults: Random, **settings: Any) -> None:
        names = tuple(process_names(processes))
        super().__init__(Topology([Domain(FLAT, names)]), {FLAT: spec}, delay, faults, channel=FlatChannel, **settings)
