"""The link, rule by rule: numbers, acknowledgements, resends, the window, incarnations, saved state."""

from collections.abc import Callable

import pytest

from antecede import limits
from antecede.errors import LinkError, SnapshotError
from antecede.link import Ack, Arrival, Frame, Hello, Link, Numbers

A, B, C = 0xA, 0xB, 0xC
FRESH, DUPLICATE, DROPPED = Arrival.FRESH, Arrival.DUPLICATE, Arrival.DROPPED


def pair(window: int = 8) -> tuple[Link, Link]:
    links = Link(A), Link(B)
    for link in links:
        link.window = window
    return links


def take(receiver: Link, *frames: Frame) -> None:
    for frame in frames:
        assert receiver.receive(frame) is FRESH
        receiver.accept(frame.number)


def told(receiver: Link) -> Ack:
    ack = receiver.ack()
    assert ack is not None
    return ack


def test_frames_are_numbered_from_one_and_kept_until_acknowledged() -> None:
    a, b = pair()
    frames = [a.send(body, 0.0) for body in "xyz"]
    assert [(f.source, f.target, f.number, f.body) for f in frames] == [(A, 0, 1, "x"), (A, 0, 2, "y"), (A, 0, 3, "z")]
    take(b, *frames)
    assert a.unacknowledged == 3
    a.on_ack(told(b), 0.0)
    assert a.unacknowledged == 0
    assert a.deadline() is None
    assert a.send("w", 0.0).target == B


def test_a_fresh_frame_is_not_acknowledged_until_it_is_accepted() -> None:
    a, b = pair()
    frame = a.send("x", 0.0)
    assert b.receive(frame) is FRESH
    assert b.ack() is None
    assert b.receive(frame) is DUPLICATE
    assert b.ack() is None, "a copy of what nobody accepted is dropped silently"
    b.accept(1)
    assert told(b) == Ack(B, A, 1)
    assert b.ack() is None, "nothing changed since"


def test_a_copy_of_an_accepted_frame_is_acknowledged_again() -> None:
    a, b = pair()
    first, second, third = (a.send(body, 0.0) for body in "xyz")
    take(b, first, third)
    lost = told(b)
    for copy in first, third:
        assert b.receive(copy) is DUPLICATE
        assert told(b) == lost
    assert b.receive(second) is FRESH


def test_one_held_frame_does_not_make_the_others_be_resent() -> None:
    a, b = pair()
    frames = [a.send(bytes(body), 0.0) for body in range(5)]
    for frame in frames:
        b.receive(frame)
    for number in (2, 3, 5):
        b.accept(number)
    ack = told(b)
    assert (ack.upto, ack.beyond) == (0, bytes([0b10110]))
    a.on_ack(ack, 0.0)
    assert [frame.number for frame in a.tick(100.0)] == [1, 4]
    b.accept(1)
    assert told(b).upto == 3


def test_acknowledgements_may_overtake_each_other() -> None:
    a, b = pair()
    frames = [a.send(bytes(body), 0.0) for body in range(4)]
    take(b, frames[3])
    early = told(b)
    take(b, frames[0])
    late = told(b)
    a.on_ack(late, 0.0)
    a.on_ack(early, 0.0)
    a.on_ack(early, 0.0)
    assert [frame.number for frame in a.tick(9.0)] == [2, 3]


def test_resends_back_off_up_to_the_cap() -> None:
    a = Link(A, 1.0)
    a.resend_cap = 5.0
    a.send("x", 10.0)
    when = []
    for _ in range(5):
        due = a.deadline()
        assert due is not None
        assert a.tick(due - 0.001) == []
        assert [frame.body for frame in a.tick(due)] == ["x"]
        when.append(due)
    assert when == [11.0, 13.0, 17.0, 22.0, 27.0]


def test_one_tick_resends_a_bounded_number_and_says_that_more_is_due() -> None:
    a = Link(A)
    for body in range(limits.link_resend_frames_max + 10):
        a.send(bytes(body), 0.0)
    assert len(a.tick(1.0)) == limits.link_resend_frames_max
    due = a.deadline()
    assert due is not None
    assert due <= 1.0
    assert len(a.tick(1.0)) == 10
    assert a.tick(1.0) == []


def test_the_window_is_bounded_and_the_next_in_sequence_is_always_admitted() -> None:
    a, b = pair(window=3)
    frames = [a.send(bytes(body), 0.0) for body in range(6)]
    assert [b.receive(frame) for frame in frames[1:]] == [FRESH, FRESH, DROPPED, DROPPED, DROPPED]
    b.accept(2)
    b.accept(3)
    assert b.receive(frames[3]) is DROPPED, "accepted numbers beyond the first missing one take room as well"
    take(b, frames[0])
    assert [b.receive(frame) for frame in frames[3:]] == [FRESH, FRESH, FRESH]
    assert b.pending == 3


