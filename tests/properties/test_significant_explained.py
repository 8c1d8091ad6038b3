"""Every explanation of a violation of significant order, checked again from the rows alone."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from antecede.trace import Explainer, conflicts_in, judge_significant, match


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


def test_every_explanation_holds_and_none_is_longer_than_it_has_to_be(seeds: int) -> None:
    longest = 0
    for seed in range(seeds):
        trace = traces.random_trace(seed)
        matched, conflicts = match(trace.rows), conflicts_in(trace.conflicts, "test")
        if not any(row.kind == "deliver" and row.instance for row in trace.rows):
            continue
        late = judge_significant(matched, conflicts).late
        distances = definitions.distances(trace) if late else {}
        for said in Explainer(matched, conflicts).explain(late) if late else []:
            assert definitions.explained(trace, said, distances) is None, f"seed {seed}: {said}"
            longest = max(longest, said["length"])
    assert longest > 1


def test_a_spoilt_explanation_is_refused(seeds: int) -> None:
    spoilt = 0
    for seed in range(seeds // 5):
        trace = traces.random_trace(seed)
        matched, conflicts = match(trace.rows), conflicts_in(trace.conflicts, "test")
        if not any(row.kind == "deliver" and row.instance for row in trace.rows):
            continue
        late = judge_significant(matched, conflicts).late
        for said in Explainer(matched, conflicts).explain(late[:1]) if late else []:
            distances = definitions.distances(trace)
            for wrong in ({"deliver_index": 0}, {"rule": "none"}, {"chain": said["chain"][1:]}, {"from": "nobody"}):
                if said | wrong != said:
                    assert definitions.explained(trace, said | wrong, distances) is not None, f"seed {seed}: {wrong}"
                    spoilt += 1
    assert spoilt > seeds // 5
