"""The rows that a split passes to its buckets, as bytes.

There are two forms. Usually a row has a UUID as its message id and only the columns that every verdict needs. Such rows
are arrays of narrow numbers, about 24 bytes per row (:mod:`antecede.pipeline.kernels.match`). All other rows are Arrow
batches, in which numbers are as narrow as possible.

The narrow form saves time for large traces. The more rows a trace has, the more buckets there are, and the fewer rows
of a split belong to one bucket. Writing a small Arrow batch takes 48 µs, and reading it 14 µs. Writing a small narrow
piece takes 4 µs, and reading it 2.5 µs.
"""

import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from antecede.pipeline.kernels import Ints, Longs, Words
from antecede.pipeline.kernels.match import Given, Narrow, Wide, code_rows, sort_rows, widen_rows
from antecede.pipeline.kernels.texts import UUID_LENGTH, hash_texts, hash_uuids, number, number_uuids, uuid_texts, uuids

# The message ids of a batch, as a column. The task that reads a split passes this column to other tasks. If all ids of
# a batch are UUIDs, each id takes 16 bytes. Otherwise the ids are texts.
#
# All ids of a batch have the same form, but a bucket can get batches of both forms. So the functions here give the same
# answers for both forms.


_narrow_type = pa.binary(16)


def narrowed(ids: Any) -> Any:
    """Convert a column of texts that are all UUIDs to a column with 16 bytes per id. Return ``ids`` unchanged if it is
    empty, or if at least one id is not a UUID in lower case with hyphens."""
    if ids.null_count or not len(ids):
        return ids
    offsets, data = _texts(ids)
    if offsets[-1] - offsets[0] != UUID_LENGTH * len(ids):
        return ids
    words = np.empty((len(ids), 2), np.uint64)
    if not uuids(offsets, data, words):
        return ids
    return column_of(words)


def is_narrow(ids: Any) -> bool:
    """Return whether a column has 16 bytes per id."""
    return bool(ids.type == _narrow_type)


def column_of(words: Words) -> Any:
    """Return a column with 16 bytes per id. ``words``: two words of 64 bits for each UUID."""
    return pa.FixedSizeBinaryArray.from_buffers(_narrow_type, len(words), [None, pa.py_buffer(words)])


def as_texts(ids: Any) -> Any:
    """Return the ids of a column as texts."""
    if not is_narrow(ids):
        return ids
    words = words_of(ids)
    text = np.full((len(words), UUID_LENGTH), ord("-"), np.uint8)
    uuid_texts(words, text)
    offsets = np.arange(len(words) + 1, dtype=np.int32) * UUID_LENGTH
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(offsets), pa.py_buffer(text))


def hashed_ids(ids: Any, narrow: int) -> Words:
    """Return a hash of each id, as a number of 64 bits. ``narrow`` is a mask of the bits that are kept. The other bits
    are set to 0."""
    hashed = np.zeros(len(ids), np.uint64)
    if is_narrow(ids):
        hash_uuids(words_of(ids), np.uint64(narrow), hashed)
    else:
        hash_texts(*_texts(ids), np.uint64(narrow), hashed)
    return hashed


def numbered_ids(ids: Any, hashed: Words) -> tuple[Ints, int]:
    """Give each id a number, beginning with 0. Equal ids get the same number. Return the number of each id, and how
    many different ids there are."""
    code = np.zeros(len(ids), np.int32)
    if is_narrow(ids):
        return code, number_uuids(words_of(ids), hashed, code)
    return code, number(*_texts(ids), hashed, code)


def words_of(ids: Any) -> Words:
    """Return each UUID of a column as two words of 64 bits. The column must have 16 bytes per id."""
    found = np.frombuffer(ids.buffers()[1], np.uint64).reshape(-1, 2)
    return found[ids.offset : ids.offset + len(ids)]


