"""All that is asked of a DataFrame, through a Spark Connect server: the answers are those of the plain engine."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antecede import pipeline
from antecede.errors import TraceError
from antecede.trace import Event, ExplainRequest, verify, write_trace
from antecede.trace.explain import explain
from antecede.trace.measure import measure

_traces_min = 20


def _apart(report: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in report.items() if key not in ("engine", "seconds", "session_seconds")}


def test_connect_says_what_the_oracle_says(
    connected: Any, tmp_path: Path, random_trace: Callable[[int], list[Event]], seeds: int, spoken: Any
) -> None:
    """Every late delivery is compared, so that each of the traces has its own answer. A campaign of 10,000 traces has
    500 here."""
    path = tmp_path / "t.parquet"
    traces = max(_traces_min, seeds // 20)
    write_trace(path, spoken.several([random_trace(seed) for seed in range(4000, 4000 + traces)]))
    frame = connected.read.parquet(str(path)).repartition(3)
    with pytest.raises(Exception, match="rdd"):
        _ = frame.rdd
    wanted = verify([path], spoken.ALL, late=tmp_path)
    for most in (0, 10**6):
        assert spoken.judged(pipeline.verify(frame, spoken.ALL, local_max=most)) == spoken.judged(wanted)
    rows = [json.loads(line) for line in (tmp_path / "late.jsonl").read_text().splitlines()]
    late = [row.asDict() for row in pipeline.late(frame, local_max=0).collect()]
    assert sorted(late, key=repr) == sorted(({key: row[key] for key in late[0]} for row in rows), key=repr)
    assert _apart(pipeline.measure(frame, local_max=0)) == _apart(measure([path]))
    told = explain([path], ExplainRequest(first=3))
    assert told["shown"] == 3
    assert _apart(pipeline.explain(frame, first=3, local_max=0)) == _apart(told)


def test_connect_judges_significant_order(connected: Any, tmp_path: Path, root: Path) -> None:
    path = root / "tests" / "properties" / "significant_traces.py"
    spec = importlib.util.spec_from_file_location("significant_traces", path)
    assert spec is not None
    assert spec.loader is not None
    traces = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(traces)
    trace = next(
        found
        for found in map(traces.random_trace, range(100))
        if verify(_written(tmp_path, found), ("significant",), conflicts=_table(found))["orders"]["significant"]["late"]
    )
    asked = ("causal", "significant")
    wanted = verify(_written(tmp_path, trace), asked, conflicts=_table(trace))
    frame = connected.read.parquet(str(tmp_path / "t.parquet"))
    found = pipeline.verify(frame, asked, conflicts=trace.conflicts, local_max=0)
    assert json.dumps(found["orders"]) == json.dumps(wanted["orders"])


def _written(directory: Path, trace: Any) -> list[Path]:
    write_trace(directory / "t.parquet", trace.rows)
    return [directory / "t.parquet"]


def _table(trace: Any) -> Any:
    from antecede.trace import conflicts_in

    return conflicts_in(trace.conflicts, "test")


def test_connect_refuses_what_is_no_trace(connected: Any) -> None:
    with pytest.raises(TraceError, match="none of the columns process, index and kind"):
        pipeline.verify(connected.range(3))
