"""The first stage of the pipeline for significant order: it adds the operation instances to the rows.

The rows that go to buckets get four more columns with texts: ``instance``, ``operation``, ``parent`` and ``type``. A
``local`` row (an event without a message) also goes to a bucket if the row names an instance.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from antecede.pipeline.read.encode import Task
from antecede.pipeline.read.splits import Arrow
from antecede.trace.files import Item, items_in
from antecede.trace.schema import Event

CARRIED = ("instance", "operation", "parent", "type")
"""The columns that significant order adds to encoded rows."""


class InstanceTask(Task):
    """Encodes one split like :class:`Task`, and adds the operation instances to the rows."""

    def batches(self, piece: Arrow | list[Item]) -> Iterator[Any]:
        if isinstance(piece, list):
            yield from self.take_items(piece)
        elif piece.plain:
            batch, odd = self.encoder.from_arrow(piece.batch, piece.first, piece.folded)
            given = piece.batch.take(pa.array(batch.column("at").to_numpy() - piece.first))
            yield _extended(batch, [_texts(given, name) for name in CARRIED])
            yield from self.take_items(odd)
        else:
            yield from self.take_items(list(items_in(piece.batch, piece.folded, piece.first + 1, False)))

    def from_items(self, items: Sequence[Item]) -> Iterator[Any]:
        events = [decoded for _, _, decoded in items if isinstance(decoded, Event)]
        for batch in super().from_items(items):
            yield _extended(batch, [pa.array([getattr(e, name) for e in events], pa.string()) for name in CARRIED])


def _texts(given: Any, name: str) -> Any:
    if name not in given.schema.names:
        return pa.nulls(given.num_rows, pa.string())
    column = given.column(name)
    return (column.dictionary_decode() if pa.types.is_dictionary(column.type) else column).cast(pa.string())


def _extended(batch: Any, columns: Sequence[Any]) -> Any:
    for name, column in zip(CARRIED, columns, strict=True):
        batch = batch.append_column(name, column)
    return batch