def _texts(column: Any) -> tuple[Ints, NDArray[np.uint8]]:
    """Return the offsets and bytes of an Arrow array of texts; a null is an empty text."""
    if column.null_count:
        column = pc.fill_null(column, "")
    _, offsets, data = column.buffers()
    found = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return found, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)


_head = struct.Struct("<qqqq")
"""The head of a packed piece: the number of the split, the number of the piece in the split, how many rows it has (-1
for an Arrow batch), and how many destinations these rows have."""
_arrow = -1

_columns = {"message", "process", "index", "kind", "to"}
_names_max = 1 << 16


class Piece(msgspec.Struct):
    """The rows of one split for one bucket. A split may send several pieces to a bucket; ``number`` gives their
    sequence."""

    split: int
    number: int
    rows: Any
    """A :class:`Narrow` or an Arrow batch."""

    def __len__(self) -> int:
        return len(self.rows.code) if isinstance(self.rows, Narrow) else int(self.rows.num_rows)

    def batch(self) -> Any:
        """Return the rows as an Arrow batch. Numbers stand for names; each split of the input numbers its own names."""
        if not isinstance(self.rows, Narrow):
            return self.rows
        same = np.arange(_names_max, dtype=np.int32)
        return pa.record_batch(_columns_of([self], np.zeros(1, np.int64), same))


def by_bucket(batch: Any, buckets: int, mask: int, names: int, split: int, number: int) -> Iterator[tuple[int, bytes]]:
    """Divide the rows of a batch by bucket. Yield the number of each bucket, and its rows as bytes. The number of a
    row's bucket is the hash of the message id, masked with ``mask``, modulo ``buckets``. ``names`` is the number of
    names in the split."""
    hashed = hashed_ids(batch.column("message"), mask)
    given = _given(batch) if names <= _names_max and set(batch.schema.names) <= _columns else None
    code = np.empty(batch.num_rows, np.uint8)
    if given is not None and code_rows(given, batch.column("kind").to_numpy(), code):
        yield from _narrow(given, code, hashed, buckets, split, number)
        return
    bucket = (hashed % np.uint64(buckets)).astype(np.uint16)
    order = np.argsort(bucket, kind="stable")
    batch = _slim(batch).take(pa.array(order))
    ends = np.searchsorted(bucket[order], np.arange(buckets + 1))
    for b in range(buckets):
        if ends[b + 1] > ends[b]:
            yield b, _packed(batch.slice(ends[b], ends[b + 1] - ends[b]), split, number)


def _given(batch: Any) -> Given | None:
    """Return the columns that the narrow form needs; ``None`` if message ids do not have 16 bytes each."""
    if not is_narrow(batch.column("message")):
        return None
    known, ends, to = np.zeros(batch.num_rows, bool), np.zeros(batch.num_rows + 1, np.int32), np.zeros(0, np.int32)
    if "to" in batch.schema.names and batch.column("to").null_count < batch.num_rows:
        lists = batch.column("to")
        known = lists.is_valid().to_numpy(zero_copy_only=False)
        ends, to = lists.offsets.to_numpy(), lists.values.to_numpy()
    process, index = batch.column("process").to_numpy(), batch.column("index").to_numpy()
    return Given(*map(_read_only, (process, index, words_of(batch.column("message")), known, ends, to)))


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view of an array. A kernel is compiled separately for read-only and for writable arrays, and
    most arrays from Arrow are read-only. With this view all arrays are read-only, so a kernel is compiled only once."""
    view = array.view()
    view.flags.writeable = False
    return view


def _narrow(
    given: Given, code: NDArray[np.uint8], hashed: NDArray[np.uint64], buckets: int, split: int, number: int
) -> Iterator[tuple[int, bytes]]:
    rows = len(code)
    out = Narrow(
        np.empty((rows, 2), np.uint64),
        np.empty(rows, np.int32),
        np.empty(rows, np.uint16),
        np.empty(len(given.to), np.uint16),
        np.empty(rows, np.uint8),
    )
    ends, to_ends = np.zeros(buckets + 1, np.int64), np.zeros(buckets + 1, np.int64)
    sort_rows(given, code, hashed, np.empty(rows, np.uint16), ends, to_ends, out)
    bounds, to_bounds = ends.tolist(), to_ends.tolist()
    for b in range(buckets):
        (a, z), (c, d) = bounds[b : b + 2], to_bounds[b : b + 2]
        if z > a:
            head = _head.pack(split, number, z - a, d - c)
            # Wide numbers first, so that every array is aligned.
            arrays = out.words[a:z], out.indices[a:z], out.process[a:z], out.to[c:d], out.code[a:z]
            yield b, b"".join((head, *(array.data for array in arrays)))


def _slim(batch: Any) -> Any:
    """Return the batch with the narrowest types that can hold its process numbers and indices, so that fewer bytes are
    written and read."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, kind, limit in (("process", pa.uint16(), 1 << 16), ("index", pa.int32(), 1 << 31)):
        if (pc.max(columns[name]).as_py() or 0) < limit:
            columns[name] = columns[name].cast(kind)
    return pa.record_batch(list(columns.values()), names=list(columns))


