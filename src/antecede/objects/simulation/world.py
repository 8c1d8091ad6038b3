"""A simulated group of objects. Frames can be lost, repeated and reordered, and machines can crash and restart.

Each object is a :class:`antecede.objects.Site`. The simulator (:mod:`antecede.simulator.worlds`) runs a site in the
same way as an order: with the channel of real servers, and with a simulated disk. The events of a site become rows of a
trace with the columns ``instance``, ``operation``, ``parent`` and ``type``. The delivery of a request is recorded when
its instance begins.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from antecede.channel import Channel
from antecede.messages import COPY, Deliver, Message, Sent
from antecede.objects import Answered, Local, Site, SiteSpec
from antecede.simulator.draws import Draw
from antecede.simulator.machine import FLAT, Event, FlatChannel, Received, Step
from antecede.simulator.observers import Recorder
from antecede.simulator.worlds import ChannelWorld
from antecede.topology import Domain, Topology
from antecede.trace import Event as Row


class ObjectWorld(ChannelWorld):
    """A group of objects in a world with faults."""

    def __init__(
        self,
        spec: SiteSpec,
        delay: Draw,
        faults: Random,
        *,
        sink: Callable[[Row], None] | None = None,
        **settings: Any,
    ) -> None:
        self.recorder = Recorder(spec.names, sink or (lambda row: None))
        self.answers: dict[str, Answered] = {}
        """The result of each root that has ended, by the root's name."""
        self.started: dict[str, tuple[int, tuple[Any, ...]]] = {}
        """For each root, by name: the number of the object where it was started, and its arguments."""
        topology = Topology([Domain(FLAT, spec.names)])
        super().__init__(topology, {FLAT: spec}, delay, faults, channel=FlatChannel, **settings)

    def sites(self) -> list[Site]:
        """Return the objects as they are now."""
        return self.orders  # type: ignore[return-value]

    def missing(self) -> list[str]:
        """Return the ids of the messages that are still undelivered at one or more of their destinations."""
        return list(self._under_way)

    def start(
        self, process: int, operation: str, arguments: tuple[Any, ...] = (), timeout: float | None = None
    ) -> None:
        """Start a root for a user at the object ``process``. If the simulated machine of this object is down, start the
        root when the machine is up again."""
        self._maybe_cut()
        undone: list[str] = []

        def begin(channel: Channel) -> None:
            consumer = channel.consumers[FLAT]
            deadline = None if timeout is None else self.now + timeout
            root, effects = consumer.order.start(operation, arguments, deadline=deadline)  # type: ignore[attr-defined]
            # The root may end in this same step.
            self.started[root] = (process, arguments)
            undone.append(root)
            consumer.perform(consumer.order.carried_out(effects), self.now)  # type: ignore[attr-defined]

        def again() -> None:
            for root in undone:
                del self.started[root]
            self.start(process, operation, arguments, timeout)

        self._act(process, begin, again)

    def _happened(self, process: int, step: Step, event: Event) -> Message | None:
        what = event.what
        if isinstance(what, Local):
            self.recorder.local(process, self.now, what.instance, what.operation, what.parent, what.type)
        elif isinstance(what, Answered):
            self.answers[what.root] = what
        elif isinstance(what, Sent):
            self._under_way[what.message.id] = (what.message, what.message.to)
            self.recorder.sent(process, what.message, [], self.now)
        elif isinstance(what, Deliver):
            if self._deliver(process, what.message) is not None:
                self.recorder.delivered(process, what.message, self.now)
        elif isinstance(what, Received) and what.packet.kind == COPY:
            assert what.packet.message is not None
            self.recorder.arrived(process, what.packet.message, None, self.now)
        return None
