"""The live state of objects: kept decoded, and changed in place, so that an operation costs what it touches.

**Cells.** The state of an object is cut into cells: each attribute is one, and if it is a dictionary, each of its
entries is. Nothing outside this module holds a cell that can change. An operation works on a *view*: numbers, texts and
other values that cannot change are there as they are; a list, a set or a struct is copied when it is first read; a
dictionary is an :class:`Entries`, which records the entries that are read out or written. So an operation never copies,
encodes or checks a cell that it does not use.

**Changes.** ``keep`` compares the cells that a view has touched with those before, by their bytes. What differs is
checked (it can be encoded, has its annotated type, and is within the bounds on size and depth), decoded again, so that
no two cells share a value, and becomes a :class:`Change` in the journal. ``discard`` forgets what was not kept.
``rollback`` undoes changes; ``redo`` makes them again. An intention (§2, closed nesting) is the computation of an
operation followed by ``rollback``.

**Order.** Entries are iterated in the order of their keys, those that the operation itself added after all others. So
equal states behave alike, also if compatible operations reached two replicas in different orders.

**Digest.** The sum of a hash over all cells, changed with each of them. Two replicas are equal iff their digests are;
comparing them costs nothing, and does not depend on the order in which compatible operations came.
"""

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import is_dataclass
from hashlib import blake2b
from typing import Any, ClassVar, Final, get_args, get_origin, get_type_hints

import msgspec

from antecede import limits
from antecede.errors import ObjectError
from antecede.objects.model import Object, attributes_of, copied

_encode = msgspec.msgpack.Encoder().encode
_encode_in_order = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder().decode
_flat: Final = frozenset({int, str, float, bool, bytes, type(None)})
"""Types of values that cannot change."""


class _Missing:
    """The value of a cell that does not exist."""


MISSING: Final = _Missing()


def encode_state(state: Any) -> bytes:
    """Return a state as bytes; equal states give the same bytes."""
    try:
        return _encode_in_order(state)
    except TypeError:
        # It sorts only keys that are texts.
        return _encode(_in_order(state))


def _in_order(value: Any) -> Any:
    kind = type(value)
    if kind is dict or kind is Entries:
        pairs = [(_in_order(key), _in_order(one)) for key, one in dict.items(value)]
        return dict(sorted(pairs, key=lambda it: _encode(it[0])))
    if kind is set or kind is frozenset:
        return sorted(map(_in_order, value), key=_encode)
    if kind is list or kind is tuple:
        return kind(map(_in_order, value))
    if isinstance(value, msgspec.Struct):
        fields = kind.__struct_fields__
        return msgspec.structs.replace(value, **{name: _in_order(getattr(value, name)) for name in fields})
    return value


# The form of a cell.


class Form:
    """How the cells of one attribute are encoded and decoded; without types, as MessagePack has them."""

    by_entries: bool | None = None
    """Whether it is a dictionary whose entries are cells; None: if its value is a dictionary."""

    def encode(self, value: Any) -> Any:
        """Return a cell in its comparable form: equal cells have equal bytes."""
        return encode_state(value)

    def decode(self, encoded: Any) -> Any:
        """Return the whole attribute."""
        return _decode(encoded)

    def decode_key(self, encoded: Any) -> Any:
        """Return the key of an entry."""
        return _decode(encoded)

    def decode_entry(self, encoded: Any) -> Any:
        """Return the value of an entry."""
        return _decode(encoded)

    def same(self, one: Any, other: Any) -> bool:
        """Return whether two encoded cells are equal."""
        return bool(one == other)

    def weight(self, name: bytes, key: Any, value: Any) -> tuple[int, int]:
        """Return the size of an encoded cell and its part of the digest. Name, key and value are MessagePack each, so
        no two cells give the same bytes."""
        content = b"".join((name, key, value))
        return len(content), int.from_bytes(blake2b(content, digest_size=16).digest(), "big")


class Typed(Form):
    """An attribute with an annotation."""

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
    """Any values of Python, for a search that keeps nothing: they are copied, not encoded."""

    def encode(self, value: Any) -> Any:
        return copied(plain(value))

    def decode(self, encoded: Any) -> Any:
        return copied(encoded)

    decode_key = decode_entry = decode

    def same(self, one: Any, other: Any) -> bool:
        # Values of different types may be equal.
        return False

    def weight(self, name: bytes, key: Any, value: Any) -> tuple[int, int]:
        return 0, 0


UNTYPED: Final = Form()
_copying: Final = Copied()


