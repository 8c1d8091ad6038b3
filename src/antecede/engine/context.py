"""The requests of a reaction. None of them takes effect before the reaction is committed.

External effects of a handler (a web request, a print) happen at least once: a reaction that was not committed runs
again. ``ctx.reaction_id`` is the same each time, so it is a good idempotency key.

Handlers may run before their letters are durable. A letter that got its id from this server can then come again under
another id after a crash: its client publishes it again, or the agent that sent it reacts again. So a handler that asks
for ``ctx.reaction_id`` too early is stopped there (:class:`TooEarly`), and runs again when its letter is durable. From
then on all reactions of its agent wait until their letters are durable (:mod:`antecede.server.driver.retries`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from antecede.channel.letters import Letter
from antecede.engine.agents import Agent, Notification, name_of
from antecede.engine.state import check, encoded
from antecede.errors import AgentError
from antecede.labels import has_label, tail_in, tail_of
from antecede.limits import call_seconds_max, letter_bytes_max, timer_seconds_max
from antecede.whereabouts import writable

_encode = msgspec.msgpack.Encoder().encode
_no_kinds: Mapping[str, type[Agent]] = MappingProxyType({})


class Outbound(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A notification that a reaction sends; it becomes a letter when the reaction is committed."""

    to: tuple[str, ...]
    type: str
    body: bytes
    reply: str = ""
    """The handler that gets the answer, if this is a question; otherwise empty."""
    timeout_ms: int = 0
    answers: str = ""
    context: str = ""
    """The span of the reaction, as a W3C trace context, followed by the label (:mod:`antecede.labels`); both may be
    empty."""


