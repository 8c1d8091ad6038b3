"""What travels between stages: bytes, with arrays or Arrow batches inside. No classes, no pickle."""

import struct
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

_head = struct.Struct("<qq")


def pack(arrays: dict[str, Any]) -> bytes:
    """Arrays and plain values by name."""
    said: dict[str, Any] = {}
    for name, value in arrays.items():
        if isinstance(value, np.ndarray):
            said[name] = [value.dtype.str, np.ascontiguousarray(value).data.cast("B") if value.size else b""]
        else:
            said[name] = [None, value]
    return msgspec.msgpack.encode(said)


def unpack(packed: bytes) -> dict[str, Any]:
    """What :func:`pack` was given."""
    said = msgspec.msgpack.decode(packed)
    return {name: value if kind is None else np.frombuffer(value, kind) for name, (kind, value) in said.items()}


def pack_batch(batch: Any, split: int, sequence: int) -> bytes:
    """An Arrow batch with the split that it came from and its number there."""
    sink = pa.BufferOutputStream()
    sink.write(_head.pack(split, sequence))
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpack_batch(packed: bytes) -> tuple[int, int, Any]:
    """The split, the number and the batch."""
    split, sequence = _head.unpack_from(packed)
    with pa.ipc.open_stream(pa.py_buffer(packed).slice(_head.size)) as reader:
        return split, sequence, reader.read_next_batch()