def test_the_default_window_is_the_limit() -> None:
    b = Link(B)
    assert b.receive(Frame(A, B, limits.link_window_frames_max, "x")) is FRESH
    assert b.receive(Frame(A, B, limits.link_window_frames_max + 1, "x")) is DROPPED


def test_frames_beyond_the_peers_window_are_due_as_soon_as_it_moves() -> None:
    a, b = pair(window=2)
    frames = [a.send(bytes(body), 0.0) for body in range(5)]
    assert a.admitted == 2
    assert [frame.number for frame in a.tick(1.0)] == [1, 2]
    take(b, *frames[:2])
    a.on_ack(told(b), 1.0)
    assert (a.admitted, a.deadline()) == (4, 1.0)
    assert [frame.number for frame in a.tick(1.0)] == [3, 4]


def test_memory_does_not_grow_with_the_messages() -> None:
    a, b = pair(window=64)
    for _ in range(40):
        # One frame waits while many others pass, then it is let through.
        assert b.receive(a.send("held", 0.0)) is FRESH
        for body in range(50):
            take(b, a.send(bytes(body), 0.0))
            a.on_ack(told(b), 0.0)
        assert a.unacknowledged == 1
        b.accept(a.sent - 50)
        a.on_ack(told(b), 0.0)
        assert len(a.timers) <= 2 * a.unacknowledged + 64
    assert (a.unacknowledged, a._acknowledged.beyond, b._accepted.beyond) == (0, 0, 0)


def wrong_acks() -> list[tuple[Ack, str]]:
    return [
        (Ack(B, A, 3), "this end has sent only 2"),
        (Ack(B, A, 0, bytes([0b1000])), "frame 4: this end has sent only 2"),
        (Ack(B, A, -1), "up to -1: the number is negative"),
        (Ack(B, A, 0, b"\1"), "bit 0 of the bit map is set"),
        (Ack(C, A, 1), "the peer lost its data"),
        (Ack(B, C, 1), "remembers an earlier data directory"),
        (Ack(B, 0, 1), "for incarnation 0"),
        (Ack(0, A, 1), "from incarnation 0"),
        (Ack(1 << 64, A, 1), "from incarnation"),
        (Ack(B, A, 0, bytes(limits.link_window_frames_max)), "bytes: expected at most"),
    ]


@pytest.mark.parametrize(("ack", "reason"), wrong_acks())
def test_an_acknowledgement_that_no_correct_peer_sends(ack: Ack, reason: str) -> None:
    a, b = pair()
    take(b, a.send("x", 0.0))
    a.on_ack(told(b), 0.0)
    a.send("y", 0.0)
    before = a.dump()
    with pytest.raises(LinkError, match=reason):
        a.on_ack(ack, 0.0)
    assert a.dump() == before


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (Frame(A, B, 0, "x"), "frame 0"),
        (Frame(A, B, -5, "x"), "frame -5"),
        (Frame(A, B, limits.counter_jump_max + 2, "x"), "a correct peer does not send this number"),
        (Frame(C, B, 2, "x"), "the peer lost its data"),
        (Frame(A, C, 2, "x"), "remembers an earlier data directory"),
        (Frame(-1, B, 2, "x"), "from incarnation -1"),
    ],
)
def test_a_frame_that_no_correct_peer_sends(frame: Frame, reason: str) -> None:
    _, b = pair()
    take(b, Frame(A, B, 1, "x"))
    before = b.dump()
    with pytest.raises(LinkError, match=reason):
        b.receive(frame)
    assert b.dump() == before
    assert b.pending == 0


def test_a_wrong_frame_teaches_nothing_about_the_peer() -> None:
    b = Link(B)
    with pytest.raises(LinkError):
        b.receive(Frame(A, B, 0, "x"))
    assert b.peer == 0


def test_hello_resends_at_once_what_the_peer_has_not_accepted() -> None:
    a, b = pair()
    frames = [a.send(bytes(body), 0.0) for body in range(3)]
    take(b, frames[0], frames[2])
    told(b)
    a.on_hello(b.hello(), 7.0)
    b.on_hello(a.hello(), 7.0)
    a.on_ack(told(b), 7.0)
    assert a.deadline() == 7.0
    assert [frame.number for frame in a.tick(7.0)] == [2]


def after_three() -> tuple[Link, Link]:
    a, b = pair()
    take(b, *(a.send(bytes(body), 0.0) for body in range(3)))
    a.on_ack(told(b), 0.0)
    return a, b


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (lambda b: Hello(C, A, 0, 3), "the peer lost its data"),
        (lambda b: Hello(B, C, 0, 3), "remembers an earlier data directory"),
        (lambda b: Hello(B, A, 0, 2), "had acknowledged 3: the peer's counter went back"),
        (lambda b: Hello(B, A, 0, 4), "this end lost data"),
    ],
)
def test_a_hello_that_shows_lost_data(hello: Callable[[Link], Hello], reason: str) -> None:
    a, b = after_three()
    with pytest.raises(LinkError, match=reason):
        a.on_hello(hello(b), 0.0)


