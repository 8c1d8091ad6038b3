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

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import msgspec

from antecede import limits
from antecede.objects.entries import MISSING, Entries
from antecede.objects.model import FLAT, Object, attributes_of
from antecede.objects.values import COPYING, UNTYPED, Form, encode, encode_state, forms_of, is_deep
from antecede.objects.views import SLOT, Lazy, Work, own_attributes, view_kind, work_of


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