def forms_of(kind: type[Object]) -> dict[str, Form]:
    """Return the forms of the annotated attributes of a class."""
    try:
        hints = get_type_hints(kind)
        return {name: Typed(kind, name, hint) for name, hint in hints.items() if get_origin(hint) is not ClassVar}
    except (NameError, TypeError) as error:
        raise ObjectError(f"{kind.__name__}: {error}") from None


class Change(msgspec.Struct, gc=False):
    """A cell that an operation changed, created or removed."""

    state: "State"
    cells: dict[Any, Any]
    """Where the cell is: the attributes of the object, or the entries of one of them."""
    key: Any
    before: Any
    after: Any
    size: int
    digest: int

    def do(self) -> None:
        """Make the change."""
        self._put(self.after, self.size, self.digest)

    def undo(self) -> None:
        """Take it back."""
        self._put(self.before, -self.size, -self.digest)

    def _put(self, value: Any, size: int, digest: int) -> None:
        cells = self.cells
        if isinstance(cells, Entries) and (value is MISSING or not dict.__contains__(cells, self.key)):
            cells.reorder()
        if value is MISSING:
            dict.__delitem__(cells, self.key)
        else:
            dict.__setitem__(cells, self.key, value)
        self.state.content += size
        self.state.digest = (self.state.digest + digest) % _digest_modulus


class Entries(dict[Any, Any]):
    """A dictionary of the state. It records which entries an operation has written, or read out and may have changed.

    For all that reads it, it contains what the operation has made of it, also for functions that read dictionaries
    directly.
    """

    __slots__ = ("_added", "_form", "_sorted", "_touched")

    def __init__(self, form: Form, content: Mapping[Any, Any]) -> None:
        super().__init__(content)
        self._form = form
        self._touched: dict[Any, tuple[Any, Any]] = {}
        """For each entry that was read out or written: its value before, and its bytes if they are known."""
        self._added: dict[Any, None] = {}
        """The keys that the operation added, in that order."""
        self._sorted: list[Any] | None = None

    # Reading.

    def __getitem__(self, key: Any) -> Any:
        value = dict.__getitem__(self, key)
        if type(value) in _flat or key in self._touched:
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

    def reorder(self) -> None:
        """Forget the order of the keys: there are others."""
        self._sorted = None

    def discard(self) -> None:
        """Undo everything that was not kept."""
        for key, (before, _) in self._touched.items():
            if before is not MISSING:
                dict.__setitem__(self, key, before)
            elif key in self:
                dict.__delitem__(self, key)
        self._touched.clear()
        self._added.clear()

    def changed(self) -> list[tuple[Any, Any, Any, Any, Any]]:
        """Return the entries that differ from before: key, value before and after, and both as bytes."""
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


def in_order(keys: list[Any]) -> list[Any]:
    """Return keys in the order of a state: texts by their characters, others by their bytes."""
    if all(type(key) is str for key in keys):
        return sorted(keys)
    return sorted(keys, key=lambda key: _encode(_in_order(key)))


class _Work:
    """The attributes of a view: those of the state that it has copied."""

    __slots__ = ("copied", "state")

    def __init__(self, state: "State") -> None:
        self.state = state
        self.copied: dict[str, Any] = {}
        """By name: the bytes of the attribute when it was copied."""


class _Lazy:
    """An attribute of a view whose class has a value of that name: the view's comes first."""

    def __init__(self, name: str, default: Any) -> None:
        self._name = name
        self._default = default

    def __get__(self, view: Any, owner: Any) -> Any:
        if view is None:
            return self._default
        work = _work_of(view)
        if self._name in work.state.cells and self._name not in work.copied:
            return work.state.copy_out(view, self._name)
        default = self._default
        return default.__get__(view, owner) if hasattr(type(default), "__get__") else default


_attributes_of_view = Object.__dict__["__dict__"].__get__
_slot = "__antecede_work__"


def _work_of(view: Any) -> _Work:
    return object.__getattribute__(view, _slot)  # type: ignore[no-any-return]


