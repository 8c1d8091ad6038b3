"""The first stage for measuring: it adds times, sizes and hops to the encoded rows.

Measuring needs the ``hop`` rows, which routers record. So each ``hop`` row is put into the same bucket (group of rows)
as the other rows of its message, and the names of routers and processes are numbered together. Clocks are dropped,
because measuring does not use them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from antecede.pipeline.kernels.match import HOP, LOCAL, SEND
from antecede.pipeline.read.encode import Task
from antecede.pipeline.read.splits import Arrow
from antecede.trace.costs import payload_bytes
from antecede.trace.files import Item, items_in
from antecede.trace.schema import COLUMNS, INT64_MAX, Event

CARRIED = ("stamp_bytes", "hop", "domain", "held", "payload")
"""The columns that measuring adds to encoded rows."""

_folded = "extra"
_sizes = {"bytes", "size"}
"""The columns that may contain the payload size. A file can also have a *folded* column. It has JSON texts with
the values outside the trace format, and such a text can also contain the size. So a row of a file that has both kinds
of columns may have two sizes. Such files are read by the reader that is used without Spark, because this reader handles
this case."""


class FigureTask(Task):
    """Encodes one split like :class:`Task`, and adds all values for measuring to the rows."""

    columns = (*COLUMNS, "bytes", "size", _folded)

    def batches(self, piece: Arrow | list[Item]) -> Iterator[Any]:
        if isinstance(piece, list):
            yield from self.take_items(piece)
        elif piece.plain and not (piece.folded and _sizes & set(piece.batch.schema.names)):
            batch, odd = self.encoder.from_arrow(piece.batch, piece.first, piece.folded)
            yield _with_figures(batch, piece)
            yield from self.take_items(odd)
        else:
            yield from self.take_items(list(items_in(piece.batch, piece.folded, piece.first + 1, False)))

    def from_items(self, items: Sequence[Item]) -> Iterator[Any]:
        events = [decoded for _, _, decoded in items if isinstance(decoded, Event)]
        for batch in super().from_items(items):
            sizes = [payload_bytes(event) if event.kind == "send" else None for event in events]
            yield _extended(
                batch,
                pa.array([event.stamp_bytes for event in events], pa.int64()),
                pa.array([event.hop for event in events], pa.int64()),
                pa.array([event.domain for event in events], pa.string()),
                pa.array([event.held for event in events], pa.bool_()),
                pa.array(sizes, pa.int64()),
            )

    def needed_part(self, batch: Any, kind: NDArray[np.uint8]) -> Any:
        hop = kind == HOP
        if hop.any():
            servers, process = self.encoder.servers.list(), batch.column("process").to_numpy().copy()
            table = np.array([self.encoder.names.of(name) for name in servers], np.int32)
            process[hop] = table[process[hop]]
            at = batch.schema.get_field_index("process")
            batch = batch.set_column(at, "process", pa.array(process, pa.int32()))
        dropped = ("lamport", "clock_name", "clock_entry")
        batch = batch.select([name for name in batch.schema.names if name not in dropped])
        keep = kind != LOCAL
        return batch if keep.all() else batch.filter(pa.array(keep))


def _extended(batch: Any, *columns: Any) -> Any:
    for name, column in zip(CARRIED, columns, strict=True):
        batch = batch.append_column(name, column)
    return batch


def _with_figures(batch: Any, piece: Arrow) -> Any:
    """Add the columns for measuring to an encoded batch. The values of these columns are copied from ``piece``, which
    contains the same rows before they were encoded."""
    rows = pa.array(batch.column("at").to_numpy() - piece.first)
    given = piece.batch.take(rows)
    present = given.schema.names

    def column(name: str, kind: Any) -> Any:
        if name not in present:
            return pa.nulls(given.num_rows, kind)
        found = given.column(name)
        return (found.dictionary_decode() if pa.types.is_dictionary(found.type) else found).cast(kind)

    send = batch.column("kind").to_numpy() == SEND
    return _extended(
        batch,
        column("stamp_bytes", pa.int64()),
        column("hop", pa.int64()),
        column("domain", pa.string()),
        column("held", pa.bool_()),
        _payload(given, send, piece.folded),
    )


def _payload(given: Any, send: NDArray[np.bool_], folded: set[str]) -> Any:
    """Return a column with the payload size of each send, by the rules of :func:`antecede.trace.costs.payload_bytes`.
    All other rows get a null."""
    found = pa.nulls(given.num_rows, pa.int64())
    for name in ("bytes", "size"):
        if name in given.schema.names and pa.types.is_integer(given.column(name).type):
            column = given.column(name)
            low = pc.greater_equal(column, pa.scalar(0, column.type))
            if pa.types.is_uint64(column.type):
                low = pc.less_equal(column, pa.scalar(INT64_MAX, pa.uint64()))
            good = pc.if_else(pc.fill_null(low, False), column, pa.scalar(None, column.type))
            found = pc.coalesce(found, good.cast(pa.int64()))
    if _folded in folded and _folded in given.schema.names:
        found = _unfolded(given.column(_folded), found)
    return pc.if_else(pa.array(send), found, pa.scalar(None, pa.int64()))


def _unfolded(texts: Any, found: Any) -> Any:
    """Return the payload size of each row. ``found`` has the sizes that are known so far. ``texts`` has, for each row,
    a JSON object with those values of the row that are outside the trace format. A payload size in this object replaces
    the size in ``found``."""
    if texts.null_count == len(texts):
        return found
    sizes = found.to_pylist()
    for row, text in enumerate(texts.to_pylist()):
        if text is not None and ('"bytes"' in text or '"size"' in text):
            try:
                extra = msgspec.json.decode(text)
            except (msgspec.MsgspecError, RecursionError):
                continue
            if type(extra) is dict:
                sizes[row] = payload_bytes(Event("", 0, "send", extra=extra))
    return pa.array(sizes, pa.int64())
