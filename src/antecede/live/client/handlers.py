"""The handlers of a client: choose the handler for each letter, and call it. This is an adapter around
:class:`antecede.server.client.inbox.Inbox`.

A handler may be a coroutine. Then later letters wait until the coroutine ends. If a handler raises ``SystemExit`` or
``KeyboardInterrupt``, the client's program ends, because the application may end its own program. The letter of this
handler is not acknowledged. So a client that later connects with the same name gets this letter again. (An agent's
handler is different: if it raises ``SystemExit``, the server continues.)
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints

import msgspec

from antecede.channel.letters import Letter
from antecede.engine.agents import Notification, name_of
from antecede.errors import AgentError
from antecede.server.client.inbox import Inbox
from antecede.telemetry import Spans
from antecede.whereabouts import described

_logger = logging.getLogger("antecede.live.client")

Call = Callable[..., Awaitable[None] | None]
"""A handler. It is called with the notification; a handler with a second parameter also gets the letter."""


class Received(msgspec.Struct, frozen=True):
    """A notification for a program that does not have the notification's class: the name of the class, the sender, and
    the fields."""

    type: str
    sender: str
    fields: Any


class Handlers:
    """The handlers of one client, and the task that calls them for the client's letters."""

    def __init__(
        self,
        name: str,
        answered: Callable[[Letter], None],
        done: Callable[[list[str], str], None],
        begins: Callable[[str], None],
    ) -> None:
        self._name = name
        self._inbox = Inbox(answered, done, begins)
        self._kinds: dict[str, tuple[Call, type[Notification] | None]] = {}
        self._topics: dict[str, tuple[Call, type[Notification] | None]] = {}
        self._rest: tuple[Call | None, type[Notification] | None] = (None, None)
        self._task: asyncio.Task[None] | None = None
        self.spans: Spans | None = None
        """Records a span for each handler call; None if tracing is off."""
        self.begin = self._inbox.begin

    def on(self, kind: type[Notification], handler: Call) -> None:
        """Set the handler for the notifications of one class."""
        self._kinds[name_of(kind)] = (_with_letter(handler), kind)

    def on_topic(self, topic: str, handler: Call) -> None:
        """Set the handler for the letters from a topic. If the first parameter of the handler is annotated with a
        notification's class, the handler gets only notifications of this class."""
        self._topics[topic] = (_with_letter(handler), _annotated(handler))

    def otherwise(self, handler: Call) -> None:
        """Set the handler for all letters that no other handler accepts."""
        self._rest = (_with_letter(handler), None)

    def off_topic(self, topic: str) -> None:
        """Remove the handler of a topic."""
        self._topics.pop(topic, None)

    def close(self) -> None:
        """Cancel the task that calls handlers. Then no more letters are handled."""
        if self._task is not None:
            self._task.cancel()

    def delivered(self, letters: list[Letter]) -> None:
        """Store letters that have arrived. If the task that calls the handlers is not running, start it."""
        inbox = self._inbox
        inbox.delivered(letters)
        if inbox.waiting and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._handle())

    async def _handle(self) -> None:
        inbox, loop = self._inbox, asyncio.get_running_loop()
        while inbox.waiting:
            letter = inbox.next(loop.time())
            if letter is not None:
                await self._call(letter)
            else:
                await asyncio.sleep((inbox.deadline() or 0.0) - loop.time())

    async def _call(self, letter: Letter) -> None:
        """Call the handler of a letter, and report to the inbox that the letter is handled, has failed or is dead."""
        inbox = self._inbox
        handler, kind = self._topics.get(letter.source) or self._kinds.get(letter.type) or self._rest
        if handler is not None and kind is not None and letter.type != name_of(kind):
            handler, kind = self._kinds.get(letter.type, self._rest)
        if handler is None:
            inbox.dead(f"client {self._name} has no handler for {letter.type}")
            return
        try:
            notification = read(letter, kind)
        except AgentError as error:
            inbox.dead(str(error))
            return
        span = None if self.spans is None else self.spans.open(self._name, letter)
        failure: BaseException | None = None
        try:
            result = handler(notification, letter)
            if inspect.isawaitable(result):
                await result
            inbox.handled()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            _logger.exception("handler of %s failed", letter.type)
            failure = error
            inbox.failed(described(error), asyncio.get_running_loop().time())
        finally:
            if self.spans is not None:
                self.spans.end(span, "", failure)


def read(letter: Letter, kind: type[Notification] | None) -> Any:
    """Decode the notification in a letter as an object of the class ``kind``, or as a :class:`Received` if ``kind`` is
    None."""
    try:
        if kind is not None:
            return msgspec.msgpack.decode(letter.body, type=kind)
        return Received(letter.type, letter.source, msgspec.msgpack.decode(letter.body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AgentError(f"the content of {letter.type} does not fit its fields: {error}") from None


def _with_letter(handler: Call) -> Call:
    """Return a function that calls the handler. The function has the parameters ``notification`` and ``letter``, even
    if the handler has only the first parameter."""
    parameters = inspect.signature(handler).parameters.values()
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if len(positional) >= 2 or any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return handler
    return lambda notification, letter: handler(notification)


def _annotated(handler: Call) -> type[Notification] | None:
    try:
        first = next(iter(inspect.signature(handler).parameters), "")
        kind = get_type_hints(handler).get(first)
    except (NameError, TypeError, ValueError):
        return None
    return kind if isinstance(kind, type) and issubclass(kind, Notification) else None
