"""Several objects as one: the content of a server's member of the order ``objects``.

A member of the order is a server, and a server may hold replicas of several objects. So the objects of a server become
*one* object: its operations are ``account.deposit``, ``ledger.append`` …, its state is the states of all of them, and
operations of different objects do not conflict. Nothing is lost. Significance depends on instances and on conflicting
operations (§3.2), and both are the same as if every object were a member. The server's objects share one vector, so a
message may wait for another that has arrived with a smaller event number, but never for one that is still to come.

The state of an object is kept as bytes that do not depend on the order of insertions: two replicas are equal iff their
bytes are, also if compatible operations reached them in different orders. Annotated attributes and parameters are
decoded to their types; a value that does not fit makes the operation fail.
"""

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any, ClassVar, Final, get_origin, get_type_hints

import msgspec

from antecede import limits
from antecede.errors import ObjectError
from antecede.interrupts import is_ctrl_c
from antecede.objects.model import (
    Call,
    CallFailed,
    Failure,
    Object,
    attributes_of,
    initial,
    object_with,
    operation,
    operations_of,
    relation_of,
)
from antecede.whereabouts import text_of

ROOT: Final = "call"
"""The operation of roots, which every server has: it calls an object, and conflicts with nothing."""

_encode = msgspec.msgpack.Encoder().encode
_encode_in_order = msgspec.msgpack.Encoder(order="deterministic").encode


class ReplicatedObject(Object):
    """An object of which several servers hold a replica each. Subclass it, with annotated attributes as its state."""


def encode_state(state: dict[str, Any]) -> bytes:
    """Return a state as bytes; equal states give the same bytes."""
    try:
        return _encode_in_order(state)
    except TypeError:
        # The encoder sorts only keys that are texts.
        return _encode(_in_order(state))


