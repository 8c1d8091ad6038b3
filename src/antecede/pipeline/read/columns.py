"""Encode the rows of a trace as arrays. Each column has a fixed type, and names become numbers. Later stages do not
check the values again.

There are two ways to encode rows. :meth:`Encoder.from_events` encodes rows that were read as
:class:`~antecede.trace.Event`. If the columns of Arrow batches have the right types, :meth:`Encoder.from_arrow` encodes
these batches without a Python object for each row. A row in a batch looks odd if it has, for example, a null where a
value is required, an unknown kind or a negative index. Odd rows are decoded by the reader that is used without Spark.
So the same faults are reported with and without Spark.

Each task numbers the names in its own rows (:class:`Names`). Later, each name also gets a number for the whole trace.
This is possible only when every task has reported its names.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from antecede.pipeline.kernels import Ints, Longs
from antecede.pipeline.kernels.match import ARRIVE, DELIVER, HOP, LOCAL, SEND
from antecede.pipeline.kernels.texts import hides
from antecede.trace.files import Item, items_in
from antecede.trace.schema import COLUMNS, Event

KIND_NUMBERS = {"send": SEND, "deliver": DELIVER, "arrive": ARRIVE, "local": LOCAL, "hop": HOP}
_odd_kind = 255

_texts = (
    "process", "kind", "message", "domain", "instance", "operation", "parent", "type", "replays", "notification",
    "label",
)  # fmt: skip
_numbers = ("index", "time", "lamport", "stamp_bytes", "hop")

SCHEMA = pa.schema(
    [
        ("message", pa.string()),
        ("process", pa.int32()),
        ("index", pa.int64()),
        ("kind", pa.uint8()),
        ("to", pa.list_(pa.int32())),
        ("time", pa.int64()),
        ("lamport", pa.int64()),
        ("clock_name", pa.list_(pa.int32())),
        ("clock_entry", pa.list_(pa.int64())),
        ("assumed", pa.bool_()),
        ("at", pa.int64()),
    ]
)
"""The columns of encoded rows. ``at`` is the number of the row, counted from 0. In a Parquet file, the rows are counted
from the start of the file. In all other inputs, they are counted from the start of the split. A batch must have the
first four columns. The other columns are optional: if a batch lacks such a column, the value is null in all its
rows."""


class Names:
    """Names, numbered in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def of(self, name: str) -> int:
        numbers = self._numbers
        return numbers.setdefault(name, len(numbers))

    def of_array(self, names: Any) -> Ints:
        """Return the numbers of the names in an Arrow array of texts. The array must not have nulls; it may be
        dictionary-encoded."""
        encoded = names if pa.types.is_dictionary(names.type) else names.dictionary_encode()
        table = np.fromiter(map(self.of, encoded.dictionary.to_pylist()), np.int32, len(encoded.dictionary))
        if not len(table):
            return np.zeros(0, np.int32)
        return np.asarray(table[encoded.indices.to_numpy(zero_copy_only=False)])

    def list(self) -> list[str]:
        return list(self._numbers)


