"""Definition of objects, their operations, and the conflicts between operations.

An object is an instance of a class. Its operations are the methods that are marked with ``@operation``::

    class Account(Object):
        balance: int = 0

        @operation(conflicts_with=["audit"])
        def deposit(self, amount: int) -> None:
            self.balance += amount

        @operation
        def audit(self) -> int:
            return self.balance

Two operations conflict if, and only if, the sequence of their execution can change the state or an answer. (§2 of
Enokido, Higaki, Takizawa considers only the state. But an answer that depends on the sequence is just as important.)
Conflicts are symmetric: if an operation names another one in ``conflicts_with``, the other operation need not name the
first one. A class may also have a static method ``compatible(one, other)``. Then two operations also conflict if
this method, called with their names, returns False.

The attributes of an object are its state; they must be plain values. An operation that calls others is a generator: it
yields a :class:`Call` and receives the answer. It must be deterministic, because after each answer it is computed again
from the beginning.
"""

import inspect
from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import combinations_with_replacement
from typing import Any, ClassVar, Final, TypeVar, overload

import msgspec

from antecede.errors import ObjectError
from antecede.interrupts import is_ctrl_c
from antecede.orders.relation import Relation
from antecede.whereabouts import text_of

_mark = "__antecede_operation__"
_confirmed = "__antecede_confirmed__"
FLAT: Final = frozenset({int, str, float, bool, bytes, type(None)})
"""Types of immutable values."""

Method = TypeVar("Method", bound=Callable[..., Any])


class Call(msgspec.Struct, frozen=True):
    """A nested call: an operation yields a ``Call`` and receives the answer. If ``to`` names several objects, the
    answer is a dictionary: the name of each object → its answer. The called objects are treated as replicas of one
    object: if each of them makes the same nested call, that call is computed only once."""

    to: str | tuple[str, ...]
    operation: str
    arguments: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        # ``Call("ben", "deposit", 5)`` is an easy mistake.
        if not isinstance(self.arguments, tuple | list):
            raise TypeError(f"arguments of a Call: expected a tuple such as (5,), not {type(self.arguments).__name__}")
        if not isinstance(self.operation, str):
            raise TypeError(f"operation of a Call: expected a name, not {type(self.operation).__name__}")
        targets = (self.to,) if isinstance(self.to, str) else self.to
        if not isinstance(targets, tuple | list) or not all(isinstance(name, str) for name in targets):
            raise TypeError("target of a Call: expected the name of an object, or a tuple of names")

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of all objects that the call goes to."""
        return (self.to,) if isinstance(self.to, str) else tuple(self.to)


class SharedCall(Call, frozen=True):
    """One call that combines the calls of several callers. Each item of ``arguments`` is the list of one caller's
    arguments. The answer is the list of the answers for all callers."""


class CallFailed(Exception):
    """Raised inside an operation when a nested call of this operation has failed. All effects of that call are
    undone."""


class Failure(Exception):
    """An exception that an operation raises in order to fail. The caller gets only its text as the reason. For any
    other exception, the reason begins with the name of the exception."""


class Object:
    """The base class of the objects of a group. The attributes of an object are its state."""

    _operations: ClassVar[dict[str, Callable[..., Any]]] = {}
    _relation: ClassVar[Relation] = Relation()
    _hosts: ClassVar[dict[str, "type[Object]"]] = {}
    """The class of each object, by the object's name, if this class combines all objects of a server. Otherwise
    empty."""
    _combines: ClassVar[bool] = False
    """Whether this class combines all objects of a server."""
    _stateless: ClassVar[frozenset[str]] = frozenset()
    """Operations that neither read nor change any state."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        functions = inspect.getmembers(cls, inspect.isfunction)
        cls._operations = {name: method for name, method in functions if hasattr(method, _mark)}
        cls._relation = _declared(cls)
        for name, method in cls._operations.items():
            if not getattr(method, _confirmed) and name not in blind_operations(cls):
                raise ObjectError(
                    f"{cls.__name__}.{name}: confirm=False is for operations that conflict with nothing, call nothing "
                    "and return nothing (-> None)"
                )


@overload
def operation(method: Method) -> Method:
    """Mark a method as an operation."""


@overload
def operation(*, conflicts_with: Iterable[str] = (), confirm: bool = True) -> Callable[[Method], Method]:
    """Mark a method as an operation. ``conflicts_with``: the operations with which it conflicts. ``confirm``: whether
    its answer waits for all replicas."""


