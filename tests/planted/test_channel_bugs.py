"""Planted bugs in the shipped pairing of links with an order. Campaigns with faults run on it, and must find them."""

from collections.abc import Callable
from typing import Any

import pytest

from antecede.channel import MessageConsumer
from antecede.link import Arrival, Frame, Link
from antecede.messages import Accept, Effects
from antecede.orders import Lamport, Matrix
from antecede.simulator.schedules import Outcome

Caught = Callable[..., Outcome]


def test_held_packet_that_is_acknowledged(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash loses it, and nobody brings it again."""
    receive = MessageConsumer.receive

    def hasty(self: MessageConsumer, peer: str, frame: Frame, now: float) -> Arrival:
        arrival = receive(self, peer, frame, now)
        for key, (_, holder, number, body) in list(self._held.items()):
            self._accept(holder, number, body)
            del self._held[key]
        return arrival

    monkeypatch.setattr(MessageConsumer, "receive", hasty)
    caught(Matrix, "undelivered", budget=100, faults=True)


def test_accepted_packet_that_is_never_acknowledged(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    perform = MessageConsumer.perform

    def forgetful(self: MessageConsumer, effects: Effects, now: float) -> None:
        perform(self, [effect for effect in effects if not isinstance(effect, Accept)], now)

    monkeypatch.setattr(MessageConsumer, "perform", forgetful)
    caught(Lamport, "undelivered", "twice", "error", budget=50, faults=True)


def test_restart_without_what_was_not_acknowledged(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    restore = Link.restore

    def empty(self: Link, snapshot: bytes, now: float) -> None:
        restore(self, snapshot, now)
        self._bodies.clear()

    monkeypatch.setattr(Link, "restore", empty)
    caught(Matrix, "undelivered", budget=100, faults=True)


def test_restart_that_takes_the_order_of_before_its_links(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    """The links remember packets that the order does not."""
    load = MessageConsumer.load

    def stale(self: MessageConsumer, state: Any, now: float) -> None:
        load(self, state, now)
        self.order.restore(self.spec.create(self.me, len(self.members)).snapshot())

    monkeypatch.setattr(MessageConsumer, "load", stale)
    caught(Matrix, "undelivered", "error", "causal", "fifo", budget=50, faults=True)


def test_stamp_that_is_computed_again_for_a_resend(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resend must be the same bytes: here it carries the body that was sent last."""
    tick = Link.tick

    def restamped(self: Link, now: float) -> list[Frame]:
        newest = [self._bodies[number] for number in sorted(self._bodies)[-1:]]
        return [Frame(f.source, f.target, f.number, newest[0]) for f in tick(self, now)]

    monkeypatch.setattr(Link, "tick", restamped)
    caught(Matrix, "undelivered", "twice", "error", "causal", budget=50, faults=True)
