"""All objects of a server, combined into one object. With this object, the server takes part in the order ``objects``.

A member of the order is a server, and a server may hold replicas of several objects. So the objects of a server are
combined into *one* object. Its operations are ``account.deposit``, ``ledger.append`` and so on. Its state contains the
states of all objects. Operations of different objects do not conflict.

The order respects the relation *significantly precedes* between messages (§3.2 of Enokido, Higaki, Takizawa). The
combination does not change this relation: the relation depends only on the instances and on the conflicts between
operations. But in the vectors of the order, all objects of a server share one entry. So a message may also wait for
messages that do not significantly precede it. Such waits cause no cycle: every message has an event number
(:mod:`antecede.orders.objects`), and waits only for messages with smaller event numbers.

Each object has its own live state (:mod:`antecede.objects.state`). A snapshot contains this state as bytes, which do
not depend on the order of insertions. So two replicas are equal iff their bytes are equal, even if compatible
operations reached them in different orders. Values of annotated attributes and parameters are decoded to the annotated
types. If a value does not fit its type, the operation fails.
"""

import inspect
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, get_type_hints

import msgspec

from antecede import limits
from antecede.errors import ObjectError
from antecede.interrupts import is_ctrl_c
from antecede.objects.entries import plain
from antecede.objects.model import (
    Call,
    CallFailed,
    Failure,
    Object,
    SharedCall,
    initial,
    operation,
    operations_of,
    relation_of,
)
from antecede.objects.replay import perform
from antecede.objects.state import Live, State
from antecede.objects.values import UNTYPED, encode_state, forms_of, is_deep
from antecede.whereabouts import text_of

ROOT: Final = "call"
"""The name of an operation that every server has. It calls an object for a client or an agent, and conflicts with
nothing. Each root (the outermost operation instance of a call) executes this operation."""

_encode = msgspec.msgpack.Encoder().encode


class ReplicatedObject(Object):
    """The base class of an object with a replica on each of several servers. The annotated attributes of a subclass are
    the object's state."""


def qualified(name: str, called: str) -> str:
    """Return the full name of an object's operation, such as ``account.deposit``."""
    return f"{name}.{called}"


def parted(called: str) -> tuple[str, str]:
    """Return the object and the operation in a name such as ``account.deposit``."""
    name, _, operation_ = called.rpartition(".")
    return name, operation_


def conflicts_of(objects: Mapping[str, type[Object]]) -> list[tuple[str, str]]:
    """Return all pairs of conflicting operations, as full names such as ``account.deposit``."""
    return [
        (qualified(name, one), qualified(name, other))
        for name, kind in objects.items()
        for one, other in relation_of(kind).pairs()
    ]


def hosting(objects: Mapping[str, type[Object]]) -> type[Object]:
    """Return the class that combines these objects on a server."""
    rivals: dict[str, list[str]] = {}
    for one, other in conflicts_of(objects):
        rivals.setdefault(one, []).append(other)
    members: dict[str, Any] = {ROOT: operation(_root), "_hosts": dict(objects), "_combines": True}
    members["_stateless"] = frozenset({ROOT})
    for name, kind in objects.items():
        forms_of(kind)
        for called, method in operations_of(kind).items():
            if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
                raise ObjectError(
                    f"{kind.__name__}.{called} is asynchronous: expected a method that only computes and yields calls"
                )
            whole = qualified(name, called)
            members[whole] = operation(conflicts_with=rivals.get(whole, ()))(_bound(name, kind, called, method))
    members["__init__"] = _init(objects)
    return type("Hosted", (Object,), members)


