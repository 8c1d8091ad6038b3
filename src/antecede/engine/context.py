"""The context of a reaction: it collects the requests of the handler (to send, to create an agent, to start a timer).
None of these requests takes effect before the reaction is committed.

External effects of a handler (a web request, a print) happen at least once: a reaction that was not committed runs
again. ``ctx.reaction_id`` is the same each time, so it is a good idempotency key.

A handler may run before its letter is durable. If the server then crashes, the letter arrives a second time: its client
publishes it again, the agent that sent it reacts again, or another server sends it again. A letter from an agent or a
client of this server has an id that this server made. After the crash, such a letter gets another id. Then the reaction
to this letter would also have another id. Therefore the handler of such a letter is stopped if it asks for
``ctx.reaction_id`` before the letter is durable (:class:`TooEarly`). The handler runs again when its letter is durable.
From then on, all reactions of this agent wait until their letters are durable (:mod:`antecede.server.driver.retries`).
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
    """A notification that a reaction sends. It becomes a letter when the reaction is committed."""

    to: tuple[str, ...]
    type: str
    body: bytes
    reply: str = ""
    """The name of the handler that gets the answer, if this notification is a question; otherwise empty."""
    timeout_ms: int = 0
    answers: str = ""
    context: str = ""
    """The span of the reaction, as a W3C trace context, followed by the label of the notification
    (:mod:`antecede.labels`). Both may be empty."""


class Alarm(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A timer that a reaction starts: a notification that the agent sends to itself, and gets after ``after_ms``
    milliseconds."""

    after_ms: int
    type: str
    body: bytes


