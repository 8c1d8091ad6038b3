"""The bus itself: numbers, tickets, questions; see :mod:`antecede.client`."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar, cast, overload

import msgspec

from antecede import limits, telemetry
from antecede.channel.envelopes import envelope_fault
from antecede.channel.letters import Letter
from antecede.client.inbox import Call, Inbox, Received, read
from antecede.client.objects import RemoteObject
from antecede.client.questions import Questions
from antecede.client.ticket import Line, Ticket
from antecede.engine.agents import Notification, Unanswered, name_of
from antecede.engine.topic import Subscribe, Unsubscribe
from antecede.errors import (
    AgentError,
    AntecedeError,
    ClosedError,
    OverloadError,
    RefusedError,
    UnansweredError,
    UsageError,
)
from antecede.limits import letter_bytes_max, publish_batch_max, train_bytes_max
from antecede.objects import Object

_encode = msgspec.msgpack.Encoder().encode

Answer = TypeVar("Answer", bound=Notification)


class Bus:
    """A client's end; see the module. Not for several threads."""

    def __init__(self, name: str, line: "Callable[[Bus], Line]") -> None:
        self.name = name
        self.address = ""
        """``name@server``, once welcomed."""
        self._line = line(self)
        self._loop: asyncio.AbstractEventLoop = cast(Any, None)
        self._next = 1
        self._accepted = 0
        self._open: Ticket | None = None
        self._scheduled = False
        self._tickets: deque[Ticket] = deque()
        self._outstanding = 0
        self._failed: list[Ticket] = []
        self._calm: list[asyncio.Future[None]] = []
        self._names: dict[type, str] = {}
        self._questions = Questions()
        self._listening = False
        self._inbox = Inbox(name, self._answered, self._line.done)
        self._closed: AntecedeError | None = None
        self._pause = 0.0
        self._tracing: Callable[[], str] | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._tracing = telemetry.current()
        self._inbox.spans = telemetry.spans()
        await self._line.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.drain()
        finally:
            await self.close()

    async def close(self) -> None:
        """Go away without waiting for anything."""
        self._inbox.close()
        await self._line.close()
        self.gone(ClosedError("the bus is closed"))

    # Sending.

    @property
    def outstanding(self) -> int:
        """Publishes that are not accepted yet."""
        return self._outstanding

    def send(self, to: str | Iterable[str], notification: Notification) -> Ticket:
        """Send to one agent, or one multicast to several."""
        return self._put(to, self._names.get(type(notification)) or self._name(notification), _encode(notification))

    def post(self, to: str | Iterable[str], kind: str, fields: dict[str, Any]) -> Ticket:
        """Send a notification of which this program has no class: its name and its fields."""
        return self._put(to, kind, _encode(fields))

    def _put(self, to: str | Iterable[str], kind: str, body: bytes) -> Ticket:
        ticket = self._open
        context = "" if self._tracing is None else self._tracing()
        if (
            ticket is None
            or ticket.target != to
            or ticket.kind != kind
            or ticket.context != context
            or len(ticket.bodies) >= publish_batch_max
            or ticket.bytes > train_bytes_max
        ):
            ticket = self._open = self._begin(to, kind, context)
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._flush)
        if len(body) > letter_bytes_max:
            raise UsageError(f"notification of {len(body)} bytes: at most {letter_bytes_max}")
        ticket.bodies.append(body)
        ticket.bytes += len(body)
        self._outstanding += 1
        return ticket

    async def ready(self) -> None:
        """Wait until there is room to pipeline more."""
        if self._pause:
            pause, self._pause = self._pause, 0.0
            await asyncio.sleep(pause)
        while self._outstanding > limits.publish_window_max // 2:
            await self._change()

    async def drain(self) -> None:
        """Wait until all that was sent is accepted; raises the first refusal that no ticket's owner saw."""
        while self._outstanding:
            self._check_open()
            await self._change()
        failed, self._failed = self._failed, []
        for ticket in failed:
            if ticket.error is not None and not ticket.seen:
                raise type(ticket.error)(str(ticket.error))

    @overload
    async def ask(
        self, to: str, notification: Notification, *, expect: type[Answer], timeout: float = 30.0
    ) -> Answer: ...

    @overload
    async def ask(self, to: str, notification: Notification, *, timeout: float = 30.0) -> Received: ...

    async def ask(
        self, to: str, notification: Notification, *, expect: type[Notification] | None = None, timeout: float = 30.0
    ) -> Notification | Received:
        """Send a question and wait for its answer; :class:`TimeoutError` if none comes in time, and
        :class:`antecede.errors.UnansweredError` at once if whoever was asked cannot react to it.

        An answer that comes later is dropped. ``expect`` is the answer's class; without it one gets its fields.
        """
        letter = await self._question(to, self._name(notification), _encode(notification), timeout)
        if expect is not None and letter.type != name_of(expect):
            raise AgentError(f"{to} answered with {letter.type}: expected {name_of(expect)}")
        return cast("Notification | Received", read(letter, expect))

    async def inquire(self, to: str, kind: str, fields: dict[str, Any], *, timeout: float = 30.0) -> Received:
        """Ask with a notification of which this program has no class."""
        return cast(Received, read(await self._question(to, kind, _encode(fields), timeout), None))

    def object(self, name: str, kind: type[Object] | None = None, *, timeout: float = 30.0) -> RemoteObject:
        """A replicated object, whose operations are methods to be awaited. With its class they are checked here."""
        return RemoteObject(self._question, name, kind, timeout)

    async def _question(self, to: str, kind: str, body: bytes, timeout: float) -> Letter:
        if len(body) > letter_bytes_max:
            raise UsageError(f"notification of {len(body)} bytes: at most {letter_bytes_max}")
        self._listen()
        ticket = self._begin(to, kind, "" if self._tracing is None else self._tracing(), ask=True)
        ticket.bodies.append(body)
        self._outstanding += 1
        self._keep(ticket)
        self._line.publish(ticket, False)
        question = self._questions.open(ticket.number, to, timeout, self._loop)
        try:
            return await question.answer
        finally:
            self._questions.close(ticket.number)

    def _name(self, notification: Notification) -> str:
        kind = type(notification)
        if not isinstance(notification, Notification):
            raise UsageError(f"{kind.__qualname__} is no Notification")
        name = self._names[kind] = name_of(kind)
        return name

    def _begin(self, to: str | Iterable[str], kind: str, context: str, *, ask: bool = False) -> Ticket:
        self._check_open()
        if self._open is not None:
            self._flush_open(False)
        if self._outstanding >= limits.publish_window_max:
            raise OverloadError(f"{self._outstanding} publishes are not accepted yet: await bus.ready() or a ticket")
        target = to if isinstance(to, str) else tuple(to)
        targets = (target,) if isinstance(target, str) else tuple(sorted(set(target)))
        if not targets:
            raise UsageError("a send to nobody: expected one agent or more")
        fault = envelope_fault(targets, kind)
        if fault:
            raise UsageError(fault)
        return Ticket(self._next, target, targets, kind, ask, context)

    def _flush(self) -> None:
        self._scheduled = False
        self._flush_open()

    def _flush_open(self, last: bool = True) -> None:
        ticket, self._open = self._open, None
        if ticket is not None and ticket.bodies:
            self._keep(ticket)
            self._line.publish(ticket, last)

    def _keep(self, ticket: Ticket) -> None:
        self._next = ticket.number + len(ticket.bodies)
        self._tickets.append(ticket)

    async def _change(self) -> None:
        """Wait until something was accepted or refused."""
        future = self._loop.create_future()
        self._calm.append(future)
        await future

    def _check_open(self) -> None:
        if self._closed is not None:
            raise type(self._closed)(str(self._closed))

    def _settled(self, ticket: Ticket, error: AntecedeError | None = None) -> None:
        self._outstanding -= len(ticket.bodies)
        ticket.settle(error)
        if error is not None:
            self._failed.append(ticket)
            del self._failed[:-64]
            if ticket.ask and self._questions.fail(ticket.number, error):
                ticket.seen = True

    def _stir(self) -> None:
        calm, self._calm = self._calm, []
        for future in calm:
            if not future.done():
                future.set_result(None)

    # What the line tells.

    def welcomed(self, address: str, last: int) -> None:
        """The server knows us, and has our publishes up to a number: the others are sent again."""
        self.address = address
        if self._tickets and last >= self._next:
            self.gone(UsageError(f"another client publishes as {self.name}: expected one at a time"))
            return
        if last < self._accepted:
            lost = f"it had accepted {self._accepted} publishes of {self.name} and knows of {last}"
            self.gone(RefusedError(f"the server of {address} lost its data: {lost}"))
            return
        self.accepted(last)
        tickets, self._tickets = self._tickets, deque()
        self._next = last + 1
        self._renumber(tickets)
        if self._listening:
            self._inbox.begin()
            self._line.listen()

    def accepted(self, upto: int) -> None:
        """All publishes up to this number are on the server's disk."""
        self._accepted = max(self._accepted, upto)
        tickets = self._tickets
        while tickets and tickets[0].number <= upto:
            ticket = tickets[0]
            if ticket.number + len(ticket.bodies) - 1 > upto:
                # Only some of a batch, after a broken connection: the rest becomes a batch of its own.
                known = upto + 1 - ticket.number
                self._outstanding -= known
                ticket.number += known
                del ticket.bodies[:known]
                break
            tickets.popleft()
            self._settled(ticket)
        self._stir()

    def refused(self, number: int, reason: str, retry: bool) -> None:
        """The publish of this number was not taken, nor any after it."""
        tickets, self._tickets = self._tickets, deque()
        self._next = number
        if not tickets or tickets[0].number != number:
            self._tickets = tickets
            self.gone(UsageError(f"the server refused publish {number}, which is not the next"))
        elif retry:
            self._pause = 0.05
            for ticket in tickets:
                self._settled(ticket, OverloadError(reason))
            if self._open is not None:
                self._open.number = self._next
        else:
            self._settled(tickets.popleft(), UsageError(reason))
            self._renumber(tickets)
        self._stir()

    def _renumber(self, tickets: deque[Ticket]) -> None:
        moved = self._questions.moved({ticket.number for ticket in tickets if ticket.ask})
        for ticket in [*tickets, *([self._open] if self._open is not None else [])]:
            question = moved.get(ticket.number)
            ticket.number = self._next
            if question is not None:
                self._questions.put(ticket.number, question)
            if ticket is not self._open:
                self._keep(ticket)
                self._line.publish(ticket, False)

    def gone(self, error: AntecedeError) -> None:
        """There will be no server any more."""
        if self._closed is None:
            self._closed = error
        tickets, self._tickets = self._tickets, deque()
        if self._open is not None:
            tickets.append(self._open)
            self._open = None
        for ticket in tickets:
            self._settled(ticket, self._closed)
        self._questions.fail_all(self._closed)
        self._stir()

    def delivered(self, letters: list[Letter]) -> None:
        """Letters arrived."""
        self._inbox.delivered(letters)

    def _answered(self, letter: Letter) -> None:
        answer = self._questions.answer(letter.answers)
        if answer is None or answer.done():
            return
        if letter.type == name_of(Unanswered):
            answer.set_exception(_unanswered(letter))
        else:
            answer.set_result(letter)

    # Listening.

    def on(self, kind: type[Notification], handler: Call) -> None:
        """Call ``handler(notification)``, or ``handler(notification, letter)``, for every letter of this kind."""
        self._inbox.on(kind, handler)
        self._listen()

    def otherwise(self, handler: Call) -> None:
        """Call ``handler(received)``, or ``handler(received, letter)``, for every letter that no other handler is for;
        without this such letters are dead."""
        self._inbox.otherwise(handler)
        self._listen()

    async def subscribe(self, topic: str, handler: Call) -> None:
        """Get what a topic gets from now on. The handler's first parameter is annotated with a notification's class;
        without an annotation it gets a :class:`Received`, whatever comes."""
        self._inbox.on_topic(topic, handler)
        self._listen()
        await self.send(topic, Subscribe())

    async def unsubscribe(self, topic: str) -> None:
        """Get nothing more from a topic."""
        await self.send(topic, Unsubscribe())
        self._inbox.off_topic(topic)

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._loop.call_soon(self._line.listen)


def _unanswered(letter: Letter) -> AgentError:
    try:
        told: Unanswered = read(letter, Unanswered)
    except AgentError as error:
        return error
    return UnansweredError(f"{letter.source} cannot answer: {told.reason}")
