"""Rendezvous under locks: messages as vertical arrows (Garg §12.1)."""

from collections.abc import Callable

import pytest

from antecede.errors import StampError
from antecede.messages import PERSIST, Deliver, Effects, Message, Packet, Send, Sent, Verdict, members_of
from antecede.orders import Reader, Synchronous


def sends(effects: Effects) -> list[Packet]:
    return [effect.packet for effect in effects if isinstance(effect, Send)]


def test_keeps_every_promise(order_campaign: Callable[..., None]) -> None:
    order_campaign(Synchronous, 400)


def test_the_send_takes_place_when_all_locks_are_held() -> None:
    sender, first, second = (Synchronous(me, 3) for me in range(3))
    message = Message("x", 0, 0b110)
    effects = sender.send(message)
    (request,) = sends(effects)
    assert effects == [PERSIST, Send(request)]
    assert (request.kind, request.target) == ("request", 1)
    assert sender.unposted() == [(message, 1), (message, 2)]
    (grant,) = sends(first.receive(request)[1])
    (request,) = sends(sender.receive(grant)[1])
    assert request.target == 2
    (grant,) = sends(second.receive(request)[1])
    verdict, effects = sender.receive(grant)
    assert verdict is Verdict.DELIVER
    assert effects[:2] == [PERSIST, Sent(message)]
    assert not sender.unposted()
    to_first, to_second = sends(effects)
    assert first.receive(to_first) == (Verdict.DELIVER, [PERSIST, Deliver(message)])
    assert second.receive(to_second) == (Verdict.DELIVER, [PERSIST, Deliver(message)])


def test_two_who_send_to_each_other_do_not_block() -> None:
    """Mattern and Fünfrocken, Fig. 1: the naive rendezvous deadlocks here."""
    zero, one = Synchronous(0, 2), Synchronous(1, 2)
    (to_one,) = sends(zero.send(Message("x", 0, 0b10)))
    (to_zero,) = sends(one.send(Message("y", 1, 0b01)))
    assert not sends(zero.receive(to_zero)[1])
    (grant,) = sends(one.receive(to_one)[1])
    copy, next_grant = sends(zero.receive(grant)[1])
    assert (copy.subject, next_grant.kind, next_grant.subject) == ("x", "grant", "y")
    assert not sends(one.receive(next_grant)[1])
    _, effects = one.receive(copy)
    assert effects[1:3] == [Deliver(Message("x", 0, 0b10)), Sent(Message("y", 1, 0b01))]


def test_a_message_to_oneself_and_one_to_nobody_need_no_control_packet() -> None:
    order = Synchronous(0, 2)
    message = Message("x", 0, 0b01)
    effects = order.send(message)
    (copy,) = sends(effects)
    assert effects == [PERSIST, Sent(message), Send(copy)]
    nothing = Message("y", 0, 0)
    assert order.send(nothing) == [PERSIST]
    assert order.receive(copy) == (Verdict.DELIVER, [PERSIST, Deliver(message), Sent(nothing)])


def test_stamps_are_not_trusted() -> None:
    order = Synchronous(1, 3)
    order.send(Message("x", 1, 0b101))
    for kind, source, data in [
        ("grant", 2, b"\x01"),  # of a lock that we never asked for
        ("grant", 0, b"\x02"),
        ("grant", 1, b"\x01"),
        ("request", 2, b"\x02"),  # before the first one was answered
        ("request", 1, b"\x01"),
        ("request", 2, b"\x00"),
        ("copy", 2, b"\x01"),  # without our lock
        ("copy", 1, b"\x01"),
        ("copy", 2, b""),
        ("release", 2, b"\x01"),
    ]:
        with pytest.raises(StampError):
            order.decode(kind, source, data)
    assert order.decode("grant", 0, b"\x01") == (1,)
    request = Packet("request", 2, 1, None, "y", order.decode("request", 2, b"\x01"))
    assert sends(order.receive(request)[1])
    assert order.decode("copy", 2, b"\x01") == (1,)


class SendsWithoutItsOwnLock(Synchronous):
    """A sender that sends while it is itself locked for another's message."""

    def needed(self, message: Message) -> int:
        return message.to


class GrantsAtOnce(Synchronous):
    """A destination that grants every request, whatever else is going on."""

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        if packet.kind == "request":
            grant = self.control("grant", packet.source, packet.subject, packet.stamp)
            return Verdict.DELIVER, [PERSIST, Send(grant)]
        if packet.kind == "copy" and packet.source != self.me:
            assert packet.message is not None
            return Verdict.DELIVER, [PERSIST, Deliver(packet.message)]
        return super().receive(packet)

    def read_stamp(self, kind: str, source: int, data: Reader) -> tuple[int, ...]:
        return (data.number(),)


class LocksInAnyOrder(Synchronous):
    """Some acquire locks from below, some from above: circles of waiting."""

    def following(self, missing: int) -> int:
        members = list(members_of(missing))
        return members[-(self.me % 2)]


class UnlocksAtTheSend(Synchronous):
    """A sender that is a destination, and frees its own lock with the send instead of the delivery."""

    def _rendezvous(self, effects: Effects) -> None:
        addressed = self._messages[0].to >> self.me & 1
        super()._rendezvous(effects)
        if addressed:
            self._unlock(effects)

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        if packet.kind == "copy" and packet.source == self.me:
            assert packet.message is not None
            return Verdict.DELIVER, [PERSIST, Deliver(packet.message)]
        return super().receive(packet)

    def read_stamp(self, kind: str, source: int, data: Reader) -> tuple[int, ...]:
        return (data.number(),)


def test_planted_bugs_are_caught(order_breaks: Callable[..., set[str]]) -> None:
    assert "synchronous" in order_breaks(SendsWithoutItsOwnLock)
    assert {"synchronous", "total"} <= order_breaks(GrantsAtOnce)
    assert "undelivered" in order_breaks(LocksInAnyOrder)
    assert "synchronous" in order_breaks(UnlocksAtTheSend)