def _in_order(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return dict(
            sorted(((_in_order(key), _in_order(one)) for key, one in value.items()), key=lambda it: _encode(it[0]))
        )
    if kind is set or kind is frozenset:
        return sorted(map(_in_order, value), key=_encode)
    if kind is list or kind is tuple:
        return kind(map(_in_order, value))
    if isinstance(value, msgspec.Struct):
        fields = kind.__struct_fields__
        return msgspec.structs.replace(value, **{name: _in_order(getattr(value, name)) for name in fields})
    return value


def qualified(name: str, called: str) -> str:
    """Return the name of an object's operation at its servers."""
    return f"{name}.{called}"


def parted(called: str) -> tuple[str, str]:
    """The object and the operation of ``account.deposit``."""
    name, _, operation_ = called.rpartition(".")
    return name, operation_


def conflicts_of(objects: Mapping[str, type[Object]]) -> list[tuple[str, str]]:
    """Return all pairs of conflicting operations, by their names at the servers."""
    return [
        (qualified(name, one), qualified(name, other))
        for name, kind in objects.items()
        for one, other in relation_of(kind).pairs()
    ]


def hosting(objects: Mapping[str, type[Object]]) -> type[Object]:
    """Return the one object that contains these on a server."""
    rivals: dict[str, list[str]] = {}
    for one, other in conflicts_of(objects):
        rivals.setdefault(one, []).append(other)
    members: dict[str, Any] = {ROOT: operation(_root), "_hosts": dict(objects)}
    for name, kind in objects.items():
        state = _State(name, kind)
        for called, method in operations_of(kind).items():
            if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
                raise ObjectError(
                    f"{kind.__name__}.{called} is asynchronous: an operation computes, and waits for calls"
                )
            whole = qualified(name, called)
            members[whole] = operation(conflicts_with=rivals.get(whole, ()))(_bound(state, called, method))
    members["__init__"] = _init(objects)
    return type("Hosted", (Object,), members)


def state_in(kind: type[Object], name: str, whole: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of one object, from the state of all of a server."""
    return _State(name, kind).read(whole[name])


def _init(objects: Mapping[str, type[Object]]) -> Callable[[Any], None]:
    first = {name: _first(name, kind) for name, kind in objects.items()}

    def begin(self: Any) -> None:
        self.__dict__.update(first)

    return begin


def _first(name: str, kind: type[Object]) -> bytes:
    """Return the state of a new object; raise if it cannot be saved and decoded again."""
    try:
        state = encode_state(initial(kind))
        _State(name, kind).read(state)
    except ObjectError:
        raise
    except BaseException as error:
        # This runs the application's code, which may fail in any way.
        if is_ctrl_c(error):
            raise
        raise ObjectError(
            f"{kind.__name__}() cannot be made and kept: {type(error).__name__}: {text_of(error)}"
        ) from None
    return state


def _root(self: Any, object_: str, called: str, arguments: list[Any]) -> Generator[Call, Any, Any]:
    try:
        return (yield Call(object_, called, tuple(arguments)))
    except CallFailed as failed:
        # The caller knows the operation, not its parts, so it gets the operation's reason.
        raise Failure(*failed.args) from None


class _State:
    """Encodes and decodes the state of one object."""

    def __init__(self, name: str, kind: type[Object]) -> None:
        self.name = name
        self.kind = kind
        try:
            hints = get_type_hints(kind)
            self._decoders = {
                attribute: msgspec.msgpack.Decoder(hint)
                for attribute, hint in hints.items()
                if get_origin(hint) is not ClassVar
            }
        except (NameError, TypeError) as error:
            raise ObjectError(f"{kind.__name__}: {error}") from None

    def read(self, kept: bytes) -> dict[str, Any]:
        raw = msgspec.msgpack.decode(kept, type=dict[str, msgspec.Raw])
        state: dict[str, Any] = {}
        try:
            for attribute, value in raw.items():
                decoder = self._decoders.get(attribute)
                state[attribute] = msgspec.msgpack.decode(value) if decoder is None else decoder.decode(value)
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"attribute {attribute} of {self.kind.__name__}: {error}") from None
        return state

    def take(self, whole: Any) -> Object:
        return object_with(self.kind, self.read(whole.__dict__[self.name]))

    def keep(self, whole: Any, one: Object) -> None:
        before = whole.__dict__[self.name]
        state = attributes_of(one)
        kept = _within(f"state of {self.name}", state, encode_state, limits.object_state_bytes_max, before)
        if kept != before:
            # A state that can be written and not read would make every later operation fail.
            self.read(kept)
            whole.__dict__[self.name] = kept


def _bound(state: _State, called: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation of one object as an operation of the combined object."""
    signature = inspect.signature(method)
    try:
        hints = get_type_hints(method)
    except (NameError, TypeError) as error:
        raise ObjectError(f"{state.kind.__name__}.{called}: {error}") from None

    parameters = list(signature.parameters.values())[1:]
    places = [
        hints.get(one.name, Any) for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    more = next((hints.get(one.name, Any) for one in parameters if one.kind is one.VAR_POSITIONAL), Any)

    def fit(one: Object, arguments: tuple[Any, ...]) -> list[Any]:
        positional = signature.bind(one, *arguments).args[1:]
        # An argument without a parameter belongs to ``*more``.
        kinds = places + [more] * (len(positional) - len(places))
        try:
            return [msgspec.convert(given, kind) for given, kind in zip(positional, kinds, strict=False)]
        except msgspec.ValidationError as error:
            raise TypeError(f"{called}: {error}") from None

    def run(self: Any, *arguments: Any) -> Any:
        one = state.take(self)
        result = method(one, *fit(one, arguments))
        if isinstance(result, Generator):
            return _relayed(state, self, one, result)
        state.keep(self, one)
        return _small(result)

    return run


def _relayed(state: _State, whole: Any, one: Object, program: Generator[Call, Any, Any]) -> Generator[Call, Any, Any]:
    """Yield the calls of an operation. While it waits for an answer, other operations of its root may change its
    object."""
    given: Any = None
    failed: CallFailed | None = None
    try:
        while True:
            call = program.send(given) if failed is None else program.throw(failed)
            if isinstance(call, Call):
                _within(f"arguments of {call.operation}", call.arguments, _encode, limits.letter_bytes_max)
            state.keep(whole, one)
            given, failed = None, None
            try:
                given = yield call
            except CallFailed as error:
                failed = error
            now = state.take(whole)
            one.__dict__.clear()
            one.__dict__.update(now.__dict__)
    except StopIteration as stop:
        state.keep(whole, one)
        return _small(stop.value)
    finally:
        program.close()


def _small(answer: Any) -> Any:
    """An answer that fits into a letter, as plain values."""
    return msgspec.msgpack.decode(_within("answer", answer, _encode, limits.letter_bytes_max))


def _within(what: str, value: Any, encode: Callable[[Any], bytes], bytes_max: int, sound: bytes | None = None) -> bytes:
    """A value as bytes, if they are not too many and it is not nested too deeply. ``sound`` bytes were checked before.

    Both bounds are always the same. The depth of Python's own stack is not: it depends on the caller, and an operation
    might succeed at one replica, or the first time, and fail at another, or when it is computed again.
    """
    too_deep = ValueError(f"{what} nested deeper than {limits.call_depth_max}")
    try:
        encoded = encode(value)
    except RecursionError:
        raise too_deep from None
    if encoded == sound:
        return encoded
    if len(encoded) > bytes_max:
        raise ValueError(f"{what} of {len(encoded)} bytes: at most {bytes_max}")
    if is_deep(value):
        raise too_deep
    return encoded


def is_deep(value: Any) -> bool:
    """Return whether a value is nested so deeply that it could not be encoded inside larger values."""
    level = [value]
    for _ in range(limits.call_depth_max + 1):
        level = [inner for one in level if type(one) not in _flat for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value.values(), *value]
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    return vars(value).values() if is_dataclass(value) and hasattr(value, "__dict__") else ()


_flat = frozenset({int, str, float, bool, bytes, type(None)})