class Birth(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An agent that a reaction creates on its own server."""

    name: str
    kind: str
    state: bytes


def _any_address(to: tuple[str, ...]) -> tuple[str, ...]:
    return to


def _nobody(address: str, agent: str, letter: str) -> bool:
    return False


class TooEarly(BaseException):
    """Raised when a handler asks for the id of its reaction too early, because a crash could still change this id. This
    is the case if the letter came from an agent or a client of this server, and the server does not know yet that the
    letter is durable. The handler runs again later. This is a ``BaseException``, so ``except Exception`` in a handler
    does not catch it."""


class Context(msgspec.Struct, eq=False):
    """The argument ``ctx`` of a handler. With it, the handler reads the data of its letter, sends notifications, starts
    timers and creates agents."""

    agent: str
    """The address of the agent that reacts."""
    server: str
    letter: Letter
    _check: Callable[[tuple[str, ...]], tuple[str, ...]] = _any_address
    _exists: Callable[[str, str, str], bool] = _nobody
    # The requests of a reaction; most have none, and share these empty values.
    outbound: Sequence[Outbound] = ()
    alarms: Sequence[Alarm] = ()
    births: Sequence[Birth] = ()
    kinds: Mapping[str, type[Agent]] = _no_kinds
    """Name → class, for each agent that the reaction creates."""
    trace: str = ""
    """The span of this reaction, as a W3C trace context, if tracing is on."""
    requests: bool = False
    """Whether the handler has requested anything (a send, a timer, a new agent), or has asked for the reaction's id too
    early."""
    durable: bool = True
    """Whether the server knows that the letter of this reaction is durable."""
    ended: bool = False
    """Whether the reaction has ended. A task that its handler started may still have this context; what it requests
    could not take effect any more."""
    early: bool = False
    """Whether the handler asked for the reaction's id too early (see :class:`TooEarly`). It stays True if the handler
    caught :class:`TooEarly` and continued."""

    @property
    def sender(self) -> str:
        """The address of the letter's sender."""
        return self.letter.source

    @property
    def reaction_id(self) -> str:
        """An id that is the same each time this reaction runs. Raises :class:`TooEarly` if a crash could still change
        the id: the letter came from an agent or a client of this server, and perhaps it is not durable yet."""
        if not self.durable and self.letter.id.startswith(f"{self.server}."):
            self.early = self.requests = True
            raise TooEarly
        return f"{self.agent}:{self.letter.id}"

    def send(self, to: str, notification: Notification) -> None:
        """Send a notification to one agent."""
        self._put(_outbound((to,), notification))

    def multicast(self, to: Iterable[str], notification: Notification) -> None:
        """Send one notification to several agents. The multicast is one send in the trace, and a total order treats it
        as one message."""
        targets = tuple(sorted(set(to)))
        if targets:
            self._put(_outbound(targets, notification))

    def ask(self, to: str, notification: Notification, *, reply: str, timeout: float = 30.0) -> None:
        """Send a question. A later reaction gets the answer in the handler ``reply``. If no answer comes in time, a
        later reaction gets a :class:`Timeout` in the handler for this class."""
        if not 0 < timeout <= timer_seconds_max:
            raise AgentError(f"ask with a timeout of {timeout} s: expected more than 0, at most {timer_seconds_max} s")
        milliseconds = max(round(timeout * 1000), 1)
        self._put(_outbound((to,), notification, writable(reply), milliseconds))

    def call(self, object_: str, operation: str, *arguments: Any, reply: str = "", timeout: float = 30.0) -> None:
        """Call an operation of a replicated object. A later reaction gets a :class:`Returned` in the handler ``reply``,
        with the result or with the reason of the failure. Without ``reply`` the result is dropped."""
        if not 0 < timeout <= call_seconds_max:
            raise AgentError(f"call with a timeout of {timeout} s: expected more than 0, at most {call_seconds_max} s")
        milliseconds = max(round(timeout * 1000), 1)
        try:
            body = _encode((milliseconds, arguments))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise AgentError(f"call of {object_}.{operation}: an argument is not a plain value: {error}") from None
        self._put(Outbound((f"{object_}()",), writable(operation), body, writable(reply), milliseconds))

    def forward(self, to: Iterable[str], letter: Letter) -> None:
        """Forward a received letter, of any type, to these agents or clients."""
        targets = tuple(sorted(set(to)))
        if targets:
            self._put(Outbound(targets, letter.type, letter.body, context=tail_in(letter.context)))

    def reply(self, notification: Notification) -> None:
        """Send a notification to the sender of the current letter. If this letter is a question, the notification is
        the answer."""
        letter = self.letter
        self._put(_outbound((letter.source,), notification, answers=letter.ask))

    def timer(self, seconds: float, notification: Notification) -> None:
        """Start a timer: after this number of seconds, this agent gets the notification. The timer survives a crash."""
        if not 0 <= seconds <= timer_seconds_max:
            raise AgentError(f"timer of {seconds} s: expected 0 to {timer_seconds_max} s")
        self._request()
        self.alarms = _more(self.alarms, Alarm(round(seconds * 1000), _name(notification), _encode(notification)))

    def create(self, name: str, agent: Agent) -> str:
        """Create an agent on this server, and return the address of the new agent."""
        if not name or "@" in name or writable(name) != name:
            raise AgentError(f"agent name {name!r}: expected one or more characters, valid in UTF-8, without @")
        address = f"{name}@{self.server}"
        if self._check((address,)) != (address,):
            raise AgentError(f"agent name {name!r}: the topology already has an agent with this name on this server")
        if self._exists(address, self.agent, self.letter.id) or any(birth.name == name for birth in self.births):
            raise AgentError(f"agent name {name!r}: this server already has an agent with this name")
        kind = type(agent)
        state = encoded(address, agent)
        check(address, agent, state)
        self._request()
        self.births = _more(self.births, Birth(name, f"{kind.__module__}:{kind.__qualname__}", state))
        self.kinds = {**self.kinds, name: kind}
        return address

    def _request(self) -> None:
        if self.ended:
            raise AgentError(
                f"agent {self.agent}: its reaction to letter {self.letter.id} has ended, so nothing can be requested "
                "for it any more: await in the handler what the reaction needs"
            )
        self.requests = True

    def _put(self, outbound: Outbound) -> None:
        # An address that does not exist, or cannot be reached, is an error of this call.
        to = self._check(outbound.to)
        if len(outbound.body) > letter_bytes_max:
            raise AgentError(f"notification of {len(outbound.body)} bytes: at most {letter_bytes_max} are allowed")
        if self.trace or to is not outbound.to:
            outbound = msgspec.structs.replace(outbound, to=to, context=self.trace + outbound.context)
        self._request()
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
"""Class → name, for the notification classes that have no label. A class is added when its first notification is
sent."""


def _name(notification: Notification) -> str:
    if not isinstance(notification, Notification):
        raise AgentError(f"{type(notification).__qualname__} is not a Notification")
    return name_of(type(notification))


def _more(some: Sequence[_Asked], one: _Asked) -> Sequence[_Asked]:
    """Append ``one`` to the list ``some``, and return this list. If ``some`` is still the empty tuple that all
    reactions share, return a new list with ``one``."""
    if isinstance(some, list):
        some.append(one)
        return some
    return [one]
