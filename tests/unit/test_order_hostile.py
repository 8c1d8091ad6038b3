"""Stamps that are well formed and still cannot be: what an order knows of itself, it holds against them."""

import pytest

from antecede.errors import StampError
from antecede.messages import COPY, Accept, Deliver, Message, Packet, Verdict
from antecede.orders import Control, Writer, parse


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