def _packed(batch: Any, split: int, number: int) -> bytes:
    sink = pa.BufferOutputStream()
    sink.write(_head.pack(split, number, _arrow, 0))
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpacked(packed: bytes) -> Piece:
    """Return the piece that :func:`by_bucket` packed into these bytes."""
    split, number, rows, names = _head.unpack_from(packed)
    if rows == _arrow:
        with pa.ipc.open_stream(pa.py_buffer(packed).slice(_head.size)) as reader:
            return Piece(split, number, reader.read_next_batch())
    at = _head.size
    words = np.frombuffer(packed, np.uint64, 2 * rows, at).reshape(-1, 2)
    index = np.frombuffer(packed, np.int32, rows, at + 16 * rows)
    process = np.frombuffer(packed, np.uint16, rows, at + 20 * rows)
    to = np.frombuffer(packed, np.uint16, names, at + 22 * rows)
    code = np.frombuffer(packed, np.uint8, rows, at + 22 * rows + 2 * names)
    return Piece(split, number, Narrow(words, index, process, to, code))


def together(pieces: list[Piece], first: Longs, numbers: Ints) -> Any:
    """Join narrow pieces into one Arrow table. In a piece, a name is given by its number k in the split. In the table,
    the name is given by its number in the whole trace, which is ``numbers[first[split] + k]``. Return ``None`` if there
    are no pieces, or if a piece is not narrow."""
    if not pieces or not all(isinstance(piece.rows, Narrow) for piece in pieces):
        return None
    return pa.table(_columns_of(pieces, first[[piece.split for piece in pieces]], numbers))


def _columns_of(pieces: list[Piece], first: Longs, numbers: Ints) -> dict[str, Any]:
    """Return the rows of narrow pieces as Arrow arrays. A name that has number k in its split gets the number
    ``numbers[first[p] + k]``, where p is the position of the piece in ``pieces``."""
    rows = Narrow(*(np.concatenate(column) for column in zip(*(piece.rows for piece in pieces), strict=True)))
    ends = np.cumsum([len(piece) for piece in pieces])
    count = len(rows.code)
    wide = Wide(
        np.empty(count, np.int32),
        np.empty(count, np.uint8),
        np.empty(count, bool),
        np.empty(count + 1, np.int32),
        np.empty(len(rows.to), np.int32),
    )
    widen_rows(rows, ends, first, numbers, wide)
    return {
        "message": column_of(rows.words),
        "process": pa.array(wide.process),
        "index": pa.array(rows.indices),
        "kind": pa.array(wide.kind),
        "to": pa.ListArray.from_arrays(pa.array(wide.ends), pa.array(wide.to), mask=pa.array(wide.unknown)),
    }
