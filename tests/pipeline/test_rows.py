"""The two forms of rows between a split and its buckets: which rows are narrow, and that both forms keep every row."""

from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from antecede.pipeline.kernels.match import ARRIVE, DELIVER, LOCAL, SEND, Narrow
from antecede.pipeline.kernels.texts import WIDE
from antecede.pipeline.read.rows import Piece, as_texts, by_bucket, narrowed, together, unpacked

_rows: list[dict[str, Any]] = [
    {"message": str(UUID(int=(k % 23) << 100 | k % 23)), "process": k % 5, "index": 7 * k, "kind": kind, "to": to}
    for k in range(120)
    for kind, to in [((SEND, [k % 3, 4, 0]), (SEND, []), (SEND, None), (DELIVER, None), (ARRIVE, None))[k % 5]]
]


def _batch(rows: list[dict[str, Any]]) -> Any:
    types = {"process": pa.int32(), "index": pa.int64(), "kind": pa.uint8(), "to": pa.list_(pa.int32())}
    columns = {name: pa.array([row[name] for row in rows], types.get(name)) for name in rows[0]}
    return pa.record_batch(columns | {"message": narrowed(columns["message"])})


def _pieces(batch: Any, buckets: int = 4, names: int = 5, number: int = 1) -> list[Piece]:
    return [unpacked(packed) for _, packed in by_bucket(batch, buckets, WIDE, names, 3, number)]


def _listed(batch: Any) -> list[dict[str, Any]]:
    names = [name for name in batch.schema.names if name != "message"]
    found: list[dict[str, Any]] = batch.select(names).to_pylist()
    ids = as_texts(pa.chunked_array([batch.column("message")]).combine_chunks())
    return [{"message": id_} | row for id_, row in zip(ids.to_pylist(), found, strict=True)]


@pytest.mark.parametrize("buckets", [1, 4, 1000])
@pytest.mark.parametrize("names", [1 << 16, 1 + (1 << 16)])
def test_every_row_arrives_in_the_bucket_of_its_message_in_its_order(buckets: int, names: int) -> None:
    pieces = _pieces(_batch(_rows).slice(10, 100), buckets, names)
    assert {isinstance(piece.rows, Narrow) for piece in pieces} == {names == 1 << 16}
    assert {(piece.split, piece.number) for piece in pieces} == {(3, 1)}
    found = [_listed(piece.batch()) for piece in pieces]
    assert list(map(len, found)) == list(map(len, pieces))
    assert sorted((row for rows in found for row in rows), key=lambda row: row["index"]) == _rows[10:110]
    for rows in found:
        assert [row["index"] for row in rows] == sorted(row["index"] for row in rows)
        others = {row["message"] for other in found if other is not rows for row in other}
        assert others.isdisjoint(row["message"] for row in rows)


@pytest.mark.parametrize(
    ("change", "narrow"),
    [
        ({"index": 2**31 - 1}, True),
        ({"index": 2**31}, False),
        ({"kind": SEND, "to": [2] * 252}, True),
        ({"kind": SEND, "to": [2] * 253}, False),
        ({"kind": LOCAL}, False),
        ({"message": "another id"}, False),
    ],
)
def test_rows_that_do_not_fit_are_arrow_batches(change: dict[str, Any], narrow: bool) -> None:
    rows = [*_rows[:50], _rows[50] | change, *_rows[51:]]
    pieces = _pieces(_batch(rows), 1)
    assert [isinstance(piece.rows, Narrow) for piece in pieces] == [narrow]
    assert _listed(pieces[0].batch()) == rows


def test_other_columns_and_rows_without_destinations() -> None:
    batch = _batch(_rows)
    (timed,) = _pieces(batch.append_column("time", pa.array(range(len(_rows)))), 1)
    assert timed.batch().column("time").to_pylist() == list(range(len(_rows)))
    wanted = [row | {"to": None} for row in _rows]
    for given in (batch.drop_columns(["to"]), _batch(wanted)):
        (piece,) = _pieces(given, 1)
        assert isinstance(piece.rows, Narrow)
        assert _listed(piece.batch()) == wanted


def test_destinations_behind_a_null_are_none() -> None:
    """Arrow lets a null of a list column hide values."""
    batch = _batch(_rows)
    to = pa.ListArray.from_arrays(
        pa.array(np.arange(len(_rows) + 1, dtype=np.int32)),
        pa.array(np.arange(len(_rows), dtype=np.int32) % 5),
        mask=pa.array([row["kind"] != SEND for row in _rows]),
    )
    at = batch.schema.get_field_index("to")
    (piece,) = _pieces(batch.set_column(at, "to", to), 1)
    assert piece.batch().column("to").to_pylist() == to.to_pylist()


def test_pieces_together_have_the_numbers_of_the_trace() -> None:
    pieces = [*_pieces(_batch(_rows[:70]), 1, number=1), *_pieces(_batch(_rows[70:]), 1, number=2)]
    numbers = np.array([99, 99, 4, 3, 2, 1, 0], np.int32)
    table = together(pieces, np.array([0, 0, 0, 2]), numbers)

    def renamed(row: dict[str, Any]) -> dict[str, Any]:
        to = row["to"]
        return row | {"process": 4 - row["process"], "to": None if to is None else [4 - name for name in to]}

    assert _listed(table) == [renamed(row) for row in _rows]
    wide = _pieces(_batch([_rows[0] | {"index": 2**31}]), 1)
    assert together([*pieces, *wide], np.zeros(4, np.int64), numbers) is None
    assert together([], np.zeros(0, np.int64), numbers) is None
