"""The classes for application developers: notifications and agents.

    class Order(Notification):
        item: str
        count: int

    class Shop(Agent):
        stock: int = 10

        def on_order(self, order: Order, ctx: Context) -> None:
            self.stock -= order.count
            ctx.reply(Sold(item=order.item))

A notification is a typed struct. An agent is a struct too: its fields are its state, saved with every reaction. A
method whose name begins with ``on_`` and whose first parameter is annotated with a notification is the handler of that
notification; it may be ``async``. The handler's calls on its context (send, ask, set a timer, create an agent) and the
agent's new state take effect together: once, or not at all. **A reaction is a transaction.** It never waits for a
message: an answer is a later reaction. An optional method ``otherwise(self, letter, ctx)`` gets the letters without a
handler; without this method such a letter is dead.

On the wire a notification is its name and its bytes. The receiver looks the name up among the notifications of its
handlers. It never imports or builds anything else because of a name from the wire.
"""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from antecede.errors import AgentError


class Notification(msgspec.Struct, kw_only=True):
    """The payload of a message between agents. Subclass it, with typed fields."""


class Timeout(Notification):
    """Delivered instead of an answer that did not come in time."""

    ask: str
    """The id of the question."""


class Unanswered(Notification):
    """Delivered immediately instead of an answer, when the agent that was asked could not react. If there is no handler
    for it, the handler of :class:`Timeout` is called."""

    ask: str
    """The id of the question."""
    reason: str


class Returned(Notification):
    """Delivered when a called operation has ended. An agent that calls several operations may subclass it, to have a
    handler for each."""

    object: str
    operation: str
    ok: bool
    """Whether the operation was computed at every replica and committed; if not, all its effects are undone."""
    value: Any = None
    """The result of the operation."""
    reason: str = ""
    """The reason of the failure."""
    late: bool = False
    """Whether it failed because of its time limit."""
    tries: int = 1
    """How often it was started: more than once if it conflicted with an older call."""


class Agent(msgspec.Struct, kw_only=True):
    """A persistent, sequential object with a name. Its fields are its state."""


class Handler(msgspec.Struct, frozen=True):
    """How one agent class reacts to one kind of notification."""

    method: str
    notification: type[Notification]
    is_async: bool


def name_of(kind: type[Notification]) -> str:
    """Return the name of a notification on the wire."""
    return kind.__qualname__


def handlers_of(agent: type[Agent]) -> dict[str, Handler]:
    """Return the handlers of an agent class, by the notification's name."""
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
            raise AgentError(f"{agent.__qualname__}: both {handlers[called].method} and {name} handle {called}")
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