class Encoder:
    """The encoder for the rows of one task. ``names`` gives numbers to the names of processes and destinations,
    and to the names in clocks. ``servers`` gives a number to each server that recorded ``hop`` rows."""

    def __init__(self) -> None:
        self.names = Names()
        self.servers = Names()

    def from_events(self, events: Sequence[Event], at: Sequence[int]) -> Any:
        """Return a batch of encoded rows. ``at`` has the row number of each event."""
        name = self.names.of
        columns: dict[str, list[Any]] = {column: [] for column in SCHEMA.names[:-1]}
        for event in events:
            hop = event.kind == "hop"
            columns["process"].append(self.servers.of(event.process) if hop else name(event.process))
            columns["index"].append(event.index)
            columns["kind"].append(KIND_NUMBERS[event.kind])
            columns["message"].append(event.message)
            columns["to"].append(list(map(name, event.to)) if event.to is not None and event.kind == "send" else None)
            columns["time"].append(event.time)
            columns["lamport"].append(None if hop else event.lamport)
            clock = None if hop else event.clock
            columns["clock_name"].append(list(map(name, clock)) if clock is not None else None)
            columns["clock_entry"].append(list(clock.values()) if clock is not None else None)
            columns["assumed"].append(event.assumed)
        arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA if field.name != "at"]
        return _without_empty(pa.record_batch([*arrays, pa.array(at, pa.int64())], schema=SCHEMA))

    def from_arrow(self, batch: Any, first: int, folded: set[str]) -> tuple[Any, list[Item]]:
        """Encode those rows of an Arrow batch that are certainly events. All other rows (:func:`odd_rows`) are decoded
        one by one. Return the encoded rows, and a list with one item for each of the other rows. ``first`` is the
        number of the first row of the batch.

        The columns must have types that :func:`plain_types` accepts.
        """
        numbers = np.arange(first, first + batch.num_rows, dtype=np.int64)
        odd = odd_rows(batch)
        if odd.any():
            # Odd rows get their original numbers: the good rows between them are filtered out.
            some = batch.filter(pa.array(odd))
            items = [
                (int(number) + 1, raw, decoded)
                for number, (_, raw, decoded) in zip(numbers[odd], items_in(some, folded, 0, True), strict=True)
            ]
            batch = batch.filter(pa.array(~odd))
            numbers = numbers[~odd]
        else:
            items = []
        return self.encode(batch, numbers), items

    def encode(self, batch: Any, numbers: Longs) -> Any:
        """Encode a batch in which all rows are known to be events."""
        kind = _kinds(batch)
        hop = kind == HOP
        process = np.zeros(batch.num_rows, np.int32)
        names = _dictionary(batch.column("process"))
        if hop.any():
            process[hop] = self.servers.of_array(names.filter(pa.array(hop)))
            process[~hop] = self.names.of_array(names.filter(pa.array(~hop)))
        else:
            process = self.names.of_array(names)
        columns = {
            "process": pa.array(process, pa.int32()),
            "index": batch.column("index").cast(pa.int64()),
            "kind": pa.array(kind),
            "at": pa.array(numbers),
        }
        present = set(batch.schema.names)
        if "message" in present:
            message = batch.column("message")
            columns["message"] = _decoded(message)
        else:
            columns["message"] = pa.nulls(batch.num_rows, pa.string())
        if "to" in present:
            columns["to"] = self._destinations(batch.column("to"), kind)
        for name in ("time", "lamport"):
            if name in present and batch.column(name).null_count < batch.num_rows:
                values = batch.column(name).cast(pa.int64())
                columns[name] = values if name == "time" else _null_where(values, hop)
        if "assumed" in present and batch.column("assumed").null_count < batch.num_rows:
            columns["assumed"] = batch.column("assumed")
        if "clock" in present and batch.column("clock").null_count < batch.num_rows:
            clock = batch.column("clock")
            offsets, keys, items = _map_parts(clock)
            valid = pa.array(clock.is_valid().to_numpy(zero_copy_only=False) & ~hop)
            named = pa.ListArray.from_arrays(offsets, pa.array(self.names.of_array(keys), pa.int32()))
            entries = pa.ListArray.from_arrays(offsets, items.cast(pa.int64()))
            columns["clock_name"] = pc.if_else(valid, named, pa.scalar(None, named.type))
            columns["clock_entry"] = pc.if_else(valid, entries, pa.scalar(None, entries.type))
        fields = [field for field in SCHEMA if field.name in columns]
        return pa.record_batch([columns[field.name] for field in fields], schema=pa.schema(fields))

    def _destinations(self, to: Any, kind: NDArray[np.uint8]) -> Any:
        if to.null_count == len(to):
            return pa.nulls(len(to), pa.list_(pa.int32()))
        offsets, values = _list_parts(to)
        numbers = pa.array(self.names.of_array(values), pa.int32())
        lists = pa.ListArray.from_arrays(offsets, numbers)
        wanted = to.is_valid().to_numpy(zero_copy_only=False) & (kind == SEND)
        if wanted.all():
            return lists
        # Only a send has destinations. A null, which means that they are unknown, must stay null.
        mask = pa.array(~wanted)
        return pa.ListArray.from_arrays(lists.offsets, lists.values, mask=mask)


