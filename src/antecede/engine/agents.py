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
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, get_type_hints
from zlib import crc32

import msgspec

from antecede import limits
from antecede.channel.letters import Letter
from antecede.errors import AgentError, StoreError, UsageError
from antecede.failures import is_ctrl_c, text_of, writable
from antecede.labels import has_label, tail_in, tail_of
from antecede.limits import call_seconds_max, letter_bytes_max, timer_seconds_max


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


# Encodes the state of an agent, and checks that the same agent can be decoded from it.
#
# A class declares the types of its fields, but a handler can assign a value of another type. Such a state can be
# written but not read: the agent would work until the next restart and then be lost. So a changed state is decoded
# before it is committed. The following cases are errors, and the text of each error names the agent:
#
# - a value that cannot be encoded, or has the wrong type for its field;
# - a state that has grown and now has more than ``agent_state_bytes_max`` bytes (topics have no such limit, because
#   only the changes of their states are logged);
# - a struct that would be decoded as another class, and would lose its methods and perhaps some fields. This happens
#   to an instance of a subclass of the declared class, and to a struct in a field without a type.
#
# A value is accepted if the decoded value is equal but has another form. For example, 1 in a field of ``float``
# becomes 1.0, and a tuple in a field of ``list`` becomes a list.


encode = msgspec.msgpack.Encoder().encode
UNLIMITED = "_unlimited"
"""The name of a class attribute. If a class of agents sets it to True, the states of its agents may have any size."""


def check(name: str, agent: Agent, state: bytes) -> None:
    """Raise :class:`AgentError` if the agent cannot be decoded from its encoded state, or if a struct in
    the state would be decoded as another class."""
    kind = type(agent)
    try:
        decode = _decoders.get(kind)
        if decode is None:
            decode = _decoders[kind] = msgspec.msgpack.Decoder(kind).decode
        back = decode(state)
        if back == agent:
            # Structs are equal only if their classes are the same.
            return
    except BaseException as error:
        raise unfit(name, agent, error) from error
    field, became = _other_class(agent, back)
    if field:
        raise AgentError(
            f"agent {name}: field {field} of {kind.__qualname__} would be read back as another class: {became}"
        )


def comes_back(kind: type[Agent], state: bytes) -> bool:
    """Decode an agent from ``state`` and encode it again. Return True if the new bytes equal ``state``. Return False if
    they differ, or if decoding or encoding fails. Even if the bytes differ, ``state`` may be correct, because the same
    state may be encoded in several ways."""
    try:
        return encode(msgspec.msgpack.decode(state, type=kind)) == state
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        return False


def encoded(name: str, agent: Agent) -> bytes:
    """Return the encoded state of an agent. Raise :class:`AgentError` if the state cannot be encoded, or is larger than
    the limit."""
    try:
        state = encode(agent)
    except BaseException as error:
        raise unfit(name, agent, error) from error
    most = limits.agent_state_bytes_max
    if len(state) > most and not getattr(agent, UNLIMITED, False):
        kind = type(agent).__qualname__
        raise AgentError(f"agent {name}: the state of {kind} has {len(state)} bytes: at most {most} are allowed")
    return state


_decoders: dict[type[Agent], Callable[[bytes], Agent]] = {}


def unfit(name: str, agent: Agent, error: BaseException) -> BaseException:
    """Return the exception to raise if an agent cannot be encoded or decoded. Its text names the first field that
    causes the error. If ``error`` is Ctrl-C, return it unchanged."""
    if is_ctrl_c(error):
        return error
    kind = type(agent)
    for one in msgspec.structs.fields(kind):
        try:
            msgspec.msgpack.decode(encode(getattr(agent, one.name)), type=one.type)
        except BaseException as reason:
            if is_ctrl_c(reason):
                return reason
            return AgentError(
                f"agent {name}: field {one.name} of {kind.__qualname__} cannot be saved: {_described(reason)}"
            )
    return AgentError(f"agent {name}: the state of {kind.__qualname__} cannot be saved: {_described(error)}")


def _described(error: BaseException) -> str:
    # The path within the field, so without its root, which would be the field itself.
    text = text_of(error)
    return text if isinstance(error, msgspec.MsgspecError) else f"{type(error).__name__}: {text}"


