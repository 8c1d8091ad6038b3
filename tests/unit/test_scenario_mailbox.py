"""Mailboxes of programs that receive: who can choose, and who must take the head."""

from antecede.messages import Message, Packet, Send
from antecede.orders import parse
from antecede.orders.contract import Order
from antecede.simulator.programs import QueueMailbox, SelectiveMailbox


def _sent(order: Order, name: str, to: int) -> Packet:
    message = Message(name, order.me, 1 << to)
    (packet,) = [effect.packet for effect in order.send(message) if isinstance(effect, Send)]
    return packet


def test_selective_takes_what_the_order_would_deliver() -> None:
    first, second, third = (parse("matrix").create(me, 3) for me in range(3))
    x = _sent(first, "x", 2)
    y = _sent(first, "y", 1)
    second.receive(y)
    z = _sent(second, "z", 2)
    box = SelectiveMailbox()
    box.put(z, "z")
    assert box.take(third) is None
    box.put(x, "x")
    assert box.take(third, 1) is None
    assert box.kept() == ["z", "x"]
    assert box.take(third) == "x"
    assert x not in box
    third.receive(x)
    assert box.take(third, 0) is None
    assert box.take(third, 1) == "z"


def test_selective_forgets_in_a_crash() -> None:
    first, second = (parse("none").create(me, 2) for me in range(2))
    box = SelectiveMailbox()
    packet = _sent(first, "x", 1)
    box.put(packet, "x")
    assert packet in box
    box.clear()
    assert packet not in box
    assert box.take(second) is None


def test_queue_gives_its_head_only() -> None:
    box = QueueMailbox()
    assert box.take() is None
    box.waiting.extend([("y", "P3"), ("x", "P1")])
    assert box.take("P1") is None
    assert box.take("P3") == "y"
    assert box.take() == "x"
