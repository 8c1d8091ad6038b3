"""Runs reactions: finds and calls the handler, collects what it requests, and encodes the agent's new state.

A host keeps agents in memory between reactions. An agent in memory has its committed state, or the state that will be
committed next. The letters of one batch are handled one after the other. The first reaction that fails ends the batch:
the reactions before it are kept, the agent returns to its state before the failed reaction, and the driver decides when
to try again. A reaction fails if its handler raises anything except Ctrl-C and :class:`TooEarly`; even ``SystemExit``
and ``CancelledError`` are failures. :class:`TooEarly` ends the batch in the same way, but is not counted as a try.

A state that cannot be read again (:mod:`antecede.engine.agents`) is a failure, too. Only the last state of a batch is
checked, because only this state is committed. If the check fails, the batch runs again with a check after each
reaction, and ends at the reaction that made the unreadable state.

In two cases a letter is *dead* after the first try, because another try would not help. (1) The agent has no handler
for the notification of the letter, and no method ``otherwise``. (2) The letter's bytes do not fit the notification's
fields.
"""

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from inspect import isawaitable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from antecede.channel.letters import Letter
from antecede.durations import Durations
from antecede.engine.agents import (
    STALE,
    Agent,
    Context,
    Handler,
    React,
    Reaction,
    Timeout,
    TooEarly,
    Unanswered,
    check,
    comes_back,
    died,
    encode,
    encoded,
    handlers_of,
    name_of,
)
from antecede.errors import AgentError
from antecede.failures import is_ctrl_c, text_of

# Interfaces of objects that observe how agents handle letters: for tracing, and to record the calls in progress.


_Result = TypeVar("_Result")


class Watch(Protocol):
    """An observer of reactions, for example for tracing."""

    def begin(self, context: Context) -> Any:
        """Observe that a reaction begins. The returned value is passed to ``end`` as ``begun``."""
        ...

    def end(self, begun: Any, dead: str, failure: BaseException | None) -> None:
        """Observe that the reaction has ended. ``dead``: the reason why the letter became a dead letter, or an empty
        text if it did not. ``failure``: the exception of the reaction, or ``None``."""
        ...


class Progress(Protocol):
    """Records the handler calls in progress. After a crash, the server starts again and reads which calls were in
    progress (:mod:`antecede.server.progress`)."""

    @property
    def running(self) -> tuple[str, str] | None: ...

    @property
    def number(self) -> int: ...

    def call(self, agent: str, letter: str) -> None: ...

    def then(self, letter: str) -> None: ...

    def begin(self, agent: str) -> int: ...

    def at(self, slot: int, letter: str) -> None: ...

    def on(self, slot: int) -> None: ...

    def off(self) -> None: ...

    def end(self, slot: int) -> None: ...


class Stepwise(Generic[_Result]):
    """Awaits a coroutine. Calls ``on`` each time before the coroutine starts or continues, and ``off`` each time that
    the coroutine pauses or ends."""

    def __init__(
        self, batch: Coroutine[Any, Any, _Result], on: Callable[[], object], off: Callable[[], object]
    ) -> None:
        self._batch = batch
        self._on = on
        self._off = off

    def __await__(self) -> Generator[Any, Any, _Result]:
        batch, on, off = self._batch, self._on, self._off
        go_on: Callable[[], Any] = partial(batch.send, None)
        while True:
            on()
            try:
                awaited = go_on()
            except StopIteration as end:
                outcome: _Result = end.value
                return outcome
            finally:
                off()
            try:
                go_on = partial(batch.send, (yield awaited))
            except BaseException as error:
                go_on = partial(batch.throw, error)


_none: list[Any] = []
"""An empty list with two uses. If there are no observers, it is used as the list of results of ``Watch.begin``. If
reactions are not timed, it is used as the list of times."""


class Outcome(msgspec.Struct):
    """The outcome of a batch of letters for one agent."""

    agent: str
    reactions: list[Reaction]
    state: bytes | None
    """The agent's new state; ``None`` if the state has not changed."""
    failure: BaseException | None = None
    """The exception that ended the batch: a failure, or :class:`TooEarly`; ``None`` if no exception ended it. Its
    traceback leads to a frame that has this outcome. So whoever has reported the failure sets this to ``None``;
    otherwise the letters in these frames would stay in memory until the garbage collector runs."""
    ended_at: int | None = None
    """The position in the batch, from 0, of the letter whose handler call ended the worker process. ``None`` if the
    process did not end. If it ended, no reaction of this batch is kept. The other letters of the batch run again, and
    the failed call does not count as a try for them."""
    plain: list[str] = []
    """A replacement for ``reactions`` that contains only the ids of the letters. It is used only if ``react`` handled
    all letters of the batch and no reaction requested anything. Otherwise this list is empty."""

    @property
    def too_early(self) -> bool:
        """Whether the batch ended because a handler asked for the id of its reaction too early (see
        :class:`TooEarly`)."""
        return isinstance(self.failure, TooEarly)

    def merge(self) -> None:
        """Move the letters of ``plain`` to the beginning of ``reactions``, each as a reaction without requests."""
        if self.plain:
            self.reactions[:0] = map(Reaction, self.plain)
            self.plain = []


