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
from collections.abc import Awaitable, Callable, Iterable
from copy import deepcopy
from functools import partial
from itertools import combinations_with_replacement
from typing import Any, ClassVar, Final, Protocol, TypeVar, overload

import msgspec

from antecede import limits
from antecede.engine.agents import Returned
from antecede.errors import CallTimeoutError, ObjectError, OperationError, UsageError
from antecede.failures import is_ctrl_c, text_of
from antecede.orders.relation import Relation

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


# A replicated object as its clients see it: ``await account.deposit(10)``.
#
# A call goes to the client's own server, which ensures that either all replicas apply the call, or no replica does. If
# the operation succeeds, the call returns the answer. If the operation fails, :class:`~antecede.errors.OperationError`
# is raised. If the deadline of the call passes, the server aborts the call and undoes all its effects. Then
# :class:`~antecede.errors.CallTimeoutError` is raised, which is a ``TimeoutError``. If the server itself does not
# respond, even some seconds after the time limit, the same exception is raised. The outcome is unknown only in this
# last case, and the text of the exception then states that it is unknown. The call has a number, so it takes effect at
# most once, even if this client fails. (A replica may compute a call several times, for example after a crash, or if
# the call was aborted once in favour of an older call.)
#
# This module defines the form of a call, the time to wait for the answer, and the meaning of the answer. It does not
# send calls itself: the bus provides a function that sends a call and waits for the answer.


_encode = msgspec.msgpack.Encoder().encode

Question = Callable[[str, str, bytes, float], Awaitable[Returned]]
"""A function that sends a call and waits for its answer. Its arguments are the address, the operation, the body, and
the number of seconds to wait."""


class _Operation(Protocol):
    def __call__(self, *arguments: Any, **named: Any) -> Awaitable[Any]: ...


class RemoteObject:
    """A replicated object, as a client uses it. Each operation of the object is a method here, and a call of it must be
    awaited."""

    def __init__(self, question: Question, name: str, kind: type[Object] | None, timeout: float) -> None:
        if not 0 < timeout <= limits.call_seconds_max:
            raise UsageError(f"timeout of {timeout} s: expected more than 0, at most {limits.call_seconds_max}")
        self._question = question
        self._name = name
        self._kind = kind
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"<object {self._name}>"

    def within(self, seconds: float) -> "RemoteObject":
        """Return the same object with another timeout."""
        return RemoteObject(self._question, self._name, self._kind, seconds)

    def __getattr__(self, operation: str) -> _Operation:
        if operation.startswith("_"):
            raise AttributeError(operation)
        if self._kind is not None and operation not in operations_of(self._kind):
            raise AttributeError(missing_operation(self._kind, operation))
        return partial(self._call, operation)

    async def _call(self, operation: str, *arguments: Any, **named: Any) -> Any:
        given = self._positional(operation, arguments, named)
        called = f"{self._name}.{operation}"
        try:
            body = _encode((max(round(self._timeout * 1000), 1), given))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UsageError(f"{called}: an argument is not a plain value: {error}") from None
        try:
            returned = await self._question(f"{self._name}()", operation, body, self._timeout + _grace_seconds)
        except TimeoutError:
            raise CallTimeoutError(
                f"{called}: no response from the server within {self._timeout + _grace_seconds:g} s, "
                "so it is not known whether the call took place"
            ) from None
        if returned.late:
            raise CallTimeoutError(f"{called}: not finished at every replica within {self._timeout:g} s, and undone")
        if not returned.ok:
            raise OperationError(f"{called}: {returned.reason}")
        return returned.value

    def _positional(self, operation: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments as positional ones, because only positional arguments are sent. Raise UsageError if the
        conversion is not possible."""
        if self._kind is None:
            if named:
                raise UsageError(
                    f"{self._name}.{operation}: expected positional arguments only, because the object's class is not "
                    "given; give the class, or pass the arguments without names"
                )
            return arguments
        try:
            bound = inspect.signature(operations_of(self._kind)[operation]).bind(None, *arguments, **named)
        except TypeError as error:
            raise UsageError(f"{self._name}.{operation}: {error}") from None
        bound.apply_defaults()
        if bound.kwargs:
            raise UsageError(
                f"{self._name}.{operation}: expected positional arguments only, but these can only be passed by name: "
                f"{', '.join(bound.kwargs)}"
            )
        return bound.args[1:]


_grace_seconds = 2.0
"""The number of seconds that a client continues to wait for a response after the time limit of its call."""
