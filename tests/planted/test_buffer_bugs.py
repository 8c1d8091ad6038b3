"""Planted bugs in ``buffer`` (Mattern, Fünfrocken §3) and in the link below every order."""

from collections import deque
from collections.abc import Callable

import pytest

from antecede.link import Arrival, Frame, Link
from antecede.messages import Effects, Message, Packet, Persist, Send, Verdict
from antecede.orders import Buffer, NoOrder
from antecede.simulator.schedules import Outcome

Caught = Callable[..., Outcome]


def test_acknowledging_before_enqueueing(caught: Caught) -> None:
    """§3: a crash between the two, and the sender goes on although its message is not safe.

    On links the sender's own end notices: it is told of a frame that, to its memory, was never sent.
    """

    class Early(Buffer):
        def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
            verdict, effects = super().receive(packet)
            acks = [e for e in effects if isinstance(e, Send) and e.packet.kind == "ack"]
            return verdict, [*acks, *(effect for effect in effects if effect not in acks)]

    caught(Early, "error", budget=100, faults=True)
    caught(Early, "causal", budget=1500, faults=True)


def test_input_buffer_that_is_not_durable(caught: Caught) -> None:
    class Careless(Buffer):
        def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
            verdict, effects = super().receive(packet)
            return verdict, [effect for effect in effects if not isinstance(effect, Persist)]

    caught(Careless, "undelivered", budget=200, faults=True, multicast="hold-delivery")


def test_pipelining_that_trusts_the_last_acknowledgement(caught: Caught) -> None:
    """a1, a2 > 2; ack a2; b > 1; c: 1 > 2 is delivered before a1.

    It needs a receiver that acknowledges what it has not put in sequence, as on the FIFO transport of footnote 4.
    """

    class Trusting(Buffer):
        def _receive_numbered(self, packet: Packet) -> tuple[Verdict, Effects]:
            verdict, effects = super()._receive_numbered(packet)
            if verdict is Verdict.HOLD and not effects:
                effects = [Send(self.control("ack", packet.source, packet.subject))]
            return verdict, effects

        def _acknowledged(self, packet: Packet) -> tuple[Verdict, Effects]:
            if list(self.posted)[-1:] == [packet.subject]:
                self.posted = {packet.subject: self.posted[packet.subject]}
            return super()._acknowledged(packet)

    caught(Trusting, "causal", budget=400, pipelined=True)


def test_pipelining_without_resequencing(caught: Caught) -> None:
    class Unordered(Buffer):
        def _receive_numbered(self, packet: Packet) -> tuple[Verdict, Effects]:
            effects: Effects = [Persist()]
            self._get(packet, effects)
            return self._verdict(packet, effects), effects

    caught(Unordered, "fifo", budget=50, pipelined=True)


def test_multicast_that_posts_to_all_and_waits_for_all(caught: Caught) -> None:
    """571 of 1500 random runs. A destination that has it may answer to one that has not."""

    class Plain(Buffer):
        def _get(self, packet: Packet, effects: Effects) -> None:
            super()._get(packet, effects)
            self.unreleased.clear()

    caught(Plain, "causal", budget=50)


def test_output_buffer_that_does_not_wait(caught: Caught) -> None:
    class Eager(Buffer):
        def _may_post(self, message: Message) -> bool:
            return True

    caught(Eager, "causal", budget=20)


def test_hold_delivery_that_skips_its_head(caught: Caught) -> None:
    """What came after an unreleased multicast must wait with it."""

    class Skipping(Buffer):
        def _deliver(self, effects: Effects) -> None:
            self.input.rotate(-1)
            super()._deliver(effects)

    caught(Skipping, "causal", "fifo", "undelivered", budget=100, multicast="hold-delivery")


def test_output_buffer_that_is_not_resumed_by_a_release(caught: Caught) -> None:
    class Sleepy(Buffer):
        def _released(self, packet: Packet) -> tuple[Verdict, Effects]:
            waiting, self.output = self.output, deque()
            verdict, effects = super()._released(packet)
            self.output = waiting
            return verdict, effects

    caught(Sleepy, "undelivered", budget=50)


def test_link_that_forgets_what_it_has_seen(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost dedup where there are no counters above."""
    real = Link.receive

    def receive(self: Link, frame: Frame) -> Arrival:
        real(self, frame)
        return Arrival.FRESH

    monkeypatch.setattr(Link, "receive", receive)
    caught(NoOrder, "twice", "error", budget=50, faults=True)


def test_link_that_never_resends(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "tick", lambda self, now: [])
    monkeypatch.setattr(Link, "deadline", lambda self: None)
    caught(NoOrder, "undelivered", budget=50, faults=True)
