"""The box and the context, one rule at a time."""

import tracemalloc
from typing import Any

import pytest

from antecede.lanes import Arrival, Box, Context, LanesError, Question, Verdict, decode
from antecede.lanes.frontier import LARGEST


def opened(within: Any = "none", *lanes: str, **how: Any) -> Box:
    box = Box(within)
    for lane in lanes or ("X", "Y"):
        box.open(lane, lane, 0, **how)
    return box


def asked(box: Box, reader: str | None) -> Question:
    return next(question for question in box.wanted() if question.reader == reader)


def starts(decided: list[Arrival]) -> list[tuple[str, int]]:
    assert all(arrival.verdict is Verdict.START for arrival in decided)
    return [(arrival.reader, arrival.position) for arrival in decided]


def test_a_message_waits_for_its_causes() -> None:
    box = opened()
    late = Arrival("X", 1, {"Y": 2})
    assert not box.arrive(late)
    assert box.missing(late) == [("Y", 2)]
    causes = [Arrival("Y", position, {}) for position in (1, 2)]
    assert starts(box.arrive(causes[0])) == [("Y", 1)]
    assert starts(box.arrive(causes[1])) == [("Y", 2)]
    assert not box.done(causes[1])
    assert starts(box.done(causes[0])) == [("X", 1)]
    assert not box.held
    assert not box.wanted()


def test_a_track_waits_for_its_own_messages_and_for_those_without_a_key() -> None:
    box = opened("none")
    other, own, keyless = Arrival("Y", 1, {}, 5), Arrival("Y", 2, {}, 7), Arrival("Y", 3, {})
    for arrival in (other, own, keyless):
        box.arrive(arrival)
    late = Arrival("X", 1, {"Y#7": 3})
    assert not box.arrive(late)
    assert not box.done(own)
    assert starts(box.done(keyless)) == [("X", 1)]


@pytest.mark.parametrize(("within", "expected"), [("lane", [1]), ("key", [1, 2]), ("none", [1, 2, 3])])
def test_order_within_a_lane(within: str, expected: list[int]) -> None:
    box = opened(within)
    decided = [*box.arrive(Arrival("X", 1, {}, 1)), *box.arrive(Arrival("X", 2, {}, 2))]
    decided += box.arrive(Arrival("X", 3, {}, 1))
    assert [arrival.position for arrival in decided] == expected
    assert [one.position for one in box.done(decided[0])] == (
        [] if within == "none" else [2] if within == "lane" else [3]
    )


def test_what_failed_is_waited_for_until_it_comes_again() -> None:
    box = opened("lane")
    first = Arrival("X", 1, {})
    box.arrive(first)
    box.arrive(Arrival("X", 2, {}))
    box.failed(first)
    again = Arrival("X", 1, {}, redelivered=True)
    assert starts(box.arrive(again)) == [("X", 1)]
    assert starts(box.done(again)) == [("X", 2)]


def test_what_failed_for_good_is_finished() -> None:
    box = opened("lane")
    first = Arrival("X", 1, {})
    box.arrive(first)
    box.arrive(Arrival("X", 2, {}))
    box.failed(first)
    assert starts(box.done(first)) == [("X", 2)]


def test_what_the_broker_gave_up_is_finished() -> None:
    box = opened("lane")
    first = Arrival("X", 1, {})
    box.arrive(first)
    box.failed(first)
    box.arrive(Arrival("X", 2, {}))
    assert starts(box.floor(asked(box, "X"), 1)) == [("X", 2)]


def test_deliveries_again() -> None:
    box = opened()
    first = Arrival("X", 1, {})
    box.arrive(first)
    (same,) = box.arrive(Arrival("X", 1, {}, redelivered=True))
    assert same.verdict is Verdict.IGNORE
    box.done(first)
    (same,) = box.arrive(Arrival("X", 1, {}, redelivered=True))
    assert same.verdict is Verdict.REPEAT


@pytest.mark.parametrize(("floor", "verdict"), [(3, Verdict.REPEAT), (2, Verdict.START)])
def test_a_repeat_that_nobody_here_has_finished_is_asked_about(floor: int, verdict: Verdict) -> None:
    box = Box("none")
    box.open("X", "X", 5)
    doubtful = Arrival("X", 3, {}, redelivered=True)
    assert not box.arrive(doubtful)
    assert box.floor(asked(box, "X"), floor) == [doubtful]
    assert doubtful.verdict is verdict


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_repeat_of_what_runs_here_and_was_finished_elsewhere(succeeds: bool) -> None:
    box = opened("none")
    running = Arrival("X", 1, {})
    box.arrive(running)
    box.arrive(Arrival("Y", 1, {"X": 1}))
    assert starts(box.floor(asked(box, "X"), 1)) == [("Y", 1)]
    again = Arrival("X", 1, {}, redelivered=True)
    assert not box.arrive(again)
    assert not (box.done(running) if succeeds else box.failed(running))
    assert box.floor(asked(box, "X"), 1) == [again]
    assert again.verdict is Verdict.REPEAT


