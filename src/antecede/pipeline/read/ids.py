"""The message ids of a batch, as a column. The task that reads a split passes this column to other tasks. If all ids of
a batch are UUIDs, each id takes 16 bytes. Otherwise the ids are texts.

All ids of a batch have the same form, but a bucket can get batches of both forms. So the functions here give the same
answers for both forms.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from antecede.pipeline.kernels.texts import (
    UUID_LENGTH,
    hash_texts,
    hash_uuids,
    number,
    number_uuids,
    uuid_texts,
    uuids,
)

Ints = NDArray[np.int32]
Words = NDArray[np.uint64]

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