@pytest.mark.parametrize("accepted", [True, False])
def test_a_peer_whose_numbers_went_back_is_found_by_hello(accepted: bool) -> None:
    a, b = pair()
    saved = a.dump()
    b.receive(a.send("x", 0.0))
    if accepted:
        b.accept(1)
    older = Link(A)
    older.load(saved, 0.0)
    with pytest.raises(LinkError, match="the peer's counter went back"):
        b.on_hello(older.hello(), 0.0)


def test_forget_begins_anew_and_gives_back_what_was_never_acknowledged() -> None:
    a, _ = after_three()
    a.send("x", 0.0)
    a.send("y", 0.0)
    reborn = Link(C)
    with pytest.raises(LinkError):
        a.on_hello(reborn.hello(), 0.0)
    assert a.forget() == ["x", "y"]
    assert (a.peer, a.sent, a.unacknowledged, a.deadline()) == (0, 0, 0, None)
    a.on_hello(reborn.hello(), 0.0)
    take(reborn, a.send("x", 0.0))
    a.on_ack(told(reborn), 0.0)
    assert (a.unacknowledged, a.peer) == (0, C)


def test_forgetting_at_one_end_only_is_found_by_hello() -> None:
    a, b = after_three()
    a.forget()
    with pytest.raises(LinkError, match="this end lost data"):
        a.on_hello(b.hello(), 0.0)
    with pytest.raises(LinkError, match="the peer's counter went back"):
        b.on_hello(a.hello(), 0.0)


def test_a_restart_resends_all_unacknowledged_and_takes_unaccepted_frames_afresh() -> None:
    a, b = pair()
    frames = [a.send(str(body).encode(), 0.0) for body in range(5)]
    for frame in frames:
        b.receive(frame)
    b.accept(1)
    b.accept(4)
    a.on_ack(told(b), 0.0)
    again_a, again_b = pair()
    again_a.restore(a.snapshot(), 3.0)
    again_b.restore(b.snapshot(), 3.0)
    assert again_a.dump() == a.dump()
    assert again_b.dump() == b.dump()
    assert again_a.deadline() == 3.0
    resent = again_a.tick(3.0)
    assert [(frame.number, frame.body) for frame in resent] == [(2, b"1"), (3, b"2"), (5, b"4")]
    assert [again_b.receive(frame) for frame in frames] == [DUPLICATE, FRESH, FRESH, DUPLICATE, FRESH]
    assert again_a.send(b"next", 3.0).number == 6


@pytest.mark.parametrize(
    "damage",
    [
        lambda saved: b"",
        lambda saved: saved[:-1],
        lambda saved: saved + b"\0",
        lambda saved: b"\x96\x0a\x00\x01\x92\x92\x02\xc4\x01x\x92\x01\xc4\x01y\x00\xc4\x00",
        lambda saved: b"\x96\x0a\x00\xff\x90\x00\xc4\x00",
        lambda saved: Link(C).snapshot(),
    ],
    ids=["empty", "cut", "longer", "falling", "negative", "another incarnation"],
)
def test_a_damaged_snapshot_is_refused(damage: Callable[[bytes], bytes]) -> None:
    a, _ = pair()
    a.send(b"x", 0.0)
    with pytest.raises(SnapshotError):
        Link(A).restore(damage(a.snapshot()), 0.0)


@pytest.mark.parametrize("settings", [{"resend_after": 0.0}, {"resend_after": limits.link_resend_seconds_max + 1}])
def test_impossible_settings(settings: dict[str, float]) -> None:
    with pytest.raises(LinkError):
        Link(A, **settings)
    with pytest.raises(LinkError, match="incarnation 0"):
        Link(0)


def test_numbers_are_a_set() -> None:
    numbers = Numbers()
    model: set[int] = set()
    for number in (3, 1, 7, 2, 4, 9, 8, 5, 6):
        numbers.add(number)
        model.add(number)
        assert {n for n in range(1, 12) if n in numbers} == model
        assert numbers.largest == max(model)
    assert (numbers.upto, numbers.beyond) == (9, 0)


def test_a_peer_that_was_set_back_and_went_on_is_found_by_its_life() -> None:
    """Its numbers have caught up with what we have, but those are not the frames that we have."""
    a, b = pair()
    a.begin_life(1)
    b.on_hello(a.hello(), 0.0)
    take(b, a.send("one", 0.0))
    backup = a.dump()
    take(b, a.send("two", 0.0), a.send("three", 0.0))

    # The same life on another connection, and a later one that remembers everything, are in order.
    b.on_hello(a.hello(), 0.0)
    a.begin_life(2)
    b.on_hello(a.hello(), 0.0)

    restored = Link(a.incarnation)
    restored.load(backup, 0.0)
    restored.begin_life(3)
    for body in ("other two", "other three", "other four"):
        restored.send(body, 0.0)
    assert restored.sent > a.sent
    with pytest.raises(LinkError, match="was restored from an old backup"):
        b.on_hello(restored.hello(), 0.0)
