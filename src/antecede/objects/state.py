"""The *live* states of objects: their states in memory. They consist of Python values, not of bytes, and operations
change these values in place. So the cost of an operation depends only on the cells that the operation uses.

**Cells.** The state of an object is divided into cells. In an attribute that is a dictionary, each entry is a cell. Any
other attribute is one cell. If a cell has a mutable value, code outside this module gets only a copy of it. An
operation works on a *view* of the object. The view does not copy immutable values, such as numbers and texts. It copies
a list, a set or a struct when the operation first reads it. It shows a dictionary as an :class:`Entries`. This class
records two kinds of entries: those that are written, and those that are read and have a mutable value. So an operation
never copies, encodes or checks a cell that it does not use.

**Changes.** For each cell that an operation has used, ``keep`` compares the bytes before the operation with the bytes
after it. If they differ, the new value is checked: it must be encodable, have its annotated type, and be within the
bounds on size and depth. Then the value is decoded again, so that no two cells share a value. The journal gets a
:class:`Change`. ``discard`` undoes changes that are not in the journal yet. ``rollback`` undoes changes in the journal,
and ``redo`` makes them again. An *intention* is the set of changes that an operation will make if its root commits
(closed nesting, §2 of Enokido, Higaki, Takizawa). To find these changes, the operation is executed, and ``rollback``
then undoes the changes. The commit makes them again.

**Order.** A loop over a dictionary gets the entries in the order of their keys. Entries that the operation itself added
come after all others. So equal states behave alike, even if compatible operations reached two replicas in different
orders.

**Digest.** The digest is the sum of the hashes of all cells, and is updated whenever a cell changes. Two replicas are
equal if and only if their digests are equal. This comparison is cheap. The digest does not depend on the order in which
compatible operations were executed.
"""

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import is_dataclass
from hashlib import blake2b
from typing import Any, ClassVar, Final, Protocol, get_args, get_origin, get_type_hints

import msgspec

from antecede import limits
from antecede.errors import ObjectError
from antecede.objects.model import FLAT, Object, attributes_of, copied

# Values of a state: their bytes, their types, and their depth.
#
# A cell of a state (:mod:`antecede.objects.state`) is compared, measured and copied by its bytes. Equal values have
# equal bytes. The order in which their dictionaries and sets were filled does not matter.


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


# A dictionary in the live state of an object. Each entry is a cell: a part of the state that is changed and checked
# separately (:mod:`antecede.objects.state`).


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


# Views: a view shows an object to one operation. A mutable value is copied into the view when it is first read.
#
# A view is an instance of a subclass of the object's class. Its values come from the object's state
# (:mod:`antecede.objects.state`), which consists of *cells*: one for each attribute, or for each entry of a dictionary.
# The state first puts the immutable values and the dictionaries into the view. The view copies other attributes when
# they are needed. After the operation, the state compares the view with the cells to find the changes.


class Source(Protocol):
    """The part of an object's state that a view uses: the cells, and the method that copies an attribute."""

    cells: dict[str, Any]

    def copy_out(self, view: Object, attribute: str) -> Any:
        """Copy an attribute into a view."""


class Work:
    """The private data of one view: the object's state, and the attributes that the view has copied from this state."""

    __slots__ = ("copied", "state")

    def __init__(self, state: Source) -> None:
        self.state = state
        self.copied: dict[str, Any] = {}
        """The encoded values of the copied attributes, by name, as they were when they were copied."""


class Lazy:
    """A descriptor for an attribute that can have a value in the object's class and another one in the state. A view
    shows the value of the state. If the state has no value, or the operation deleted it, the view shows the value of
    the class."""

    def __init__(self, name: str, default: Any) -> None:
        self._name = name
        self._default = default

    def __get__(self, view: Any, owner: Any) -> Any:
        if view is None:
            return self._default
        work = work_of(view)
        if self._name in work.state.cells and self._name not in work.copied:
            return work.state.copy_out(view, self._name)
        default = self._default
        return default.__get__(view, owner) if hasattr(type(default), "__get__") else default


