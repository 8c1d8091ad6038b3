"""Encodes the state of an agent, and checks that the same agent can be made of it again.

A class says which types its fields have, and nothing keeps a handler from assigning something else. Such a state can be
written and not read: the agent would go on until the next restart, and be lost then. So a state that changed is decoded
before it is committed. What does not come back is an error that names the agent and the field:

- a value that cannot be encoded, or is not of its field's type;
- a struct that comes back as another class (an instance of a subclass, or a struct in a field without a type), for its
  methods and perhaps some of its fields would be gone.

A value that comes back as an equal one in another form passes: 1 in a field of ``float``, a tuple in one of ``list``.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from antecede.engine.agents import Agent
from antecede.errors import AgentError
from antecede.interrupts import is_ctrl_c
from antecede.whereabouts import text_of

encode = msgspec.msgpack.Encoder().encode


def check(name: str, agent: Agent, state: bytes) -> None:
    """Raise :class:`AgentError` if no such agent can be made of its encoded state again."""
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
        raise AgentError(f"agent {name}: field {field} of {kind.__qualname__} would not come back: {became}")


def comes_back(kind: type[Agent], state: bytes) -> bool:
    """Return whether an agent made of these bytes has them as its state again. False is a suspicion, no error: the
    same state may be encoded in several ways."""
    try:
        return encode(msgspec.msgpack.decode(state, type=kind)) == state
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        return False


def encoded(name: str, agent: Agent) -> bytes:
    """Return the state of an agent that can be made of it again; raises :class:`AgentError` if there is none."""
    try:
        state = encode(agent)
    except BaseException as error:
        raise unfit(name, agent, error) from error
    check(name, agent, state)
    return state


_decoders: dict[type[Agent], Callable[[bytes], Agent]] = {}


def unfit(name: str, agent: Agent, error: BaseException) -> BaseException:
    """Return what to raise for an error in encoding or decoding an agent: it names the first field that has it."""
    if is_ctrl_c(error):
        return error
    kind = type(agent)
    for one in msgspec.structs.fields(kind):
        try:
            msgspec.msgpack.decode(encode(getattr(agent, one.name)), type=one.type)
        except BaseException as reason:
            if is_ctrl_c(reason):
                return reason
            return AgentError(f"agent {name}: field {one.name} of {kind.__qualname__} cannot be saved: {_told(reason)}")
    return AgentError(f"agent {name}: the state of {kind.__qualname__} cannot be saved: {_told(error)}")


def _told(error: BaseException) -> str:
    # Within the field, so without the root of a path that would be the field itself.
    text = text_of(error)
    return text if isinstance(error, msgspec.MsgspecError) else f"{type(error).__name__}: {text}"


def _other_class(before: Any, after: Any, path: str = "") -> tuple[str, str]:
    """The place of the first struct that came back as another class, and which; nothing if there is none."""
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
