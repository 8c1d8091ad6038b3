"""``measure``, ``explain`` and ``late`` on a DataFrame say what the plain engine says of the same rows."""

import importlib.util
import inspect
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antecede import limits, pipeline
from antecede.errors import SparkError, TraceError, UsageError
from antecede.trace import Event, ExplainRequest, verify, write_trace
from antecede.trace.explain import explain as explain_here
from antecede.trace.measure import measure as measure_here


def _said(report: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in report.items() if key not in ("engine", "seconds", "session_seconds")}


def test_a_frame_is_measured_and_explained_alike(
    running: Any, tmp_path: Path, random_trace: Callable[[int], list[Event]], spoken: Any
) -> None:
    path = tmp_path / "t.parquet"
    write_trace(path, spoken.several([random_trace(seed) for seed in range(2000, 2060)]))
    frame = running.spark.read.parquet(str(path)).repartition(3)
    wanted = explain_here([path], ExplainRequest(first=3))
    assert wanted["shown"] == 3
    late = wanted["explanations"][0]["message"]
    for most in (0, 10**6):
        assert _said(pipeline.measure(frame, local_max=most)) == _said(measure_here([path]))
        assert _said(pipeline.explain(frame, first=3, local_max=most)) == _said(wanted)
        found = pipeline.explain(frame, message=late, local_max=most)
        assert _said(found) == _said(explain_here([path], ExplainRequest(message=late)))


def test_late_deliveries_of_a_frame(
    running: Any, tmp_path: Path, random_trace: Callable[[int], list[Event]], spoken: Any
) -> None:
    path = tmp_path / "t.parquet"
    events = spoken.several([random_trace(seed) for seed in range(3000, 3040)])
    # A row that is there twice is one event, and names its message once.
    write_trace(path, [*events, *(event for event in events[:200] if event.kind == "send")])
    verify([path], ("fifo", "causal"), late=tmp_path)
    wanted = [json.loads(line) for line in (tmp_path / "late.jsonl").read_text().splitlines()]
    frame = running.spark.read.parquet(str(path)).repartition(3)
    for most in (0, 10**6):
        found = [row.asDict() for row in pipeline.late(frame, local_max=most).collect()]
        assert {row["order"] for row in found} == {"fifo", "causal"}
        assert sorted(found, key=repr) == sorted(({key: row[key] for key in found[0]} for row in wanted), key=repr)
    with pytest.raises(UsageError, match="order total: cannot list the late deliveries"):
        pipeline.late(running.spark.read.parquet(str(path)), ("total",))


def test_clocks_that_spark_reads_as_structures(running: Any, tmp_path: Path, spoken: Any) -> None:
    """``spark.read.json`` makes of clocks a structure with a field for each process that any row names."""
    path = tmp_path / "t.jsonl"
    rows = [
        Event("p", 0, "send", "x", ("q",), clock={"p": 1}),
        Event("q", 0, "local", clock={}),
        Event("q", 1, "deliver", "x", clock={"p": 1, "q": 2}),
        Event("q", 2, "local", clock={"q": 3}),
        Event("q", 3, "local"),
        Event("q", 3, "local"),
    ]
    write_trace(path, rows)
    for most in (0, 10**6):
        found = pipeline.verify(running.spark.read.json(str(path)), spoken.ALL, local_max=most)
        assert found["clocks"] == {"checked": 4, "disagree": 2, "rule": "exact"}
        assert spoken.judged(found) == spoken.judged(verify([path], spoken.ALL))


def test_a_structure_with_what_is_no_integer_is_no_clock(running: Any) -> None:
    frame = running.spark.createDataFrame(
        [("p", 0, "local", (1, None)), ("p", 1, "local", (1, "2")), ("p", 2, "local", None)],
        "process string, index bigint, kind string, clock struct<p: int, q: string>",
    )
    report = pipeline.verify(frame)
    assert (report["events"], report["quarantined"], report["nulled"]) == (3, {}, {"clock": 1})


def test_what_cannot_be_meant_is_refused(running: Any) -> None:
    with pytest.raises(TraceError, match="none of the columns process, index and kind"):
        pipeline.measure(running.spark.range(3))
    with pytest.raises(UsageError, match="is not one of"):
        pipeline.explain(running.spark.range(3), "causl")


def test_exact_equivalents_and_names_in_other_case(running: Any) -> None:
    frame = running.spark.sql(
        """select * from values
        ('a', 0BD, 'send', 7, timestamp'2026-03-01 10:00:00', 'x'),
        ('b', 0BD, 'deliver', 7, timestamp'2026-03-01 10:00:01', null),
        ('b', 1BD, 'local', null, timestamp'9999-12-31 00:00:00', null)
        as t(Process, index, KIND, message, time, hop)"""
    ).selectExpr("Process", "cast(index as decimal(20, 0)) index", "KIND", "message", "time", "hop")
    report = pipeline.verify(frame)
    assert (report["deliveries"], report["quarantined"], report["nulled"]) == (1, {}, {"hop": 1, "time": 1})
    assert report["orders"]["causal"]["holds"]
    assert pipeline.measure(frame)["delay"]["mean"] == pytest.approx(1.0)


