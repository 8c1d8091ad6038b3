"""``measure`` and ``explain`` on a DataFrame say what the plain engine says of the same rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antecede import pipeline
from antecede.errors import TraceError, UsageError
from antecede.trace import Event, write_trace
from antecede.trace.explain import Asked
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
    assert _said(pipeline.measure(frame)) == _said(measure_here([path]))
    wanted = explain_here([path], Asked(first=3))
    assert wanted["shown"] == 3
    assert _said(pipeline.explain(frame, first=3)) == _said(wanted)
    late = wanted["explanations"][0]["message"]
    assert _said(pipeline.explain(frame, message=late)) == _said(explain_here([path], Asked(message=late)))


def test_what_cannot_be_meant_is_refused(running: Any) -> None:
    with pytest.raises(TraceError, match="none of the columns process, index and kind"):
        pipeline.measure(running.spark.range(3))
    with pytest.raises(UsageError, match="none of"):
        pipeline.explain(running.spark.range(3), "causl")