def operation(method: Any = None, *, conflicts_with: Iterable[str] = (), confirm: bool = True) -> Any:
    """Mark a method as an operation, and name the operations with which it conflicts (possibly itself).

    A replicated object answers a call when all replicas have the call on their disks. With ``confirm=False``, the
    answer comes earlier if the caller's server has a replica: it comes when this server has the call on its disk. Only
    an operation that conflicts with nothing, calls nothing and returns nothing (``-> None``) may have this option."""
    try:
        names = (conflicts_with,) if isinstance(conflicts_with, str) else tuple(conflicts_with)
    except TypeError:
        raise ObjectError(f"conflicts_with={conflicts_with!r}: expected names of operations") from None
    for name in names:
        if not isinstance(name, str):
            raise ObjectError(f"conflicts_with: expected names of operations, not {name!r}")

    def mark(marked: Any) -> Any:
        if not inspect.isfunction(marked):
            raise ObjectError(f"operation({marked!r}): expected a method; give the conflicts as conflicts_with=[…]")
        setattr(marked, _mark, names)
        setattr(marked, _confirmed, confirm)
        return marked

    return mark if method is None else mark(method)


def operations_of(kind: type[Object]) -> dict[str, Callable[..., Any]]:
    """Return the operations of a class, by name."""
    return kind._operations


def blind_operations(kind: type[Object]) -> set[str]:
    """Return the operations that conflict with nothing, call nothing and return nothing (``-> None``). The answer of
    such an operation contains no data from the state. No conflict can undo such an operation."""
    return {
        name
        for name, method in kind._operations.items()
        if not (kind._relation.matters(name) or inspect.isgeneratorfunction(method))
        and inspect.signature(method).return_annotation in (None, "None")
    }


def unconfirmed_operations(kind: type[Object]) -> set[str]:
    """Return the operations whose answers do not wait for all replicas."""
    return {name for name, method in kind._operations.items() if not getattr(method, _confirmed)}


def missing_operation(kind: type[Object], name: str) -> str:
    """Return the error message for an operation that a class does not have. The message lists the operations that the
    class has."""
    # Names of objects may have dots, and the requested name may be any text.
    hosted = max((host for host in kind._hosts if name.startswith(f"{host}.")), key=len, default=None)
    if hosted is not None:
        kind, name = kind._hosts[hosted], name.removeprefix(f"{hosted}.")
    return f"{kind.__name__} has no operation {name!r} (it has: {', '.join(operations_of(kind))})"


def relation_of(kind: type[Object]) -> Relation:
    """Return the relation that contains the conflicts between the operations of a class."""
    return kind._relation


def _declared(kind: type[Object]) -> Relation:
    operations = operations_of(kind)
    declared = [(name, other) for name, method in operations.items() for other in getattr(method, _mark)]
    for name, other in declared:
        if other not in operations:
            known = ", ".join(operations)
            raise ObjectError(
                f"{kind.__name__}.{name} conflicts with {other!r}: no such operation (the class has: {known})"
            )
    compatible = getattr(kind, "compatible", None)
    if compatible is not None and "compatible" not in operations:
        # Operations conflict if ``compatible`` denies it in either direction, or if they are named as conflicting. Too
        # many conflicts cost time; a missing one lets replicas diverge.
        asked = combinations_with_replacement(sorted(operations), 2)
        declared += [pair for pair in asked if not _allowed(kind, compatible, *pair)]
    return Relation(declared)


def _allowed(kind: type[Object], compatible: Callable[[str, str], Any], one: str, other: str) -> bool:
    try:
        return bool(compatible(one, other)) and bool(compatible(other, one))
    except BaseException as error:
        # It is the application's code; a plain method, which expects an object as well, is the common mistake.
        if is_ctrl_c(error):
            raise
        raise ObjectError(
            f"{kind.__name__}.compatible({one!r}, {other!r}) raises {type(error).__name__}: {text_of(error)} "
            "(expected a static method with two parameters, both names of operations)"
        ) from None


def initial(kind: type[Object]) -> dict[str, Any]:
    """Return the state of a new object."""
    return {name: copied(value) for name, value in attributes_of(kind()).items()}


def attributes_of(object_: Object) -> dict[str, Any]:
    """Return the state of an object without copying it: its attributes, and the default values of declared attributes
    that it has not set."""
    declared: dict[str, Any] = {}
    for cls in reversed(type(object_).__mro__):
        # A class attribute that is annotated is a default; one that is not is part of the class.
        names = vars(cls).get("__annotations__", ()) if cls is not Object else ()
        declared |= {name: getattr(object_, name) for name in names if hasattr(object_, name)}
    return {**declared, **vars(object_)}


def copied(value: Any) -> Any:
    """Return a copy that shares no mutable value with the original. Plain values, which are the usual ones, are copied
    faster than with ``deepcopy``."""
    kind = type(value)
    if kind in FLAT:
        return value
    if kind is dict:
        return {key: copied(item) for key, item in value.items()}
    if kind is list:
        return [copied(item) for item in value]
    if kind is tuple:
        return tuple([copied(item) for item in value])
    return deepcopy(value)