own_attributes = Object.__dict__["__dict__"].__get__
"""A function: ``own_attributes(view)`` returns the attributes that are already in the view. In contrast,
``view.__dict__`` first copies all other attributes from the state."""
SLOT = "__antecede_work__"


def work_of(view: Any) -> Work:
    """Return the private data of a view."""
    return object.__getattribute__(view, SLOT)  # type: ignore[no-any-return]


def view_kind(kind: type[Object]) -> type[Object]:
    """Create a subclass of ``kind``; its instances are the views of the objects of ``kind``. When an attribute with a
    mutable value is first read, the view copies the value. Dictionaries are different if each entry is a cell: such a
    dictionary is not copied as a whole, but each mutable entry is copied when it is first read."""
    otherwise = getattr(kind, "__getattr__", None)

    def get(self: Any, name: str) -> Any:
        work = work_of(self)
        if name in work.state.cells and name not in work.copied:
            return work.state.copy_out(self, name)
        if otherwise is not None:
            return otherwise(self, name)
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def delete(self: Any, name: str) -> None:
        work = work_of(self)
        if name in work.state.cells and name not in work.copied and name not in own_attributes(self):
            work.state.copy_out(self, name)
        kind.__delattr__(self, name)

    def attributes(self: Any) -> dict[str, Any]:
        work = work_of(self)
        own: dict[str, Any] = own_attributes(self)
        for name in work.state.cells:
            if name not in own and name not in work.copied:
                work.state.copy_out(self, name)
        return own

    members: dict[str, Any] = {
        "__slots__": (SLOT,),
        "__getattr__": get,
        "__delattr__": delete,
        "__dict__": property(attributes),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    return type(kind.__name__, (kind,), members)


class Change(msgspec.Struct, gc=False):
    """A cell that an operation changed, created or removed."""

    state: "State"
    cells: dict[Any, Any]
    """The dictionary that contains the cell: the attributes of the object, or the entries of one attribute."""
    key: Any
    before: Any
    after: Any
    size: int
    digest: int

    def do(self) -> None:
        """Make the change."""
        self._put(self.after, self.size, self.digest)

    def undo(self) -> None:
        """Undo the change: restore the previous value."""
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


class State:
    """The state of one object."""

    entries: ClassVar[type[Entries]] = Entries

    def __init__(self, name: str, kind: type[Object], forms: Mapping[str, Form], otherwise: Form) -> None:
        self.name = name
        self.kind = kind
        self.cells: dict[str, Any] = {}
        """The value of each attribute, by the attribute's name. If a value is a dictionary with one cell per entry, it
        is stored as an ``Entries``. Only this module may change these values."""
        self.content = 0
        """The number of bytes of all cells, without the bytes for the lengths of dictionaries."""
        self.digest = 0
        self._forms = forms
        self._otherwise = otherwise
        self._views = view_kind(kind)
        self._shadowed: set[str] = set()
        """The names of attributes that have a mutable value in the state and also a value in the class. In a view, the
        value in the state hides the value in the class."""

    def form(self, attribute: str) -> Form:
        """Return how an attribute's cells are encoded."""
        return self._forms.get(attribute, self._otherwise)

    # Whole states.

    def load(self, attributes: Mapping[str, Any]) -> None:
        """Set the state to copies of these attributes. Attributes that are missing get their defaults."""
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
        """Decode the bytes of a state. Return its attributes; their values have the annotated types."""
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
        """The number of bytes that ``encoded`` returns."""
        lengths = [_length(len(cell)) for cell in self.cells.values() if isinstance(cell, Entries)]
        return self.content + _length(len(self.cells)) + sum(lengths)

    def recomputed(self) -> tuple[int, int]:
        """Compute ``content`` and ``digest`` again from all cells, so that both can be checked."""
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
        """Return the size and the digest of an attribute. ``encoded``: its bytes, or None if they are not known."""
        form, name = self.form(attribute), encode(attribute)
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
        """Return a new view of the object, for one operation."""
        view = self.kind.__new__(self._views)
        object.__setattr__(view, SLOT, Work(self))
        self._fill(view)
        return view

    def _fill(self, view: Object) -> None:
        own = own_attributes(view)
        for attribute, cell in self.cells.items():
            if type(cell) in FLAT or isinstance(cell, Entries):
                own[attribute] = cell
            elif attribute not in self._shadowed and hasattr(self.kind, attribute):
                setattr(self._views, attribute, Lazy(attribute, getattr(self.kind, attribute)))
                self._shadowed.add(attribute)

    def copy_out(self, view: Object, attribute: str) -> Any:
        """Copy the value of an attribute into a view, and return the copy."""
        form = self.form(attribute)
        encoded = form.encode(self.cells[attribute])
        work_of(view).copied[attribute] = encoded
        copy = own_attributes(view)[attribute] = form.decode(encoded)
        return copy

    def refresh(self, view: Object) -> None:
        """Let a view show the state as it is now."""
        own_attributes(view).clear()
        work_of(view).copied.clear()
        self._fill(view)

    def discard(self) -> None:
        """Undo the changes that an operation has made in dictionaries and that ``keep`` has not applied."""
        for cell in self.cells.values():
            if isinstance(cell, Entries) and cell.is_touched:
                cell.discard()

    # Changes.

    def keep(self, view: Object, lenient: bool = False) -> list[Change]:
        """Apply all changes of a view to the state, and return them. If one of the changes is not allowed, raise an
        error and apply no change. ``lenient``: whether the state may exceed the bound on its size."""
        changes = self._changes(view)
        self._check(changes, lenient)
        self.discard()
        for change in changes:
            change.do()
        return changes

    def _changes(self, view: Object) -> list[Change]:
        own, copied_out = own_attributes(view), work_of(view).copied
        changes: list[Change] = []
        replaced: list[tuple[str, Any]] = []
        for attribute, now in own.items():
            if now is not self.cells.get(attribute, MISSING):
                replaced.append((attribute, self.form(attribute).encode(now)))
            elif isinstance(now, Entries) and now.is_touched:
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
        """Return a list with the change of a whole attribute. If the attribute's bytes have not changed, return an
        empty list. There is one exception: if the old value is an ``Entries``, the change is always returned.
        ``after``: the attribute's bytes after the operation. It is MISSING if the operation removed the attribute and
        the class has no default value for it. ``encoded``: the attribute's bytes before the operation, or None if they
        are not known."""
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
        name, form = encode(attribute), self.form(attribute)
        for key, before, now, encoded, after in entries.changed():
            token = form.encode(key)
            old = (0, 0) if before is MISSING else form.weight(name, token, encoded)
            new = (0, 0) if now is MISSING else form.weight(name, token, after)
            # The name of the attribute counts once, not with each entry.
            size = new[0] - old[0] - len(name) * ((now is not MISSING) - (before is not MISSING))
            changes.append(Change(self, entries, key, before, now, size, new[1] - old[1]))
        return changes

    def _check(self, changes: list[Change], lenient: bool) -> None:
        """Raise ``ValueError`` if the changed cells are nested too deeply, or make the state too large. ``lenient``:
        whether the state may be too large.

        Both bounds are constants. So an operation has the same result at every replica and in every computation.
        The limit of Python's stack would not be a suitable bound, because the free part of the stack depends on the
        caller.
        """
        if not changes or self._otherwise is COPYING:
            return
        for change in changes:
            if change.after is not MISSING and is_deep(change.after, 1 + isinstance(change.cells, Entries)):
                raise ValueError(f"state of {self.name} nested deeper than {limits.call_depth_max}")
        # The lengths of dictionaries are counted as if all changes were new entries: at most a few bytes too many.
        size = self.content + sum(change.size for change in changes)
        if size + 5 * (1 + len(self.cells)) > limits.object_state_bytes_max and not lenient:
            size = self._size_after(changes)
            if size > limits.object_state_bytes_max:
                raise ValueError(f"state of {self.name} has {size} bytes: at most {limits.object_state_bytes_max}")

    def _size_after(self, changes: list[Change]) -> int:
        cells = dict(self.cells)
        counts = {id(cell): cell.settled() for cell in cells.values() if isinstance(cell, Entries)}
        for change in changes:
            if change.cells is not self.cells:
                counts[id(change.cells)] += (change.after is not MISSING) - (change.before is not MISSING)
            elif change.after is MISSING:
                del cells[change.key]
            else:
                cells[change.key] = change.after
        lengths = [_length(counts.get(id(cell), len(cell))) for cell in cells.values() if isinstance(cell, Entries)]
        return self.content + sum(change.size for change in changes) + _length(len(cells)) + sum(lengths)


def _is_eager(cell: Any) -> bool:
    return type(cell) in FLAT or isinstance(cell, Entries)


def _copy(form: Form, decode: Callable[[Any], Any], value: Any) -> Any:
    return value if type(value) in FLAT else decode(form.encode(value))


def _defaults(kind: type[Object]) -> dict[str, Any]:
    """Return the attributes that a class declares, with their defaults."""
    return attributes_of(kind.__new__(kind))


_digest_modulus: Final = 1 << 128


def _length(count: int) -> int:
    """Return the number of bytes that encode the length of a dictionary. ``count``: the number of its entries."""
    return 1 if count < 16 else 3 if count < 65_536 else 5


class Live:
    """The states of all objects of one site, and the changes since the last commit."""

    state: ClassVar[type[State]] = State

    def __init__(self, kind: type[Object], otherwise: Form = UNTYPED) -> None:
        self.kind = kind
        self.journal: list[Change] = []
        """The changes since the last commit, in sequence."""
        self.lenient = False
        """Whether states may exceed the bound on their size."""
        self.running = ""
        """The name of the operation that is being computed; empty if nothing is being computed."""
        self.runs = 0
        """The number of computations so far."""
        self.states: dict[str, State] = {}
        if kind._combines:
            self.states = {name: self.state(name, one, forms_of(one), UNTYPED) for name, one in kind._hosts.items()}
        else:
            self.states = {"": self.state(kind.__name__, kind, {}, otherwise)}

    @classmethod
    def copying(cls, kind: type[Object]) -> "Live":
        """Return a live state that may contain values of any Python type. Its values are copied. In a live state of a
        server, values are encoded and decoded instead."""
        return cls(kind, COPYING)

    @property
    def alone(self) -> State | None:
        """The state of the object, if ``kind`` is the class of a single object; None if ``kind`` combines the objects
        of a server."""
        return None if self.kind._combines else self.states[""]

    def load(self, saved: Mapping[str, Any]) -> None:
        """Load a state. For a single object, ``saved`` contains the attributes by name. For a server, ``saved``
        contains the state of each object as bytes, by the object's name."""
        self.journal.clear()
        if self.alone is not None:
            self.alone.load(saved)
            return
        for name, state in self.states.items():
            state.load(state.read(saved[name]))

    def dump(self) -> dict[str, Any]:
        """Return the state in the form that ``load`` expects."""
        if self.alone is not None:
            return self.alone.attributes()
        return {name: state.encoded() for name, state in self.states.items()}

    def keep(self, state: State, view: Object) -> None:
        """Apply the changes of a view to the state, and add them to the journal."""
        self.journal += state.keep(view, self.lenient)

    def discard(self) -> None:
        """Undo the changes that an operation has made in dictionaries and that ``keep`` has not applied."""
        for state in self.states.values():
            state.discard()

    def rollback(self, mark: int = 0) -> list[Change]:
        """Undo all changes since the last commit except the first ``mark`` changes. Return the undone changes."""
        undone = self.journal[mark:]
        del self.journal[mark:]
        for change in reversed(undone):
            change.undo()
        return undone

    def redo(self, changes: list[Change]) -> None:
        """Repeat changes that ``rollback`` has undone. The state must not have changed since then."""
        for change in changes:
            change.do()

    def wrong(self) -> list[str]:
        """Compute the size and digest of each state again from all cells. Return a text for each stored value that is
        different."""
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
