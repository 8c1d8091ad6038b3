"""Values of a state: their bytes, their types, and their depth.

A cell of a state (:mod:`antecede.objects.state`) is compared, measured and copied by its bytes. Equal values have equal
bytes. The order in which their dictionaries and sets were filled does not matter.
"""

from dataclasses import is_dataclass
from hashlib import blake2b
from typing import Any, ClassVar, Final, get_args, get_origin, get_type_hints

import msgspec

from antecede import limits
from antecede.errors import ObjectError
from antecede.objects.model import FLAT, Object, copied

encode = msgspec.msgpack.Encoder().encode
_encode_in_order = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder().decode


def encode_state(state: Any) -> bytes:
    """Return a state as bytes; equal states give the same bytes."""
    try:
        return _encode_in_order(state)
    except TypeError:
        # It sorts only keys that are texts.
        return encode(_in_order(state))


def _in_order(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, dict):
        pairs = [(_in_order(key), _in_order(one)) for key, one in dict.items(value)]
        return dict(sorted(pairs, key=lambda it: encode(it[0])))
    if kind is set or kind is frozenset:
        return sorted(map(_in_order, value), key=encode)
    if kind is list or kind is tuple:
        return kind(map(_in_order, value))
    if isinstance(value, msgspec.Struct):
        fields = kind.__struct_fields__
        return msgspec.structs.replace(value, **{name: _in_order(getattr(value, name)) for name in fields})
    return value


def in_order(keys: list[Any]) -> list[Any]:
    """Return the keys in the sequence in which a state iterates over them. If all keys are texts, they are sorted by
    their characters. Otherwise they are sorted by their bytes."""
    if all(type(key) is str for key in keys):
        return sorted(keys)
    return sorted(keys, key=lambda key: encode(_in_order(key)))


class Form:
    """The encoding of the cells of one attribute. This base class is used for attributes without an annotation.
    Their decoded values have the basic types of MessagePack."""

    by_entries: bool | None = None
    """Whether the attribute is a dictionary whose entries are cells. If ``by_entries`` is None, the entries are cells
    whenever the value is a dictionary."""

    def encode(self, value: Any) -> Any:
        """Return the encoded form of a value. Equal values have equal encoded forms."""
        return encode_state(value)

    def decode(self, encoded: Any) -> Any:
        """Return the value of a whole attribute from its bytes."""
        return _decode(encoded)

    def decode_key(self, encoded: Any) -> Any:
        """Return the key of an entry from its bytes."""
        return _decode(encoded)

    def decode_entry(self, encoded: Any) -> Any:
        """Return the value of an entry from its bytes."""
        return _decode(encoded)

    def same(self, one: Any, other: Any) -> bool:
        """Return whether two encoded cells are equal."""
        return bool(one == other)

    def weight(self, name: bytes, key: Any, value: Any) -> tuple[int, int]:
        """Return two numbers for an encoded cell: its size in bytes, and its hash, which is a part of the state's
        digest. The hash is computed from name, key and value, one after the other. All three are encoded as
        MessagePack, a format in which each value shows where it ends. So different cells never give the same bytes."""
        content = b"".join((name, key, value))
        return len(content), int.from_bytes(blake2b(content, digest_size=16).digest(), "big")


class Typed(Form):
    """The encoding of the cells of an attribute with an annotation."""

    def __init__(self, kind: type[Object], attribute: str, hint: Any) -> None:
        self._where = f"attribute {attribute} of {kind.__name__}"
        self._whole = msgspec.msgpack.Decoder(hint)
        self.by_entries = None if hint is Any else hint is dict or get_origin(hint) is dict
        key, value = get_args(hint) if self.by_entries and get_args(hint) else (Any, Any)
        self._key, self._entry = msgspec.msgpack.Decoder(key), msgspec.msgpack.Decoder(value)

    def decode(self, encoded: Any) -> Any:
        return self._decoded(self._whole, encoded)

    def decode_key(self, encoded: Any) -> Any:
        return self._decoded(self._key, encoded)

    def decode_entry(self, encoded: Any) -> Any:
        return self._decoded(self._entry, encoded)

    def _decoded(self, decoder: Any, encoded: Any) -> Any:
        try:
            return decoder.decode(encoded)
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"{self._where}: {error}") from None


class Copied(Form):
    """A :class:`Form` that copies the values of cells instead of encoding them. It is used in the search for conflicts
    (:mod:`antecede.objects.search`). The search does not store states, so a value may have any Python type."""

    def encode(self, value: Any) -> Any:
        return copied(value)

    def decode(self, encoded: Any) -> Any:
        return copied(encoded)

    decode_key = decode_entry = decode

    def same(self, one: Any, other: Any) -> bool:
        # Values of different types may be equal.
        return False

    def weight(self, name: bytes, key: Any, value: Any) -> tuple[int, int]:
        return 0, 0


UNTYPED: Final = Form()
COPYING: Final = Copied()


def forms_of(kind: type[Object]) -> dict[str, Form]:
    """Return the form (the encoding) of each annotated attribute of a class, by name."""
    try:
        hints = get_type_hints(kind)
        return {name: Typed(kind, name, hint) for name, hint in hints.items() if get_origin(hint) is not ClassVar}
    except (NameError, TypeError) as error:
        raise ObjectError(f"{kind.__name__}: {error}") from None


def is_deep(value: Any, within: int = 0) -> bool:
    """Return whether a value is nested deeper than ``limits.call_depth_max``. ``within``: the number of containers
    around the value; these containers are counted, too."""
    if type(value) in FLAT:
        return False
    level = [value]
    for _ in range(limits.call_depth_max + 1 - within):
        level = [inner for one in level if type(one) not in FLAT for inner in inside(one)]
        if not level:
            return False
    return True


def inside(value: Any) -> Any:
    """Return the values that a value directly contains. If the value is not a container, the result is empty."""
    if isinstance(value, dict):
        return [*dict.values(value), *dict.keys(value)]
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    return vars(value).values() if is_dataclass(value) and hasattr(value, "__dict__") else ()
