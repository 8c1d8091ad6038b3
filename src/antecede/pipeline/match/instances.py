"""Match the sends and deliveries of each bucket of rows, and collect the operation instances of the rows. This is the
pipeline's second stage for significant order.

In each bucket, the names of instances, operations and parents get numbers. A later task joins the rows of all buckets.
It gives new numbers to the names, which are the same in the whole trace. It also decides which row belongs to which
instance, by the rules of :mod:`antecede.trace.significant`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from antecede.pipeline.kernels.match import DELIVER, LOCAL, SEND, VALID
from antecede.pipeline.match.buckets import Numbering, bucket_of
from antecede.pipeline.packing import pack_struct
from antecede.pipeline.pieces import Instances, Piece
from antecede.pipeline.read.instances import CARRIED

_nothing = pa.array([], pa.string())

UNTYPED, REQUESTED, OTHERWISE, COMMITTED, ABORTED = range(5)
"""Numbers for the type of a row: no type, ``request``, any other type, ``commit``, ``abort``."""


def matched_instances(packed: Iterable[bytes], numbering: Numbering) -> Iterator[tuple[int, bytes]]:
    """Match the sends and deliveries of one bucket of rows. Yield one pair: the number of the output part, which is 0,
    and a piece as bytes. The piece has the operation instances of the rows, but no clocks."""
    bucket = bucket_of(packed, numbering)
    kinds = (bucket.kind == SEND) | (bucket.kind == DELIVER) | (bucket.kind == LOCAL)
    valid = np.flatnonzero(kinds & (bucket.reason == VALID))
    # A bucket without rows does not have the columns of instances.
    columns = {
        name: _one(bucket.table.column(name)).take(pa.array(valid)) if len(valid) else _nothing for name in CARRIED
    }
    # A row without an instance is needed only if it is a send, which may give the type of its message.
    some = columns["instance"].is_valid().to_numpy(zero_copy_only=False) | (bucket.kind[valid] == SEND)
    rows = valid[some]
    columns = {name: column.filter(pa.array(some)) for name, column in columns.items()}
    encoded = [columns[name].dictionary_encode() for name in CARRIED[:3]]
    codes = [one.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32) for one in encoded]
    texts = [one.dictionary.to_pylist() for one in encoded]
    about = Instances(
        bucket.process[rows], bucket.index[rows], bucket.kind[rows], _types(columns["type"]), *codes, *texts
    )
    yield 0, pack_struct(Piece(bucket.deliveries(), bucket.undelivered_sends(), instances=about))


def _one(column: Any) -> Any:
    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.array([], column.type)


def _types(column: Any) -> NDArray[np.uint8]:
    table = {"request": REQUESTED, "commit": COMMITTED, "abort": ABORTED}
    encoded = column.dictionary_encode()
    codes = np.array([table.get(text, OTHERWISE) for text in encoded.dictionary.to_pylist()] + [UNTYPED], np.uint8)
    return np.asarray(codes[encoded.indices.fill_null(len(codes) - 1).to_numpy(zero_copy_only=False)])
