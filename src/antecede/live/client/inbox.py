"""A client's letters, their handlers, and the outcome of each.

Letters are handled one after the other, in their sequence. If a letter that was already handled comes again after a
broken connection, it is only acknowledged again.

A handler that raises is tried again, then its letter is dead. ``SystemExit`` and ``KeyboardInterrupt`` end the program
instead, because unlike a server it belongs to the application; the letter is delivered again to the next client.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints

import msgspec

from antecede import limits
from antecede.channel.letters import Letter
from antecede.engine.agents import Notification, name_of
from antecede.errors import AgentError
from antecede.telemetry import Spans
from antecede.whereabouts import described

_logger = logging.getLogger("antecede.live.client")

Call = Callable[..., Awaitable[None] | None]
"""A handler: called with the notification, and with the letter if it has a second parameter."""


class Received(msgspec.Struct, frozen=True):
    """A notification without its class: its name and its fields."""

    type: str
    sender: str
    fields: Any


class Inbox:
    """The letters of one client."""

    def __init__(self, name: str, answered: Callable[[Letter], None], done: Callable[[list[str], str], None]) -> None:
        self._name = name
        self._answered = answered
        self._done = done
        self._kinds: dict[str, tuple[Call, type[Notification] | None]] = {}
        self._topics: dict[str, tuple[Call, type[Notification] | None]] = {}
        self._rest: tuple[Call | None, type[Notification] | None] = (None, None)
        self._letters: deque[Letter] = deque()
        self._handled: dict[str, str] = {}
        """The last handled letters, with the reason if they are dead."""
        self._connections = 0
        self._task: asyncio.Task[None] | None = None
        self.spans: Spans | None = None
        """Watches handlers, if tracing is on."""

    def on(self, kind: type[Notification], handler: Call) -> None:
        """Set the handler of a kind of notification."""
        self._kinds[name_of(kind)] = (_with_letter(handler), kind)

    def on_topic(self, topic: str, handler: Call) -> None:
        """Set the handler for everything from a topic, or for the class in its annotation."""
        self._topics[topic] = (_with_letter(handler), _annotated(handler))

    def otherwise(self, handler: Call) -> None:
        """Set the handler for letters without another handler."""
        self._rest = (_with_letter(handler), None)

    def off_topic(self, topic: str) -> None:
        """Remove the handler of a topic."""
        self._topics.pop(topic, None)

    def begin(self) -> None:
        """Begin with a new connection: letters that were not acknowledged come again."""
        self._letters.clear()
        self._connections += 1

    def close(self) -> None:
        """Handle nothing more."""
        if self._task is not None:
            self._task.cancel()

    def delivered(self, letters: list[Letter]) -> None:
        """Take letters that arrived. Answers are handed over at once if nothing is before them; a task calls the
        handlers."""
        if not self._letters and (self._task is None or self._task.done()):
            answers = 0
            while answers < len(letters) and letters[answers].answers:
                self._answered(letters[answers])
                answers += 1
            if answers:
                self._done([letter.id for letter in letters[:answers]], "")
                letters = letters[answers:]
        if not letters:
            return
        self._letters.extend(letters)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._handle())

    async def _handle(self) -> None:
        while self._letters:
            done: list[str] = []
            dead = ""
            connection = self._connections
            while self._letters and not dead and connection == self._connections:
                letter = self._letters.popleft()
                dead = await self._handle_one(letter)
                done.append(letter.id)
                if len(done) >= _done_together:
                    break
            # Letters handed out before the connection broke come again, and are acknowledged then.
            if connection == self._connections:
                self._done(done, dead)

    async def _handle_one(self, letter: Letter) -> str:
        """Handle a letter; return why it is dead, or an empty string."""
        if letter.id in self._handled:
            return self._handled[letter.id]
        dead = await self._call(letter)
        self._handled[letter.id] = dead
        if len(self._handled) > _handled_max:
            del self._handled[next(iter(self._handled))]
        return dead

    async def _call(self, letter: Letter) -> str:
        if letter.answers:
            self._answered(letter)
            return ""
        handler, kind = self._topics.get(letter.source) or self._kinds.get(letter.type) or self._rest
        if handler is None:
            return f"client {self._name} has no handler for {letter.type}"
        if kind is not None and letter.type != name_of(kind):
            handler, kind = self._kinds.get(letter.type, self._rest)
            if handler is None:
                return f"client {self._name} has no handler for {letter.type} of {letter.source}"
        try:
            notification = read(letter, kind)
        except AgentError as error:
            return str(error)
        reason = ""
        for attempt in range(limits.reaction_tries_max):
            span = None if self.spans is None else self.spans.open(self._name, letter)
            failure: BaseException | None = None
            try:
                result = handler(notification, letter)
                if inspect.isawaitable(result):
                    await result
                return ""
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise
                _logger.exception("handler of %s failed", letter.type)
                reason, failure = described(error), error
            finally:
                if self.spans is not None:
                    self.spans.end(span, "", failure)
            await asyncio.sleep(limits.reaction_pause_seconds * 2**attempt)
        return reason


_done_together = 256
_handled_max = 4 * limits.reactions_together_max


def read(letter: Letter, kind: type[Notification] | None) -> Any:
    """Return the notification in a letter, as its class or as its fields."""
    try:
        if kind is not None:
            return msgspec.msgpack.decode(letter.body, type=kind)
        return Received(letter.type, letter.source, msgspec.msgpack.decode(letter.body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AgentError(f"{letter.type} does not fit its fields: {error}") from None


def _with_letter(handler: Call) -> Call:
    """Return the handler as a function of notification and letter."""
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
