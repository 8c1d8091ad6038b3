"""Traces over several epochs: the engines agree on what each epoch guaranteed."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from antecede.pipeline.flow import Here
from antecede.pipeline.judge.files import verify_in
from antecede.pipeline.judge.trace import Trace, verdict_on
from antecede.pipeline.read.encode import Layout
from antecede.pipeline.read.splits import plan
from antecede.trace import Event, Metadata, epochs_of, verify, write_trace

_keys = ("orders", "epochs", "deliveries")


def _epochs(rows: list[Event], seed: int) -> list[dict[str, Any]]:
    """Return random epochs that fit the rows."""
    random = Random(f"epochs {seed}")
    ends: dict[str, int] = {}
    for row in rows:
        ends[row.process] = max(ends.get(row.process, 0), row.index + 1)
    starts = dict.fromkeys(ends, 0)
    found = []
    for change in range(random.randint(1, 4)):
        servers = {process: f"s{random.randint(1, 3)}" for process in ends}
        areas = {
            "A": {"servers": ["s1", "s2"], "guarantee": random.choice(["fifo", "causal"])},
            "B": {"servers": ["s2", "s3"], "guarantee": random.choice(["none", "causal"])},
        }
        guarantee = min((area["guarantee"] for area in areas.values()), key=["none", "fifo", "causal"].index)
        epoch = {"change": change, "guarantee": guarantee, "since": {} if change == 0 else dict(starts)}
        found.append(epoch | ({"domains": areas, "agents": servers} if random.random() < 0.7 else {}))
        starts = {process: random.randint(starts[process], ends[process]) for process in ends}
    return found


def _written(path: Path, rows: list[Event], seed: int) -> None:
    write_trace(path, rows, Metadata(epochs=_epochs(rows, seed)))


def _of(report: dict[str, Any]) -> dict[str, Any]:
    return {key: report[key] for key in _keys}


def test_the_kernels_judge_epochs_as_the_plain_engine_does(
    tmp_path: Path, random_trace: Callable[[int], list[Event]], seeds: int
) -> None:
    path, excused, wrong = tmp_path / "t.jsonl", 0, 0
    for seed in range(max(40, seeds // 8)):
        _written(path, random_trace(seed), seed)
        wanted = _of(verify([path], ("fifo", "causal", "total")))
        given = plan([str(path)], tasks=3, rows_max=7, bytes_max=200)
        trace = Trace(Here(), given, Layout(places=1, buckets=2, timed=True))
        for way in ("walk", "chunks"):
            epochs = epochs_of(given.metadata)
            found = verdict_on(trace, ("fifo", "causal", "total"), causal=way, epochs=epochs).report
            assert _of(found) == wanted, (seed, way)
        excused += sum(entry.get("not_guaranteed", 0) for entry in wanted["orders"].values())
        wrong += sum(entry.get("late", 0) for entry in wanted["orders"].values())
    # Both happen, so that the comparison is about something.
    assert excused
    assert wrong


def test_spark_judges_epochs_as_the_plain_engine_does(
    running: Any, tmp_path: Path, random_trace: Callable[[int], list[Event]]
) -> None:
    rows = max((random_trace(seed) for seed in range(40)), key=len)
    for seed, name in ((1, "t.parquet"), (2, "t.jsonl")):
        path = tmp_path / name
        _written(path, rows, seed)
        assert _of(verify_in(running, [str(path)])) == _of(verify([path]))
