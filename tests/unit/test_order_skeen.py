"""Skeen's total order (Garg §12.3.3)."""

from collections.abc import Callable

import pytest

from antecede.errors import StampError
from antecede.messages import PERSIST, Accept, Deliver, Effects, Message, Packet, Send, Sent, Verdict
from antecede.orders import Skeen


def sends(effects: Effects) -> list[Packet]:
    return [effect.packet for effect in effects if isinstance(effect, Send)]


@pytest.mark.parametrize("causal", [False, True])
def test_keeps_every_promise(causal: bool, order_campaign: Callable[..., None]) -> None:
    order_campaign(Skeen, 400, causal=causal)


def test_as_printed_it_promises_total_order_only(order_breaks: Callable[..., set[str]]) -> None:
    assert Skeen(0, 2).guarantees == {"total"}
    assert order_breaks(Skeen) == {"fifo", "causal", "synchronous"}
    assert Skeen(0, 2, causal=True).guarantees == {"fifo", "causal", "total"}


def test_the_largest_proposal_wins() -> None:
    initiator, first, second = (Skeen(me, 3) for me in range(3))
    second.clock = 7
    message = Message("x", 0, 0b110)
    effects = initiator.send(message)
    assert effects[:2] == [PERSIST, Sent(message)]
    to_first, to_second = sends(effects)
    verdict, effects = first.receive(to_first)
    (small,) = sends(effects)
    assert verdict is Verdict.HOLD
    assert effects == [PERSIST, Send(small), Accept(to_first)]
    (large,) = sends(second.receive(to_second)[1])
    assert (small.stamp, large.stamp) == ((1, 1), (1, 8))
    assert not sends(initiator.receive(small)[1])
    finals = sends(initiator.receive(large)[1])
    assert [(packet.kind, packet.target, packet.stamp) for packet in finals] == [
        ("final", 1, (1, 8)),
        ("final", 2, (1, 8)),
    ]
    assert first.receive(finals[0]) == (Verdict.DELIVER, [PERSIST, Deliver(message)])
    assert (initiator.clock, first.clock) == (8, 8)


def test_a_message_to_oneself_is_settled_as_it_arrives() -> None:
    order = Skeen(0, 2)
    message = Message("x", 0, 0b01)
    (copy,) = sends(order.send(message))
    assert order.receive(copy) == (Verdict.DELIVER, [PERSIST, Deliver(message)])


def test_with_causal_the_next_multicast_waits_for_the_final_timestamp() -> None:
    initiator, other = Skeen(0, 2, causal=True), Skeen(1, 2, causal=True)
    (copy,) = sends(initiator.send(Message("x", 0, 0b10)))
    assert initiator.send(Message("y", 0, 0b10)) == [PERSIST, Sent(Message("y", 0, 0b10))]
    assert initiator.send(Message("z", 0, 0)) == [PERSIST, Sent(Message("z", 0, 0))]
    assert initiator.unposted() == [(Message("y", 0, 0b10), 1)]
    (proposal,) = sends(other.receive(copy)[1])
    final, following = sends(initiator.receive(proposal)[1])
    assert (final.kind, following.kind, following.subject) == ("final", "copy", "y")
    assert following.stamp == (2, 1)
    assert not initiator.unposted()


def test_stamps_are_not_trusted() -> None:
    order = Skeen(0, 3)
    order.send(Message("x", 0, 0b010))
    order.receive(Packet("copy", 2, 0, Message("y", 2, 1), "y", (1, 5)))
    assert order.decode("propose", 1, b"\x01\x02") == (1, 2)
    assert order.decode("final", 2, b"\x01\x06") == (1, 6)
    for kind, source, data in [
        ("propose", 2, b"\x01\x02"),  # from somebody to whom we sent nothing
        ("propose", 1, b"\x02\x02"),  # for a message that we never sent
        ("propose", 0, b"\x01\x02"),
        ("propose", 1, b"\x01\x00"),
        ("propose", 1, b"\x01" + b"\xff" * 8 + b"\x7f"),
        ("final", 2, b"\x02\x06"),  # for a message that we never voted on
        ("final", 2, b"\x01\x05"),  # below our own proposal
        ("final", 0, b"\x01\x06"),
        ("copy", 1, b"\x00\x01"),
        ("copy", 0, b"\x01\x01"),  # a copy to ourselves that we never sent
        ("copy", 1, b"\x01\x01\x01"),
        ("release", 1, b"\x01\x01"),
    ]:
        with pytest.raises(StampError):
            order.decode(kind, source, data)


class NoTieBreak(Skeen):
    """Among equal timestamps everybody puts its own message first, then those of the next member."""

    def _deliver(self, effects: Effects) -> None:
        while self._places:
            key, place = min(
                self._places.items(),
                key=lambda item: (item[1].time, (item[0][0] - self.me) % self.members, item[0][1]),
            )
            if not place.final:
                return
            del self._places[key]
            effects.append(Deliver(place.message))


class ClockStaysBehind(Skeen):
    """The clock does not advance to the final timestamp."""

    def _settle(self, key: tuple[int, int], time: int) -> None:
        clock = self.clock
        super()._settle(key, time)
        self.clock = clock


class LastProposalWins(Skeen):
    """The initiator takes the last proposal instead of the maximum."""

    def _count(self, key: tuple[int, int], time: int, effects: Effects) -> None:
        self._votes[key].best = 0
        super()._count(key, time, effects)


class FinalDelivers(Skeen):
    """A final timestamp delivers at once."""

    def _deliver(self, effects: Effects) -> None:
        for key, place in self._in_order():
            if place.final:
                del self._places[key]
                effects.append(Deliver(place.message))


class CopiesWithoutTheClock(Skeen):
    """With ``causal``, but copies do not carry the initiator's clock."""

    def _receive_copy(
        self, packet: Packet, key: tuple[int, int], time: int, effects: Effects
    ) -> tuple[Verdict, Effects]:
        return super()._receive_copy(packet, key, 0, effects)


def test_planted_bugs_are_caught(order_breaks: Callable[..., set[str]]) -> None:
    assert "total" in order_breaks(NoTieBreak)
    assert "total" in order_breaks(ClockStaysBehind)
    assert "total" in order_breaks(FinalDelivers)
    assert {"contract", "total"} <= order_breaks(LastProposalWins)
    assert "causal" in order_breaks(CopiesWithoutTheClock, causal=True)
