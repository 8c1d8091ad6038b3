"""Whatever stands in a header: it never stops a consumer, and lets nothing wait for ever."""

import tracemalloc
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antecede.lanes import Arrival, Box, Context, LanesError, Verdict, decode, track_of
from antecede.lanes.frontier import ENTRIES, LARGEST, LENGTH, TRACKS, coarse, encode, lane_of, name_of

lanes = st.text(min_size=1, max_size=20).filter(
    lambda name: len(name.encode(errors="replace")) <= 80 and name.isprintable()
)
names = st.builds(name_of, lanes, st.none() | st.integers(0, TRACKS - 1))
positions = st.integers(0, 12) | st.integers(0, LARGEST)
frontiers = st.dictionaries(names, positions, max_size=40)

near = st.sampled_from(["X", "Y", "X#3", "Y#3", "Z", "Z#60", "nowhere"])
plausible = st.dictionaries(near, positions, max_size=5).map(lambda causes: encode(causes, 3))
crowded = st.integers(1, 400).map(lambda n: "1 " + " ".join(f"lane{k}={k}" for k in range(n)))
huge = st.sampled_from(["1 X=" + "9" * 5000, "1 " + "x" * 10_000 + "=1", "1 X=" + "9" * 39, "1 " + "X=1 " * 3000])
texts = st.one_of(st.text(), st.binary(), plausible, plausible, crowded, huge, st.just("2 X=1"), st.none())


@given(texts)
def test_any_header_can_be_read(text: Any) -> None:
    stamp = decode(text)
    assert len(stamp.causes) <= ENTRIES
    assert all(0 <= position < 10**39 for position in stamp.causes.values())
    assert stamp.track is None or 0 <= stamp.track < TRACKS
    if stamp.problem:
        assert not stamp.causes


@pytest.mark.parametrize(
    "text", ["2 X=1", "1 X", "1 X=-1", "1 X=1.5", "1#64 X=1", "1 X#64=1", "1  X=1", "1 X=1 ", "", "1 =4"]
)
def test_what_is_not_a_header_has_a_problem(text: str) -> None:
    assert decode(text).problem
    assert not decode(text).causes


@given(frontiers, st.none() | st.integers(0, TRACKS - 1))
def test_what_is_written_is_read(causes: dict[str, int], track: int | None) -> None:
    stamp = decode(encode(causes, track))
    assert (stamp.causes, stamp.track, stamp.problem) == (causes, track, None)


@given(lanes)
def test_names_of_lanes_are_quoted(lane: str) -> None:
    for track in (None, 5):
        assert lane_of(name_of(lane, track)) == lane
        assert decode(encode({name_of(lane, track): 7})).causes == {name_of(lane, track): 7}


def test_keys_are_hashed_as_bytes() -> None:
    assert track_of("user1") == track_of(b"user1")
    assert track_of(17) == track_of("17")
    assert track_of(None) is None
    # Both ends must agree, in every release and on every machine.
    assert [track_of("user1"), track_of("Grün"), track_of(b"")] == [21, 33, 0]


def test_too_many_tracks_become_their_lane() -> None:
    causes = {name_of(f"lane{lane}", track): lane + track for lane in range(10) for track in range(TRACKS)}
    stamp = decode(encode(causes))
    assert stamp.causes == coarse(causes)
    assert all(stamp.causes[name.partition("#")[0]] >= position for name, position in causes.items())


def test_too_many_lanes_are_refused() -> None:
    for causes in ({f"lane{n}": n for n in range(ENTRIES + 1)}, {"x" * 250 + str(n): n for n in range(60)}):
        with pytest.raises(LanesError) as refused:
            encode(causes)
        assert refused.value.code == "too-many-lanes"
        assert len(encode(dict(list(causes.items())[:20]))) <= LENGTH


def _play(messages: list[tuple[str, Any]], sole: bool, within: Any) -> tuple[Box, Context]:
    """Deliver these messages, and answer all questions as a broker would."""
    logs = {lane: [text for one, text in messages if one == lane] for lane in "XY"}
    box, context = Box(within), Context()
    context.merge({}, settles=context.doubts)
    finished: dict[str, set[int]] = {"X": set(), "Y": set()}
    deliveries: deque[Arrival] = deque()
    count = {"X": 0, "Y": 0}
    for lane in "XY":
        box.open(lane, lane, 0, sole=sole)
    for lane, text in messages:
        count[lane] += 1
        stamp = decode(text)
        deliveries.append(Arrival(lane, count[lane], stamp.causes, stamp.track, time=len(deliveries) + 1.0))

    def act(decided: list[Arrival]) -> None:
        for arrival in decided:
            assert arrival.verdict is Verdict.START
            context.saw(arrival.reader, arrival.position, arrival.causes, arrival.track)
            decode(context.header().text)
            finished[arrival.reader].add(arrival.position)
            act(box.done(arrival))

    for arrival in deliveries:
        act(box.arrive(arrival))
    for _ in range(4 * len(messages) + 4):
        for question in box.wanted(overdue=True):
            log = logs.get(question.lane)
            act(box.end(question, len(log) if log is not None else 50 if question.lane == "Z" else -1))
            if log is not None:
                floor = next((p - 1 for p in range(1, len(log) + 1) if p not in finished[question.lane]), len(log))
                if floor < len(log):
                    box.head(question, floor + 1, decode(log[floor]).causes)
                act(box.floor(question, floor))
                if sole:
                    act(box.quiet(question, len(log)))
    assert not box.held
    assert {lane: len(done) for lane, done in finished.items()} == count
    return box, context


@given(
    st.lists(st.tuples(st.sampled_from("XY"), texts), max_size=12),
    st.booleans(),
    st.sampled_from(["lane", "key", "none"]),
)
def test_everything_is_handled(messages: list[tuple[str, Any]], sole: bool, within: str) -> None:
    _, context = _play(messages, sole, within)
    # Nothing impossible has come into the context: only lanes that exist, up to their ends.
    assert {lane_of(name) for name in context.header().causes} <= {"X", "Y", "Z"}
    for name, position in context.header().causes.items():
        assert position <= {"X": 12, "Y": 12, "Z": 50}[lane_of(name)]


@given(st.lists(st.tuples(st.sampled_from("XY"), plausible), max_size=12), st.booleans())
def test_circles_are_cut(messages: list[tuple[str, Any]], sole: bool) -> None:
    _play(messages, sole, "none")


def _grown() -> int:
    """The memory that a long run keeps: with and without keys, repeats, forged headers, and one message that hangs."""
    box = Box("none")
    for lane in "XY":
        box.open(lane, lane, 0)
    box.arrive(Arrival("X", 1, {}))

    def some(start: int, end: int) -> None:
        for position in range(start, end):
            for lane in "XY":
                track = position % TRACKS if position % 3 else None
                (arrival,) = box.arrive(Arrival(lane, position, {"Y": position - 2}, track))
                box.done(arrival)
            box.arrive(Arrival("X", position, {f"nowhere{position}": 5}, redelivered=True))

    some(2, 6000)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    some(6000, 12_000)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return grown


def test_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _grown() < 300_000
    # The same with a planted bug.
    monkeypatch.setattr("antecede.lanes.box.REMEMBERED", 1_000_000)
    assert _grown() > 300_000
