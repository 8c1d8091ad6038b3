"""Encodes the state of an agent, and checks that the same agent can be decoded from it.

A class declares the types of its fields, but a handler can assign a value of another type. Such a state can be written
but not read: the agent would work until the next restart and then be lost. So a changed state is decoded before it is
committed. The following cases are errors, and the text of each error names the agent:

- a value that cannot be encoded, or has the wrong type for its field;
- a state that has grown and now has more than ``agent_state_bytes_max`` bytes (topics have no such limit, because only
  the changes of their states are logged);
- a struct that would be decoded as another class, and would lose its methods and perhaps some fields. This happens to
  an instance of a subclass of the declared class, and to a struct in a field without a type.

A value is accepted if the decoded value is equal but has another form. For example, 1 in a field of ``float`` becomes
1.0, and a tuple in a field of ``list`` becomes a list.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from antecede import limits
from antecede.engine.agents import Agent
from antecede.errors import AgentError
from antecede.interrupts import is_ctrl_c
from antecede.whereabouts import text_of

encode = msgspec.msgpack.Encoder().encode
UNLIMITED = "_unlimited"
"""The name of a class attribute. If a class of agents sets it to True, the states of its agents may have any size."""


def check(name: str, agent: Agent, state: bytes) -> None:
    """Raise :class:`AgentError` if the agent cannot be decoded from its encoded state, or if a struct in
    the state would be decoded as another class."""
    kind = type(agent)
    try:
        decode = _decoders.get(kind)
        if decode is None:
            decode = _decoders[kind] = msgspec.msgpack.Decoder(kind).decode
        back = decode(state)
        if back == agent:
            # Structs are equal only if their classes are the same.
            return
    except BaseException as error:
        raise unfit(name, agent, error) from error
    field, became = _other_class(agent, back)
    if field:
        raise AgentError(
            f"agent {name}: field {field} of {kind.__qualname__} would be read back as another class: {became}"
        )


def comes_back(kind: type[Agent], state: bytes) -> bool:
    """Decode an agent from ``state`` and encode it again. Return True if the new bytes equal ``state``. Return False if
    they differ, or if decoding or encoding fails. Even if the bytes differ, ``state`` may be correct, because the same
    state may be encoded in several ways."""
    try:
        return encode(msgspec.msgpack.decode(state, type=kind)) == state
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        return False


def encoded(name: str, agent: Agent) -> bytes:
    """Return the encoded state of an agent. Raise :class:`AgentError` if the state cannot be encoded, or is larger than
    the limit."""
    try:
        state = encode(agent)
    except BaseException as error:
        raise unfit(name, agent, error) from error
    most = limits.agent_state_bytes_max
    if len(state) > most and not getattr(agent, UNLIMITED, False):
        kind = type(agent).__qualname__
        raise AgentError(f"agent {name}: the state of {kind} has {len(state)} bytes: at most {most} are allowed")
    return state


_decoders: dict[type[Agent], Callable[[bytes], Agent]] = {}


def unfit(name: str, agent: Agent, error: BaseException) -> BaseException:
    """Return the exception to raise if an agent cannot be encoded or decoded. Its text names the first field that
    causes the error. If ``error`` is Ctrl-C, return it unchanged."""
    if is_ctrl_c(error):
        return error
    kind = type(agent)
    for one in msgspec.structs.fields(kind):
        try:
            msgspec.msgpack.decode(encode(getattr(agent, one.name)), type=one.type)
        except BaseException as reason:
            if is_ctrl_c(reason):
                return reason
            return AgentError(
                f"agent {name}: field {one.name} of {kind.__qualname__} cannot be saved: {_described(reason)}"
            )
    return AgentError(f"agent {name}: the state of {kind.__qualname__} cannot be saved: {_described(error)}")


def _described(error: BaseException) -> str:
    # The path within the field, so without its root, which would be the field itself.
    text = text_of(error)
    return text if isinstance(error, msgspec.MsgspecError) else f"{type(error).__name__}: {text}"


def _other_class(before: Any, after: Any, path: str = "") -> tuple[str, str]:
    """Compare a value before encoding (``before``) with the same value after decoding (``after``). Find the first
    struct whose class has changed. Return the path of this struct, and a text that names both classes. Return two empty
    texts if there is no such struct."""
    if isinstance(before, msgspec.Struct):
        kind = type(before)
        if type(after) is not kind:
            return path, f"{kind.__qualname__} becomes {type(after).__qualname__}"
        names = kind.__struct_fields__
        inside = [(f"{path}.{name}".lstrip("."), getattr(before, name), getattr(after, name)) for name in names]
    elif isinstance(before, dict) and isinstance(after, dict) and len(before) == len(after):
        inside = [
            (f"{path}[{key!r}]", one, other) for (key, one), other in zip(before.items(), after.values(), strict=True)
        ]
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple) and len(before) == len(after):
        inside = [
            (f"{path}[{place}]", one, other) for place, (one, other) in enumerate(zip(before, after, strict=True))
        ]
    else:
        return "", ""
    for there, one, other in inside:
        field, became = _other_class(one, other, there)
        if field:
            return field, became
    return "", ""
