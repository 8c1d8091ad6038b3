"""Significant order against its definition on random traces, and planted violations in runs that keep it.

A failure names its seed: ``significant_traces.random_trace(SEED)`` or ``careful_trace(SEED, RULE)``.
"""

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from antecede.trace import conflicts_in, judge, judge_significant, match, pasts, significant
from antecede.trace.measure import orderings


def _load() -> ModuleType:
    path = Path(__file__).with_name("significant_traces.py")
    spec = importlib.util.spec_from_file_location("significant_traces", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


traces: Any = _load()
definitions = traces.definitions


def _judged(trace: Any) -> dict[tuple[str, int], tuple[str, str]]:
    found = judge_significant(match(trace.rows), conflicts_in(trace.conflicts, "test"), every_overtaker=True)
    return {(one.to, one.deliver_index): (one.overtaken_by, one.rule) for one in found.late}


@pytest.mark.parametrize("idle_bits", [0, 1_024])
def test_random_traces_are_judged_by_the_definition(
    seeds: int, idle_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(significant, "_squeezed_bits", idle_bits)
    rules: Counter[str] = Counter()
    for seed in range(2 * seeds):
        trace = traces.random_trace(seed)
        if any(row.kind == "deliver" and row.instance for row in trace.rows):
            expected = definitions.late_deliveries(trace)
            assert _judged(trace) == expected, f"seed {seed}"
            rules.update(rule for _, rule in expected.values())
    assert rules["conflict"] > seeds // 4
    assert rules["agreement"] > seeds // 4


def test_what_is_compatible_may_come_in_any_order(seeds: int) -> None:
    overtaken = 0
    for seed in range(seeds // 2):
        trace, _ = traces.careful_trace(seed)
        assert _judged(trace) == {}, f"seed {seed}"
        overtaken += len(judge(trace.rows, ("causal",)).causal)
    assert overtaken > seeds // 2


@pytest.mark.parametrize("rule", ["instance", "conflict", "agreement"])
def test_every_planted_violation_is_found(seeds: int, rule: str) -> None:
    planted = 0
    for seed in range(seeds // 2):
        trace, pair = traces.careful_trace(seed, rule)
        if pair is None:
            continue
        planted += 1
        found = _judged(trace)
        assert rule in {broken for _, broken in found.values()}, f"seed {seed}"
        assert found == definitions.late_deliveries(trace), f"seed {seed}"
    assert planted > seeds // 8


def test_a_lost_copy_is_undelivered_and_breaks_no_order(seeds: int) -> None:
    for seed in range(seeds // 10):
        trace, message = traces.careful_trace(seed, "drop")
        assert message is not None, f"seed {seed}"
        assert _judged(trace) == {}, f"seed {seed}"
        assert match(trace.rows).undelivered() >= 1, f"seed {seed}"


def test_the_orderings_that_significance_needs_are_counted_by_the_definition(seeds: int) -> None:
    for seed in range(seeds // 3):
        trace = traces.random_trace(seed)
        matched = match(trace.rows)
        found = orderings(matched, conflicts_in(trace.conflicts, "test"))
        if found is None:
            continue
        bits, carried = pasts(matched)
        delivered = [[row.message or "" for row in line if row.kind == "deliver"] for line in matched.lines]
        causal = sum(
            carried[other] & bits[one] > 0 for own in delivered for one in own for other in own if one != other
        )
        needed = definitions.orderings(trace)
        assert (found["causal"], found["significant"]) == (causal, needed), f"seed {seed}"
        assert found["spared"] == causal - needed, f"seed {seed}"
