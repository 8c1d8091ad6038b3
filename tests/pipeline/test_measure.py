"""Figures of the Spark engine are those of the plain one, digit for digit.

Its stages run in this process on random traces; one trace goes through a Spark session, as a person would ask for it.
"""

import importlib.util
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

pytest.importorskip("pyspark")

from antecede.orders import parse
from antecede.pipeline.flow import Here
from antecede.pipeline.judge.trace import Trace, layout_for
from antecede.pipeline.measuring import interval, measured_on
from antecede.pipeline.read.splits import plan
from antecede.simulator.run import Setup, simulate
from antecede.trace import Event, write_trace
from antecede.trace.costs import compared_max, quantile
from antecede.trace.measure import COLUMNS, measure


def _load(name: str) -> ModuleType:
    path = Path(__file__).parents[1] / "properties" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_for_measure", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


definitions: Any = _load("definitions")
_apart = ("engine", "seconds", "session_seconds")


def _decorated(seed: int) -> list[Event]:
    """A random trace, damaged or not, whose rows carry times, sizes and hops, or lack some of them."""
    random = Random(f"figures {seed}")
    there = {name: random.choice((0.0, 0.7, 1.0)) for name in ("time", "stamp", "bytes", "hop", "held")}

    def maybe(name: str, value: Any) -> Any:
        return value if random.random() < there[name] else None

    rows: list[Event] = definitions.random_trace(seed)
    if random.random() < 0.5:
        for number in range(random.randint(1, 12)):
            server, message = random.choice(("p0", "p1", "r1", "r2")), f"m{random.randint(0, 9)}"
            rows.append(Event(server, random.choice((number, number, 0)), "hop", message))
    if random.random() < 0.2:
        # Each of two processes delivers what the other sends only then.
        for own, other in (("c", "d"), ("d", "c")):
            rows.append(Event(own, 0, "arrive", f"to {own}"))
            rows.append(Event(own, 1, "deliver", f"to {own}"))
            rows.append(Event(own, 2, "send", f"to {other}", random.choice((None, (other,)))))
    found = []
    clock = 0
    for row in rows:
        clock += random.choice((0, 0, 1, 10**9 // 3))
        time = random.choice((-(2**63), 2**63 - 1)) if random.random() < 0.01 else clock - random.choice((0, 0, 10**9))
        size = random.choice((3, 700, 2**63 - 1 if random.random() < 0.02 else 1))
        extra = maybe("bytes", {random.choice(("bytes", "size")): random.choice((size, size, size, "much", True, -1))})
        row = replace(row, time=maybe("time", time), stamp_bytes=maybe("stamp", random.randint(0, 50)), extra=extra)
        if row.kind == "hop":
            row = replace(row, domain=random.choice(("A", "B", None)), hop=maybe("hop", random.randint(1, 3)))
        if row.kind in ("hop", "deliver"):
            row = replace(row, held=maybe("held", random.random() < 0.5))
        found.append(row)
        if random.random() < 0.02:
            found.append(found[-1])
    return found


def _fitting(value: Any) -> Any:
    """What a column of a table can hold."""
    return None if type(value) is int and value >= 2**63 else value


def _compare(path: Path, folder: Path) -> dict[str, Any]:
    parquet = pytest.importorskip("pyarrow.parquet")
    expected = measure([path], folder)
    given = plan([str(path)], tasks=2)
    report, tables = measured_on(Trace(Here(), given, layout_for(given, figures=True, numbered=True)))
    for key, value in report.items():
        if key not in _apart:
            assert value == expected[key], key
    assert report.keys() == expected.keys() - {"seconds", "session_seconds"}
    for name, columns in COLUMNS.items():
        written = parquet.read_table(folder / f"{name}.parquet").to_pylist()
        assert [{column: _fitting(row[column]) for column in columns} for row in tables[name]] == written, name
    return expected


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_random_traces_are_measured_alike(tmp_path: Path, seeds: int, ending: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(max(30, seeds // 4)):
        write_trace(tmp_path / f"t.{ending}", _decorated(seed))
        try:
            report = _compare(tmp_path / f"t.{ending}", tmp_path / "tables")
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for name in ("held", "concurrency", "rates"):
            seen[name] += report[name] is not None
        for name in ("stamp", "delay", "hops"):
            seen[name] += any(value is not None for value in report[name].values())
        seen["bytes"] += any(pair["bytes"] is not None for pair in report["traffic"])
        seen["cycle"] += "cycle" in report["quarantined"]
        seen["negative"] += bool(report["delay"]["negative"])
        seen["waited"] += 0 < (report["held"] or 0) < 1
    assert len(seen) == 10
    assert min(seen.values()) >= 1, seen


@pytest.mark.parametrize("order", ["pruned", "lamport", "none"])
def test_simulated_runs_are_measured_alike(tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if parts tell so few delays at first that a quantile must be looked for among the others."""
    monkeypatch.setattr("antecede.pipeline.measuring._sample_size", 5)
    rows: list[Event] = []
    figures = simulate(Setup(parse(order), 7, 400, "multicast"), rows.append)
    write_trace(tmp_path / "t.parquet", rows)
    assert _compare(tmp_path / "t.parquet", tmp_path / "tables")["held"] == figures["held"]


def test_more_messages_than_are_compared(tmp_path: Path) -> None:
    """The same messages are drawn, and slots for what is on its way are made as they are needed."""
    rows = [Event("p", index, "send", f"p{index}", ("q", "s")) for index in range(compared_max)]
    rows += [Event("q", index, "deliver", f"p{compared_max - 1 - index}") for index in range(compared_max)]
    rows += [Event("r", index, "send", f"r{index}", ()) for index in range(compared_max // 2)]
    rows += [Event("q", compared_max + index, "send", f"q{index}", ()) for index in range(compared_max // 2)]
    write_trace(tmp_path / "t.jsonl", rows)
    report = _compare(tmp_path / "t.jsonl", tmp_path / "tables")
    assert report["concurrency_messages"] == compared_max < report["messages"]


def test_columns_of_other_widths(tmp_path: Path) -> None:
    """Sizes as other writers have them: small integers, unsigned ones, and names as dictionaries."""
    pa = pytest.importorskip("pyarrow")
    table = {
        "process": pa.array(["p", "p", "q"]).dictionary_encode(),
        "index": pa.array([0, 1, 0], pa.int32()),
        "kind": pa.array(["send", "send", "deliver"]).dictionary_encode(),
        "message": ["a", "b", "a"],
        "to": [["q"], ["q"], None],
        "time": pa.array([1, None, 5], pa.uint32()),
        "stamp_bytes": pa.array([7, None, None], pa.int16()),
        "bytes": pa.array([2**63, 3, None], pa.uint64()),
        "size": pa.array([9, 9, 9], pa.int8()),
    }
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(table), tmp_path / "t.parquet")
    report = _compare(tmp_path / "t.parquet", tmp_path / "tables")
    assert report["traffic"] == [{"from": "p", "to": "q", "messages": 2, "bytes": 12}]


def test_sizes_in_a_column_and_in_a_folded_column(tmp_path: Path) -> None:
    """The values of a row are merged; the column ``bytes`` comes first, wherever it is."""
    pa = pytest.importorskip("pyarrow")
    extra = pa.field("extra", pa.string(), metadata={b"antecede": b"json"})
    fields = [("process", pa.string()), ("index", pa.int64()), ("kind", pa.string()), ("message", pa.string())]
    fields += [("to", pa.list_(pa.string())), ("bytes", pa.int64())]
    columns = [
        *(["p", "p", "p"], [0, 1, 2], ["send", "send", "send"], ["a", "b", "c"], [["q"], ["r"], ["s"]], [10, None, 7]),
        ['{"size":5}', '{"size":5}', None],
    ]
    table = pa.table(columns, schema=pa.schema([*(pa.field(*one) for one in fields), extra]))
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "t.parquet")
    report = _compare(tmp_path / "t.parquet", tmp_path / "tables")
    assert [pair["bytes"] for pair in report["traffic"]] == [10, 5, 7]


def test_quantiles_from_what_parts_tell() -> None:
    """Whatever is told of the parts, the interval holds the value of the rank."""
    random = Random("quantiles")
    for _ in range(2_000):
        parts = [
            sorted(random.randint(-9, random.choice((9, 999))) for _ in range(random.randint(0, 40))) for _ in "abc"
        ]
        everything = sorted(value for part in parts for value in part)
        if not everything:
            continue
        told = []
        for part in parts:
            inner = [rank for rank in range(1, len(part) - 1) if random.random() < 0.2]
            ranks = np.unique(np.array([0, *inner, len(part) - 1] if part else [], np.int64))
            told.append((len(part), ranks, np.array(part, np.int64)[ranks]))
        for percent in (50, 99):
            rank = max(0, -(-len(everything) * percent // 100) - 1)
            low, high = interval(told, rank)
            assert low <= quantile(everything, percent) <= high


def test_a_spark_session_measures_alike(tmp_path: Path, command: Callable[[str], tuple[int, str, str]]) -> None:
    rows: list[Event] = []
    simulate(Setup(parse("pruned"), 5, 200, "multicast"), rows.append)
    write_trace(tmp_path / "t.parquet", rows)
    said = {}
    for engine in ("plain", "spark"):
        code, out, err = command(f"measure t.parquet --engine {engine} --json --tables {engine}")
        assert (code, err) == (0, "")
        said[engine] = json.loads(out)
        assert said[engine].pop("engine") == engine
        for name in ("seconds", "session_seconds"):
            del said[engine][name]
    assert said["spark"] == said["plain"]
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in COLUMNS:
        tables = [parquet.read_table(tmp_path / engine / f"{name}.parquet") for engine in ("plain", "spark")]
        assert tables[0].equals(tables[1]), name
