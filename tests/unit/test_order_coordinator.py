"""The coordinator's sequence (Garg §12.3.1)."""

from collections.abc import Callable

import pytest

from antecede.errors import OrderError, StampError
from antecede.messages import PERSIST, Accept, Deliver, Effects, Message, Packet, Send, Sent, Verdict, members_of
from antecede.orders import Coordinator, parse


def sends(effects: Effects) -> list[Packet]:
    return [effect.packet for effect in effects if isinstance(effect, Send)]


@pytest.mark.parametrize("member", [0, 1])
def test_keeps_every_promise(member: int, order_campaign: Callable[..., None]) -> None:
    order_campaign(Coordinator, 300, member=member)


def test_the_sender_waits_for_its_own_copy() -> None:
    coordinator, sender = Coordinator(0, 3), Coordinator(1, 3)
    message = Message("x", 1, 0b111)
    effects = sender.send(message)
    (detour,) = sends(effects)
    assert effects == [PERSIST, Sent(message), Send(detour)]
    verdict, effects = coordinator.receive(detour)
    assert verdict is Verdict.DELIVER
    assert Deliver(message) in effects
    (own, _) = sends(effects)
    assert own.target == 1
    assert sender.receive(own) == (Verdict.DELIVER, [PERSIST, Deliver(message)])


def test_detours_are_sequenced_in_the_order_of_sending() -> None:
    coordinator, sender = Coordinator(0, 3), Coordinator(1, 3)
    first, second = (sends(sender.send(Message(name, 1, 0b100)))[0] for name in "xy")
    assert coordinator.receive(second) == (Verdict.HOLD, [])
    assert [message.id for message in coordinator.held()] == ["y"]
    verdict, effects = coordinator.receive(first)
    assert verdict is Verdict.DELIVER
    assert Accept(second) in effects
    assert [packet.subject for packet in sends(effects)] == ["x", "y"]


def test_the_coordinators_own_copy_keeps_its_place() -> None:
    """x is sequenced first but travels; y, which needs no packet, waits for it in the durable state."""
    coordinator, sender = Coordinator(0, 2), Coordinator(1, 2)
    own = sends(coordinator.send(Message("x", 0, 0b01)))[0]
    (detour,) = sends(sender.send(Message("y", 1, 0b01)))
    last = sends(coordinator.send(Message("z", 0, 0b01)))[0]
    verdict, effects = coordinator.receive(detour)
    assert verdict is Verdict.HOLD
    assert effects == [PERSIST, Accept(detour)]
    assert coordinator.receive(last) == (Verdict.HOLD, [])
    fresh = Coordinator(0, 2)
    fresh.restore(coordinator.snapshot())
    assert [message.id for message in fresh.held()] == ["y"]
    _, effects = coordinator.receive(own)
    delivered = [effect.message.id for effect in effects if isinstance(effect, Deliver)]
    assert delivered == ["x", "z", "y"]


def test_nobody_is_told_of_a_message_to_nobody() -> None:
    message = Message("x", 1, 0)
    assert Coordinator(1, 3).send(message) == [PERSIST, Sent(message)]


def test_the_coordinator_must_exist() -> None:
    with pytest.raises(OrderError, match="member=3: expected a member number, 0 to 2"):
        Coordinator(0, 3, member=3)
    assert parse("coordinator:member=3").create(0, 4).settings == {"member": 3}


def test_stamps_are_not_trusted() -> None:
    order = Coordinator(2, 3)
    with pytest.raises(StampError, match="expected a copy from the coordinator"):
        order.decode("copy", 1, b"\x01")
    with pytest.raises(StampError, match="sequence number 0"):
        order.decode("copy", 0, b"\x00")
    with pytest.raises(StampError, match="extra bytes"):
        order.decode("copy", 0, b"\x01\x01")
    with pytest.raises(StampError, match="expected at most"):
        order.decode("copy", 0, b"\xff" * 8 + b"\x7f")
    with pytest.raises(StampError, match="no packets of kind"):
        order.decode("release", 0, b"\x01")


class DeliversLocally(Coordinator):
    """A sender that does not wait for its own copy."""

    def send(self, message: Message) -> Effects:
        if self.me == self.coordinator or not message.to >> self.me & 1:
            return super().send(message)
        elsewhere = Message(message.id, message.source, message.to & ~(1 << self.me), message.payload)
        detour = self.next_packet("copy", self.coordinator, elsewhere, message.id)
        return [PERSIST, Sent(message), Send(detour), Deliver(message)]


class TakesDetoursAsTheyCome(Coordinator):
    """A coordinator that trusts the links to be FIFO."""

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        if self.me != self.coordinator or packet.source == self.me:
            return super().receive(packet)
        effects: Effects = [PERSIST]
        self.take(packet, effects)
        if self.waits(packet):
            return Verdict.HOLD, [*effects, Accept(packet)]
        return Verdict.DELIVER, effects


class GlobalNumbers(Coordinator):
    """One sequence for all destinations: whoever is not addressed waits for a number that never comes."""

    def take(self, packet: Packet, effects: Effects) -> None:
        message = packet.message
        assert message is not None
        if packet.source == self.coordinator:
            return super().take(packet, effects)
        number = max(self.numbered)
        self.numbered = [number] * self.members
        return super().take(packet, effects)


def test_planted_bugs_are_caught(order_breaks: Callable[..., set[str]]) -> None:
    assert "total" in order_breaks(DeliversLocally)
    assert {"fifo", "causal"} <= order_breaks(TakesDetoursAsTheyCome)
    assert "undelivered" in order_breaks(GlobalNumbers)


def test_members_of_a_wide_group_survive_a_snapshot() -> None:
    """Destination sets are wider than a msgpack number."""
    coordinator, sender = Coordinator(0, 100), Coordinator(99, 100)
    coordinator.send(Message("x", 0, 1))
    (detour,) = sends(sender.send(Message("y", 99, (1 << 100) - 1)))
    coordinator.receive(detour)
    fresh = Coordinator(0, 100)
    fresh.restore(coordinator.snapshot())
    assert list(members_of(fresh.held()[0].to)) == list(range(100))