class Unfit(str):
    """The reason why no handler can process a letter. Such a letter is dead without another try. A handler may return a
    plain ``str``, which is ignored. This class distinguishes the reason from such a ``str``."""

    __slots__ = ()


class Host:
    """Keeps the agents of one server in memory, and runs their handlers."""

    def __init__(self, server: str, check: Callable[[tuple[str, ...]], tuple[str, ...]]) -> None:
        self.server = server
        self.check = check
        self.watches: list[Watch] = []
        self.progress: Progress | None = None
        self.each: Callable[[str], None] | None = None
        """A function to call with the agent's name before each letter of a batch. Only ``react_async`` calls it."""
        self._shared: tuple[Callable[[], float], float] | None = None
        self._timed: tuple[Callable[[], float], Durations] | None = None
        self._kinds: dict[str, type[Agent]] = {}
        self._births: dict[str, tuple[str, str]] = {}
        """Address → (agent, letter), for each agent that was created since the start: the reaction that created it."""
        self._alive: dict[str, tuple[Agent, bytes]] = {}
        self._decoders: dict[type, msgspec.msgpack.Decoder[object]] = {}
        self._ready: dict[tuple[type[Agent], str], tuple[Callable[[bytes], object], str]] = {}
        """(class of an agent, type of a letter) → (decoder of the letter, name of the handler method). An entry is
        added when the handler is first looked up."""

    def declare(self, agent: str, kind: type[Agent]) -> None:
        """Set the class of this agent."""
        if not (isinstance(kind, type) and issubclass(kind, Agent)):
            raise AgentError(f"agent {agent}: {kind!r} is not a subclass of antecede.Agent")
        handlers_of(kind)
        self._kinds[agent] = kind

    def retire(self, agent: str) -> None:
        """Remove an agent, because a change of the topology has removed it or has moved it to another server."""
        self._kinds.pop(agent, None)
        self._births.pop(agent, None)

    def lives(self, agent: str) -> bool:
        """Return True if this is an agent of this server, so that its reactions run here. Return False for all other
        agents, and for clients, because a client reacts in its own process."""
        return agent in self._kinds

    def kind_of(self, agent: str) -> type[Agent]:
        """Return the class of an agent of this server."""
        return self._kinds[agent]

    def exists(self, address: str, creator: str, letter: str) -> bool:
        """Return whether this server has an agent with this address, so that the reaction of ``creator`` to ``letter``
        cannot create it. A reaction that was not committed runs again, and creates the same agents again."""
        return address in self._kinds and self._births.get(address) != (creator, letter)

    def created(self, address: str, creator: str, letter: str, kind: type[Agent]) -> None:
        """Set the class of an agent that the reaction of ``creator`` to ``letter`` creates. Raise AgentError if an
        agent has this address already."""
        if self.exists(address, creator, letter):
            raise AgentError(f"agent {address} exists already: another reaction has created it meanwhile")
        self.declare(address, kind)
        self._births[address] = (creator, letter)

    def is_async(self, agent: str) -> bool:
        """Return whether this agent has an ``async`` handler."""
        return any(handler.is_async for handler in handlers_of(self._kinds[agent]).values())

    def time_reactions(self, clock: Callable[[], float], durations: Durations) -> None:
        """From now on, record how long each reaction takes. The time is read from ``clock``, once per reaction."""
        self._timed = (clock, durations)

    def share_time(self, clock: Callable[[], float], seconds: float) -> None:
        """From now on, end a batch early if it takes longer than ``seconds``, so that other agents do not wait long.
        This does not apply to agents with ``async`` handlers. The letters that were not handled are handed out again
        later."""
        self._shared = (clock, seconds)

    def time_run(self, marks: list[float]) -> None:
        """Record the times of a batch that ran in a worker process, if reactions are timed. ``marks``: the start of the
        batch, then the end of each reaction."""
        if self._timed is not None:
            self._timed[1].add_run(marks)

    def react(self, due: React) -> Outcome:
        """React to a batch of an agent that has no ``async`` handler."""
        progress = self.progress
        if progress is None:
            return self._react(due) if self._timed is None else self._timed_run(due)
        progress.call(due.agent, due.letters[0].id)
        try:
            return self._react(due) if self._timed is None else self._timed_run(due)
        finally:
            progress.off()

    def _timed_run(self, due: React) -> Outcome:
        assert self._timed is not None
        clock, durations = self._timed
        marks = [clock()]
        outcome = self._react(due, clock, marks)
        if outcome.failure is not None:
            marks.append(clock())
        durations.add_run(marks)
        return outcome

    def _react(
        self, due: React, clock: Callable[[], float] | None = None, marks: list[float] = _none, singly: bool = False
    ) -> Outcome:
        agent, saved = self._alive.get(due.agent) or self._wake(due)
        name, server, check, exists = due.agent, self.server, self.check, self.exists
        watches, durable = self.watches, due.durable
        outcome = Outcome(name, [], None)
        kind, plain, reactions = type(agent), outcome.plain, outcome.reactions
        stateless = not kind.__struct_fields__
        then = shared = None
        if len(due.letters) > 1:
            then = None if self.progress is None else self.progress.then
            shared = self._shared
        # The clock is read at powers of two: quick handlers hardly notice it, and a batch takes at most twice its time.
        until, done, read_at = 0.0 if shared is None else shared[0]() + shared[1], 0, 1
        # Consecutive letters often have the same type: its decoder and its handler are looked up once.
        run: str | None = None
        decode: Callable[[bytes], object] | None = None
        handle: Callable[[Any, Context], Any] = _nothing
        for letter, named in zip(due.letters, due.handlers, strict=True):
            if then is not None:
                then(letter.id)
            context = Context(name, server, letter, check, exists, durable=durable)
            begun = [watch.begin(context) for watch in watches] if watches else _none
            try:
                if letter.type != run:
                    run = letter.type
                    ready = self._ready.get((kind, run))
                    if ready is None:
                        decode = None
                    else:
                        decode, method = ready
                        handle = getattr(agent, method)
                if decode is None or named:
                    dead = self._call(agent, letter, named, context)
                else:
                    try:
                        notification = decode(letter.body)
                    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                        dead = Unfit(f"the content of {letter.type} does not fit its fields: {error}")
                    else:
                        dead = handle(notification, context)
                if dead is not None and type(dead) is not Unfit:
                    dead = None
                if dead or singly or begun or context.requests:
                    self._note(outcome, agent, letter, context, begun, str(dead or ""), singly)
                else:
                    if not stateless:
                        outcome.state = encoded(name, agent)
                    if reactions:
                        reactions.append(Reaction(letter.id))
                    else:
                        plain.append(letter.id)
            except BaseException as error:
                self._failed(outcome, begun, error)
                break
            finally:
                context.ended = True
            if clock is not None:
                marks.append(clock())
            if shared is not None:
                done += 1
                if done == read_at:
                    read_at *= 2
                    if shared[0]() > until:
                        break
        if plain and len(plain) < len(due.letters):
            outcome.merge()
        if outcome.state is None or self._done(outcome, agent, saved, singly):
            return outcome
        return self._react(due, clock, marks, True)

    async def react_async(self, due: React) -> Outcome:
        """React to a batch of an agent that may have ``async`` handlers."""
        progress = self.progress
        if progress is None:
            return await self._timed_run_async(due, -1)
        slot = progress.begin(due.agent)
        progress.at(slot, due.letters[0].id)
        try:
            return await Stepwise(self._timed_run_async(due, slot), partial(progress.on, slot), progress.off)
        finally:
            progress.end(slot)

    async def _timed_run_async(self, due: React, slot: int) -> Outcome:
        if self._timed is None:
            return await self._react_async(due, slot, None, [])
        clock, durations = self._timed
        marks = [clock()]
        outcome = await self._react_async(due, slot, clock, marks)
        if outcome.failure is not None:
            marks.append(clock())
        durations.add_run(marks)
        return outcome

    async def _react_async(
        self, due: React, slot: int, clock: Callable[[], float] | None, marks: list[float], singly: bool = False
    ) -> Outcome:
        agent, saved = self._alive.get(due.agent) or self._wake(due)
        outcome = Outcome(due.agent, [], None)
        for letter, named in zip(due.letters, due.handlers, strict=True):
            if self.progress is not None:
                self.progress.at(slot, letter.id)
            if self.each is not None:
                self.each(due.agent)
            context = Context(due.agent, self.server, letter, self.check, self.exists, durable=due.durable)
            begun = [watch.begin(context) for watch in self.watches] if self.watches else _none
            try:
                dead = self._call(agent, letter, named, context)
                if isawaitable(dead):
                    dead = await dead
                reason = str(dead) if type(dead) is Unfit else ""
                self._note(outcome, agent, letter, context, begun, reason, singly)
            except BaseException as error:
                self._failed(outcome, begun, error)
                break
            finally:
                context.ended = True
            if clock is not None:
                marks.append(clock())
        if self._done(outcome, agent, saved, singly):
            return outcome
        return await self._react_async(due, slot, clock, marks, True)

    def forget(self, agent: str) -> None:
        """Drop the agent from memory. The next batch loads the agent from its saved state."""
        self._alive.pop(agent, None)

    def _wake(self, due: React) -> tuple[Agent, bytes]:
        """Load the agent of a batch into memory. Return the agent and its encoded state."""
        kind = self._kinds[due.agent]
        try:
            agent = kind() if due.state is None else msgspec.msgpack.decode(due.state, type=kind)
            state = encode(agent)
        except BaseException as error:
            # An exception of the application's own code here must not stop the server.
            if is_ctrl_c(error):
                raise
            if due.state is None:
                why = f"{kind.__qualname__} cannot be created: all its fields need a default"
            else:
                why = f"its saved state does not fit {kind.__qualname__}"
            raise AgentError(f"agent {due.agent}: {why}: {text_of(error)}") from error
        self._alive[due.agent] = (agent, state)
        return agent, state

    def _call(self, agent: Agent, letter: Letter, named: str, context: Context) -> Any:
        """Call the handler for a letter and return its result. If no handler can process the letter, return the reason
        (:class:`Unfit`)."""
        if named == STALE:
            return None
        ready = None if named else self._ready.get((type(agent), letter.type))
        if ready is None:
            handlers = handlers_of(type(agent))
            handler = handlers.get(letter.type)
            if letter.type == _unanswered:
                handler = handler or handlers.get(_timeout)
            elif named and letter.type != _timeout:
                handler = next((h for h in handlers.values() if h.method == named), handler)
            if handler is None:
                otherwise = getattr(agent, "otherwise", None)
                if otherwise is None:
                    shown = ", ".join([*handlers][:_shown_max]) + (", …" if len(handlers) > _shown_max else "")
                    has = f"it has {shown or 'no handlers'}"
                    return Unfit(f"{type(agent).__qualname__} has no handler for {letter.type}: {has}")
                return otherwise(letter, context)
            ready = (self._decoder(handler).decode, handler.method)
            if not named:
                self._ready[type(agent), letter.type] = ready
        try:
            notification = ready[0](letter.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Unfit(f"the content of {letter.type} does not fit its fields: {error}")
        return getattr(agent, ready[1])(notification, context)

    def _decoder(self, handler: Handler) -> "msgspec.msgpack.Decoder[object]":
        decoder = self._decoders.get(handler.notification)
        if decoder is None:
            decoder = self._decoders[handler.notification] = msgspec.msgpack.Decoder(handler.notification)
        return decoder

    def _note(
        self,
        outcome: Outcome,
        agent: Agent,
        letter: Letter,
        context: Context,
        begun: list[Any],
        dead: str,
        checked: bool,
    ) -> None:
        if context.early:
            raise TooEarly
        # A state that cannot be saved fails like its handler: before anything is recorded.
        state = None
        if not dead and type(agent).__struct_fields__:
            state = encoded(outcome.agent, agent)
            if checked and state != outcome.state:
                check(outcome.agent, agent, state)
        if context.births and not dead:
            for birth in context.births:
                self.created(f"{birth.name}@{self.server}", outcome.agent, letter.id, context.kinds[birth.name])
        if begun:
            self._ended(begun, dead, None)
        if dead:
            outcome.reactions.append(died(letter, dead, self.check))
            return
        outcome.reactions.append(
            Reaction(letter.id, tuple(context.outbound), tuple(context.alarms), tuple(context.births))
        )
        if state is not None:
            outcome.state = state

    def _ended(self, begun: list[Any], dead: str, failure: BaseException | None) -> None:
        for watch, one in zip(self.watches, begun, strict=True):
            watch.end(one, dead, failure)

    def _failed(self, outcome: Outcome, begun: list[Any], error: BaseException) -> None:
        self._ended(begun, "", error)
        outcome.failure = error
        self.forget(outcome.agent)
        if is_ctrl_c(error):
            raise error

    def _done(self, outcome: Outcome, agent: Agent, saved: bytes, checked: bool) -> bool:
        """End a batch. Return False if the last state of the batch may be unreadable. In this case, nothing of the
        batch is kept, and the batch must run again with a check after each reaction."""
        state = outcome.state
        if state is None or state == saved:
            outcome.state = None
            return True
        if outcome.failure is not None:
            # The agent is no longer in that state, because the handler that failed may have changed it.
            return checked or comes_back(type(agent), state)
        if not checked:
            try:
                check(outcome.agent, agent, state)
            except AgentError:
                self.forget(outcome.agent)
                return False
        self._alive[outcome.agent] = (agent, state)
        return True


_timeout, _unanswered = name_of(Timeout), name_of(Unanswered)
_shown_max = 8


def _nothing(notification: Any, context: Context) -> None:
    """Do nothing. ``_react`` uses this function as a placeholder until it has looked up the first handler."""
