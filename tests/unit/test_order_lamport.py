"""Lamport's total order (Garg §12.3.2)."""

from collections.abc import Callable

import pytest

from antecede.errors import StampError
from antecede.messages import PERSIST, Accept, Deliver, Effects, Message, Packet, Send, Sent, Verdict
from antecede.orders import Lamport


def sends(effects: Effects) -> list[Packet]:
    return [effect.packet for effect in effects if isinstance(effect, Send)]


def test_keeps_every_promise(order_campaign: Callable[..., None]) -> None:
    order_campaign(Lamport, 400)


def test_a_message_is_announced_acknowledged_released_and_delivered() -> None:
    orders = [Lamport(me, 3) for me in range(3)]
    message = Message("x", 0, 0b010, b"secret")
    effects = orders[0].send(message)
    assert effects[:2] == [PERSIST, Sent(message)]
    copy, announce = sends(effects)
    assert (copy.kind, copy.target, announce.kind, announce.target) == ("copy", 1, "announce", 2)
    assert announce.message is None

    verdict, effects = orders[1].receive(copy)
    (ack,) = sends(effects)
    assert verdict is Verdict.HOLD
    assert effects == [PERSIST, Send(ack), Accept(copy)]
    assert orders[1].held() == [message]
    assert not orders[1].held_packets()

    verdict, effects = orders[2].receive(announce)
    assert verdict is Verdict.DELIVER
    (other_ack,) = sends(effects)
    assert not sends(orders[0].receive(ack)[1])
    releases = sends(orders[0].receive(other_ack)[1])
    assert [(packet.kind, packet.target) for packet in releases] == [("release", 1), ("release", 2)]
    assert orders[1].receive(releases[0]) == (Verdict.DELIVER, [PERSIST, Deliver(message)])
    assert orders[2].receive(releases[1]) == (Verdict.DELIVER, [PERSIST])
    assert not any(order.held() for order in orders)


def test_a_member_alone_delivers_to_itself() -> None:
    order = Lamport(0, 1)
    message = Message("x", 0, 1)
    (copy,) = sends(order.send(message))
    assert not order.held()
    assert order.receive(copy) == (Verdict.DELIVER, [PERSIST, Deliver(message)])


def test_a_message_to_nobody_bothers_nobody() -> None:
    message = Message("x", 0, 0)
    assert Lamport(0, 3).send(message) == [PERSIST, Sent(message)]


def test_stamps_are_not_trusted() -> None:
    order = Lamport(0, 3)
    order.send(Message("x", 0, 0b111))
    assert order.decode("ack", 1, b"\x01\x01\x02") == (1, 1, 2)
    for kind, source, data in [
        ("ack", 1, b"\x01\x02\x02"),  # of a message that we never sent
        ("ack", 1, b"\x01\x00\x02"),
        ("ack", 0, b"\x01\x01\x02"),  # from ourselves
        ("release", 1, b"\x01\x01"),  # of a message that we never acknowledged
        ("copy", 0, b"\x01\x02"),  # from our own future
        ("copy", 1, b"\x01\x00"),
        ("copy", 1, b"\x00\x01"),
        ("announce", 0, b"\x01\x01"),
        ("announce", 1, b"\x01" + b"\xff" * 8 + b"\x7f"),
        ("copy", 1, b"\x01\x01\x01"),
        ("copy", 1, b"\x01"),
        ("token", 1, b"\x01"),
    ]:
        with pytest.raises(StampError):
            order.decode(kind, source, data)


class ReleaseDelivers(Lamport):
    """As printed: on receiving the notification, the corresponding message is delivered."""

    def _advance(self, effects: Effects) -> None:
        for entry in sorted(self._queue):
            _, source, number, _, _, message = entry
            if source != self.me and number <= self.released[source]:
                self._queue.remove(entry)
                self._queue.sort()
                if message is not None:
                    effects.append(Deliver(message))
        super()._advance(effects)


class ClockStandsStill(Lamport):
    """A member whose clock does not move beyond what it takes."""

    def take(self, packet: Packet, effects: Effects) -> None:
        clock = self.clock
        super().take(packet, effects)
        self.clock = clock


class DoesNotWaitForAcks(Lamport):
    """A sender that marks its message as soon as it is the smallest."""

    def _advance(self, effects: Effects) -> None:
        self.acked = [self.queued[self.me]] * self.members
        super()._advance(effects)


class TrustsTheLinks(Lamport):
    """As printed, on links that are not FIFO: packets are taken as they come."""

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        effects: Effects = [PERSIST]
        self.taken[packet.source] += 1
        self.take(packet, effects)
        if packet.kind == "copy" and self.waits(packet):
            return Verdict.HOLD, [*effects, Accept(packet)]
        return Verdict.DELIVER, effects


def test_planted_bugs_are_caught(order_breaks: Callable[..., set[str]]) -> None:
    assert "total" in order_breaks(ReleaseDelivers)
    assert {"total", "causal"} <= order_breaks(ClockStandsStill)
    assert "total" in order_breaks(DoesNotWaitForAcks)
    assert "total" in order_breaks(TrustsTheLinks)