def test_who_gave_up_is_forgotten() -> None:
    box = opened("none")
    box.arrive(Arrival("X", 1, {}))
    tracemalloc.start()
    for position in range(1, 4000):
        for causes in ({"X": 1}, {"X": 99}):
            late = Arrival("Y", 2 * position + len(str(causes)) % 2, causes)
            box.arrive(late)
            box.give_up(late)
            box.done(late)
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown < 1_500_000


def test_an_answer_from_before_the_delivery_is_too_old() -> None:
    box = Box("none")
    box.open("X", "X", 5)
    box.open("Y", "Y", 0)
    box.arrive(Arrival("Y", 1, {"X": 9}))
    question = asked(box, "X")
    doubtful = Arrival("X", 3, {}, redelivered=True)
    box.arrive(doubtful)
    assert not box.floor(question, 5)
    assert doubtful.verdict is Verdict.HELD


def test_a_lane_that_went_back_is_opened_again() -> None:
    box = opened("none")
    running = Arrival("X", 1, {})
    box.arrive(running)
    held = Arrival("X", 2, {"Y": 9})
    box.arrive(held)
    waiting = Arrival("Y", 1, {"X": 2})
    box.arrive(waiting)
    new = Arrival("X", 1, {})
    assert box.arrive(new) == [held]
    assert held.verdict is Verdict.RETURN
    assert not [question for question in box.wanted() if question.reopen]
    assert not box.done(running)
    (question,) = [question for question in box.wanted() if question.reopen]
    assert starts(box.open("X", question.lane, 0)) == [("X", 1)]
    # The old handler has finished nothing in the new lane.
    assert starts(box.arrive(Arrival("X", 2, {}))) == [("X", 2)]
    assert waiting.verdict is Verdict.HELD


@pytest.mark.parametrize("finished", [True, False])
def test_another_message_at_a_known_position_is_no_repeat(finished: bool) -> None:
    """The lane was made again, and the first delivery of the new message went to another process."""
    box = opened("none", sole=False)
    old = Arrival("X", 1, {}, time=1.0)
    box.arrive(old)
    if finished:
        box.done(old)
    new = Arrival("X", 1, {}, redelivered=True, time=2.0)
    assert not box.arrive(new)
    if not finished:
        box.done(old)
    assert starts(box.open("X", "X", 0, sole=False)) == [("X", 1)]
    assert new.verdict is Verdict.START


def test_all_readers_of_a_lane() -> None:
    box = Box("none")
    for reader in ("X odd", "X even"):
        box.open(reader, "X", 0)
    box.open("Y", "Y", 0)
    odd, even = Arrival("X odd", 1, {}), Arrival("X even", 2, {})
    box.arrive(odd)
    box.arrive(even)
    late = Arrival("Y", 1, {"X": 2})
    assert not box.arrive(late)
    assert not box.done(even)
    assert not box.done(odd)
    assert starts(box.quiet(asked(box, "X odd"), 2)) == [("Y", 1)]


def test_a_gap_is_outstanding() -> None:
    box = opened("none", sequence=0)
    box.arrive(Arrival("X", 2, {}, sequence=2))
    late = Arrival("Y", 1, {"X": 1})
    assert not box.arrive(late)
    lost = Arrival("X", 1, {}, redelivered=True, sequence=3)
    box.arrive(lost)
    assert not box.done(lost)
    assert starts(box.floor(asked(box, "X"), 1)) == [("Y", 1)]


def test_nothing_is_quiet_while_a_delivery_is_on_its_way() -> None:
    box = opened("none", sequence=0)
    late = Arrival("Y", 1, {"X": 5})
    box.arrive(late)
    assert not box.quiet(asked(box, "X"), 5, sequence=1)
    assert starts(box.quiet(asked(box, "X"), 5, sequence=0)) == [("Y", 1)]


def test_shared_readers_believe_only_the_broker() -> None:
    box = opened("none", sole=False)
    first = Arrival("X", 1, {})
    box.arrive(first)
    late = Arrival("Y", 1, {"X": 1})
    box.arrive(late)
    assert not box.done(first)
    assert starts(box.floor(asked(box, "X"), 1)) == [("Y", 1)]


def test_impossible_positions_are_dropped() -> None:
    box = opened("none")
    itself = Arrival("X", 3, {"X": 3, "X#9": 7, "Y": 5, "Z": 4, "W": 1})
    box.arrive(itself)
    box.end(asked(box, "Y"), 4)
    ends = {question.lane: question for question in box.wanted() if question.reader is None}
    assert not box.end(ends["Z"], -1)
    assert starts(box.end(ends["W"], LARGEST)) == [("X", 3)]
    assert itself.causes == {"W": 1}
    assert sorted(itself.dropped) == [("X", 3), ("X#9", 7), ("Y", 5), ("Z", 4)]


