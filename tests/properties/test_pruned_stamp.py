"""The short way to write and read a stamp of ``pruned`` says what the long way says, of right and of wrong ones."""

from hypothesis import given
from hypothesis import strategies as st

from antecede.errors import StampError
from antecede.messages import COPY, Packet
from antecede.orders import Control, Order, Pruned, brief


@st.composite
def cases(draw: st.DrawFn) -> tuple[Pruned, int, Control]:
    members = draw(st.sampled_from([1, 2, 3, 8, 9, 17]))
    order = Pruned(draw(st.integers(0, members - 1)), members)
    order.time = draw(st.integers(0, 300))
    entry = st.tuples(st.integers(1, 300), st.sampled_from([0, 0, 1, 3]))
    order.log = draw(st.lists(st.one_of(st.just(()), entry), min_size=members, max_size=members))
    time = draw(st.sampled_from([1, 2, 127, 128, 300, 20_000]))
    near = st.integers(max(1, time - 70), time + 70)
    logs = draw(
        st.lists(
            st.one_of(st.just(()), st.tuples(near, st.sampled_from([0] * 8 + [1]))), min_size=members, max_size=members
        )
    )
    return order, draw(st.integers(0, members - 1)), Control(time, tuple(logs))


def _read(way: type[Order], order: Pruned, source: int, data: bytes) -> object:
    try:
        return way.decode(order, COPY, source, data)
    except StampError as error:
        return str(error)


@given(cases())
def test_a_brief_stamp_is_the_same_stamp(case: tuple[Pruned, int, Control]) -> None:
    order, source, control = case
    stamp = Order.encode(order, Packet(COPY, source, order.me, None, "", (control, ())))
    assert brief(control) in (None, stamp)
    assert _read(Pruned, order, source, stamp) == _read(Order, order, source, stamp)


@given(cases(), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2), st.integers(0, 255)), max_size=3))
def test_what_is_wrong_with_a_stamp_is_said_all_the_same(
    case: tuple[Pruned, int, Control], changes: list[tuple[int, int, int]]
) -> None:
    order, source, control = case
    data = bytearray(Order.encode(order, Packet(COPY, source, order.me, None, "", (control, ()))))
    for place, what, byte in changes:
        at = place % (len(data) + 1)
        data[at : at + (what > 0)] = bytes([byte]) if what < 2 else b""
    assert _read(Pruned, order, source, bytes(data)) == _read(Order, order, source, bytes(data))
