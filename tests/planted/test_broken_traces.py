"""Broken traces: the oracle itself is seen to fail.

A trace of a real schedule keeps its order. One small change to it must be reported, and as what it is.
"""

from collections.abc import Callable, Iterator

import msgspec
import pytest

from antecede.orders import parse
from antecede.simulator.schedules import fifo_delays, play
from antecede.trace import ARRIVE, DELIVER, LOCAL, SEND, Event, judge, match, needless_delays, pasts

Find = Callable[[list[Event]], tuple[list[Event], str] | None]


def _traces(order: str, count: int = 60) -> Iterator[list[Event]]:
    for seed in range(count):
        outcome = play(parse(order), seed, faults=False)
        assert not outcome.findings, outcome
        yield outcome.events


def _renumbered(events: list[Event]) -> list[Event]:
    indices: dict[str, int] = {}
    rows = []
    for event in events:
        index = indices[event.process] = indices.get(event.process, -1) + 1
        rows.append(msgspec.structs.replace(event, index=index))
    return rows


def _neighbours(events: list[Event]) -> Iterator[tuple[int, int]]:
    """Positions of two deliveries with nothing else of their process in between."""
    last: dict[str, int] = {}
    for position, event in enumerate(events):
        earlier = last.get(event.process)
        if earlier is not None and event.kind == DELIVER == events[earlier].kind:
            yield earlier, position
        last[event.process] = position


def _swapped(events: list[Event], first: int, second: int) -> list[Event]:
    """Two deliveries change places. Both were sent before either, so the trace stays well formed."""
    rows = list(events)
    rows[first] = msgspec.structs.replace(events[first], message=events[second].message)
    rows[second] = msgspec.structs.replace(events[second], message=events[first].message)
    sent = {event.message: position for position, event in enumerate(events) if event.kind == SEND}
    assert sent[events[second].message] < second
    if sent[events[second].message] > first:
        # The later message was not yet sent: let the earlier one wait instead.
        rows.insert(second, rows.pop(first))
    return _renumbered(rows)


def _broken(order: str, change: Callable[[list[Event]], list[Event] | None], wanted: int = 10) -> list[list[Event]]:
    found = [changed for events in _traces(order) if (changed := change(events)) is not None]
    assert len(found) >= wanted, f"only {len(found)} traces of {order} could be broken"
    return found


def test_causally_related_deliveries_change_places() -> None:
    def change(events: list[Event]) -> list[Event] | None:
        bits, carried = pasts(match(events))
        for first, second in _neighbours(events):
            before, after = events[first].message or "", events[second].message or ""
            if carried[after] & bits[before]:
                return _swapped(events, first, second)
        return None

    for events in _broken("matrix", change):
        assert judge(events, ("causal",)).holds("causal") is False


def test_messages_of_one_sender_change_places() -> None:
    def change(events: list[Event]) -> list[Event] | None:
        sender = {event.message: event.process for event in events if event.kind == SEND}
        for first, second in _neighbours(events):
            if sender[events[first].message] == sender[events[second].message]:
                return _swapped(events, first, second)
        return None

    for events in _broken("fifo", change):
        assert judge(events, ("fifo",)).holds("fifo") is False


def test_one_process_delivers_two_messages_the_other_way_round() -> None:
    def change(events: list[Event]) -> list[Event] | None:
        at: dict[str, list[str]] = {}
        for event in events:
            if event.kind == DELIVER:
                at.setdefault(event.message or "", []).append(event.process)
        for first, second in _neighbours(events):
            both = set(at[events[first].message or ""]) & set(at[events[second].message or ""])
            if len(both) > 1:
                return _swapped(events, first, second)
        return None

    for events in _broken("lamport", change):
        verdict = judge(events, ("total",))
        assert verdict.holds("total") is False
        assert not verdict.pairwise


def test_two_messages_cross() -> None:
    """A crown: each is sent before the other is delivered."""
    for events in _traces("synchronous", 10):
        assert judge(events, ("synchronous",)).holds("synchronous") is not False
        names = sorted({event.process for event in events})[:2]
        if len(names) < 2:
            continue
        crown = [
            *events,
            *(Event(name, 0, SEND, f"cross {name}", (other,)) for name, other in zip(names, names[::-1], strict=True)),
            *(Event(name, 0, DELIVER, f"cross {other}") for name, other in zip(names, names[::-1], strict=True)),
        ]
        verdict = judge(_renumbered(crown), ("synchronous", "causal", "total"))
        assert verdict.holds("synchronous") is False
        assert verdict.holds("causal")


@pytest.mark.parametrize("order", ["none", "pruned", "token"])
def test_a_delivery_is_missing(order: str) -> None:
    for events in _traces(order, 20):
        position = max(position for position, event in enumerate(events) if event.kind == DELIVER)
        rows = _renumbered(events[:position] + events[position + 1 :])
        assert judge(rows).undelivered == 1


@pytest.mark.parametrize("order", ["fifo", "matrix", "updates", "pruned", "direct"])
def test_something_happens_before_a_message_that_need_not_wait(order: str) -> None:
    def change(events: list[Event]) -> list[Event] | None:
        for position, event in enumerate(events[:-1]):
            following = events[position + 1]
            if event.kind == ARRIVE and (following.kind, following.message) == (DELIVER, event.message):
                pause = Event(event.process, 0, LOCAL)
                return _renumbered([*events[: position + 1], pause, *events[position + 1 :]])
        return None

    for events in _broken(order, change):
        found = fifo_delays(match(events)) if order == "fifo" else needless_delays(events)
        assert len(found) == 1