def _other_class(before: Any, after: Any, path: str = "") -> tuple[str, str]:
    """Compare a value before encoding (``before``) with the same value after decoding (``after``). Find the first
    struct whose class has changed. Return the path of this struct, and a text that names both classes. Return two empty
    texts if there is no such struct."""
    if isinstance(before, msgspec.Struct):
        kind = type(before)
        if type(after) is not kind:
            return path, f"{kind.__qualname__} becomes {type(after).__qualname__}"
        names = kind.__struct_fields__
        inside = [(f"{path}.{name}".lstrip("."), getattr(before, name), getattr(after, name)) for name in names]
    elif isinstance(before, dict) and isinstance(after, dict) and len(before) == len(after):
        inside = [
            (f"{path}[{key!r}]", one, other) for (key, one), other in zip(before.items(), after.values(), strict=True)
        ]
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple) and len(before) == len(after):
        inside = [
            (f"{path}[{place}]", one, other) for place, (one, other) in enumerate(zip(before, after, strict=True))
        ]
    else:
        return "", ""
    for there, one, other in inside:
        field, became = _other_class(one, other, there)
        if field:
            return field, became
    return "", ""


# The change of an agent's state: which byte ranges of the old state are replaced, and the new bytes for each range.
#
# The log can contain such a change instead of the whole new state. This saves space if only one entry of a large
# state changes, as with each subscription to a topic.
#
# A change has a simple form, so that it can be found quickly. It replaces a few short byte ranges whose length stays
# the same (for example counters), and then one byte range of any length. If this last range would be too long, the
# log gets the whole new state.


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The difference between an old state and a new state of an agent."""

    parts: tuple[tuple[int, int, bytes], ...]
    """The replaced byte ranges, by ascending offset. Each is (offset in the old state, number of bytes to remove there,
    bytes to insert there)."""
    check: int
    """The checksum (CRC-32) of the new state."""


State = bytes | Change
CHANGES_FROM_BYTES = 1024
"""A state with fewer bytes is always written to the log as a whole, not as a :class:`Change`."""


def change_of(old: bytes | None, new: bytes) -> State:
    """Return the change from the old state to the new state. Return the whole new state instead if there is no old
    state, or if the change would insert about half of the new state's bytes or more."""
    if old is None:
        return new
    common = min(len(old), len(new))
    tail = _common_end(old, new, common)
    stop, place = common - tail, 0
    parts: list[tuple[int, int, bytes]] = []
    while len(parts) < _places_max:
        place = _common_start(old, new, place, stop)
        again = place + _place_bytes
        if again + _sure_bytes > stop or old[again : again + _sure_bytes] != new[again : again + _sure_bytes]:
            break
        parts.append((place, _place_bytes, new[place:again]))
        place = again
    place = _common_start(old, new, place, stop)
    rest = new[place : len(new) - tail]
    if len(old) - tail > place or rest:
        parts.append((place, len(old) - tail - place, rest))
    return Change(tuple(parts), crc32(new)) if 2 * len(rest) < len(new) else new


def changed(old: bytes | None, state: State) -> bytes:
    """Return the new state as bytes. If ``state`` is a :class:`Change`, apply it to ``old``, the state before the
    change. If ``state`` is already the whole new state, return it."""
    if isinstance(state, bytes):
        return state
    old, done = old or b"", 0
    pieces: list[bytes] = []
    for place, removed, inserted in state.parts:
        pieces += (old[done:place], inserted)
        done = place + removed
    new = b"".join([*pieces, old[done:]])
    if crc32(new) != state.check:
        raise StoreError("the log has a change of an agent's state that does not fit the agent's previous state")
    return new


def _common_start(one: bytes, other: bytes, start: int, stop: int) -> int:
    """Return the first offset at which the bytes of ``one`` and ``other`` differ. Compare only the bytes at the offsets
    from ``start`` to ``stop - 1``. Return ``stop`` if none of them differs."""
    while start < stop:
        middle = (start + stop + 1) // 2
        if one[start:middle] == other[start:middle]:
            start = middle
        else:
            stop = middle - 1
    return start


def _common_end(one: bytes, other: bytes, most: int) -> int:
    """Return how many bytes are equal at the ends of ``one`` and ``other``. The result is not larger than ``most``."""
    count = 0
    while count < most:
        more = (count + most + 1) // 2
        if one[len(one) - more : len(one) - count] == other[len(other) - more : len(other) - count]:
            count = more
        else:
            most = more - 1
    return count


