"""Stamps and snapshots from outside: whatever the bytes, a typed error or something that an order can go on with."""

from random import Random

import msgspec
import pytest

from antecede.errors import SnapshotError, StampError
from antecede.messages import COPY, Deliver, Message, Packet, Send
from antecede.orders import names, parse
from antecede.orders.contract import Order

ORDERS = [*names(), "skeen:causal", "buffer:pipelined", "coordinator:member=1"]


def busy(text: str, random: Random) -> tuple[list[Order], list[Packet]]:
    """Three members in the middle of something, and all packets that they have sent."""
    orders = [parse(text).create(me, 3) for me in range(3)]
    flying: list[Packet] = []
    packets: list[Packet] = []
    for step in range(40):
        if step % 4 == 0 or not flying:
            source = random.randrange(3)
            effects = orders[source].send(Message(f"m{step}", source, 0b111, b"payload"))
        else:
            packet = flying.pop(random.randrange(len(flying)))
            _, effects = orders[packet.target].receive(packet)
        fresh = [effect.packet for effect in effects if isinstance(effect, Send)]
        flying += fresh
        packets += fresh
    return orders, packets


@pytest.mark.parametrize("text", ORDERS)
def test_any_bytes_are_a_stamp_or_a_typed_error(text: str) -> None:
    random = Random(text)
    orders, packets = busy(text, random)
    refused = 0
    for _ in range(2_000):
        packet = random.choice(packets)
        order = orders[packet.target]
        data = bytearray(orders[packet.source].encode(packet))
        for _ in range(random.randint(1, 3)):
            at = random.randint(0, len(data))
            data[at : at + random.randint(0, 2)] = random.randbytes(random.randint(0, 2))
        kind = random.choice((COPY, packet.kind, *order.controls))
        source = random.randrange(3)
        try:
            stamp = order.decode(kind, source, bytes(data))
        except StampError:
            refused += 1
        else:
            again = msgspec.structs.replace(packet, kind=kind, source=source, stamp=stamp)
            assert order.encode(again) == data, "two encodings of one stamp"
            assert order.size(again) == len(data)
    assert refused


@pytest.mark.parametrize("text", ORDERS)
def test_any_bytes_are_a_snapshot_or_a_typed_error(text: str) -> None:
    random = Random(text)
    orders, _ = busy(text, random)
    complaints: list[str] = []
    for _ in range(1_000):
        order = random.choice(orders)
        data = bytearray(order.snapshot())
        for _ in range(random.randint(1, 3)):
            data[random.randrange(len(data))] = random.randrange(256)
        fresh = parse(text).create(order.me, 3)
        try:
            fresh.restore(bytes(data[: random.choice((None, random.randrange(len(data))))]))
        except SnapshotError as error:
            complaints.append(str(error))
    assert complaints
    assert not any("\n" in complaint for complaint in complaints)


@pytest.mark.parametrize("text", ORDERS)
def test_a_snapshot_in_the_middle_of_something_goes_on_where_it_was(text: str) -> None:
    random = Random(text)
    orders, _ = busy(text, random)
    for order in orders:
        fresh = parse(text).create(order.me, 3)
        fresh.restore(order.snapshot())
        assert fresh.snapshot() == order.snapshot()
        assert fresh.unposted() == order.unposted()
        for packet in order.held_packets():
            fresh.hold_again(packet)
        assert fresh.held() == order.held()
        message = Message("last", order.me, 0b111)
        after, expected = fresh.send(message), order.send(message)
        assert after == expected
        assert not any(isinstance(effect, Deliver) for effect in after)
