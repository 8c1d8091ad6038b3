"""Explanations of the Spark engine are those of the plain one, key for key.

Its stages run in this process on random traces; one trace goes through a Spark session, as a person would ask for it.
"""

import importlib.util
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("pyspark")


from antecede.errors import UsageError
from antecede.pipeline.explaining import explained_on
from antecede.pipeline.flow import Here
from antecede.pipeline.judge.trace import Trace, layout_for
from antecede.pipeline.read.splits import plan
from antecede.trace import Event, ExplainRequest, write_trace
from antecede.trace.explain import explain


def _load(name: str) -> ModuleType:
    path = Path(__file__).parents[1] / "properties" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_for_explain", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


definitions: Any = _load("definitions")
chains: Any = _load("test_chain")
_apart = ("engine", "seconds", "session_seconds")


def _plain(path: Path, asked: ExplainRequest) -> Any:
    try:
        report = explain([path], asked)
    except UsageError as error:
        return str(error)
    return {key: value for key, value in report.items() if key not in _apart}


def _staged(trace: Trace, asked: ExplainRequest) -> Any:
    try:
        report = explained_on(trace, asked)
    except UsageError as error:
        return str(error)
    return {key: value for key, value in report.items() if key not in _apart}


def test_random_traces_are_explained_alike(tmp_path: Path, seeds: int) -> None:
    seen: Counter[str] = Counter()
    path = tmp_path / "t.jsonl"
    for seed in range(max(20, seeds // 8)):
        rows: list[Event] = definitions.random_trace(seed) if seed % 2 else chains._random_rows(seed)
        write_trace(path, rows)
        given = plan([str(path)], tasks=2)
        trace = Trace(Here(), given, layout_for(given))
        some = rows[seed % len(rows)].message or "x"
        for asked in (
            ExplainRequest(),
            ExplainRequest(first=1),
            ExplainRequest("fifo"),
            ExplainRequest("total"),
            ExplainRequest("synchronous"),
            ExplainRequest(message=some),
            ExplainRequest("fifo", message=some),
        ):
            expected = _plain(path, asked)
            assert _staged(trace, asked) == expected, f"seed {seed}, {asked}"
            if isinstance(expected, dict):
                seen[asked.order] += expected["shown"]
                seen["set aside"] += bool(expected["message"] and expected["message"]["set_aside"])
                seen["long"] += any(said["length"] > 2 for said in expected["explanations"])
    assert set(seen) == {"fifo", "causal", "total", "synchronous", "set aside", "long"}
    assert min(seen.values()) >= 1


def test_sparse_indices(tmp_path: Path) -> None:
    """Indices far apart are no positions; places come back as they were recorded."""
    far = 10**12
    rows = [
        Event("p", 5, "send", "x", ("r",)),
        Event("p", far, "send", "y", ("q",)),
        Event("q", far + 1, "deliver", "y"),
        Event("q", far + 7, "send", "z", ("r",)),
        Event("r", 3, "deliver", "z"),
        Event("r", 3 * far, "deliver", "x"),
    ]
    write_trace(tmp_path / "t.jsonl", rows)
    given = plan([str(tmp_path / "t.jsonl")])
    trace = Trace(Here(), given, layout_for(given))
    for asked in (ExplainRequest(), ExplainRequest(message="x"), ExplainRequest("synchronous")):
        assert _staged(trace, asked) == _plain(tmp_path / "t.jsonl", asked)


def test_a_spark_session_explains_alike(tmp_path: Path, command: Callable[[str], tuple[int, str, str]]) -> None:
    rows = next(rows for seed in range(100) if len(rows := chains._random_rows(seed)) > 60)
    write_trace(tmp_path / "t.parquet", rows)
    said = {}
    for engine in ("plain", "spark"):
        code, out, err = command(f"explain t.parquet --engine {engine} --json")
        assert (code, err) == (0, "")
        said[engine] = json.loads(out)
        assert said[engine].pop("engine") == engine
        for name in ("seconds", "session_seconds"):
            del said[engine][name]
    assert said["spark"] == said["plain"]
    assert said["plain"]["shown"] > 0