_places_max = 3
_place_bytes = 8
_sure_bytes = 32
"""A short byte range is replaced separately only if at least this many bytes after it are equal in the old and the new
state. Otherwise this short range becomes a part of the last range, which may be long."""


# The context of a reaction: it collects the requests of the handler (to send, to create an agent, to start a timer).
# None of these requests takes effect before the reaction is committed.
#
# External effects of a handler (a web request, a print) happen at least once: a reaction that was not committed runs
# again. ``ctx.reaction_id`` is the same each time, so it is a good idempotency key.
#
# A handler may run before its letter is durable. If the server then crashes, the letter arrives a second time: its
# client publishes it again, the agent that sent it reacts again, or another server sends it again. A letter from an
# agent or a client of this server has an id that this server made. After the crash, such a letter gets another id.
# Then the reaction to this letter would also have another id. Therefore the handler of such a letter is stopped if it
# asks for ``ctx.reaction_id`` before the letter is durable (:class:`TooEarly`). The handler runs again when its
# letter is durable. From then on, all reactions of this agent wait until their letters are durable
# (:mod:`antecede.server.driver`).


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


# Batches of letters that the engine hands out to agents and clients, and the outcome of each letter.


class React(msgspec.Struct, frozen=True, gc=False):
    """A batch: the next letters of an agent or a client, in the sequence in which they must be handled."""

    agent: str
    letters: tuple[Letter, ...]
    handlers: tuple[str, ...]
    """For each letter, the name of the handler to call. If the letter is an answer, the agent chose this handler when
    it asked the question. If the name is empty, the type of the letter decides which handler is called. If the name is
    ``STALE``, the letter is an answer, but no question waits for it, so no handler is called."""
    state: bytes | None
    """The agent's saved state; ``None`` if the agent has no saved state yet."""
    durable: bool = False
    """Whether all letters are known to be durable. A durable letter keeps its id after a crash."""


STALE = "-"


class Reaction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of one letter. The outcome is committed when the log record that contains it is durable."""

    letter: str
    outbound: tuple[Outbound, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    births: tuple[Birth, ...] = ()
    dead: str = ""
    """The reason why the letter is dead; empty if it is not dead."""
    expired: bool = False
    """Whether the letter is dead because it expired (:mod:`antecede.engine.quotas`). Letters that depend on an expired
    letter do not have to wait for an operator's decision (:mod:`antecede.engine.dead`)."""


def died(letter: Letter, reason: str, check: Callable[[tuple[str, ...]], object], expired: bool = False) -> Reaction:
    """Return the outcome of a letter that is dead for this reason. If the letter is a question, its sender gets a
    notice: the outcome contains an :class:`Unanswered` with the reason. ``check``: a function that raises an error if
    the sender's address does not exist. If it raises an error, the outcome contains no notice."""
    reason = writable(reason[: limits.reason_chars_max])
    replies: tuple[Outbound, ...] = ()
    if letter.ask:
        try:
            check((letter.source,))
        except UsageError:
            pass
        else:
            body = msgspec.msgpack.encode(Unanswered(ask=letter.ask, reason=reason))
            replies = (Outbound((letter.source,), name_of(Unanswered), body, answers=letter.ask),)
    return Reaction(letter.id, replies, dead=reason, expired=expired)


# A topic: a built-in agent that forwards each received letter to all its subscribers, as one multicast.
#
# Declare a topic like any agent: ``news = { server = "s1", class = "antecede:Topic" }``. A subscription is a message,
# and is ordered like every other message: a publication that causally precedes a subscription does not reach the
# subscriber.


class Subscribe(Notification):
    """Subscribe the sender to the topic from now on."""


class Unsubscribe(Notification):
    """Unsubscribe the sender from the topic."""


class Topic(Agent):
    """An agent that forwards each received letter to all its subscribers, as one multicast."""

    _unlimited: ClassVar = True

    subscribers: tuple[str, ...] = ()

    def on_subscribe(self, notification: Subscribe, ctx: Context) -> None:
        if ctx.sender not in self.subscribers:
            self.subscribers = tuple(sorted([*self.subscribers, ctx.sender]))

    def on_unsubscribe(self, notification: Unsubscribe, ctx: Context) -> None:
        self.subscribers = tuple(name for name in self.subscribers if name != ctx.sender)

    def otherwise(self, letter: Letter, ctx: Context) -> None:
        """Forward a letter to all subscribers. Subscriptions and unsubscriptions do not come to this method."""
        ctx.forward(self.subscribers, letter)
