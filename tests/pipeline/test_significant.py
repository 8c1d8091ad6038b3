"""Significant order on Spark's stages and on Spark itself, against the plain engine."""

import importlib.util
import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from antecede import pipeline
from antecede.errors import UsageError
from antecede.pipeline.explaining import explained_on
from antecede.pipeline.flow import Here
from antecede.pipeline.judge.significant import significant_on
from antecede.pipeline.judge.trace import Trace, verdict_on
from antecede.pipeline.measuring import measure_in, orderings_on
from antecede.pipeline.read.encode import Layout
from antecede.pipeline.read.splits import plan
from antecede.trace import Event, ExplainRequest, Metadata, conflicts_in, verify, write_trace
from antecede.trace.explain import explain
from antecede.trace.measure import measure


@pytest.fixture(scope="module")
def traces(root: Path) -> Any:
    path = root / "tests" / "properties" / "significant_traces.py"
    spec = importlib.util.spec_from_file_location("significant_traces", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _roughened(rows: list[Event], seed: int) -> list[Event]:
    """The rows as a careless recorder leaves them: some missing, some twice, some elsewhere, indices far apart."""
    random = Random(f"rough {seed}")
    if seed % 3 == 0:
        factor = random.choice((2, 1000, 10**9))
        rows = [msgspec.structs.replace(row, index=row.index * factor) for row in rows]
    if seed % 2 == 0:
        return rows
    rough = []
    for row in rows:
        choice = random.random()
        if choice < 0.03:
            continue
        rough.append(row)
        if choice < 0.05:
            rough.append(row)
        elif choice < 0.07:
            rough.append(msgspec.structs.replace(row, type="request", operation="write"))
        elif choice < 0.09 and row.kind == "deliver":
            rough[-1] = msgspec.structs.replace(row, process="o0" if row.process != "o0" else "o1")
        elif choice < 0.11:
            rough[-1] = msgspec.structs.replace(row, process="server", kind="hop", message="m1")
    return rough


def _written(directory: Path, trace: Any, seed: int) -> str:
    path = str(directory / ("trace.jsonl", "trace.parquet", "trace.jsonl.gz")[seed % 3])
    write_trace(path, _roughened(trace.rows, seed), Metadata(conflicts=trace.conflicts))
    return path


def _wanted(path: str, directory: Path, orders: tuple[str, ...]) -> tuple[dict[str, Any], list[Any]] | None:
    try:
        report = verify([path], orders, late=directory)
    except UsageError:
        return None
    return report, [json.loads(line) for line in (directory / "late.jsonl").read_text().splitlines()]


def test_stages_say_what_the_plain_engine_says(tmp_path: Path, traces: Any, seeds: int) -> None:
    late = 0
    for seed in range(seeds):
        trace = traces.random_trace(seed)
        path = _written(tmp_path, trace, seed)
        wanted = _wanted(path, tmp_path, ("significant",))
        if wanted is None:
            continue
        layout = Layout(places=1 + seed % 3, buckets=1 + seed % 4, instances=True)
        encoded = Trace(Here(), plan([path], tasks=3, rows_max=16, bytes_max=700), layout)
        report = verdict_on(encoded, ()).report
        entry, rows = significant_on(
            encoded, conflicts_in(trace.conflicts, "test"), report["deliveries"], True, (None, 1, 2, 5)[seed % 4]
        )
        assert entry == wanted[0]["orders"]["significant"], f"seed {seed}"
        assert sorted(rows(), key=lambda row: (row["deliver_index"], row["to"])) == wanted[1], f"seed {seed}"
        late += entry["late"]
    assert late > seeds // 2


def test_stages_explain_what_the_plain_engine_explains(tmp_path: Path, traces: Any, seeds: int) -> None:
    explained = 0
    for seed in range(seeds // 3):
        path = _written(tmp_path, traces.random_trace(seed), seed)
        try:
            wanted = explain([path], ExplainRequest("significant", first=5))
        except UsageError:
            continue
        encoded = Trace(Here(), plan([path], tasks=3, rows_max=16), Layout(places=2, buckets=3, instances=True))
        questions = [ExplainRequest("significant", first=5)]
        questions += [ExplainRequest("significant", message=one["message"]) for one in wanted["explanations"][:2]]
        for asked in questions:
            wanted = explain([path], asked)
            for timing in ("engine", "session_seconds", "seconds"):
                del wanted[timing]
            found = explained_on(encoded, asked)
            del found["engine"]
            assert json.dumps(found) == json.dumps(wanted), f"seed {seed}, {asked}"
            explained += len(wanted["explanations"])
    assert explained > seeds // 3


def test_stages_count_the_orderings_that_the_plain_engine_counts(tmp_path: Path, traces: Any, seeds: int) -> None:
    spared = 0
    for seed in range(seeds // 3):
        trace = traces.random_trace(seed)
        path = _written(tmp_path, trace, seed)
        wanted = measure([path])["significance"]
        encoded = Trace(Here(), plan([path], tasks=3, rows_max=16), Layout(places=2, buckets=3, instances=True))
        assert orderings_on(encoded, conflicts_in(trace.conflicts, "test")) == wanted, f"seed {seed}"
        spared += wanted["spared"] if wanted else 0
    assert spared > seeds


def _several(traces: Any, seeds: range) -> Any:
    """Many traces side by side in one, which do not know of each other."""
    rows, table = [], {}
    for seed in seeds:
        trace = traces.random_trace(seed)
        for row in _roughened(trace.rows, seed):
            names = {
                name: f"{seed}-{said}"
                for name in ("process", "message", "instance", "parent")
                if (said := getattr(row, name)) is not None
            }
            to = tuple(f"{seed}-{name}" for name in row.to) if row.to is not None else None
            rows.append(msgspec.structs.replace(row, to=to, **names))
        for k in range(4):
            table[f"{seed}-o{k}"] = trace.conflicts.get(f"o{k}", trace.conflicts["*"])
    return traces.Trace(rows, table)


def test_spark_says_what_the_plain_engine_says(tmp_path: Path, traces: Any, running: Any) -> None:
    """A hundred traces in one job. Every late delivery is compared, so that each trace has its own answer."""
    trace = _several(traces, range(100))
    path = str(tmp_path / "trace.parquet")
    write_trace(path, trace.rows, Metadata(conflicts=trace.conflicts))
    orders = ("fifo", "causal", "significant")
    wanted = _wanted(path, tmp_path, orders)
    assert wanted is not None
    found = pipeline.verify_in(running, [path], orders, late=str(tmp_path))
    for timing in ("engine", "session_seconds", "seconds", "events_per_second"):
        del found[timing], wanted[0][timing]
    assert json.dumps(found) == json.dumps(wanted[0])
    late = pq.read_table(tmp_path / "late.parquet").to_pylist()
    assert sorted(map(_line, late)) == sorted(map(_line, wanted[1]))
    assert measure_in(running, [path])["significance"] == measure([path])["significance"]


def test_a_frame_brings_its_table(tmp_path: Path, traces: Any, running: Any) -> None:
    trace = _several(traces, range(200, 240))
    path = str(tmp_path / "trace.parquet")
    write_trace(path, trace.rows, Metadata(conflicts=trace.conflicts))
    frame = running.spark.read.parquet(path)
    wanted = verify([path], ("causal", "significant"))
    assert wanted["orders"]["significant"]["late"]
    for table in (trace.conflicts, conflicts_in(trace.conflicts, "here")):
        found = pipeline.verify(frame, ("causal", "significant"), conflicts=table, local_max=0)
        assert json.dumps(found["orders"]) == json.dumps(wanted["orders"])
    assert pipeline.verify(frame, ("significant",), conflicts=[])["orders"]["significant"]["holds"] is not None
    for most in (0, 10**6):
        told = pipeline.explain(frame, "significant", first=5, conflicts=trace.conflicts, local_max=most)
        assert told["explanations"] == explain([path], ExplainRequest("significant", first=5))["explanations"]
        found = pipeline.measure(frame, conflicts=trace.conflicts, local_max=most)
        assert found["significance"] == measure([path])["significance"]
    assert pipeline.measure(frame)["significance"] is None
    for ask in (lambda: pipeline.verify(frame, ("significant",)), lambda: pipeline.explain(frame, "significant")):
        with pytest.raises(UsageError, match="significant order needs conflicts="):
            ask()
    with pytest.raises(UsageError, match="conflicts: conflicts of 'p' must be a list of pairs"):
        pipeline.verify(frame, ("significant",), conflicts={"p": 7})


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


def test_what_cannot_be_judged_is_said_before_spark_starts(tmp_path: Path) -> None:
    path = str(tmp_path / "trace.jsonl")
    write_trace(path, [Event("p", 0, "send", "x", ("q",)), Event("q", 0, "deliver", "x")])
    with pytest.raises(UsageError, match="significant order needs a conflict table"):
        pipeline.verify_files([path], ("significant",))


def test_a_trace_without_instances_cannot_be_judged(tmp_path: Path, running: Any) -> None:
    path = str(tmp_path / "trace.jsonl")
    rows = [Event("p", 0, "send", "x", ("q",)), Event("q", 0, "deliver", "x")]
    write_trace(path, rows, Metadata(conflicts={"*": [["a", "b"]]}))
    with pytest.raises(UsageError, match="no delivery in the trace has an instance"):
        pipeline.verify_in(running, [path], ("significant",))