class Alarm(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A notification that an agent sends to itself, and gets after some time."""

    after_ms: int
    type: str
    body: bytes


class Birth(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An agent that a reaction creates, on this server."""

    name: str
    kind: str
    state: bytes


def _any_address(to: tuple[str, ...]) -> tuple[str, ...]:
    return to


class TooEarly(BaseException):
    """Raised in a handler that asks for the id of its reaction before its letter is durable: the handler runs again
    later. Handlers that catch errors do not catch this."""


class Context(msgspec.Struct, eq=False):
    """The interface of one reaction to everything else."""

    agent: str
    """This agent's own address."""
    server: str
    letter: Letter
    _check: Callable[[tuple[str, ...]], tuple[str, ...]] = _any_address
    # The requests of a reaction; most have none, and share these empty values.
    outbound: Sequence[Outbound] = ()
    alarms: Sequence[Alarm] = ()
    births: Sequence[Birth] = ()
    kinds: Mapping[str, type[Agent]] = _no_kinds
    """The classes of the agents that the reaction creates, by name."""
    trace: str = ""
    """The span of this reaction, as a W3C trace context, if tracing is on."""
    requests: bool = False
    """Whether the reaction has requested anything."""
    durable: bool = True
    """Whether the letter is durable."""
    early: bool = False
    """Whether the handler asked for the reaction's id too early; it may have caught :class:`TooEarly` and gone on."""

    @property
    def sender(self) -> str:
        """The address of the letter's sender."""
        return self.letter.source

    @property
    def reaction_id(self) -> str:
        """An id that is the same each time this reaction runs."""
        if not self.durable and self.letter.id.startswith(f"{self.server}."):
            self.early = self.requests = True
            raise TooEarly
        return f"{self.agent}:{self.letter.id}"

    def send(self, to: str, notification: Notification) -> None:
        """Send a notification to one agent."""
        self._put(_outbound((to,), notification))

    def multicast(self, to: Iterable[str], notification: Notification) -> None:
        """Send one message to several agents; it is one event, and total orders treat it as one message."""
        targets = tuple(sorted(set(to)))
        if targets:
            self._put(_outbound(targets, notification))

    def ask(self, to: str, notification: Notification, *, reply: str, timeout: float = 30.0) -> None:
        """Send a question. The answer, or a :class:`Timeout`, comes as a later reaction, to the handler ``reply``."""
        if not 0 < timeout <= timer_seconds_max:
            raise AgentError(f"ask with a timeout of {timeout} s: expected more than 0, at most {timer_seconds_max}")
        milliseconds = max(round(timeout * 1000), 1)
        self._put(_outbound((to,), notification, writable(reply), milliseconds))

    def call(self, object_: str, operation: str, *arguments: Any, reply: str = "", timeout: float = 30.0) -> None:
        """Call an operation of a replicated object. Its result, or the reason of its failure, comes in a later
        reaction, a :class:`Returned`, to the handler ``reply``; without ``reply`` the result is dropped."""
        if not 0 < timeout <= call_seconds_max:
            raise AgentError(f"call with a timeout of {timeout} s: expected more than 0, at most {call_seconds_max}")
        milliseconds = max(round(timeout * 1000), 1)
        try:
            body = _encode((milliseconds, arguments))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise AgentError(f"call of {object_}.{operation}: an argument is not a plain value: {error}") from None
        self._put(Outbound((f"{object_}()",), writable(operation), body, writable(reply), milliseconds))

    def forward(self, to: Iterable[str], letter: Letter) -> None:
        """Forward a received letter of any type to these agents or clients."""
        targets = tuple(sorted(set(to)))
        if targets:
            self._put(Outbound(targets, letter.type, letter.body, context=tail_in(letter.context)))

    def reply(self, notification: Notification) -> None:
        """Answer the sender of the current letter; if the letter is a question, this is its answer."""
        letter = self.letter
        self._put(_outbound((letter.source,), notification, answers=letter.ask))

    def timer(self, seconds: float, notification: Notification) -> None:
        """Send a notification to this agent later. The timer survives a crash."""
        if not 0 <= seconds <= timer_seconds_max:
            raise AgentError(f"timer of {seconds} s: expected 0 to {timer_seconds_max}")
        self.requests = True
        self.alarms = _more(self.alarms, Alarm(round(seconds * 1000), _name(notification), _encode(notification)))

    def create(self, name: str, agent: Agent) -> str:
        """Create an agent on this server; return its address."""
        if not name or "@" in name or writable(name) != name:
            raise AgentError(f"agent name {name!r}: expected one or more UTF-8 characters, without @")
        address = f"{name}@{self.server}"
        if self._check((address,)) != (address,):
            raise AgentError(f"agent name {name!r}: the topology has an agent of that name here")
        kind = type(agent)
        state = encoded(address, agent)
        check(address, agent, state)
        self.requests = True
        self.births = _more(self.births, Birth(name, f"{kind.__module__}:{kind.__qualname__}", state))
        self.kinds = {**self.kinds, name: kind}
        return address

    def _put(self, outbound: Outbound) -> None:
        # An address that does not exist, or cannot be reached, is an error of this call.
        to = self._check(outbound.to)
        if len(outbound.body) > letter_bytes_max:
            raise AgentError(f"notification of {len(outbound.body)} bytes: at most {letter_bytes_max}")
        if self.trace or to is not outbound.to:
            outbound = msgspec.structs.replace(outbound, to=to, context=self.trace + outbound.context)
        self.requests = True
        self.outbound = _more(self.outbound, outbound)


_Asked = TypeVar("_Asked")


def _outbound(
    to: tuple[str, ...], notification: Notification, reply: str = "", timeout_ms: int = 0, answers: str = ""
) -> Outbound:
    name = _plain.get(type(notification))
    if name is not None:
        return Outbound(to, name, _encode(notification), reply, timeout_ms, answers)
    name, body = _name(notification), _encode(notification)
    if has_label(type(notification)):
        return Outbound(to, name, body, reply, timeout_ms, answers, tail_of(notification))
    _plain[type(notification)] = name
    return Outbound(to, name, body, reply, timeout_ms, answers)


_plain: dict[type, str] = {}
"""Class → name of notifications without a label. Most classes are here after their first send."""


def _name(notification: Notification) -> str:
    if not isinstance(notification, Notification):
        raise AgentError(f"{type(notification).__qualname__} is not a Notification")
    return name_of(type(notification))


def _more(some: Sequence[_Asked], one: _Asked) -> Sequence[_Asked]:
    """Return the list with one more element. The first element begins a new list, since ``()`` is shared."""
    if isinstance(some, list):
        some.append(one)
        return some
    return [one]
