"""Both engines against a checker that was written from the guide alone, on random and mutated traces.

``ANTECEDE_SEEDS`` sets how many. A failure names its seed.
"""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from antecede.errors import UsageError
from antecede.trace import Event, Metadata, conflicts_in, judge_significant, sift, verify, write_trace


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


guide: Any = _load("significant_guide")
traces: Any = _load("significant_traces")


def _trace(seed: int) -> tuple[list[Event], Any]:
    rules = (None, None, "instance", "conflict", "agreement")
    rule = rules[seed % 5]
    careful = rule is not None and seed % 2
    trace = traces.careful_trace(seed, rule, 40)[0] if careful else traces.random_trace(seed, 40)
    table = guide.drawn_table(trace.conflicts, seed)
    return (guide.mutated(trace.rows, seed) if seed % 4 else trace.rows), table


def _valid(rows: list[Event]) -> list[Event]:
    return [event for line in sift(rows).trace.lines for event in line]


def test_the_plain_engine_judges_as_the_guide_says(seeds: int) -> None:
    rules: dict[str, int] = {}
    for seed in range(seeds):
        rows, table = _trace(seed)
        valid = _valid(rows)
        if not any(row.kind == "deliver" and row.instance for row in valid):
            continue
        wanted = guide.Guide(valid, table).late()
        found = judge_significant(sift(rows).trace, conflicts_in(table, "test"), every_overtaker=True).late
        assert {(one.to, one.deliver_index): (one.overtaken_by, one.rule) for one in found} == wanted, f"seed {seed}"
        for _, rule in wanted.values():
            rules[rule] = rules.get(rule, 0) + 1
    assert min(rules.get(rule, 0) for rule in ("instance", "conflict", "agreement")) > seeds // 20, rules


def _staged(path: str, table: Any, seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The entry of significant order and every late delivery, by the stages that run on Spark."""
    from antecede.pipeline.flow import Here
    from antecede.pipeline.judge.significant import significant_on
    from antecede.pipeline.judge.trace import Trace, verdict_on
    from antecede.pipeline.read.encode import Layout
    from antecede.pipeline.read.splits import plan

    encoded = Trace(Here(), plan([path]), Layout(places=1, buckets=1 + seed % 3, instances=True))
    deliveries = verdict_on(encoded, ()).report["deliveries"]
    entry, every = significant_on(encoded, conflicts_in(table, "test"), deliveries, True, (None, 1, 3)[seed % 3])
    return entry, list(every())


def test_the_stages_of_spark_judge_as_the_guide_says(
    seeds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    pytest.importorskip("pyspark")
    late = 0
    for seed in range(seeds // 3):
        rows, table = _trace(seed)
        path = str(tmp_path / "t.jsonl")
        write_trace(path, rows, Metadata(conflicts=table))
        valid = _valid(rows)
        if not any(row.kind == "deliver" and row.instance for row in valid):
            continue
        wanted = guide.Guide(valid, table).late()
        monkeypatch.setattr("antecede.pipeline.judge.significant._generations", (64, 1, 2)[seed % 3])
        entry, every = _staged(path, table, seed)
        found = {(row["to"], row["deliver_index"]): row["overtaken_by"] for row in every}
        assert found == {place: other for place, (other, _) in wanted.items()}, f"seed {seed}"
        assert entry["crossed"] == sum(rule == "agreement" for _, rule in wanted.values()), f"seed {seed}"
        if wanted:
            first = min(wanted, key=lambda place: (place[1], place[0]))
            assert entry["first"]["rule"] == wanted[first][1], f"seed {seed}"
        late += len(wanted)
    assert late > seeds // 3


def test_too_many_kin_at_one_object_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound all are told apart; one more is refused, by name, in both engines."""
    pytest.importorskip("numba")
    pytest.importorskip("pyspark")
    table = {"*": [["add", "add"]]}
    monkeypatch.setattr("antecede.limits.kin_instances_max", 3)
    for children, refused in ((2, False), (3, True)):
        rows = [Event("o", 0, "local", instance="top", operation="add", type="begin")]
        for child in range(children):
            rows.append(Event("c", child, "send", f"m{child}", ("o",), instance="caller", type="request"))
            rows.append(
                Event("o", 1 + child, "deliver", f"m{child}", instance=f"i{child}", operation="add", parent="top")
            )
        path = tmp_path / "t.jsonl"
        path.unlink(missing_ok=True)
        write_trace(path, rows, Metadata(conflicts=table))
        if refused:
            said = "o: 4 instances of this object conflict with an ancestor or descendant at the same object"
            with pytest.raises(UsageError, match=said):
                verify([path], ("significant",))
            with pytest.raises(UsageError, match=said):
                _staged(str(path), table, 0)
        else:
            assert verify([path], ("significant",))["orders"]["significant"]["holds"]
            assert _staged(str(path), table, 0)[0]["holds"]
