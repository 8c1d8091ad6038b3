"""Views: an object as an operation sees it. A value that can change is copied when it is first read.

A view is an instance of a subclass of the object's class. It knows only the names of the cells, and how to get a copy
of a cell. The state (:mod:`antecede.objects.state`) fills the view, and afterwards compares it with its own cells.
"""

from typing import Any, Protocol

from antecede.objects.model import Object


class Source(Protocol):
    """The state behind a view."""

    cells: dict[str, Any]

    def copy_out(self, view: Object, attribute: str) -> Any:
        """Copy an attribute into a view."""


class Work:
    """The state behind a view, and the attributes that the view has copied from it."""

    __slots__ = ("copied", "state")

    def __init__(self, state: Source) -> None:
        self.state = state
        self.copied: dict[str, Any] = {}
        """For each copied attribute, by name: its bytes when it was copied."""


class Lazy:
    """An attribute of a view for which the class has a value, too. If the state has a value, the view shows that
    one."""

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
"""``own_attributes(view)``: the attributes that the view has so far, without copying others."""
SLOT = "__antecede_work__"


def work_of(view: Any) -> Work:
    """Return the state behind a view, and what the view has copied from it."""
    return object.__getattribute__(view, SLOT)  # type: ignore[no-any-return]


def view_kind(kind: type[Object]) -> type[Object]:
    """Return the class of an object's views. An attribute with a mutable value is copied when it is first read. A
    dictionary whose entries are cells is not copied as a whole: it copies each mutable entry that is read."""
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