def test_tables_of_other_libraries(tmp_path: Path, random_trace: Callable[[int], list[Event]], spoken: Any) -> None:
    """Whatever hands over Arrow batches is judged in this process, and no session is started."""
    path = tmp_path / "t.parquet"
    write_trace(path, spoken.several([random_trace(seed) for seed in range(5000, 5020)]))
    table = pq.read_table(path)
    # pandas has no column of maps or whole numbers with nulls: what it can hold is judged.
    tables = [table, table.to_batches()[0], table.select(_simple).to_pandas()]
    if polars := sys.modules.get("polars") or _imported("polars"):
        tables.append(polars.from_arrow(table.select([*_simple, "lamport"])))
    for given in tables:
        names = [name for name in pa.table(given).schema.names if name in table.schema.names]
        write_trace(tmp_path / "some.parquet", [])
        pq.write_table(table.select(names), tmp_path / "some.parquet")
        wanted = verify([tmp_path / "some.parquet"], spoken.ALL)
        found = pipeline.verify(given, spoken.ALL)
        assert found["engine"] == "local"
        assert spoken.judged(found) == spoken.judged(wanted), type(given)
    found = pipeline.late(table)
    assert found.num_rows == sum(verify([path])["orders"][order]["late"] for order in ("fifo", "causal"))
    assert _said(pipeline.measure(table)) == _said(measure_here([path]))
    assert _said(pipeline.explain(table, first=3)) == _said(explain_here([path], ExplainRequest(first=3)))


_simple = ["process", "index", "kind", "message", "to"]


def _imported(name: str) -> Any:
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def test_messages_matched(running: Any) -> None:
    rows = [
        ("p", 0, "send", "x", ["q"]),
        ("q", 0, "deliver", "x", None),
        ("q", 1, "deliver", "y", None),
        ("q", 2, "local", None, None),
        ("q", 3, "arrive", "x", None),
        ("q", 4, "send", "z", []),
        ("q", 4, "send", "w", []),
    ]
    frame = running.spark.createDataFrame(
        rows, "process string, index bigint, kind string, message string, to array<string>"
    )
    wanted = {
        ("p", 0, "send", "x", "p", 0, None),
        ("q", 0, "deliver", "x", "p", 0, None),
        ("q", 1, "deliver", "y", None, None, "orphan_delivery"),
        ("q", 3, "arrive", "x", None, None, None),
    }
    for most in (0, 10**6):
        found = pipeline.matched(frame, local_max=most)
        assert found.columns == ["process", "index", "kind", "message", "from", "send_index", "reason"]
        assert {tuple(row) for row in found.collect()} == wanted
    found = pipeline.matched(frame.toArrow())
    assert {tuple(row.values()) for row in found.to_pylist()} == wanted


def test_a_notebook_shows_tables_and_drawings() -> None:
    rows = [
        {"process": "p", "index": 0, "kind": "send", "message": "<x>", "to": ["q"]},
        {"process": "p", "index": 1, "kind": "send", "message": "y", "to": ["q"]},
        {"process": "q", "index": 0, "kind": "deliver", "message": "y", "to": None},
        {"process": "q", "index": 1, "kind": "deliver", "message": "<x>", "to": None},
    ]
    table = pa.Table.from_pylist(rows)
    report = pipeline.verify(table)
    assert json.loads(json.dumps(report)) == report
    shown = report._repr_html_()
    assert "<td>causal</td>" in shown
    assert "&lt;x&gt;" in shown
    assert "<x>" not in shown
    assert "</svg>" in pipeline.explain(table)._repr_html_()
    assert "<th>traffic" not in pipeline.measure(table)._repr_html_()
    assert "<td>p</td><td>q</td><td>2</td>" in pipeline.measure(table)._repr_html_()


def test_failures_of_workers_say_what_to_do() -> None:
    from antecede.pipeline.sessions import one_line

    class PySparkError(Exception):
        __module__ = "pyspark.errors"

    for said in ("[PYTHON_VERSION_MISMATCH] Python in worker", "ModuleNotFoundError: No module named 'antecede'"):
        with (
            pytest.raises(SparkError, match=r"set PYSPARK_PYTHON to a Python .* before the session starts"),
            one_line(),
        ):
            raise PySparkError(said)
    with pytest.raises(SparkError, match=r"an executor was lost, .* try again"), one_line():
        raise PySparkError("org.apache.spark.SparkException: Checkpoint block rdd_7_1 not found!")


def test_files_between_stages_are_removed(running: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made: list[str] = []
    real = tempfile.mkdtemp
    monkeypatch.setattr("tempfile.mkdtemp", lambda *given, **named: made.append(real(*given, **named)) or made[-1])
    frame = running.spark.range(3).selectExpr("'p' process", "id index", "'local' kind")
    assert pipeline.verify(frame, local_max=0)["events"] == 3
    assert any("antecede-frame-" in path for path in made)
    assert not list(tmp_path.iterdir())


def test_rows_up_to_the_bound_are_judged_in_the_driver(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = running.spark.range(3).selectExpr("'p' process", "id index", "'local' kind")

    def refused(*_: Any) -> None:
        raise UsageError("a job on Spark")

    for flow in ("SparkFrames", "SparkFrameFiles"):
        monkeypatch.setattr(f"antecede.pipeline.frames.{flow}", refused)
    assert pipeline.verify(frame, local_max=3)["events"] == 3
    with pytest.raises(UsageError, match="a job on Spark"):
        pipeline.verify(frame, local_max=2)
    default = inspect.signature(pipeline.verify).parameters["local_max"].default
    assert default == limits.frame_rows_local_max == 100_000
