"""A dictionary in the live state of an object. Each entry is a cell: a part of the state that is changed and checked
separately (:mod:`antecede.objects.state`)."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Final

import msgspec

from antecede import limits
from antecede.objects.model import FLAT, copied
from antecede.objects.values import Form, in_order, inside


class _Missing:
    """The type of ``MISSING``, which stands for the value of a cell that does not exist."""


MISSING: Final = _Missing()


class Entries(dict[Any, Any]):
    """A dictionary in the state of an object. It records the entries that an operation has written. It also records the
    entries with a mutable value that the operation has read, because the operation may have changed the value in place.

    Every reader sees the changes of the operation immediately, even a function that reads the dictionary directly.
    """

    __slots__ = ("_added", "_form", "_sorted", "_touched")

    def __init__(self, form: Form, content: Mapping[Any, Any]) -> None:
        super().__init__(content)
        self._form = form
        self._touched: dict[Any, tuple[Any, Any]] = {}
        """For each recorded entry: the value before the operation, and the bytes of this value (None if they are not
        known)."""
        self._added: dict[Any, None] = {}
        """The keys that the operation added, in the order in which it added them."""
        self._sorted: list[Any] | None = None

    # Reading.

    def __getitem__(self, key: Any) -> Any:
        value = dict.__getitem__(self, key)
        if type(value) in FLAT or key in self._touched:
            return value
        encoded = self._form.encode(value)
        copy = self._form.decode_entry(encoded)
        self._touched[key] = (value, encoded)
        dict.__setitem__(self, key, copy)
        return copy

    def get(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            return default
        return self[key]

    def __iter__(self) -> Iterator[Any]:
        if self._sorted is None:
            touched = self._touched
            known = [key for key in dict.__iter__(self) if key not in touched]
            known += [key for key, (before, _) in touched.items() if before is not MISSING]
            self._sorted = in_order(known)
        added = self._added
        if not self._touched:
            return iter(self._sorted)
        return iter([*[key for key in self._sorted if key in self and key not in added], *added])

    def __reversed__(self) -> Any:
        return reversed(list(self))

    def keys(self) -> Any:
        return _Keys(self)

    def values(self) -> Any:
        return _Values(self)

    def items(self) -> Any:
        return _Items(self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def copy(self) -> dict[Any, Any]:
        return dict(self)

    def __or__(self, other: Any) -> Any:
        return dict(self) | dict(other) if isinstance(other, dict) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return dict(other) | dict(self) if isinstance(other, dict) else NotImplemented

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: Any) -> dict[Any, Any]:
        return {copied(key): copied(value) for key, value in self.items()}

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)

    # Writing.

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in self._touched:
            self._touched[key] = (dict.get(self, key, MISSING), None)
        if key not in self:
            self._added[key] = None
        dict.__setitem__(self, key, value)

    def __delitem__(self, key: Any) -> None:
        value = dict.__getitem__(self, key)
        self._touched.setdefault(key, (value, None))
        self._added.pop(key, None)
        dict.__delitem__(self, key)

    def pop(self, key: Any, *default: Any) -> Any:
        if len(default) > 1:
            raise TypeError(f"pop expected at most 2 arguments, got {1 + len(default)}")
        if default and key not in self:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[Any, Any]:
        if not self:
            raise KeyError("popitem(): dictionary is empty")
        key = next(reversed(self))
        return key, self.pop(key)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *other: Any, **named: Any) -> None:
        for key, value in dict(*other, **named).items():
            self[key] = value

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def clear(self) -> None:
        for key in list(dict.__iter__(self)):
            del self[key]

    # The end of an operation.

    @property
    def is_touched(self) -> bool:
        """Whether the operation has written an entry, or has read a value that it can change in place."""
        return bool(self._touched)

    def reorder(self) -> None:
        """Drop the sorted list of the keys, because a key was added or removed. The next iteration sorts the keys."""
        self._sorted = None

    def discard(self) -> None:
        """Undo the changes that ``State.keep`` has not applied."""
        for key, (before, _) in self._touched.items():
            if before is not MISSING:
                dict.__setitem__(self, key, before)
            elif key in self:
                dict.__delitem__(self, key)
        self._touched.clear()
        self._added.clear()

    def changed(self) -> list[tuple[Any, Any, Any, Any, Any]]:
        """Return a tuple for each entry that the operation has changed: the key, the value before, the value after, and
        both values as bytes. ``MISSING`` is the value of an entry that does not exist."""
        form = self._form
        found: dict[Any, tuple[Any, Any, Any, Any, Any]] = {}
        for key, (before, encoded) in self._touched.items():
            now = dict.get(self, key, MISSING)
            if now is before:
                continue
            if before is not MISSING and encoded is None:
                encoded = form.encode(before)
            if now is MISSING:
                found[key] = (key, before, MISSING, encoded, None)
                continue
            after = form.encode(now)
            if before is MISSING:
                # A key may be of another type when it comes back from its bytes.
                found_key = form.decode_key(form.encode(key))
                if found_key != key:
                    key, before, encoded = found_key, *self._before(found_key)
            if before is MISSING or not form.same(after, encoded):
                found[key] = (key, before, form.decode_entry(after), encoded, after)
        return list(found.values())

    def settled(self) -> int:
        """Return the number of entries that the dictionary had before the operation."""
        touched = self._touched.items()
        added = sum(before is MISSING and key in self for key, (before, _) in touched)
        removed = sum(before is not MISSING and key not in self for key, (before, _) in touched)
        return len(self) - added + removed

    def _before(self, key: Any) -> tuple[Any, Any]:
        before, encoded = self._touched.get(key, (dict.get(self, key, MISSING), None))
        return before, self._form.encode(before) if encoded is None and before is not MISSING else encoded


class _Keys(KeysView[Any]):
    def __reversed__(self) -> Any:
        return reversed(list(self))


class _Values(ValuesView[Any]):
    def __reversed__(self) -> Any:
        return reversed(list(self))


class _Items(ItemsView[Any, Any]):
    def __reversed__(self) -> Any:
        return reversed(list(self))


def plain(value: Any) -> Any:
    """Return a value in which all ``Entries`` are replaced by ordinary dictionaries. This is necessary for the
    arguments of calls and for answers, because they must not change when the state of the object changes."""
    if type(value) in FLAT or not _holds_entries(value):
        return value
    kind = type(value)
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if kind is list or kind is tuple:
        return kind(map(plain, value))
    if isinstance(value, msgspec.Struct):
        fields = kind.__struct_fields__
        return msgspec.structs.replace(value, **{name: plain(getattr(value, name)) for name in fields})
    return copied(value)


def _holds_entries(value: Any) -> bool:
    level = [value]
    for _ in range(limits.call_depth_max + 1):
        if any(type(one) is Entries for one in level):
            return True
        level = [inner for one in level if type(one) not in FLAT for inner in inside(one)]
        if not level:
            break
    return False