def _view_kind(kind: type[Object]) -> type[Object]:
    """Return the class of an object's views: attributes that can change are copied when they are read."""
    otherwise = getattr(kind, "__getattr__", None)

    def get(self: Any, name: str) -> Any:
        work = _work_of(self)
        if name in work.state.cells and name not in work.copied:
            return work.state.copy_out(self, name)
        if otherwise is not None:
            return otherwise(self, name)
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def delete(self: Any, name: str) -> None:
        work = _work_of(self)
        if name in work.state.cells and name not in work.copied and name not in _attributes_of_view(self):
            work.state.copy_out(self, name)
        kind.__delattr__(self, name)

    def attributes(self: Any) -> dict[str, Any]:
        work = _work_of(self)
        own: dict[str, Any] = _attributes_of_view(self)
        for name in work.state.cells:
            if name not in own and name not in work.copied:
                work.state.copy_out(self, name)
        return own

    members: dict[str, Any] = {
        "__slots__": (_slot,),
        "__getattr__": get,
        "__delattr__": delete,
        "__dict__": property(attributes),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    return type(kind.__name__, (kind,), members)


class State:
    """The state of one object."""

    entries: ClassVar[type[Entries]] = Entries

    def __init__(self, name: str, kind: type[Object], forms: Mapping[str, Form], otherwise: Form) -> None:
        self.name = name
        self.kind = kind
        self.cells: dict[str, Any] = {}
        """Attributes that nothing outside may change; dictionaries as ``Entries``."""
        self.content = 0
        """The bytes of all cells, without the lengths of dictionaries."""
        self.digest = 0
        self._forms = forms
        self._otherwise = otherwise
        self._views = _view_kind(kind)
        self._shadowed: set[str] = set()
        """Attributes of the class that a view's own come before."""

    def form(self, attribute: str) -> Form:
        """Return the form of an attribute's cells."""
        return self._forms.get(attribute, self._otherwise)

    # Whole states.

    def load(self, attributes: Mapping[str, Any]) -> None:
        """Make these the state, decoded: values that nobody else holds."""
        declared = {name: one for name, one in _defaults(self.kind).items() if name not in attributes}
        self.cells = {}
        self.content = self.digest = 0
        for attribute, value in {**attributes, **declared}.items():
            encoded = self.form(attribute).encode(value)
            cell = self._cell(attribute, encoded)
            size, digest = self._measured(attribute, cell, encoded)
            self.cells[attribute] = cell
            self.content += size
            self.digest = (self.digest + digest) % _digest_modulus

    def read(self, saved: bytes) -> dict[str, Any]:
        """Return the attributes from bytes, with their types."""
        raw = msgspec.msgpack.decode(saved, type=dict[str, msgspec.Raw])
        return {attribute: self.form(attribute).decode(value) for attribute, value in raw.items()}

    def attributes(self) -> dict[str, Any]:
        """Return a copy of the state, as plain values of Python."""
        found = {}
        for attribute, cell in self.cells.items():
            form = self.form(attribute)
            if isinstance(cell, Entries):
                found[attribute] = {key: _copy(form, form.decode_entry, dict.__getitem__(cell, key)) for key in cell}
            else:
                found[attribute] = _copy(form, form.decode, cell)
        return found

    def encoded(self) -> bytes:
        """Return the state as bytes."""
        return encode_state(self.cells)

    @property
    def size(self) -> int:
        """The number of bytes of ``encoded``."""
        lengths = [_length(len(cell)) for cell in self.cells.values() if isinstance(cell, Entries)]
        return self.content + _length(len(self.cells)) + sum(lengths)

    def recomputed(self) -> tuple[int, int]:
        """Return the content and the digest, computed from all cells: as a check of both."""
        content = digest = 0
        for attribute, cell in self.cells.items():
            size, part = self._measured(attribute, cell, None)
            content += size
            digest += part
        return content, digest % _digest_modulus

    def _cell(self, attribute: str, encoded: Any) -> Any:
        form = self.form(attribute)
        value = form.decode(encoded)
        if form.by_entries or (form.by_entries is None and type(value) is dict):
            return self.entries(form, value)
        return value

    def _measured(self, attribute: str, cell: Any, encoded: Any) -> tuple[int, int]:
        """Return the size and the digest of an attribute."""
        form, name = self.form(attribute), _encode(attribute)
        if not isinstance(cell, Entries):
            return form.weight(name, b"", form.encode(cell) if encoded is None else encoded)
        size, digest = form.weight(name, b"", b"")
        for key, value in dict.items(cell):
            more, part = form.weight(name, form.encode(key), form.encode(value))
            # The name of the attribute counts once, not with each entry.
            size, digest = size + more - len(name), digest + part
        return size, digest

    # Views.

    def view(self) -> Object:
        """Return the object, for one operation to work on."""
        view = self.kind.__new__(self._views)
        object.__setattr__(view, _slot, _Work(self))
        self._fill(view)
        return view

    def _fill(self, view: Object) -> None:
        own = _attributes_of_view(view)
        for attribute, cell in self.cells.items():
            if type(cell) in _flat or isinstance(cell, Entries):
                own[attribute] = cell
            elif attribute not in self._shadowed and hasattr(self.kind, attribute):
                setattr(self._views, attribute, _Lazy(attribute, getattr(self.kind, attribute)))
                self._shadowed.add(attribute)

    def copy_out(self, view: Object, attribute: str) -> Any:
        """Copy an attribute into a view."""
        form = self.form(attribute)
        encoded = form.encode(self.cells[attribute])
        _work_of(view).copied[attribute] = encoded
        copy = _attributes_of_view(view)[attribute] = form.decode(encoded)
        return copy

    def refresh(self, view: Object) -> None:
        """Let a view show the state as it is now."""
        _attributes_of_view(view).clear()
        _work_of(view).copied.clear()
        self._fill(view)

    def discard(self) -> None:
        """Undo what was not kept."""
        for cell in self.cells.values():
            if isinstance(cell, Entries):
                cell.discard()

    # Changes.

    def keep(self, view: Object) -> list[Change]:
        """Make the changes of a view to the state, all or none, and return them. Raise if one cannot be kept."""
        changes = self._changes(view)
        self._check(changes)
        self.discard()
        for change in changes:
            change.do()
        return changes

    def _changes(self, view: Object) -> list[Change]:
        own, copied_out = _attributes_of_view(view), _work_of(view).copied
        changes: list[Change] = []
        replaced: list[tuple[str, Any]] = []
        for attribute, now in own.items():
            if now is not self.cells.get(attribute, MISSING):
                replaced.append((attribute, self.form(attribute).encode(now)))
            elif isinstance(now, Entries):
                changes += self._entered(attribute, now)
        for attribute, before in self.cells.items():
            if attribute not in own and (attribute in copied_out or _is_eager(before)):
                default = _defaults(self.kind).get(attribute, MISSING)
                after = MISSING if default is MISSING else self.form(attribute).encode(default)
                replaced.append((attribute, after))
        # Only now: what replaces one attribute may contain another, as the operation left it.
        for attribute, after in replaced:
            changes += self._replaced(attribute, after, copied_out.get(attribute))
        return changes

    def _replaced(self, attribute: str, after: Any, encoded: Any) -> list[Change]:
        """Return the change of a whole attribute, if it is one. ``encoded``: its bytes before, if they are known."""
        form, before = self.form(attribute), self.cells.get(attribute, MISSING)
        if isinstance(before, Entries):
            before.discard()
        elif before is not MISSING:
            encoded = form.encode(before) if encoded is None else encoded
            if after is not MISSING and form.same(encoded, after):
                return []
        old_size, old_digest = (0, 0) if before is MISSING else self._measured(attribute, before, encoded)
        cell: Any = MISSING
        size = digest = 0
        if after is not MISSING:
            cell = self._cell(attribute, after)
            size, digest = self._measured(attribute, cell, after)
        return [Change(self, self.cells, attribute, before, cell, size - old_size, digest - old_digest)]

    def _entered(self, attribute: str, entries: Entries) -> list[Change]:
        """Return the changes of the entries of an attribute."""
        changes = []
        name, form = _encode(attribute), self.form(attribute)
        for key, before, now, encoded, after in entries.changed():
            token = form.encode(key)
            old = (0, 0) if before is MISSING else form.weight(name, token, encoded)
            new = (0, 0) if now is MISSING else form.weight(name, token, after)
            # The name of the attribute counts once, not with each entry.
            size = new[0] - old[0] - len(name) * ((now is not MISSING) - (before is not MISSING))
            changes.append(Change(self, entries, key, before, now, size, new[1] - old[1]))
        return changes

    def _check(self, changes: list[Change]) -> None:
        """Check the bounds on size and depth, on what changes.

        Both bounds are always the same. The depth of Python's own stack is not: it depends on the caller, and an
        operation might succeed at one replica, or the first time, and fail at another, or when it is computed again.
        """
        if not changes or self._otherwise is _copying:
            return
        for change in changes:
            if change.after is not MISSING and is_deep(change.after, 1 + isinstance(change.cells, Entries)):
                raise ValueError(f"state of {self.name} nested deeper than {limits.call_depth_max}")
        # The lengths of dictionaries are counted as if all changes were new entries: at most a few bytes too many.
        size = self.content + sum(change.size for change in changes)
        if size + 5 * (1 + len(self.cells)) > limits.object_state_bytes_max:
            size = self._size_after(changes)
            if size > limits.object_state_bytes_max:
                raise ValueError(f"state of {self.name} of {size} bytes: at most {limits.object_state_bytes_max}")

    def _size_after(self, changes: list[Change]) -> int:
        cells = dict(self.cells)
        counts = {id(cell): _settled(cell) for cell in cells.values() if isinstance(cell, Entries)}
        for change in changes:
            if change.cells is not self.cells:
                counts[id(change.cells)] += (change.after is not MISSING) - (change.before is not MISSING)
            elif change.after is MISSING:
                del cells[change.key]
            else:
                cells[change.key] = change.after
        lengths = [_length(counts.get(id(cell), len(cell))) for cell in cells.values() if isinstance(cell, Entries)]
        return self.content + sum(change.size for change in changes) + _length(len(cells)) + sum(lengths)


def _settled(entries: Entries) -> int:
    """Return the number of entries before the operation."""
    touched = entries._touched
    added = sum(before is MISSING and key in entries for key, (before, _) in touched.items())
    removed = sum(before is not MISSING and key not in entries for key, (before, _) in touched.items())
    return len(entries) - added + removed


def _is_eager(cell: Any) -> bool:
    return type(cell) in _flat or isinstance(cell, Entries)


def _copy(form: Form, decode: Callable[[Any], Any], value: Any) -> Any:
    return value if type(value) in _flat else decode(form.encode(value))


def _defaults(kind: type[Object]) -> dict[str, Any]:
    """Return the attributes that a class declares, with their defaults."""
    return attributes_of(kind.__new__(kind))


_digest_modulus: Final = 1 << 128


def _length(count: int) -> int:
    """Return how many bytes the length of a dictionary takes."""
    return 1 if count < 16 else 3 if count < 65_536 else 5


class Live:
    """The states of all objects of one site, and the changes since the last commit."""

    state: ClassVar[type[State]] = State

    def __init__(self, kind: type[Object], otherwise: Form = UNTYPED) -> None:
        self.kind = kind
        self.journal: list[Change] = []
        """The changes since the last commit, in sequence."""
        self.states: dict[str, State] = {}
        if kind._combines:
            self.states = {name: self.state(name, one, forms_of(one), UNTYPED) for name, one in kind._hosts.items()}
        else:
            self.states = {"": self.state(kind.__name__, kind, {}, otherwise)}

    @classmethod
    def copying(cls, kind: type[Object]) -> "Live":
        """Return a live state of any values of Python, which are not encoded; for objects of a server they are."""
        return cls(kind, _copying)

    @property
    def alone(self) -> State | None:
        """The state of the only object, if this is not a server's."""
        return None if self.kind._combines else self.states[""]

    def load(self, saved: Mapping[str, Any]) -> None:
        """Make this the state: attributes, or for a server the bytes of each object."""
        self.journal.clear()
        if self.alone is not None:
            self.alone.load(saved)
            return
        for name, state in self.states.items():
            state.load(state.read(saved[name]))

    def dump(self) -> dict[str, Any]:
        """Return the state for ``load``."""
        if self.alone is not None:
            return self.alone.attributes()
        return {name: state.encoded() for name, state in self.states.items()}

    def keep(self, state: State, view: Object) -> None:
        """Keep the changes of a view."""
        self.journal += state.keep(view)

    def discard(self) -> None:
        """Undo what was not kept."""
        for state in self.states.values():
            state.discard()

    def rollback(self, mark: int = 0) -> list[Change]:
        """Undo all changes after the first ``mark``, and return them."""
        undone = self.journal[mark:]
        del self.journal[mark:]
        for change in reversed(undone):
            change.undo()
        return undone

    def redo(self, changes: list[Change]) -> None:
        """Make changes again that were undone, if nothing has changed since."""
        for change in changes:
            change.do()

    def wrong(self) -> list[str]:
        """Return what is wrong with the sizes and digests, by computing them again from all cells."""
        found = []
        for state in self.states.values():
            content, digest = state.recomputed()
            if state.content != content:
                found.append(f"{state.content} bytes counted: there are {content}")
            if state.digest != digest:
                found.append(f"digest {state.digest:032x}: computed from all cells it is {digest:032x}")
        return found

    def commit(self) -> None:
        """Make all changes final."""
        self.journal.clear()


# Values that leave.


def plain(value: Any) -> Any:
    """Return a value without ``Entries``: what leaves an operation must not change with the state."""
    if not _holds_entries(value):
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
        level = [inner for one in level if type(one) not in _flat for inner in _inside(one)]
        if not level:
            break
    return False


def is_deep(value: Any, within: int = 0) -> bool:
    """Return whether a value is nested so deeply that it could not be encoded inside larger values. ``within``: the
    number of values that it is in already."""
    if type(value) in _flat:
        return False
    level = [value]
    for _ in range(limits.call_depth_max + 1 - within):
        level = [inner for one in level if type(one) not in _flat for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return [*dict.values(value), *dict.keys(value)]
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    return vars(value).values() if is_dataclass(value) and hasattr(value, "__dict__") else ()