def state_in(kind: type[Object], name: str, whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of one object, from the state of all objects of a server."""
    return State(name, kind, forms_of(kind), UNTYPED).read(whole[name])


def _init(objects: Mapping[str, type[Object]]) -> Callable[[Any], None]:
    first = {name: _first(name, kind) for name, kind in objects.items()}

    def begin(self: Any) -> None:
        self.__dict__.update(first)

    return begin


def _first(name: str, kind: type[Object]) -> bytes:
    """Return the state of a new object as bytes. Raise an error if the state cannot be encoded and decoded again."""
    try:
        state = encode_state(initial(kind))
        State(name, kind, forms_of(kind), UNTYPED).read(state)
    except ObjectError:
        raise
    except BaseException as error:
        # This runs the application's code, which may fail in any way.
        if is_ctrl_c(error):
            raise
        raise ObjectError(
            f"{kind.__name__}() cannot be created and saved: {type(error).__name__}: {text_of(error)}"
        ) from None
    return state


def _root(
    self: Any, object_: str, called: str, arguments: list[Any], shared: bool = False
) -> Generator[Call, Any, Any]:
    try:
        if not shared:
            return (yield Call(object_, called, tuple(arguments)))
        answers = yield SharedCall(object_, called, tuple(arguments))
        if not are_answers(answers, len(arguments)):
            raise Failure("expected one answer for each call that shares the request")
        return answers
    except CallFailed as failed:
        # The caller called the operation, not this program around it, so it gets only the operation's reason.
        raise Failure(*failed.args) from None


def are_answers(given: Any, count: int) -> bool:
    """Return whether ``given`` is a list of ``count`` answers. An answer is a list of a boolean (whether the call
    succeeded) and a value (the result, or the reason of the failure)."""
    return (
        isinstance(given, list)
        and len(given) == count
        and all(isinstance(one, list) and len(one) == 2 and isinstance(one[0], bool) for one in given)
    )


def _bound(name: str, kind: type[Object], called: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation of one object as an operation of the combined object."""
    signature = inspect.signature(method)
    try:
        hints = get_type_hints(method)
    except (NameError, TypeError) as error:
        raise ObjectError(f"{kind.__name__}.{called}: {error}") from None

    parameters = list(signature.parameters.values())[1:]
    places = [
        hints.get(one.name, Any) for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    more = next((hints.get(one.name, Any) for one in parameters if one.kind is one.VAR_POSITIONAL), Any)

    usual = len(places) == len(parameters)

    def fit(one: Object, arguments: tuple[Any, ...]) -> list[Any]:
        given = usual and len(arguments) == len(places)
        positional = arguments if given else signature.bind(one, *arguments).args[1:]
        # An argument without a parameter belongs to ``*more``.
        kinds = places + [more] * (len(positional) - len(places))
        try:
            return [msgspec.convert(given, kind) for given, kind in zip(positional, kinds, strict=False)]
        except msgspec.ValidationError as error:
            raise TypeError(f"{called}: {error}") from None

    def fitted(one: Object, *arguments: Any) -> Any:
        return method(one, *fit(one, arguments))

    def run(live: Live, *arguments: Any) -> Any:
        return perform(live, live.states[name], fitted, arguments, _sendable, _small)

    return run


def _sendable(call: Call) -> Call:
    """Return a call with its arguments as plain values; raise if they do not fit into a letter."""
    call = msgspec.structs.replace(call, arguments=plain(call.arguments))
    _within(f"arguments of {call.operation}", call.arguments)
    return call


def _small(answer: Any) -> Any:
    """Return an answer as plain values; raise if it does not fit into a letter."""
    if answer is None:
        return None
    return msgspec.msgpack.decode(_within("answer", plain(answer)))


def _within(what: str, value: Any) -> bytes:
    """Return a value as bytes; raise if it has more than ``limits.letter_bytes_max`` bytes, or is nested deeper than
    ``limits.call_depth_max``. Both limits are the same at every replica; Python's own limit of nesting is not."""
    too_deep = ValueError(f"{what} nested deeper than {limits.call_depth_max}")
    try:
        encoded = _encode(value)
    except RecursionError:
        raise too_deep from None
    if len(encoded) > limits.letter_bytes_max:
        raise ValueError(f"{what} of {len(encoded)} bytes: at most {limits.letter_bytes_max}")
    if is_deep(value):
        raise too_deep
    return encoded
