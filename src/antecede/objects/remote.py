"""A replicated object as its clients see it: ``await account.deposit(10)``.

A call goes to the client's own server, which ensures that either all replicas apply the call, or no replica does. If
the operation succeeds, the call returns the answer. If the operation fails, :class:`~antecede.errors.OperationError` is
raised. If the deadline of the call passes, the server aborts the call and undoes all its effects. Then
:class:`~antecede.errors.CallTimeoutError` is raised, which is a ``TimeoutError``. If the server itself does not
respond, even some seconds after the time limit, the same exception is raised. The outcome is unknown only in this last
case, and the text of the exception then states that it is unknown. The call has a number, so it takes effect at most
once, even if this client fails. (A replica may compute a call several times, for example after a crash, or if the call
was aborted once in favour of an older call.)

This module defines the form of a call, the time to wait for the answer, and the meaning of the answer. It does not send
calls itself: the bus provides a function that sends a call and waits for the answer.
"""

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from antecede import limits
from antecede.engine.agents import Returned
from antecede.errors import CallTimeoutError, OperationError, UsageError
from antecede.objects.model import Object, missing_operation, operations_of

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
