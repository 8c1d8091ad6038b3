"""Parquet files whose row groups or dictionaries end where a batch does not."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from antecede.pipeline.flow import Here
from antecede.pipeline.judge.trace import Trace, layout_for, verdict_on
from antecede.pipeline.read import splits
from antecede.pipeline.read.splits import Arrow, plan, read
from antecede.trace import verify


def _destinations(path: Path) -> list[list[str]]:
    found: list[list[str]] = []
    for split in plan([str(path)]).splits:
        for piece in read(split):
            assert isinstance(piece, Arrow)
            assert piece.first == len(found)
            found += piece.batch.column("to").to_pylist()
    return found


def _write(path: Path, to: list[list[str]], group: int) -> None:
    count = len(to)
    columns = {"process": ["p"] * count, "index": range(count), "kind": ["send"] * count, "to": to}
    table = pa.table({"message": [f"m{index}" for index in range(count)]} | {k: list(v) for k, v in columns.items()})
    pq.write_table(table, path, row_group_size=group, dictionary_pagesize_limit=16_384)


def test_a_batch_may_span_small_row_groups(tmp_path: Path) -> None:
    to = [[f"q{index % 7}", f"q{index % 5}"] for index in range(5_000)]
    _write(tmp_path / "t.parquet", to, 700)
    assert _destinations(tmp_path / "t.parquet") == to


def test_a_dictionary_may_be_given_up_within_a_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "batch_rows", 1_000)
    to = [[f"destination {index % 9 if index < 4_000 else index}"] for index in range(20_000)]
    _write(tmp_path / "t.parquet", to, 10_000)
    assert _destinations(tmp_path / "t.parquet") == to


@pytest.mark.parametrize(
    ("to", "compliant"),
    [
        (pa.array([["q"], None], pa.list_(pa.field("item", pa.string()))), False),
        (pa.nulls(2), True),
        (pa.array(["q", None]), True),
        (pa.array([{"list": "q"}, None]), True),
        (pa.array([[["q"]], None]), True),
        (pa.array([[1], None]), True),
        (pa.array([["q"], None], pa.large_list(pa.large_string())), True),
    ],
    ids=["entries of another name", "null", "text", "structure", "nested", "numbers", "large"],
)
def test_destinations_of_any_type_are_judged_as_the_plain_engine_does(
    tmp_path: Path, to: pa.Array, compliant: bool
) -> None:
    rows = {"process": ["p", "q"], "index": [0, 0], "kind": ["send", "deliver"], "message": ["m", "m"], "to": to}
    path = str(tmp_path / "t.parquet")
    pq.write_table(pa.table(rows), path, use_compliant_nested_type=compliant)
    given = plan([path])
    found = verdict_on(Trace(Here(), given, layout_for(given)), ("fifo", "causal")).report
    wanted = verify([path])
    assert found == {key: wanted[key] for key in found}
