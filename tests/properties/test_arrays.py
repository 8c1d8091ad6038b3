"""Late deliveries with arrays are those without, on any trace."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antecede.trace import Event, match, streaming
from antecede.trace.oracle import judge

pytest.importorskip("numpy")

from antecede.trace import arrays


def _trace(seed: int, processes: int, messages: int) -> list[Event]:
    """A random run: each message to a few processes, itself perhaps among them, delivered in any order."""
    dice = Random(seed)
    events: list[Event] = []
    index = [0] * processes
    pending: list[tuple[str, int]] = []

    def add(process: int, kind: str, message: str, to: tuple[str, ...] | None = None) -> None:
        events.append(Event(f"p{process:03}", index[process], kind, message, to))
        index[process] += 1

    for number in range(messages):
        destinations = dice.sample(range(processes), dice.randint(0, min(4, processes)))
        add(dice.randrange(processes), "send", f"m{number}", tuple(f"p{one:03}" for one in destinations))
        pending += [(f"m{number}", one) for one in destinations]
        for _ in range(dice.randint(0, 3)):
            if pending:
                message, process = pending.pop(dice.randrange(len(pending)))
                add(process, "deliver", message)
    return events


@given(st.integers(0, 10**9), st.integers(1, 9), st.integers(0, 40))
def test_arrays_find_what_integers_find(seed: int, processes: int, messages: int) -> None:
    trace = match(_trace(seed, processes, messages))
    assert arrays.late_deliveries(trace) == streaming.late_deliveries(trace)


def test_many_processes_take_arrays_and_the_verdict_is_the_oracle_s(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = match(_trace(5, 80, 400))
    assert arrays.useful_for(trace)
    wanted = judge(trace, ("fifo", "causal"))
    assert wanted.causal
    monkeypatch.setattr(streaming, "late_deliveries", None)
    assert streaming.judge_large(trace, ("fifo", "causal"), every_overtaker=True).causal == wanted.causal


def test_without_numpy_the_verdict_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = match(_trace(5, 80, 400))
    wanted = streaming.judge_large(trace, ("fifo", "causal"), every_overtaker=True)
    monkeypatch.setattr(arrays, "find_spec", lambda name: None)
    monkeypatch.setattr(arrays, "late_deliveries", None)
    assert streaming.judge_large(trace, ("fifo", "causal"), every_overtaker=True).causal == wanted.causal


def test_few_processes_need_no_arrays() -> None:
    assert not arrays.useful_for(match(_trace(5, 8, 40)))
