"""The token's sequence (Garg §12.3.1)."""

from collections.abc import Callable

import pytest

from antecede.errors import StampError
from antecede.messages import PERSIST, Accept, Deliver, Effects, Message, Packet, Send, Sent, Verdict
from antecede.orders import Token


def sends(effects: Effects) -> list[Packet]:
    return [effect.packet for effect in effects if isinstance(effect, Send)]


def test_keeps_every_promise(order_campaign: Callable[..., None]) -> None:
    order_campaign(Token, 400)


def test_the_holder_posts_at_once_and_needs_no_control_packet() -> None:
    holder = Token(0, 3)
    message = Message("x", 0, 0b110)
    effects = holder.send(message)
    assert effects[:2] == [PERSIST, Sent(message)]
    assert [(packet.kind, packet.target, packet.stamp) for packet in sends(effects)] == [
        ("copy", 1, (1,)),
        ("copy", 2, (1,)),
    ]


def test_a_message_waits_for_the_token_and_one_request_serves_many() -> None:
    holder, other = Token(0, 2), Token(1, 2)
    first = other.send(Message("x", 1, 0b01))
    (request,) = sends(first)
    assert request.kind == "request"
    assert Sent(Message("x", 1, 0b01)) in first
    assert not sends(other.send(Message("y", 1, 0b01)))
    assert [(message.id, target) for message, target in other.unposted()] == [("x", 0), ("y", 0)]
    verdict, effects = holder.receive(request)
    assert verdict is Verdict.DELIVER
    (token,) = sends(effects)
    _, effects = other.receive(token)
    assert [packet.subject for packet in sends(effects)] == ["x", "y"]
    assert not other.unposted()
    assert not holder.holding
    assert other.holding


def test_a_request_that_was_overtaken_moves_nothing() -> None:
    """Member 1 is served and gives the token back; its old request must not call the token again."""
    holder, other = Token(0, 2), Token(1, 2)
    (request,) = sends(other.send(Message("x", 1, 0b01)))
    (token,) = sends(holder.receive(request)[1])
    other.receive(token)
    (back,) = sends(holder.send(Message("y", 0, 0b10)))
    (token_back,) = sends(other.receive(back)[1])
    holder.receive(token_back)
    before = holder.snapshot()
    assert holder.receive(request) == (Verdict.DUPLICATE, [])
    assert holder.receive(token_back) == (Verdict.DUPLICATE, [])
    assert holder.snapshot() == before


def test_copies_wait_for_the_numbers_before_them() -> None:
    holder, other = Token(0, 2), Token(1, 2)
    first, second = (sends(holder.send(Message(name, 0, 0b10)))[0] for name in "xy")
    assert other.receive(second) == (Verdict.HOLD, [])
    assert other.receive(first) == (
        Verdict.DELIVER,
        [PERSIST, Deliver(Message("x", 0, 2)), Accept(second), Deliver(Message("y", 0, 2))],
    )


def test_an_idle_system_is_quiet() -> None:
    holder = Token(0, 3)
    assert not sends(holder.send(Message("x", 0, 0)))
    assert not sends(Token(1, 3).send(Message("x", 1, 0)))


def test_stamps_are_not_trusted() -> None:
    order = Token(1, 2)
    with pytest.raises(StampError, match="number 0"):
        order.decode("request", 0, b"\x00")
    with pytest.raises(StampError, match="ends within a number"):
        order.decode("token", 0, b"\x01\x00\x00\x00")
    with pytest.raises(StampError, match="token number 0"):
        order.decode("token", 0, bytes(5))
    with pytest.raises(StampError, match="no open request"):
        order.decode("token", 0, b"\x01\x00\x00\x00\x00")
    with pytest.raises(StampError, match="but we hold token 0"):
        Token(0, 2).decode("token", 1, b"\x01\x00\x00\x00\x00")
    with pytest.raises(StampError, match="from ourselves"):
        order.decode("token", 1, b"\x01\x00\x00\x00\x00")
    order.send(Message("x", 1, 1))
    assert order.decode("token", 0, b"\x01\x05\x00\x00\x00") == (1, 5, 0, 0, 0)
    order.receive(Packet("token", 0, 1, None, "", (1, 5, 0, 0, 0)))
    order.receive(Packet("request", 0, 1, None, "", (1,)))
    order.send(Message("y", 1, 1))
    with pytest.raises(StampError, match="a counter in it is smaller than in token 2"):
        order.decode("token", 0, b"\x03\x04\x00\x01\x01")


class GlobalNumbers(Token):
    """One sequence for all: whoever is not addressed waits for a number that never comes."""

    def _post(self, message: Message, effects: Effects) -> None:
        self.numbers = [max(self.numbers)] * self.members
        super()._post(message, effects)


class NumbersWithoutTheToken(Token):
    """A member that goes on numbering after it has passed the token on."""

    def _pass_on(self, effects: Effects) -> None:
        super()._pass_on(effects)
        self.holding = True


class DeliversAtArrival(Token):
    """A destination that does not wait for the numbers before."""

    def _receive_copy(self, packet: Packet) -> tuple[Verdict, Effects]:
        assert packet.message is not None
        return Verdict.DELIVER, [PERSIST, Deliver(packet.message)]


class QueueLastInFirstOut(Token):
    """A member that numbers its newest message first."""

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        if packet.kind == "token":
            self._queue.reverse()
        return super().receive(packet)


def test_planted_bugs_are_caught(order_breaks: Callable[..., set[str]]) -> None:
    assert "undelivered" in order_breaks(GlobalNumbers)
    assert {"fifo", "causal", "total"} <= order_breaks(DeliversAtArrival)
    assert {"fifo", "causal"} <= order_breaks(QueueLastInFirstOut)
    assert {"contract", "undelivered"} <= order_breaks(NumbersWithoutTheToken)
