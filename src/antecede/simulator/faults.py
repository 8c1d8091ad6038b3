"""A world with faults: frames are lost and duplicated, processes crash and come back, networks split.

Each process is a :class:`antecede.simulator.node.Node`. A crash strikes at one of the three moments that differ:
between two steps, within a step before its commit (the step never was, but what the order sent too early did leave),
or within a step after its commit (all is on disk, and nothing has left). Send events and deliveries belong to the
commit. An application whose send was undone by a crash sends again when its machine is back. A second delivery of one
message at one process is counted apart, in ``twice``.
"""

from heapq import heappush
from random import Random

import msgspec

from antecede.link import Ack, Frame
from antecede.messages import COPY, Deliver, Message, Packet, Sent, Verdict
from antecede.orders import OrderSpec
from antecede.simulator.draws import Draw, below
from antecede.simulator.figures import Figures
from antecede.simulator.node import Node, Output, Step, ToPeer
from antecede.simulator.world import Observer, World


class FaultyWorld(World):
    """Orders over links that resend, on machines that crash."""

    def __init__(
        self,
        spec: OrderSpec,
        processes: int,
        delay: Draw,
        faults: Random,
        *,
        loss: float = 0.0,
        duplicate: float = 0.0,
        crash: float = 0.0,
        down_seconds: float = 1.0,
        partition: float = 0.0,
        figures: Figures | None = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(spec, processes, delay, figures=figures, observer=observer)
        self.nodes = [Node(spec, member, processes) for member in range(processes)]
        self.orders = [node.order for node in self.nodes]
        self.crashes = 0
        self.twice: list[tuple[int, str]] = []
        """Deliveries of a message that its process had delivered before: there must be none."""
        self._awaited: dict[str, int] = {}
        """Messages not yet delivered everywhere: by id, the destinations that have not delivered, as a mask."""
        self._faults = faults
        self._loss = loss
        self._duplicate = duplicate
        self._crash = crash
        self._down_seconds = down_seconds
        self._partition = partition
        self._cut: set[int] = set()
        self._ticking: list[float | None] = [None] * processes
        self._backlog: list[list[Message]] = [[] for _ in range(processes)]

    # What a workload may do.

    def send(self, process: int, to: int, payload: bytes = b"") -> Message:
        message = Message(f"m{self._sends}", process, to, payload)
        self._sends += 1
        self._awaited[message.id] = to
        self._maybe_cut()
        self._send(message)
        return message

    def _send(self, message: Message) -> None:
        node = self.nodes[message.source]
        # The application is down with its machine, and does this once it is back.
        if not node.up or not self._conclude(message.source, node.send(message, self.now)):
            self._backlog[message.source].append(message)

    # What happens.

    def _happen(self, happening: object) -> None:
        if isinstance(happening, _Restart):
            self._restart(happening.process)
        elif isinstance(happening, _Tick):
            node = self.nodes[happening.process]
            if self._ticking[happening.process] == self.now:
                self._ticking[happening.process] = None
            if node.up:
                self._conclude(happening.process, node.tick(self.now))
        elif isinstance(happening, _Mend):
            self._cut = set()
        else:
            assert isinstance(happening, _Travel)
            self._arrive_frame(happening)

    def _arrive_frame(self, travel: "_Travel") -> None:
        node = self.nodes[travel.target]
        if not node.up:
            return
        if not isinstance(travel.content, Frame):
            node.acknowledged(travel.source, travel.content, self.now)
            return
        step = node.receive(travel.source, travel.content, self.now)
        packet = step.packet
        if packet is not None:
            self.figures.arrived(packet, step.verdict is Verdict.HOLD)
            if self.observer is not None and packet.kind == COPY:
                self.observer.arrived(travel.target, packet, self.now)
        self._conclude(travel.target, step)

    def _conclude(self, process: int, step: Step) -> bool:
        """Carry a step's outputs out, unless the process crashes within it. Was the step committed?"""
        outputs = step.outputs
        committed = True
        crashed = self._strikes(process)
        if crashed:
            moment = below(self._faults, 3)
            if moment == 0:
                self.nodes[process].undo_commit()
                outputs = []
                committed = False
            elif moment == 1:
                outputs = [output for output in outputs if not isinstance(output, ToPeer)]
        delivered = self._put_out(process, step.leaked + outputs)
        if crashed:
            self._go_down(process)
        self._set_timer(process)
        # The application reacts when the step is done, or if the machine is down, when it is back.
        if self._workload is not None:
            for message in delivered:
                self._workload.delivered(self, process, message)
        return committed

    def _put_out(self, process: int, outputs: list[Output]) -> list[Message]:
        """Carry outputs out; the messages that were delivered."""
        packets = [o.content.body for o in outputs if isinstance(o, ToPeer) and isinstance(o.content, Frame)]
        delivered: list[Message] = []
        for output in outputs:
            if isinstance(output, ToPeer):
                if isinstance(output.content, Frame):
                    self.figures.posted(self.nodes[process].order, output.content.body)
                self._travel(process, output)
            elif isinstance(output, Deliver):
                if self._deliver(process, output.message):
                    delivered.append(output.message)
            else:
                self._note_send(process, output, packets)
        return delivered

    def _note_send(self, process: int, sent: Sent, packets: list[Packet]) -> None:
        self.figures.sent(sent.message, self.now)
        if self.observer is not None:
            own = [packet for packet in packets if packet.subject == sent.message.id]
            self.observer.sent(process, sent.message, own, self.now)

    def _deliver(self, process: int, message: Message) -> bool:
        """Note a delivery, unless it is a second one."""
        awaited = self._awaited.get(message.id, 0)
        if not awaited >> process & 1:
            self.twice.append((process, message.id))
            return False
        if awaited == 1 << process:
            del self._awaited[message.id]
        else:
            self._awaited[message.id] = awaited ^ 1 << process
        self.figures.delivered(message, self.now)
        if self.observer is not None:
            self.observer.delivered(process, message, self.now)
        return True

    # Faults.

    def _travel(self, process: int, output: ToPeer) -> None:
        cut = (process in self._cut) != (output.peer in self._cut)
        if cut or (self._loss and self._faults.random() < self._loss):
            return
        copies = 2 if self._duplicate and self._faults.random() < self._duplicate else 1
        for _ in range(copies):
            self._later(self._delay(), _Travel(process, output.peer, output.content))

    def crash(self, process: int, seconds: float) -> None:
        """Crash a process between two steps; it is back after so many seconds."""
        self.crashes += 1
        self.nodes[process].crash()
        self._later(seconds, _Restart(process))

    def _strikes(self, process: int) -> bool:
        """Does the process crash within the step that it has just done?"""
        return bool(self._crash) and self._faults.random() < self._crash

    def _go_down(self, process: int) -> None:
        self.crash(process, self._down_seconds * self._faults.random())

    def _restart(self, process: int) -> None:
        node = self.nodes[process]
        step = node.restart(self.now)
        self.orders[process] = node.order
        self._conclude(process, step)
        backlog, self._backlog[process] = self._backlog[process], []
        for message in backlog:
            self._send(message)

    def _maybe_cut(self) -> None:
        if self._partition and not self._cut and self._faults.random() < self._partition:
            size = 1 + below(self._faults, max(self.processes - 1, 1))
            self._cut = {below(self._faults, self.processes) for _ in range(size)}
            self._later(self._down_seconds * self._faults.random(), _Mend())

    # Time.

    def _later(self, seconds: float, happening: object) -> None:
        heappush(self._happenings, (self.now + seconds, self._tie(), happening))

    def _set_timer(self, process: int) -> None:
        due = self.nodes[process].deadline()
        ticking = self._ticking[process]
        if due is not None and (ticking is None or due < ticking):
            due = max(due, self.now)
            self._ticking[process] = due
            heappush(self._happenings, (due, self._tie(), _Tick(process)))


class _Travel(msgspec.Struct, frozen=True, gc=False):
    source: int
    target: int
    content: Frame | Ack


class _Tick(msgspec.Struct, frozen=True, gc=False):
    process: int


class _Restart(msgspec.Struct, frozen=True, gc=False):
    process: int


class _Mend(msgspec.Struct, frozen=True, gc=False):
    """The network is whole again."""
