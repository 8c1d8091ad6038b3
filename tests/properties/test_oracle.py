"""The plain oracle and the streaming verdicts, against the definitions, on random traces.

``ANTECEDE_SEEDS`` sets how many. A failure names its seed: ``definitions.random_trace(SEED)`` is the trace.
"""

import importlib.util
from itertools import pairwise, product
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import msgspec
import pytest

from antecede.trace import (
    ORDERS,
    Event,
    Lanes,
    Late,
    Verdict,
    check_clocks,
    check_lamport,
    cycle_in,
    judge,
    judge_large,
    match,
    needless_delays,
    sift,
)


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("definitions", Path(__file__).with_name("definitions.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


definitions: Any = _load()


def _short(late: list[Late]) -> list[tuple[str, str, int, str]]:
    return [(one.message, one.to, one.deliver_index, one.overtaken_by) for one in late]


def _check(rows: list[Event]) -> Verdict:
    truth = definitions.Definitions(rows)
    sifted = sift(rows)
    assert sifted.reasons == truth.why
    assert sifted.events == len(truth.valid)
    own = {row.process for row in rows if row.kind != "hop"}
    silent = {name for i in truth.sends.values() for name in rows[i].to or ()} - own
    assert (sifted.processes, sifted.silent) == (len(own), len(silent))
    places: dict[tuple[str, bool], set[int]] = {}
    for row in rows:
        places.setdefault((row.process, row.kind == "hop"), set()).add(row.index)
    assert sifted.missing == sum(i not in indices for indices in places.values() for i in range(max(indices)))

    verdict = judge(sifted.trace)
    assert judge_large(sifted.trace, ORDERS, every_overtaker=True) == verdict
    assert judge([rows[i] for i in truth.valid]) == verdict
    assert verdict.deliveries == len(truth.delivers)
    assert verdict.undelivered == truth.undelivered()
    assert _short(verdict.fifo) == truth.late(fifo=True)
    assert _short(verdict.causal) == truth.late(fifo=False)
    for late in (*verdict.fifo, *verdict.causal):
        send = rows[truth.sends[late.message]]
        assert (late.source, late.send_index) == (send.process, send.index)
    before = truth.comes_before(("deliver",))
    _check_cycle(verdict.cycle, before)
    pairs = {(a, b) for a, b in before if (b, a) in before}
    assert verdict.pairwise == (not pairs)
    if verdict.deliveries:
        _check_cycle(verdict.crown, truth.comes_before(("send", "deliver")))
    assert [(delay.process, delay.message) for delay in _by_name(needless_delays(sifted.trace))] == truth.needless()
    return verdict


def _by_name(delays: list[Any]) -> list[Any]:
    return sorted(delays, key=lambda delay: (delay.process, delay.message))


def _check_cycle(cycle: list[str] | None, relation: set[tuple[str, str]]) -> None:
    assert (cycle is not None) == definitions.has_cycle(relation)
    if cycle is not None:
        assert len(set(cycle)) == len(cycle) > 1
        assert cycle[0] == min(cycle)
        assert all(pair in relation for pair in pairwise([*cycle, cycle[0]]))


def test_verdicts_are_the_definitions(seeds: int) -> None:
    seen: dict[str, int] = {}
    for seed in range(seeds * 5):
        rows = definitions.random_trace(seed)
        try:
            verdict = _check(rows)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for reason in set(sift(rows).reasons.values()):
            seen[reason] = seen.get(reason, 0) + 1
        for order in ORDERS:
            seen[f"{order} {verdict.holds(order)}"] = seen.get(f"{order} {verdict.holds(order)}", 0) + 1
        seen["needless"] = seen.get("needless", 0) + bool(needless_delays(sift(rows).trace))
    # A comparison that never saw a violation, or a reason, proves nothing of it.
    wanted = {f"{order} {holds}" for order in ORDERS for holds in (True, False, None)}
    wanted |= {"duplicate_row", "duplicate_index", "duplicate_send", "duplicate_delivery", "orphan_delivery"}
    wanted |= {"orphan_arrival", "not_addressed", "before_send", "cycle", "needless"}
    assert wanted - {name for name, count in seen.items() if count >= 3} == set()


def test_lateness_that_rests_on_assumed_rows_is_undecided(seeds: int) -> None:
    undecided = certain = crowns = 0
    for seed in range(seeds * 3):
        rows = definitions.with_assumed(definitions.random_trace(seed), seed)
        truth, sifted = definitions.Definitions(rows), sift(rows)
        verdict = judge(sifted.trace)
        assert judge_large(sifted.trace, ORDERS, every_overtaker=True) == verdict, seed
        for fifo, late, left in (
            (True, verdict.fifo, verdict.fifo_undecided),
            (False, verdict.causal, verdict.causal_undecided),
        ):
            assert _short(late) == truth.late_for_certain(fifo), seed
            assert len(late) + left == len(truth.late(fifo)), seed
        _check_cycle(verdict.cycle, truth.comes_before(("deliver",)))
        if verdict.deliveries:
            _check_cycle(verdict.crown, truth.comes_before(("send", "deliver")))
        undecided += verdict.causal_undecided > 0
        certain += bool(verdict.causal)
        crowns += verdict.crown is not None
    assert min(undecided, certain, crowns) > seeds // 20


def test_verdicts_do_not_depend_on_the_sequence_of_rows(seeds: int) -> None:
    for seed in range(seeds):
        rows = definitions.random_trace(seed)
        shuffled = list(rows)
        Random(seed).shuffle(shuffled)
        first, second = sift(rows), sift(shuffled)
        assert sorted(first.reasons.values()) == sorted(second.reasons.values()), seed
        assert judge(first.trace) == judge(second.trace), seed


def test_packed_maximum_is_the_maximum() -> None:
    random = Random(7)
    for _ in range(2_000):
        size = random.randint(1, 9)
        lanes = Lanes(size)
        top = random.choice((2, 2**31 - 1))
        vectors = [[random.choice((0, 1, top, random.randint(0, top))) for _ in range(size)] for _ in range(2)]
        a, b = (sum(value << (32 * lane) for lane, value in enumerate(vector)) for vector in vectors)
        assert list(lanes.entries(lanes.maximum(a, b))) == [max(pair) for pair in zip(*vectors, strict=True)]
        assert [lanes.entry(a, lane) for lane in range(size)] == vectors[0]


def _with_clocks(rows: list[Event], strides: dict[str, int] | None) -> list[Event]:
    """Give each row the vector of its past: by index, or by a tick of its process's own size."""
    truth = definitions.Definitions(rows)
    valid = [i for i in truth.valid if rows[i].kind != "hop"]
    out = []
    for i in valid:
        clock: dict[str, int] = {}
        for j in valid:
            if j == i or i in truth.after[j]:
                row = rows[j]
                tick = row.index + 1 if strides is None else (row.index + 3) * strides[row.process]
                clock[row.process] = max(clock.get(row.process, 0), tick)
        out.append(msgspec.structs.replace(rows[i], clock=clock, lamport=sum(clock.values())))
    return out


def _less(a: dict[str, int], b: dict[str, int]) -> bool:
    keys = {*a, *b}
    below = all(a.get(key, 0) <= b.get(key, 0) for key in keys)
    return below and any(a.get(key, 0) < b.get(key, 0) for key in keys)


@pytest.mark.parametrize("exact", [True, False])
def test_clocks_agree_iff_they_tell_the_order(exact: bool, seeds: int) -> None:
    caught = 0
    for seed in range(seeds):
        random = Random(f"clocks {seed}")
        rows = definitions.random_trace(seed)
        strides = None if exact else {row.process: random.randint(2, 4) for row in rows}
        rows = _with_clocks(rows, strides)
        if not rows:
            continue
        truth = check_clocks(match(rows))
        assert truth == {"checked": len(rows), "disagree": 0, "rule": "exact" if exact else "order"}, seed
        assert check_lamport(match(rows)) == {"checked": len(rows), "disagree": 0, "used": True}, seed
        wrong = random.randrange(len(rows))
        clock = dict(rows[wrong].clock or {})
        name = random.choice(sorted({row.process for row in rows}))
        clock[name] = max(0, clock.get(name, 0) + random.choice((-3, -1, 1, 5)))
        damaged = list(rows)
        damaged[wrong] = msgspec.structs.replace(rows[wrong], clock=clock)
        found = check_clocks(match(damaged))
        if exact and len(rows) > 2:
            assert found["disagree"] == (
                clock != rows[wrong].clock and clock.get(name) != (rows[wrong].clock or {}).get(name, 0)
            )
        if found["disagree"] == 0:
            definition = definitions.Definitions(damaged)
            for i, j in product(range(len(damaged)), repeat=2):
                assert _less(damaged[i].clock or {}, damaged[j].clock or {}) == (j in definition.after[i]), seed
        caught += found["disagree"] > 0
    assert caught > seeds // 4


def test_a_cycle_that_no_two_processes_see() -> None:
    assert cycle_in([["a", "b"], ["b", "c"], ["c", "a"]]) == ["a", "b", "c"]
    assert cycle_in([["a", "b", "c"], ["a", "c"], ["b", "c"]]) is None
    assert cycle_in([["a", "b", "a"]]) == ["a", "b"]
    assert cycle_in([["a", "a"], []]) is None
