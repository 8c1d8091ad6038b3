"""The format of the data that one stage of the pipeline passes to the next: bytes that contain arrays. Pickle is not
used."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np


def pack(arrays: dict[str, Any]) -> bytes:
    """Encode a dictionary of arrays and plain values as bytes."""
    encoded: dict[str, Any] = {}
    for name, value in arrays.items():
        if isinstance(value, np.ndarray):
            encoded[name] = [value.dtype.str, np.ascontiguousarray(value).data.cast("B") if value.size else b""]
        else:
            encoded[name] = [None, value]
    return msgspec.msgpack.encode(encoded)


def unpack(packed: bytes) -> dict[str, Any]:
    """Return the values that :func:`pack` encoded."""
    decoded = msgspec.msgpack.decode(packed)
    return {name: value if kind is None else np.frombuffer(value, kind) for name, (kind, value) in decoded.items()}


def pack_struct(one: msgspec.Struct) -> bytes:
    """Return the bytes of a struct; its fields may contain arrays."""
    return msgspec.msgpack.encode(one, enc_hook=_plain)


def decoder(kinds: Any) -> Callable[[bytes], Any]:
    """Return a function that decodes structs encoded by :func:`pack_struct`. If ``kinds`` has several types, the
    function finds the type of a struct by its tag."""
    return msgspec.msgpack.Decoder(kinds, dec_hook=_array).decode


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, np.ascontiguousarray(value).data.cast("B") if value.size else b""]
    raise NotImplementedError(f"cannot pack {type(value).__name__}")


def _array(_: Any, value: Any) -> Any:
    kind, data = value
    return np.frombuffer(data, kind)