def test_giving_up() -> None:
    box = opened("lane")
    late = Arrival("X", 1, {"Y": 1})
    box.arrive(late)
    box.arrive(Arrival("X", 2, {}))
    assert starts(box.give_up(late)) == [("X", 1)]
    assert starts(box.done(late)) == [("X", 2)]


def test_a_dead_letter_that_was_held_is_finished() -> None:
    box = opened("lane")
    late = Arrival("X", 1, {"Y": 1})
    box.arrive(late)
    box.arrive(Arrival("X", 2, {}))
    assert starts(box.done(late)) == [("X", 2)]


def test_a_delivery_that_its_caller_gives_up_while_the_lane_is_closed() -> None:
    box = opened()
    box.close("X")
    gone = Arrival("X", 1, {})
    box.arrive(gone)
    box.failed(gone)
    assert not box.open("X", "X", 0)
    assert not box.held


def test_mistakes_of_the_caller() -> None:
    box = opened()
    for code, wrong in {
        "open": lambda: box.open("X", "X", 0),
        "closed": lambda: box.arrive(Arrival("Z", 1, {})),
        "unknown": lambda: box.done(Arrival("X", 1, {})),
        "within": lambda: Box("random"),  # type: ignore[arg-type]
        "scope": lambda: Context("all"),  # type: ignore[arg-type]
        "token": lambda: Context().merge("nonsense"),
        "in-doubt": lambda: Context().header(),
        "lane-name": lambda: Box().open("", "", 0),
    }.items():
        with pytest.raises(LanesError) as raised:
            wrong()
        assert raised.value.code == code


# -- contexts ---------------------------------------------------------------------------------------------------------


def settled(scope: Any) -> Context:
    context = Context(scope)
    context.merge({}, settles=context.doubts)
    return context


def test_a_service_is_one_past() -> None:
    context = settled("service")
    context.run(1).saw("X", 4, {"Y#2": 3}, 1)
    stamp = context.header("key")
    assert stamp.causes == {"X": 4, "Y#2": 3}
    assert not context.sent(stamp, "Z", 7)
    assert context.run().header().causes == {"X": 4, "Y#2": 3, "Z": 7}


def test_keys_have_pasts_of_their_own() -> None:
    context = settled("key")
    a, b = context.header("a"), context.header("b")
    context.sent(a, "X", 1)
    assert context.header("b").causes == {}
    context.sent(b, "X", 2)
    assert context.header("a").causes == {f"X#{a.track}": 1}
    # A run with key a that publishes with key b joins both.
    assert context.run(a.track).header("b").causes == {f"X#{a.track}": 1, f"X#{b.track}": 2}
    # No key: everything before, and before everything later.
    stamp = context.header()
    assert stamp.causes == {f"X#{a.track}": 1, f"X#{b.track}": 2}
    context.sent(stamp, "X", 3)
    assert context.header("c").causes["X"] == 3


def test_a_run_is_a_past() -> None:
    context = Context("message")
    assert not context.doubts
    run = context.run(3)
    run.saw("X", 4, {"Y": 1}, 3)
    stamp = run.header("k")
    run.sent(stamp, "Z", 2)
    assert run.header().causes == {"X#3": 4, "Y": 1, f"Z#{stamp.track}": 2}
    assert context.run(3).header().causes == {}


def test_doubts_are_settled_by_ends_that_were_read_since() -> None:
    context = Context()
    before = context.doubts
    context.doubt()
    context.merge({"X": 1}, settles=before)
    assert context.doubts
    context.merge({"X": 9}, settles=context.doubts)
    assert context.header().causes == {"X": 9}


def test_an_acknowledgement_below_the_own_entry_replaces_it() -> None:
    context = settled("service")
    context.merge({"X": 50, "Y": 7})
    context.merge("1 X#4=60")
    assert context.sent(context.header(), "X", 3)
    assert context.header().causes == {"X": 3, "Y": 7}


def test_publishes_side_by_side_are_acknowledged_in_any_sequence() -> None:
    context = settled("service")
    first, second = context.header(), context.header()
    assert not context.sent(second, "X", 2)
    assert not context.sent(first, "X", 1)
    assert context.header().causes == {"X": 2}


def test_tokens_carry_the_past() -> None:
    one, other = settled("service"), settled("key")
    one.merge({"a lane#1": 5})
    other.merge(one.token(), "k")
    assert other.header("k").causes == decode(one.header().text).causes == {"a%20lane%231": 5}
    assert other.header("other").causes == {}
