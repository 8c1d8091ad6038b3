"""Windows and their fold give the verdicts of the oracle, wherever a trace is cut."""

from random import Random

import numpy as np
import pytest

from antecede.judge import DELIVER, OTHER, SEND, Fold, NotCleanError, Rows, judge_window
from antecede.trace import Event, judge

_kinds = {SEND: "send", DELIVER: "deliver", OTHER: "local"}
Row = tuple[int, int, int, int, tuple[int, ...]]
"""Process, index, kind, message, destinations."""


def random_trace(random: Random, processes: int, steps: int) -> list[Row]:
    """A clean trace of any system: multicasts, messages to oneself, lost copies, and any sequence of deliveries."""
    indices = [0] * processes
    waiting: list[tuple[int, int]] = []
    rows: list[Row] = []
    patience = random.random()
    for step in range(steps):
        if waiting and random.random() < 0.6:
            place = int(len(waiting) * random.random() ** (1 + 3 * patience))
            message, process = waiting.pop(place)
            if random.random() < 0.03:
                continue
            row = (process, DELIVER, message, ())
        else:
            process = int(random.random() * processes)
            if random.random() < 0.1:
                row = (process, OTHER, 0, ())
            else:
                many = 1 if random.random() < 0.6 else int(random.random() * (processes + 1))
                to = tuple(random.sample(range(processes), many))
                waiting += [(step + 1, receiver) for receiver in to]
                row = (process, SEND, step + 1, to)
        indices[row[0]] += 1 if random.random() < 0.9 else 2
        rows.append((row[0], indices[row[0]], *row[1:]))
    return rows


def columns(rows: list[Row]) -> Rows:
    bounds = np.cumsum([0, *(len(row[4]) for row in rows)])
    return Rows(
        np.array([row[0] for row in rows], np.int32),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.uint8),
        np.array([row[3] for row in rows], np.uint64),
        bounds.astype(np.int64),
        np.array([to for row in rows for to in row[4]], np.int32),
    )


def folded(rows: list[Row], cuts: list[int], processes: int) -> tuple[set[int], set[int], Fold]:
    """The numbers of the rows that are late, under FIFO and causal order."""
    fold = Fold(processes)
    fifo: set[int] = set()
    causal: set[int] = set()
    for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        late, summary = judge_window(columns(rows[begin:end]), processes)
        crossed = fold.add(summary)
        for numbers, found in ((fifo, (late.fifo, crossed.fifo)), (causal, (late.causal, crossed.causal))):
            numbers.update(begin + row for one in found for row in one.tolist())
    return fifo, causal, fold


def by_oracle(rows: list[Row]) -> tuple[set[int], set[int], int]:
    places = {(process, index): k for k, (process, index, *_) in enumerate(rows)}
    events = [
        Event(
            process=f"p{process:03}",
            index=index,
            kind=_kinds[kind],
            message=None if kind == OTHER else str(message),
            to=[f"p{other:03}" for other in to] if kind == SEND else None,
        )
        for process, index, kind, message, to in rows
    ]
    verdict = judge(events, ("fifo", "causal"))
    fifo, causal = (
        {places[int(late.to[1:]), late.deliver_index] for late in found} for found in (verdict.fifo, verdict.causal)
    )
    return fifo, causal, verdict.undelivered


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_any_cuts_give_the_verdict_of_the_oracle(start: int) -> None:
    found = 0
    for seed in range(start, start + 50):
        random = Random(f"{seed}/windows")
        processes = 1 + int(random.random() * 7)
        rows = random_trace(random, processes, int(random.random() * 160))
        fifo, causal, undelivered = by_oracle(rows)
        for many in (0, 1, 4, len(rows)):
            cuts = sorted(int(random.random() * (len(rows) + 1)) for _ in range(many))
            got = folded(rows, cuts, processes)
            assert got[:2] == (fifo, causal), f"seed {seed}, cuts {cuts}"
            assert got[2].undelivered == undelivered
        found += len(causal)
    assert found > 50


def test_nothing_changes_when_a_window_does_not_fit() -> None:
    send, deliver = (0, 1, SEND, 7, (1,)), (1, 1, DELIVER, 7, ())
    fold = Fold(2)
    fold.add(judge_window(columns([send]), 2)[1])
    known = fold.known.copy()
    for wrong in (
        [(0, 1, OTHER, 0, ())],
        [(0, 2, SEND, 7, (1,))],
        [(1, 1, DELIVER, 8, ())],
        [(0, 2, DELIVER, 7, ())],
        [deliver, (1, 2, DELIVER, 7, ())],
    ):
        with pytest.raises(NotCleanError):
            fold.add(judge_window(columns(wrong), 2)[1])
        assert (fold.known == known).all()
        assert fold.in_transit == 1
    fold.add(judge_window(columns([deliver]), 2)[1])
    assert fold.in_transit == 0


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 1, SEND, 7, (1,)), (0, 2, SEND, 7, (1,))],
        [(0, 1, SEND, 7, (1,)), (0, 1, OTHER, 0, ())],
        [(0, 1, SEND, 7, (1,)), (0, 2, DELIVER, 7, ())],
        [(0, 1, SEND, 7, (1,)), (1, 1, DELIVER, 7, ()), (1, 2, DELIVER, 7, ())],
    ],
)
def test_a_window_that_is_not_clean_is_refused(rows: list[Row]) -> None:
    with pytest.raises(NotCleanError):
        judge_window(columns(rows), 2)


def test_large_indices_are_judged() -> None:
    top = 2**62
    rows: list[Row] = [
        (0, top, SEND, 1, (2,)),
        (0, top + 1, SEND, 2, (1,)),
        (1, top, DELIVER, 2, ()),
        (1, top + 1, SEND, 3, (2,)),
        (2, top, DELIVER, 3, ()),
        (2, top + 1, DELIVER, 1, ()),
    ]
    for cut in range(len(rows) + 1):
        assert folded(rows, [cut], 3)[1] == {5}
