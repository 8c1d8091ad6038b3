"""Columns of other types and in other case: exact equivalents are taken, and what is wrong is named."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from antecede import cli
from antecede.trace import read_events, verify
from helpers.snapshots import Snapshots

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def _table(path: Path, **columns: Any) -> Path:
    given = {
        "process": pa.array(["a", "b"]),
        "index": pa.array([0, 0]),
        "kind": pa.array(["send", "deliver"]),
        "message": pa.array(["7", "7"]),
        "to": pa.array([["b"], None]),
    } | columns
    pq.write_table(pa.table(given), path)
    return path


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_are_nanoseconds(tmp_path: Path, unit: str) -> None:
    path = _table(tmp_path / "t.parquet", time=pa.array([3, None], pa.timestamp(unit, "Europe/Paris")))
    wanted = 3 * {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit]
    assert [event.time for event in read_events([path])[0]] == [wanted, None]


def test_integer_ids_and_unsigned_indices(tmp_path: Path) -> None:
    path = _table(
        tmp_path / "t.parquet", message=pa.array([7, 7], pa.uint8()), index=pa.array([0, 2**63 - 1], pa.uint64())
    )
    events, _ = read_events([path])
    assert [(event.message, event.index) for event in events] == [("7", 0), ("7", 2**63 - 1)]


@pytest.mark.parametrize("kind", [pa.uint64(), pa.decimal128(20, 0)])
def test_an_index_that_does_not_fit_costs_its_row_only(tmp_path: Path, kind: pa.DataType) -> None:
    path = _table(tmp_path / "t.parquet", index=pa.array([0, 2**63], kind))
    report = verify([path])
    assert (report["events"], report["quarantined"]) == (1, {"wrong_type": 1})
    assert report["unread_first"] == {"wrong_type": f"{path}:2: index must be an int64 from 0, not 9223372036854775808"}


@pytest.mark.parametrize(("unit", "factor", "far"), [("s", 10**9, 2**50), ("ms", 10**6, 2**60), ("us", 10**3, 2**62)])
def test_a_timestamp_that_does_not_fit_costs_its_value_only(tmp_path: Path, unit: str, factor: int, far: int) -> None:
    path = _table(tmp_path / "t.parquet", time=pa.array([3, far], pa.timestamp(unit)))
    report = verify([path])
    assert (report["events"], report["quarantined"], report["nulled"]) == (2, {}, {"time": 1})
    assert report["nulled_first"] == {"time": f"{path}:2: time must be an int64, not {far * factor}"}
    assert [event.time for event in read_events([path])[0]] == [3 * factor, None]


def test_columns_in_other_case(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    columns = {"Process": ["a", "b"], "INDEX": [0, 0], "Kind": ["send", "deliver"], "Message": [7, 7]}
    pq.write_table(pa.table(columns | {"Time": pa.array([datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)] * 2)}), path)
    report = verify([path])
    assert (report["deliveries"], report["quarantined"], report["nulled"]) == (1, {}, {})
    assert [event.time for event in read_events([path])[0]] == [10**9, 10**9]


def test_a_wrong_type_in_an_optional_column_costs_the_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"process": "a", "index": 0, "kind": "send", "message": "m", "time": 1, "instance": 4},
        {"process": "b", "index": 0, "kind": "deliver", "message": "m", "time": "noon", "instance": 4},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.run(["verify", str(path), "--engine", "plain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:5] == [
        "  time                1 value of a wrong type treated as null",
        f"    first: {path}:2: time must be an int64, not 'noon'",
        "  instance            2 values of a wrong type treated as null",
        f"    first: {path}:1: instance must be a string, not 4",
    ]
    # Where significant order is asked for, it needs instances.
    table = tmp_path / "conflicts.json"
    table.write_text('{"*": [["a", "b"]]}')
    assert cli.run(["verify", str(path), "--order", "significant", "--conflicts", str(table), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["quarantined"] == {"wrong_type": 2}


def test_a_column_that_loses_every_row_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reads: Snapshots
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"process":"a","index":"0","kind":"local"}\n')
    assert cli.run(["verify", str(path)]) == 2
    reads(capsys.readouterr().err)


def test_both_engines_name_the_same_rows(tmp_path: Path) -> None:
    from antecede.pipeline.flow import Here
    from antecede.pipeline.judge.trace import Trace, layout_for, verdict_on
    from antecede.pipeline.read.splits import plan

    pytest.importorskip("numba")
    odd = _table(
        tmp_path / "b.parquet",
        index=pa.array([5, 2**63 + 5], pa.uint64()),
        message=pa.array([8, 8]),
        time=pa.array(["x", None]),
    )
    lines = tmp_path / "a.jsonl"
    rows: list[dict[str, Any]] = [{"Process": "c", "index": n, "kind": "local", "hop": "x"} for n in range(3)]
    rows += [{"process": "c", "index": 3, "kind": "nap"}, {"process": "c", "index": -1, "kind": "local"}]
    lines.write_text("\n" + "".join(json.dumps(row) + "\n" for row in rows))
    given = plan([str(lines), str(odd)], tasks=4)
    found = verdict_on(Trace(Here(), given, layout_for(given)), ("fifo", "causal")).report
    wanted = verify([lines, odd])
    assert {key: wanted[key] for key in found} == found
    assert wanted["nulled"] == {"time": 1, "hop": 3}
    assert wanted["nulled_first"]["hop"] == f"{lines}:2: hop must be an int64, not 'x'"
    assert list(wanted["unread_first"]) == ["wrong_type", "unknown_kind"]
