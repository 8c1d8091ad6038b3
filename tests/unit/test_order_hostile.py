"""Stamps that are well formed and still cannot be: what an order knows of itself, it holds against them."""

from random import Random

import msgspec
import pytest

from antecede.errors import StampError
from antecede.messages import COPY, Accept, Deliver, Message, Packet, Send, Verdict
from antecede.orders import names, parse
from antecede.orders.encoding import Writer
from antecede.orders.pruned_stamp import Control

WITH_NUMBERS = [
    name
    for name in (*names(), "buffer:pipelined", "coordinator:member=1", "skeen:causal")
    if name not in ("none", "buffer")
]


@pytest.mark.parametrize("text", WITH_NUMBERS)
def test_a_packet_from_ourselves_that_we_never_sent_is_refused(text: str) -> None:
    """Taken for true, it would make a duplicate of the next message that we really send to ourselves."""
    spec = parse(text)
    ours, twin = spec.create(1, 2), spec.create(1, 2)
    sent = [
        effect.packet
        for order in (ours, twin)
        for number in (1, 2)
        for effect in order.send(Message(f"{number}", 1, 0b11))
        if isinstance(effect, Send) and effect.packet.target == 1 and effect.packet.kind == COPY
    ]
    for packet in sent:
        # Whoever has sent nothing knows that none of these can be its own.
        with pytest.raises(StampError):
            spec.create(1, 2).decode(COPY, 1, ours.encode(packet))
        assert ours.decode(COPY, 1, ours.encode(packet)) == packet.stamp


def test_a_broadcast_of_ours_that_was_not_for_us_is_refused() -> None:
    vector = parse("vector").create(0, 2)
    vector.send(Message("a", 0, 0b11))
    vector.send(Message("b", 0, 0b10))
    assert vector.decode(COPY, 0, bytes((1, 0))) == (1, 0)
    with pytest.raises(StampError):
        vector.decode(COPY, 0, bytes((2, 0)))


def test_what_a_forged_stamp_has_overtaken_moves_nothing_backwards() -> None:
    """Member 2 skips its own message that waits here for one of member 1's; it must not be taken once that is in."""
    pruned = parse("pruned").create(0, 3)

    def copy(source: int, time: int, log: tuple[tuple[int, ...], ...], *constraints: int) -> Packet:
        id_ = f"{source}.{time}"
        return Packet(COPY, source, 0, Message(id_, source, 0b001), id_, (Control(time, log), constraints))

    waiting = copy(2, 3, ((), (1, 0), ()), 1, 1)
    forged = copy(2, 9, ((), (), ()))
    assert pruned.receive(waiting)[0] is Verdict.HOLD
    assert pruned.receive(forged)[0] is Verdict.DELIVER
    _, effects = pruned.receive(copy(1, 1, ((), (), ())))
    assert [effect.message.id for effect in effects if isinstance(effect, Deliver)] == ["1.1"]
    assert [effect.packet for effect in effects if isinstance(effect, Accept)] == [waiting]
    assert pruned.held() == []
    assert pruned.receive(forged)[0] is Verdict.DUPLICATE


def test_a_set_of_members_has_one_encoding() -> None:
    """Five of 16 members are a bit map of three bytes; the list of six says the same and is refused, and vice versa."""
    order = parse("pruned").create(0, 16)
    for members, listed in ((5, True), (1, False)):
        out = Writer()
        out.number(2)
        out.raw(b"\x02\x00" * 2)
        out.number(1)
        out.number(1)
        if listed:
            out.number(members + 1)
            out.raw(bytes([2, *[1] * (members - 1)]))
        else:
            out.number(0)
            out.raw(b"\x04\x00")
        out.number(0)
        with pytest.raises(StampError, match="expected the bit map" if listed else "expected the list"):
            order.decode(COPY, 1, out.bytes())


@pytest.mark.parametrize("text", WITH_NUMBERS)
def test_a_forged_stamp_that_passes_breaks_no_step(text: str) -> None:
    """Whatever decoding lets through can be received, saved and followed by honest packets without an exception."""
    spec = parse(text)
    for seed in range(30):
        random = Random(f"{text} {seed}")
        orders = [spec.create(me, 3) for me in range(3)]
        flying: list[Packet] = []
        for step in range(25):
            source = random.randrange(3)
            to = 0b111 if text == "vector" else random.randint(1, 7)
            effects = orders[source].send(Message(f"m{step}", source, to))
            flying += [effect.packet for effect in effects if isinstance(effect, Send)]
            for _ in range(min(random.randrange(3), len(flying))):
                packet = flying.pop(random.randrange(len(flying)))
                data = bytearray(orders[packet.source].encode(packet))
                if data and random.random() < 0.3:
                    data[random.randrange(len(data))] = random.choice((0, 1, 2, 3, 5, 127))
                source = packet.source if random.random() < 0.8 else random.randrange(3)
                order = orders[packet.target]
                try:
                    stamp = order.decode(packet.kind, source, bytes(data))
                except StampError:
                    continue
                _, effects = order.receive(msgspec.structs.replace(packet, source=source, stamp=stamp))
                flying += [effect.packet for effect in effects if isinstance(effect, Send)]
                orders[packet.target] = spec.create(packet.target, 3)
                orders[packet.target].restore(order.snapshot())


def test_a_copy_from_ourselves_does_not_free_our_lock() -> None:
    """The lock is ours for a message to somebody else: a forged copy to ourselves must not give it away."""
    synchronous = parse("synchronous").create(0, 2)
    synchronous.send(Message("m", 0, 0b10))
    with pytest.raises(StampError):
        synchronous.decode(COPY, 0, bytes((1,)))


def test_an_option_without_a_value_is_switched_on() -> None:
    """The name of an order goes into traces and reports, and must be readable there and here."""
    assert str(parse("buffer:pipelined")) == "buffer:pipelined=true"
    assert parse(str(parse("skeen:causal"))) == parse("skeen:causal")


def test_a_held_stamp_that_a_lie_overtook_is_read_again_from_the_log() -> None:
    """Member 1 lies: the stamp of its second message and that of its first one contradict each other. Both arrive while
    nothing is known, so both are taken, the second is held, and the log has it behind the first."""

    def rows(*counts: int) -> bytes:
        out = Writer()
        for count in (0, 0, 0, *counts, 0, 0, 0):
            out.number(count)
        return out.bytes()

    second, first = rows(2, 0, 0), rows(1, 0, 32)
    order, again = parse("matrix").create(0, 3), parse("matrix").create(0, 3)

    def packet(number: int, stamp: object) -> Packet:
        return Packet(COPY, 1, 0, Message(f"1.{number}", 1, 0b1), f"1.{number}", stamp)

    assert order.receive(packet(2, order.decode(COPY, 1, second)))[0] is Verdict.HOLD
    _, effects = order.receive(packet(1, order.decode(COPY, 1, first)))
    assert [effect.message.id for effect in effects if isinstance(effect, Deliver)] == ["1.1", "1.2"]
    again.receive(packet(1, again.decode_recorded(COPY, 1, first)))
    with pytest.raises(StampError, match="contradicts"):
        again.decode(COPY, 1, second)
    again.receive(packet(2, again.decode_recorded(COPY, 1, second)))
    assert again.dump() == order.dump()
