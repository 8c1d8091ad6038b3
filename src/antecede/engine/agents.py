"""The classes for application developers: notifications and agents.

    class Order(Notification):
        item: str
        count: int

    class Shop(Agent):
        stock: int = 10

        def on_order(self, order: Order, ctx: Context) -> None:
            self.stock -= order.count
            ctx.reply(Sold(item=order.item))

A notification is a typed struct. An agent is a struct too: its fields are its state, which is saved after every
reaction. A handler is a method with a name that begins with ``on_``. The annotation of its first parameter after
``self`` says which notification it handles. A handler may be ``async``. The handler's calls on its context (send, ask,
set a timer, create an agent) and the agent's new state take effect together: once, or not at all. **A reaction is a
transaction.** A reaction never waits for a message: the answer to a question causes a later reaction. The optional
method ``otherwise(self, letter, ctx)`` gets the letters for which there is no handler. Without this method, such a
letter becomes a dead letter.

On the wire, a notification consists of its name and its bytes. The receiver looks for the name among the notifications
that its handlers accept. A name from the wire never makes the receiver import code or create an object
of another class.
"""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from antecede.errors import AgentError


class Notification(msgspec.Struct, kw_only=True):
    """The payload of a message between agents. Subclass it, with typed fields."""


class Timeout(Notification):
    """The notification that an agent gets instead of an answer, if the answer did not come in time."""

    ask: str
    """The id of the question."""


class Unanswered(Notification):
    """The notification that an agent gets instead of an answer, as soon as the question becomes a dead letter. An agent
    without a handler for this notification gets a :class:`Timeout`."""

    ask: str
    """The id of the question."""
    reason: str


class Returned(Notification):
    """The notification that an agent gets when an operation that it called has ended. An agent that calls several
    operations may define a subclass for each operation, to have a separate handler for each."""

    object: str
    operation: str
    ok: bool
    """Whether the operation succeeded: every replica computed and committed it. If not, all its effects are undone."""
    value: Any = None
    """The result of the operation, if it succeeded."""
    reason: str = ""
    """The reason why the operation failed; empty if it succeeded."""
    late: bool = False
    """Whether the operation failed because it exceeded its time limit."""
    tries: int = 1
    """The number of times that the operation was started. After a conflict with an older call, it is started again."""


class Agent(msgspec.Struct, kw_only=True):
    """A persistent object with a name, which handles one letter after the other. Its fields are its state."""


class Handler(msgspec.Struct, frozen=True):
    """The method of an agent class that handles one kind of notification."""

    method: str
    notification: type[Notification]
    is_async: bool


def name_of(kind: type[Notification]) -> str:
    """Return the name that stands for a class of notifications on the wire."""
    return kind.__qualname__


def handlers_of(agent: type[Agent]) -> dict[str, Handler]:
    """Return the handlers of an agent class, by the name of the notification that they handle."""
    known = _known.get(agent)
    if known is None:
        known = _known[agent] = _find_handlers(agent)
    return known


_known: dict[type[Agent], dict[str, Handler]] = {}


def _find_handlers(agent: type[Agent]) -> dict[str, Handler]:
    handlers: dict[str, Handler] = {}
    for name, method in inspect.getmembers(agent, inspect.isfunction):
        if not name.startswith("on_"):
            continue
        kind = _first_annotation(agent, name, method)
        called = name_of(kind)
        if called in handlers:
            raise AgentError(
                f"{agent.__qualname__}: both {handlers[called].method} and {name} handle {called}: expected one "
                "handler for each notification"
            )
        handlers[called] = Handler(name, kind, inspect.iscoroutinefunction(method))
    return handlers


def _first_annotation(agent: type[Agent], name: str, method: Callable[..., Any]) -> type[Notification]:
    parameters = list(inspect.signature(method).parameters)
    try:
        hints = get_type_hints(method)
    except NameError as error:
        raise AgentError(f"{agent.__qualname__}.{name}: {error}") from None
    kind = hints.get(parameters[1]) if len(parameters) == 3 else None
    if not (isinstance(kind, type) and issubclass(kind, Notification)):
        raise AgentError(f"{agent.__qualname__}.{name}: expected (self, notification: SomeNotification, ctx: Context)")
    return kind
