"""Views: a view shows an object to one operation. A mutable value is copied into the view when it is first read.

A view is an instance of a subclass of the object's class. Its values come from the object's state
(:mod:`antecede.objects.state`), which consists of *cells*: one for each attribute, or for each entry of a dictionary.
The state first puts the immutable values and the dictionaries into the view. The view copies other attributes when they
are needed. After the operation, the state compares the view with the cells to find the changes.
"""

from typing import Any, Protocol

from antecede.objects.model import Object


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
