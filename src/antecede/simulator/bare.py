"""A process without links, for looking at an order by itself (``antecede play --raw``).

What the network repeats reaches the order, what it loses is lost. An order with counters must answer a duplicate as
such: here that can be seen, where in a :class:`antecede.simulator.node.Node` the link has dropped it before.
"""

from itertools import count

from antecede.link import Ack, Frame
from antecede.messages import Accept, Effects, Persist, Send, Verdict
from antecede.orders import OrderSpec
from antecede.simulator.node import Node, Output, Step, ToPeer


class BareNode(Node):
    """An order and its disk, and nothing between it and the network."""

    def __init__(self, spec: OrderSpec, me: int, members: int) -> None:
        super().__init__(spec, me, members)
        self._number = count(1).__next__

    def receive(self, peer: int, frame: Frame, now: float) -> Step:
        verdict, effects = self.order.receive(frame.body)
        step = self._finish(verdict, effects, now)
        step.packet = frame.body
        return step

    def acknowledged(self, peer: int, ack: Ack, now: float) -> None:
        raise AssertionError("nobody acknowledges anything here")

    def tick(self, now: float) -> Step:
        return self._finish(None, self.order.tick(now), now)

    def deadline(self) -> float | None:
        return None

    def restart(self, now: float) -> Step:
        self.up = True
        self.order = self.spec.create(self.me, self.members)
        self.order.restore(self._saved_order)
        return self.tick(now)

    def _finish(self, verdict: Verdict | None, effects: Effects, now: float) -> Step:
        outputs: list[Output] = []
        for effect in effects:
            if isinstance(effect, Send):
                frame = Frame(self.me + 1, 0, self._number(), effect.packet)
                outputs.append(ToPeer(effect.packet.target, frame))
            elif isinstance(effect, Persist):
                self._saved_order = self.order.snapshot()
            elif not isinstance(effect, Accept):
                outputs.append(effect)
        return Step(verdict, [], outputs)
