"""Races of the Spark engine are those of the plain one, key for key.

Its stages run in this process on random traces; one trace goes through a Spark session, as a person would ask for it.
"""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark")


from antecede.cli import run as antecede
from antecede.pipeline.flow import Here
from antecede.pipeline.judge.trace import Trace, layout_for
from antecede.pipeline.races import races_in, races_on
from antecede.pipeline.read.splits import plan
from antecede.trace import Declared, Wanted, write_trace
from antecede.trace.races import assumed, races


def _load(name: str) -> ModuleType:
    path = Path(__file__).parents[1] / "properties" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_for_spark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


definitions: Any = _load("definitions")
chains: Any = _load("test_chain")
defined: Any = _load("test_races")
_apart = ("engine", "seconds", "session_seconds")


def _same(report: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in report.items() if key not in _apart}


def test_random_traces_have_the_same_races(tmp_path: Path, seeds: int) -> None:
    path = tmp_path / "t.jsonl"
    seen = 0
    for seed in range(max(24, seeds // 12)):
        rows = definitions.random_trace(seed) if seed % 2 else chains._random_rows(seed)
        rows = defined.timed(rows, seed)
        if seed % 5 == 0:
            rows = [msgspec.structs.replace(row, index=row.index * 10**9) for row in rows]
        write_trace(path, rows)
        given = plan([str(path)], tasks=2)
        trace = Trace(Here(), given, layout_for(given, figures=True, numbered=True))
        asked = (Wanted(1000), Wanted(2), Wanted(1000, within=12), Wanted(1000, every=True))
        for guarantee in ("none", "fifo", "causal")[: 3 if seed == 0 else 2]:
            wanted = asked[(seed // 2) % 4]
            expected = races([path], assumed(guarantee), wanted)
            found = races_on(trace, Declared(guarantee, "assume"), wanted)
            assert _same(found) == _same(expected), f"seed {seed}, {guarantee}, {wanted}"
            seen += expected["pairs"]
    assert seen > 20


def test_blocks_of_lanes_and_short_segments_change_nothing(tmp_path: Path) -> None:
    antecede(
        ["simulate", "--order", "none", "--processes", "9", "--messages", "400", "--trace", str(tmp_path / "t.jsonl")]
    )
    given = plan([str(tmp_path / "t.jsonl")], tasks=2)
    trace = Trace(Here(), given, layout_for(given, figures=True, numbered=True))
    whole = trace.task

    def narrow(orders: tuple[str, ...], **options: Any) -> Any:
        return whole(orders, lanes_max=2, segments=3, **options)

    declared, wanted = Declared("fifo", "assume"), Wanted(50)
    expected = races_on(trace, declared, wanted)
    assert expected["pairs"] > 100
    trace.task = narrow  # type: ignore[method-assign]
    assert races_on(trace, declared, wanted) == expected
    assert _same(races([tmp_path / "t.jsonl"], assumed("fifo"), wanted)) == _same(expected)


def test_a_spark_session_finds_the_same_races(running: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "t.parquet")
    antecede(["simulate", "--order", "fifo", "--messages", "300", "--trace", path])
    capsys.readouterr()
    found = races_in(running, [path], assumed("fifo", "metadata"), Wanted(5))
    assert found["pairs"] > 10
    assert antecede(["races", path, "--engine", "plain", "--first", "5", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("named") == [], "nothing in this trace has a class or a label"
    assert _same(printed) == json.loads(json.dumps(_same(found)))
