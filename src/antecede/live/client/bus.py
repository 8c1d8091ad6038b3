"""The class of the bus: an adapter around :class:`antecede.server.client.Publishing` and
:class:`antecede.server.client.Questions`. For an introduction to the bus see :mod:`antecede.live.client`."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable
from itertools import groupby
from typing import Any, Final, Protocol, Self, TypeVar, cast, get_type_hints, overload

import msgspec

from antecede import limits, telemetry
from antecede.channel.letters import Letter
from antecede.engine.agents import Notification, Returned, Subscribe, Unsubscribe, name_of
from antecede.errors import AgentError, AntecedeError, ClosedError, UsageError, again
from antecede.failures import described
from antecede.labels import has_label, tail_of
from antecede.objects import Object
from antecede.objects.model import RemoteObject
from antecede.server.client import Inbox, Publishing, Questions
from antecede.server.client import Ticket as BareTicket
from antecede.telemetry import Spans

# The tickets with which a program waits until its publishes are accepted. Also :class:`Line`, the interface of the
# connection on which the publishes are sent.


class Ticket(BareTicket):
    """A batch of publishes that a program has sent. Await the ticket to wait until the server has accepted all of
    them."""

    __slots__ = ("_waiting", "answer", "error", "seen", "settled")

    def __init__(
        self, number: int, target: str | tuple[str, ...], to: tuple[str, ...], kind: str, ask: bool, context: str = ""
    ) -> None:
        super().__init__(number, target, to, kind, ask, context)
        self.settled = False
        self.error: AntecedeError | None = None
        self.seen = False
        """True if the error of this ticket has already reached a caller. Then ``drain`` does not raise the error
        again."""
        self.answer: asyncio.Future[Letter] | None = None
        """The future that gets the answer, if this ticket is a question."""
        self._waiting: list[asyncio.Future[None]] | None = None

    def __await__(self) -> Generator[Any, None, None]:
        if not self.settled:
            future = asyncio.get_running_loop().create_future()
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(future)
            yield from future
        if self.error is not None:
            self.seen = True
            raise again(self.error)

    def settle(self, error: AntecedeError | None = None) -> None:
        """End the wait for this batch. Without ``error``, the server has accepted the batch. Otherwise the batch has
        failed with this error."""
        self.settled = True
        self.error = error
        for future in self._waiting or ():
            if not future.done():
                future.set_result(None)


class Tickets:
    """The tickets of one ``send_many``. Await this object to wait until the server has accepted all notifications."""

    __slots__ = ("_tickets",)

    def __init__(self, tickets: Iterable[Ticket]) -> None:
        # Notifications in a row share a batch.
        self._tickets = list(dict.fromkeys(tickets))

    def __await__(self) -> Generator[Any, None, None]:
        failed: AntecedeError | None = None
        for ticket in self._tickets:
            try:
                yield from ticket.__await__()
            except AntecedeError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    @property
    def settled(self) -> bool:
        """True if the result of every batch is known: each batch was accepted or has failed."""
        return all(ticket.settled for ticket in self._tickets)


class Line(Protocol):
    """The connection of a bus to its server, over the network or within one process."""

    async def open(self) -> None:
        """Connect to the server. Return when the server has welcomed the bus."""
        ...

    def publish(self, ticket: Ticket, last: bool) -> None:
        """Send the publishes of a ticket. ``last``: True if no other batch is ready to be sent now. (A question may
        still follow in the same iteration of the event loop.)"""
        ...

    def done(self, letters: list[str], dead: str) -> None: ...

    def listen(self) -> None: ...

    async def close(self) -> None: ...


# The handlers of a client: choose the handler for each letter, and call it. This is an adapter around
# :class:`antecede.server.client.Inbox`.
#
# A handler may be a coroutine. Then later letters wait until the coroutine ends. If a handler raises ``SystemExit``
# or ``KeyboardInterrupt``, the client's program ends, because the application may end its own program. The letter of
# this handler is not acknowledged. So a client that later connects with the same name gets this letter again. (An
# agent's handler is different: if it raises ``SystemExit``, the server continues.)


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
            # Its traceback leads to this frame, so otherwise the letter would wait for the garbage collector.
            failure = None


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


_encode = msgspec.msgpack.Encoder().encode

Answer = TypeVar("Answer", bound=Notification)

_failed_max: Final = 64
"""The largest number of failed batches that a bus remembers for ``drain``."""


class Bus:
    """A client's connection to its server; see :mod:`antecede.live.client`. Use it from one thread only."""

    def __init__(self, name: str, line: "Callable[[Bus], Line]") -> None:
        self.name = name
        self.address = ""
        """The client's address, ``name@server``; empty until the server has welcomed the client."""
        self._line = line(self)
        self._loop: asyncio.AbstractEventLoop = cast(Any, None)
        self._publishing: Publishing[Ticket] = Publishing(
            Ticket, self._settled, self._line.publish, self._flush_soon, self._resend_later
        )
        self._put = self._publishing.put
        self._numbering = self._publishing.numbering
        self._failed: list[Ticket] = []
        self._changed = asyncio.Event()
        """Set when the server has accepted or refused publishes, or when the bus is closed."""
        self._names: dict[type, str] = {}
        """The name under which the bus sends a notification, for each notification class without a method ``label``."""
        self._questions: Questions[Ticket] = Questions(self._numbering, self._ended)
        self._timer: asyncio.TimerHandle | None = None
        """The timer of all questions. It fires at the earliest time limit, and ends the questions whose time limit has
        passed. It may fire earlier than necessary, because the timer is not changed when a question ends."""
        self._timer_at = 0.0
        self._listening = False
        self._handlers = Handlers(name, self._questions.answered, self._line.done, self._publishing.begins)
        self._closed_here = False
        self._no_more = asyncio.Event()
        """Set when the bus is closed permanently."""
        self._tracing: Callable[[], str] | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._tracing = telemetry.current()
        self._handlers.spans = telemetry.spans()
        await self._line.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.drain()
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the bus without waiting for anything."""
        self._handlers.close()
        await self._line.close()
        self._closed_here = self._publishing.closed is None
        self.gone(ClosedError("the bus is closed"))

    async def until_closed(self) -> None:
        """Wait until the bus is closed. During this time, the handlers get letters. Return when this program closes the
        bus. Raise an error if the server has closed the bus permanently, for example because another client took the
        name."""
        await self._no_more.wait()
        if self._publishing.closed is not None and not self._closed_here:
            raise again(self._publishing.closed)

    # Sending.

    @property
    def outstanding(self) -> int:
        """The number of publishes (sent notifications and questions) that the server has not accepted yet."""
        return self._numbering.outstanding

    @property
    def last_sent(self) -> int:
        """The number of the newest publish under this client's name. Directly after :meth:`send` this is the number of
        the notification that was sent. The number of a publish changes only if an earlier publish is refused."""
        return self._numbering.last

    @property
    def last_accepted(self) -> int:
        """The number of the last publish under this client's name that the server has accepted; 0 if it has accepted no
        publish. Right after the start of a program, this publish is from an earlier program that used this client
        name."""
        return self._numbering.accepted_upto

    @property
    def trouble(self) -> str:
        """Why the server accepts no publishes for now, for example because it is overloaded or its disk is full. Until
        it accepts them, the bus keeps all publishes, and sends them again in the same sequence. The text is empty if
        the server accepts publishes."""
        return self._publishing.overload

    def send(self, to: str | Iterable[str], notification: Notification) -> Ticket:
        """Send a notification to one agent, or as one multicast to several agents. Return a ticket to await.
        Consecutive notifications of one type to the same agents may share one ticket. ``await`` on this ticket then
        waits until the server has accepted or refused all of them."""
        kind = self._names.get(type(notification))
        if kind is None:
            kind = self._name(notification)
            return self._put(to, kind, _encode(notification), self._context(tail_of(notification)))
        return self._put(to, kind, _encode(notification), "" if self._tracing is None else self._context(""))

    def send_many(self, to: str | Iterable[str], notifications: Iterable[Notification]) -> Tickets:
        """Send several notifications, in this sequence. Each of them is sent to all agents in ``to``. Return one ticket
        for all notifications. If notifications are refused, ``await`` on this ticket raises the first refusal. If one
        notification cannot be sent, or if there are too many, an error is raised and nothing is sent. After
        ``await bus.ready()``, one call with the largest allowed number of notifications is always possible."""
        some = list(notifications)
        self._publishing.check_room(len(some))
        groups = [one for kind, group in groupby(some, type) for one in self._encoded(kind, list(group))]
        return Tickets(self._publishing.put_many(to, groups))

    def _encoded(self, kind: type, some: list[Notification]) -> list[tuple[str, str, list[bytes]]]:
        """Encode notifications of one class. Consecutive notifications with the same label form a group. For each
        group, return the name of the class, the context (the trace context and the label), and the encoded
        notifications."""
        name = self._names.get(kind) or self._name(some[0])
        if kind in self._names:
            return [(name, self._context(""), [_encode(one) for one in some])]
        labelled = [(tail_of(one), _encode(one)) for one in some]
        alike = groupby(labelled, lambda one: one[0])
        return [(name, self._context(tail), [body for _, body in group]) for tail, group in alike]

    def post(self, to: str | Iterable[str], kind: str, fields: dict[str, Any]) -> Ticket:
        """Send a notification of a class that this program does not have. ``kind``: the name of the class. ``fields``:
        the content of the notification."""
        return self._put(to, kind, _encode(fields), self._context(""))

    async def ready(self) -> None:
        """Wait until more notifications can be sent: enough earlier notifications are accepted, and the server is not
        overloaded."""
        while self._numbering.crowded or self._publishing.held:
            if self._publishing.closed is not None:
                raise again(self._publishing.closed)
            await self._change()

    async def drain(self) -> None:
        """Wait until each send is accepted or has failed. Then raise the first error that the program has not seen yet
        (no ``await`` of a ticket or question has raised this error). The bus remembers only the first 64 of
        these errors."""
        while self.outstanding:
            if self._publishing.closed is not None:
                raise again(self._publishing.closed)
            await self._change()
        failed, self._failed = self._failed, []
        for ticket in failed:
            if ticket.error is not None and not ticket.seen:
                raise again(ticket.error)

    @overload
    async def ask(
        self, to: str, notification: Notification, *, expect: type[Answer], timeout: float = 30.0
    ) -> Answer: ...

    @overload
    async def ask(self, to: str, notification: Notification, *, timeout: float = 30.0) -> Received: ...

    async def ask(
        self, to: str, notification: Notification, *, expect: type[Notification] | None = None, timeout: float = 30.0
    ) -> Notification | Received:
        """Send a question and wait for its answer. Raise :class:`TimeoutError` if no answer comes within ``timeout``
        seconds. Raise :class:`antecede.errors.UnansweredError`, without waiting longer, if the agent cannot handle the
        question.

        An answer that comes too late is dropped. ``expect``: the class of the answer; without it the result is a
        :class:`Received` with the fields of the answer.
        """
        kind, tail = self._names.get(type(notification)), ""
        if kind is None:
            kind, tail = self._name(notification), tail_of(notification)
        letter = await self._question(to, kind, _encode(notification), timeout, tail)
        if expect is not None and letter.type != name_of(expect):
            raise AgentError(f"{to} answered with {letter.type}: expected {name_of(expect)}")
        return cast("Notification | Received", read(letter, expect))

    async def inquire(self, to: str, kind: str, fields: dict[str, Any], *, timeout: float = 30.0) -> Received:
        """Send a question of a class that this program does not have, and wait for its answer, like :meth:`ask` without
        ``expect``. ``kind``: the name of the class. ``fields``: the content of the question."""
        return cast(Received, read(await self._question(to, kind, _encode(fields), timeout), None))

    def object(self, name: str, kind: type[Object] | None = None, *, timeout: float = 30.0) -> RemoteObject:
        """Return a proxy of the replicated object ``name``. Each operation of the object is a method of the proxy.
        Await the result of the method. If the object's class is given as ``kind``, calls are checked before they are
        sent."""
        return RemoteObject(self._call, name, kind, timeout)

    async def _call(self, to: str, operation: str, body: bytes, seconds: float) -> Returned:
        return cast(Returned, read(await self._question(to, operation, body, seconds), Returned))

    async def _question(self, to: str, kind: str, body: bytes, timeout: float, tail: str = "") -> Letter:
        if not self._listening:
            self._listen()
        ticket = self._publishing.ask(to, kind, body, self._context(tail))
        answer: asyncio.Future[Letter] = self._loop.create_future()
        ticket.answer = answer
        due = self._questions.open(ticket, timeout, self._loop.time())
        self._publishing.send(ticket)
        if self._timer is None or due < self._timer_at:
            self._set_timer()
        try:
            return await answer
        except BaseException:
            self._questions.close(ticket)
            raise

    def _ended(self, ticket: Ticket, outcome: Letter | Exception) -> None:
        """Pass the outcome of a question to the caller that waits for it: the answer, or an error if there is no
        answer."""
        answer = ticket.answer
        if answer is None or answer.done():
            return
        if isinstance(outcome, Letter):
            answer.set_result(outcome)
        else:
            answer.set_exception(outcome)

    def _set_timer(self) -> None:
        due = self._questions.deadline()
        if due is not None and (self._timer is None or due < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        # A timer may come a little early, by the resolution of the clock.
        self._questions.expire(max(self._loop.time(), self._timer_at))
        self._set_timer()

    def _name(self, notification: Notification) -> str:
        kind = type(notification)
        if not isinstance(notification, Notification):
            raise UsageError(f"{kind.__qualname__} is not a Notification")
        name = name_of(kind)
        if not has_label(kind):
            self._names[kind] = name
        return name

    def _context(self, tail: str) -> str:
        """Return the context of a publish: the trace context of the current span if tracing is on, then ``tail``.
        ``tail`` is a newline and the label of the notification, or empty if there is no label. If the context is too
        long, the label is cut."""
        if self._tracing is None:
            return tail
        trace = self._tracing()
        # Servers refuse longer ones.
        return (trace + tail)[: max(limits.trace_context_chars_max, len(trace))]

    def _flush_soon(self) -> None:
        self._loop.call_soon(self._publishing.flush)

    def _resend_later(self, seconds: float) -> None:
        self._loop.call_later(seconds, self._publishing.resend)

    async def _change(self) -> None:
        """Wait until the server has accepted or refused more publishes, or until the bus is closed."""
        self._changed.clear()
        await self._changed.wait()

    def _settled(self, ticket: Ticket, error: AntecedeError | None = None) -> None:
        ticket.settle(error)
        if error is not None:
            self._failed.append(ticket)
            if len(self._failed) > _failed_max:
                self._failed = [one for one in self._failed if not one.seen][:_failed_max]
            if ticket.ask and self._questions.fail(ticket, again(error)):
                ticket.seen = True

    # Called by the line.

    def welcomed(self, address: str, last: int) -> None:
        """Continue after the server's welcome. ``last``: the server already has this client's publishes up to this
        number."""
        self.address = address
        error = self._publishing.welcomed(last)
        if error is not None:
            self.gone(again(error, address))
            return
        self._changed.set()
        if self._listening:
            self._handlers.begin()
            self._line.listen()

    def accepted(self, upto: int) -> None:
        """Resolve the tickets of all publishes up to this number: the server has stored them."""
        self._publishing.accepted(upto)
        self._changed.set()

    def refused(self, number: int, error: AntecedeError, retry: bool) -> None:
        """Handle a refusal: the server has accepted neither the batch that begins with this number nor the batches
        after it. If ``retry`` is true, the bus sends all of them again later. If ``retry`` is false, the first batch
        fails, and the bus sends the later batches again."""
        wrong = self._publishing.refused(number, error, retry)
        if wrong is not None:
            self.gone(wrong)
        else:
            self._changed.set()

    def gone(self, error: AntecedeError) -> None:
        """Let all publishes and questions fail, because the bus will not connect to the server again."""
        self._no_more.set()
        self._questions.fail_all(self._publishing.fail(error))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._changed.set()

    def delivered(self, letters: list[Letter]) -> None:
        """Handle letters that have arrived."""
        self._handlers.delivered(letters)

    # Listening.

    def on(self, kind: type[Notification], handler: Call) -> None:
        """Call ``handler(notification)`` for every letter with a notification of the class ``kind``. A handler with a
        second parameter is called as ``handler(notification, letter)``."""
        self._handlers.on(kind, handler)
        self._listen()

    def otherwise(self, handler: Call) -> None:
        """Call ``handler(received)`` for every letter that no other handler accepts; ``received`` is a
        :class:`Received`. A handler with a second parameter is called as ``handler(received, letter)``. If this method
        is not used, such letters become dead letters."""
        self._handlers.otherwise(handler)
        self._listen()

    async def subscribe(self, topic: str, handler: Call) -> None:
        """Receive every notification that is sent to a topic from now on. If the handler's first parameter is annotated
        with a notification's class, the handler gets only notifications of this class. Without such an annotation, the
        handler gets every notification as a :class:`Received`."""
        self._handlers.on_topic(topic, handler)
        self._listen()
        await self.send(topic, Subscribe())

    async def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic."""
        await self.send(topic, Unsubscribe())
        self._handlers.off_topic(topic)

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._loop.call_soon(self._line.listen)