def plain_types(schema: Any) -> bool:
    """Return whether a table has all required columns, and whether every column of the trace format has the required
    type or contains only nulls. In such a table, the types are correct, but the values must still be checked."""
    for field in schema:
        kind = field.type
        if field.name not in COLUMNS or pa.types.is_null(kind):
            continue
        if field.name in _texts:
            good = _is_text(kind)
        elif field.name in _numbers:
            good = pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
        elif field.name == "to":
            good = (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_text(kind.value_type)
        elif field.name == "clock":
            good = pa.types.is_map(kind) and _is_text(kind.key_type) and pa.types.is_integer(kind.item_type)
            good = good and not pa.types.is_uint64(kind.item_type)
        else:
            good = pa.types.is_boolean(kind)
        if not good:
            return False
    return {"process", "index", "kind"} <= set(schema.names)


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def without_views(table: Any) -> Any:
    """Return the table with ordinary texts in place of Arrow's string views, which Polars produces."""
    wanted = [_without_view(field.type) for field in table.schema]
    for at, kind in enumerate(wanted):
        field = table.schema.field(at)
        if kind != field.type:
            table = table.set_column(at, field.with_type(kind), table.column(at).cast(kind))
    return table


def _without_view(kind: Any) -> Any:
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _without_view(kind.value_type)
        return pa.large_list(inner) if inner != kind.value_type else kind
    return kind


def odd_rows(batch: Any) -> NDArray[np.bool_]:
    """Return a mask of the rows that are perhaps not events. The batch must have types that :func:`plain_types`
    accepts. If Arrow finds an invalid value in the batch, for example a text that is not UTF-8, the mask contains all
    rows."""
    try:
        for column in batch.columns:
            column.validate(full=True)
        return _looks_odd(batch)
    except pa.ArrowInvalid:
        return np.ones(batch.num_rows, bool)


def _looks_odd(batch: Any) -> NDArray[np.bool_]:
    """Return a mask of the rows that are perhaps not events. The caller must already have validated the Arrow data of
    the batch: for example, every text must be UTF-8."""
    odd = np.zeros(batch.num_rows, bool)
    for name in ("process", "index", "kind"):
        column = batch.column(name)
        if pa.types.is_null(column.type):
            return ~odd
        if column.null_count:
            odd |= column.is_null().to_numpy(zero_copy_only=False)
    kind = _kinds(batch)
    odd |= kind == _odd_kind
    index = batch.column("index").fill_null(0).to_numpy(zero_copy_only=False)
    odd |= index < 0
    needs = kind != LOCAL
    if "message" not in batch.schema.names:
        odd |= needs
    elif batch.column("message").null_count:
        odd |= needs & batch.column("message").is_null().to_numpy(zero_copy_only=False)
    if "to" in batch.schema.names and batch.column("to").null_count < batch.num_rows:
        offsets, values = _list_parts(batch.column("to"))
        if values.null_count:
            odd |= _rows_with(values.is_null().to_numpy(zero_copy_only=False), offsets)
    if "clock" in batch.schema.names and batch.column("clock").null_count < batch.num_rows:
        offsets, keys, items = _map_parts(batch.column("clock"))
        bad = np.zeros(len(keys), bool)
        if keys.null_count or items.null_count:
            bad |= keys.is_null().to_numpy(zero_copy_only=False) | items.is_null().to_numpy(zero_copy_only=False)
        ends = offsets.to_numpy()
        row = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
        code = _dictionary(keys).indices.fill_null(-1).to_numpy(zero_copy_only=False)
        order = np.lexsort((code, row))
        again = (row[order][1:] == row[order][:-1]) & (code[order][1:] == code[order][:-1])
        bad[order[1:][again]] = True
        odd |= _rows_with(bad, offsets)
    return odd


def _rows_with(bad: NDArray[np.bool_], offsets: Any) -> NDArray[np.bool_]:
    ends = offsets.to_numpy()
    counts = np.concatenate([np.zeros(1, np.int64), np.cumsum(bad)])
    return np.asarray(counts[ends[1:]] > counts[ends[:-1]])


def _kinds(batch: Any) -> NDArray[np.uint8]:
    if pa.types.is_int8(batch.column("kind").type):
        return np.asarray(batch.column("kind").to_numpy().astype(np.uint8))
    encoded = _dictionary(batch.column("kind"))
    table = np.array(
        [KIND_NUMBERS.get(kind, _odd_kind) for kind in encoded.dictionary.to_pylist()] + [_odd_kind], np.uint8
    )
    return np.asarray(table[encoded.indices.fill_null(len(table) - 1).to_numpy(zero_copy_only=False)])


def _dictionary(column: Any) -> Any:
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()


def _decoded(column: Any) -> Any:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def _list_parts(column: Any) -> tuple[Any, Any]:
    """Return the offsets and the values of a list column. The offsets begin with 0. Values that Arrow stores for null
    lists are left out."""
    if column.null_count and _hides_something(column):
        column = column.fill_null([])
    if pa.types.is_large_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    start = column.offsets[0].as_py() if len(column) else 0
    values = column.flatten()
    offsets = pc.subtract(column.offsets, start) if start else column.offsets
    return offsets, values


def _hides_something(column: Any) -> bool:
    """Return whether a list column stores values for lists that are null. Arrow allows this, but readers of files do
    not produce it."""
    if pa.types.is_large_list(column.type):
        lengths = np.diff(column.offsets.to_numpy())
        return bool(lengths[column.is_null().to_numpy(zero_copy_only=False)].any())
    valid = np.frombuffer(column.buffers()[0], np.uint8)
    return bool(hides(column.offsets.to_numpy(), valid, column.offset))


def _map_parts(column: Any) -> tuple[Any, Any, Any]:
    lists = column.cast(pa.list_(pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])))
    offsets, values = _list_parts(lists)
    return offsets, values.field("key"), values.field("value")


def _null_where(values: Any, mask: NDArray[np.bool_]) -> Any:
    return pc.if_else(pa.array(mask), pa.scalar(None, values.type), values) if mask.any() else values


def _without_empty(batch: Any) -> Any:
    """Return the batch without optional columns that are null everywhere."""
    optional = ("to", "time", "lamport", "clock_name", "clock_entry", "assumed")
    return batch.select(
        [name for name in batch.schema.names if name not in optional or batch.column(name).null_count < batch.num_rows]
    )


def joined(batches: Iterable[Any]) -> Any:
    """Join batches of encoded rows into one table. If a column is missing from a batch, the rows of this batch have
    nulls there."""
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    # Numbers may be of different width: each batch has them as narrow as it can.
    return pa.concat_tables(tables, promote_options="permissive") if tables else SCHEMA.empty_table()
