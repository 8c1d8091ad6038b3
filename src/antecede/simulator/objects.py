"""A simulated group of objects: lost, repeated and reordered frames, machines that crash and come back.

Each object is a :class:`antecede.objects.Site` on a :class:`~antecede.simulator.node.Node`, so on links and a disk, as
orders are in :mod:`antecede.simulator.faults`. What happens becomes the rows of a trace with the columns ``instance``,
``operation``, ``parent`` and ``type``: a request is delivered when its instance begins.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from antecede.messages import REQUEST, Deliver, Message, Packet, Sent, members_of
from antecede.objects import Answered, Local, Site, SiteSpec
from antecede.simulator.draws import Draw
from antecede.simulator.faults import FaultyWorld
from antecede.simulator.figures import Figures
from antecede.simulator.node import Node, Output, Step, ToPeer
from antecede.simulator.recorder import nanoseconds
from antecede.trace import ARRIVE, DELIVER, LOCAL, SEND, Event


class ObjectRecorder:
    """Turns what happens in a group into rows."""

    def __init__(self, names: tuple[str, ...], sink: Callable[[Event], None]) -> None:
        self.names = names
        self._sink = sink
        self._next = [0] * len(names)

    def sent(self, process: int, message: Message, packets: list[Packet], now: float) -> None:
        to = tuple(self.names[target] for target in members_of(message.to))
        label = message.label
        assert label is not None
        columns = {"instance": label.by_instance, "operation": label.by_operation, "type": label.type}
        self._add(process, SEND, now, message=message.id, to=to, **columns)

    def arrived(self, process: int, packet: Packet, now: float) -> None:
        self._add(process, ARRIVE, now, message=packet.subject)

    def delivered(self, process: int, message: Message, now: float) -> None:
        label = message.label
        assert label is not None
        parent = label.by_instance or None if label.type == REQUEST else None
        columns = {
            "instance": label.instance or None,
            "operation": label.operation or None,
            "parent": parent,
            "type": label.type,
        }
        self._add(process, DELIVER, now, message=message.id, **columns)

    def local(self, process: int, event: Local, now: float) -> None:
        parent = event.parent or None
        columns = {"instance": event.instance, "operation": event.operation, "parent": parent, "type": event.type}
        self._add(process, LOCAL, now, **columns)

    def _add(self, process: int, kind: str, now: float, **columns: Any) -> None:
        index = self._next[process]
        self._next[process] += 1
        self._sink(Event(self.names[process], index, kind, time=nanoseconds(now), **columns))


class ObjectNode(Node):
    """An object on its links and its disk."""

    def __init__(self, spec: SiteSpec, me: int, members: int, *, durable: bool) -> None:
        self._durable = durable
        super().__init__(spec, me, members)

    @property
    def site(self) -> Site:
        assert isinstance(self.order, Site)
        return self.order

    def start(self, operation: str, arguments: tuple[Any, ...], now: float, timeout: float | None) -> tuple[str, Step]:
        """A user starts a root here."""
        deadline = None if timeout is None else now + timeout
        root, effects = self.site.start(operation, arguments, deadline=deadline)
        return root, self._finish(None, effects, now)

    def deadline(self) -> float | None:
        dues = [due for due in (super().deadline(), self.site.deadline()) if due is not None]
        return min(dues, default=None)

    def _commit(self, persisted: bool) -> None:
        # A machine that never crashes need not write anything down, and a run is many times quicker.
        if self._durable:
            super()._commit(persisted)


class ObjectWorld(FaultyWorld):
    """A group of objects in a world with faults."""

    def __init__(
        self,
        spec: SiteSpec,
        delay: Draw,
        faults: Random,
        *,
        loss: float = 0.0,
        duplicate: float = 0.0,
        crash: float = 0.0,
        partition: float = 0.0,
        sink: Callable[[Event], None] | None = None,
    ) -> None:
        self.recorder = ObjectRecorder(spec.names, sink or (lambda event: None))
        members = len(spec.names)
        super().__init__(
            spec,
            members,
            delay,
            faults,
            loss=loss,
            duplicate=duplicate,
            crash=crash,
            partition=partition,
            # What stamps weigh is not asked here, and weighing them takes its time.
            figures=Figures(warmup=1 << 62),
            observer=self.recorder,
        )
        self.nodes = [ObjectNode(spec, member, members, durable=crash > 0) for member in range(members)]
        self.orders = [node.order for node in self.nodes]
        self.answers: dict[str, Answered] = {}
        """How each root ended."""
        self.started: dict[str, tuple[int, tuple[Any, ...]]] = {}
        """Where each root was started, and with which arguments."""
        self._starts: list[list[tuple[str, tuple[Any, ...], float | None]]] = [[] for _ in range(members)]

    def sites(self) -> list[Site]:
        """The objects, as they are now."""
        return [node.site for node in self.nodes if isinstance(node, ObjectNode)]

    def missing(self) -> list[str]:
        """Messages that were not delivered everywhere."""
        return list(self._awaited)

    def start(
        self, process: int, operation: str, arguments: tuple[Any, ...] = (), timeout: float | None = None
    ) -> None:
        """A user starts a root; while the machine is down, once it is back."""
        self._maybe_cut()
        node = self.nodes[process]
        assert isinstance(node, ObjectNode)
        if node.up:
            root, step = node.start(operation, arguments, self.now, timeout)
            # What follows in this very step may be its end.
            self.started[root] = (process, arguments)
            if self._conclude(process, step):
                return
            del self.started[root]
        self._starts[process].append((operation, arguments, timeout))

    def _restart(self, process: int) -> None:
        super()._restart(process)
        starts, self._starts[process] = self._starts[process], []
        for operation, arguments, timeout in starts:
            self.start(process, operation, arguments, timeout)

    def _put_out(self, process: int, outputs: list[Output]) -> list[Message]:
        for output in outputs:
            if isinstance(output, ToPeer):
                self._travel(process, output)
            elif isinstance(output, Local):
                self.recorder.local(process, output, self.now)
            elif isinstance(output, Answered):
                self.answers[output.root] = output
            elif isinstance(output, Sent):
                self._awaited[output.message.id] = output.message.to
                self._note_send(process, output, [])
            elif isinstance(output, Deliver):
                self._deliver(process, output.message)
        return []
