"""The site of a server: it holds replicas of objects, and answers calls. It is one member of the order ``objects``.

**Replicas.** The topology names the servers of each object. Each of these servers has a replica of the object. A call
goes to all replicas as one message. For the order, the replicas are separate objects that get the same request. So all
replicas compute conflicting requests in the same sequence. The call succeeds if all replicas give the same answer. If
the answers differ, the call fails and is undone. The probable cause is a conflict that a class does not declare. A
nested call that several replicas make is computed only one time, and each of these replicas gets the answer.

**Roots.** A client or agent sends its call to its own server, even if this server holds no replica of the object. The
server starts a root for the call: an instance of the operation ``call``. The root's name begins with the caller's
address. For example, ``alice@s1!3f2a1b.7`` is the seventh root that was started at s1, and ``alice@s1!3f2a1b.7/1`` is
the operation that this root called. In a trace, the rows of the root belong to the caller.

**Shared roots.** Calls of one operation that come at about the same time share a root. For example, the root
``alice@s1!3f2a1b.9+4`` makes four calls, and Alice's call is the first of them. In a trace, all messages of this root
belong to Alice. Each of the four callers has the rows ``begin`` and ``commit`` (or ``abort``) for its call.

**Records.** In each step, a server passes packets, calls and expired deadlines to its site (:class:`Replicas`). The
record of the step contains these inputs in the same sequence. A recovery passes them to the site again. So the
operations are *computed again*, and lead to the same state and the same messages. But the code of the operations may
have changed since the step. Therefore a record also contains the events of its step (:class:`Row`), and a recovery
compares its own events with these rows. A trace is made from the rows, without the application's code.
"""

import inspect
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, get_type_hints

import msgspec

from antecede import limits
from antecede.errors import ObjectError, OrderError
from antecede.failures import is_ctrl_c, text_of
from antecede.messages import (
    ABORT,
    COMMIT,
    REQUEST,
    Deliver,
    Effects,
    Label,
    Message,
    Packet,
    Sent,
    Verdict,
    members_of,
)
from antecede.objects.execution import Members
from antecede.objects.instances import Answer, Answered, Failed, Local, Made, Root, Stray
from antecede.objects.model import (
    Call,
    CallFailed,
    Failure,
    Object,
    SharedCall,
    blind_operations,
    initial,
    operation,
    operations_of,
    relation_of,
    unconfirmed_operations,
)
from antecede.objects.replay import perform
from antecede.objects.site import TIMEOUT, Site
from antecede.objects.state import UNTYPED, Live, State, encode_state, forms_of, is_deep, plain
from antecede.orders import OrderSpec
from antecede.orders.contract import Order
from antecede.orders.objects import Objects

# All objects of a server, combined into one object. With this object, the server takes part in the order ``objects``.
#
# A member of the order is a server, and a server may hold replicas of several objects. So the objects of a server are
# combined into *one* object. Its operations are ``account.deposit``, ``ledger.append`` and so on. Its state contains
# the states of all objects. Operations of different objects do not conflict.
#
# The order respects the relation *significantly precedes* between messages (§3.2 of Enokido, Higaki, Takizawa). The
# combination does not change this relation: the relation depends only on the instances and on the conflicts between
# operations. But in the vectors of the order, all objects of a server share one entry. So a message may also wait for
# messages that do not significantly precede it. Such waits cause no cycle: every message has an event number
# (:mod:`antecede.orders.objects`), and waits only for messages with smaller event numbers.
#
# Each object has its own live state (:mod:`antecede.objects.state`). A snapshot contains this state as bytes, which do
# not depend on the order of insertions. So two replicas are equal iff their bytes are equal, even if compatible
# operations reached them in different orders. Values of annotated attributes and parameters are decoded to the
# annotated types. If a value does not fit its type, the operation fails.


ROOT: Final = "call"
"""The name of an operation that every server has. It calls an object for a client or an agent, and conflicts with
nothing. Each root (the outermost operation instance of a call) executes this operation."""

_encode = msgspec.msgpack.Encoder().encode


class ReplicatedObject(Object):
    """The base class of an object with a replica on each of several servers. The annotated attributes of a subclass are
    the object's state."""


def qualified(name: str, called: str) -> str:
    """Return the full name of an object's operation, such as ``account.deposit``."""
    return f"{name}.{called}"


def parted(called: str) -> tuple[str, str]:
    """Return the object and the operation in a name such as ``account.deposit``."""
    name, _, operation_ = called.rpartition(".")
    return name, operation_


def conflicts_of(objects: Mapping[str, type[Object]]) -> list[tuple[str, str]]:
    """Return all pairs of conflicting operations, as full names such as ``account.deposit``."""
    return [
        (qualified(name, one), qualified(name, other))
        for name, kind in objects.items()
        for one, other in relation_of(kind).pairs()
    ]


def hosting(objects: Mapping[str, type[Object]]) -> type[Object]:
    """Return the class that combines these objects on a server."""
    rivals: dict[str, list[str]] = {}
    for one, other in conflicts_of(objects):
        rivals.setdefault(one, []).append(other)
    members: dict[str, Any] = {ROOT: operation(_root), "_hosts": dict(objects), "_combines": True}
    members["_stateless"] = frozenset({ROOT})
    for name, kind in objects.items():
        forms_of(kind)
        for called, method in operations_of(kind).items():
            if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
                raise ObjectError(
                    f"{kind.__name__}.{called} is asynchronous: expected a method that only computes and yields calls"
                )
            whole = qualified(name, called)
            members[whole] = operation(conflicts_with=rivals.get(whole, ()))(_bound(name, kind, called, method))
    members["__init__"] = _init(objects)
    return type("Hosted", (Object,), members)


def state_in(kind: type[Object], name: str, whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of one object, from the state of all objects of a server."""
    return State(name, kind, forms_of(kind), UNTYPED).read(whole[name])


def _init(objects: Mapping[str, type[Object]]) -> Callable[[Any], None]:
    first = {name: _first(name, kind) for name, kind in objects.items()}

    def begin(self: Any) -> None:
        self.__dict__.update(first)

    return begin


def _first(name: str, kind: type[Object]) -> bytes:
    """Return the state of a new object as bytes. Raise an error if the state cannot be encoded and decoded again."""
    try:
        state = encode_state(initial(kind))
        State(name, kind, forms_of(kind), UNTYPED).read(state)
    except ObjectError:
        raise
    except BaseException as error:
        # This runs the application's code, which may fail in any way.
        if is_ctrl_c(error):
            raise
        raise ObjectError(
            f"{kind.__name__}() cannot be created and saved: {type(error).__name__}: {text_of(error)}"
        ) from None
    return state


def _root(
    self: Any, object_: str, called: str, arguments: list[Any], shared: bool = False
) -> Generator[Call, Any, Any]:
    try:
        if not shared:
            return (yield Call(object_, called, tuple(arguments)))
        answers = yield SharedCall(object_, called, tuple(arguments))
        if not are_answers(answers, len(arguments)):
            raise Failure("expected one answer for each call that shares the request")
        return answers
    except CallFailed as failed:
        # The caller called the operation, not this program around it, so it gets only the operation's reason.
        raise Failure(*failed.args) from None


def are_answers(given: Any, count: int) -> bool:
    """Return whether ``given`` is a list of ``count`` answers. An answer is a list of a boolean (whether the call
    succeeded) and a value (the result, or the reason of the failure)."""
    return (
        isinstance(given, list)
        and len(given) == count
        and all(isinstance(one, list) and len(one) == 2 and isinstance(one[0], bool) for one in given)
    )


def _bound(name: str, kind: type[Object], called: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation of one object as an operation of the combined object."""
    signature = inspect.signature(method)
    try:
        hints = get_type_hints(method)
    except (NameError, TypeError) as error:
        raise ObjectError(f"{kind.__name__}.{called}: {error}") from None

    parameters = list(signature.parameters.values())[1:]
    places = [
        hints.get(one.name, Any) for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    more = next((hints.get(one.name, Any) for one in parameters if one.kind is one.VAR_POSITIONAL), Any)

    usual = len(places) == len(parameters)

    def fit(one: Object, arguments: tuple[Any, ...]) -> list[Any]:
        given = usual and len(arguments) == len(places)
        positional = arguments if given else signature.bind(one, *arguments).args[1:]
        # An argument without a parameter belongs to ``*more``.
        kinds = places + [more] * (len(positional) - len(places))
        try:
            return [msgspec.convert(given, kind) for given, kind in zip(positional, kinds, strict=False)]
        except msgspec.ValidationError as error:
            raise TypeError(f"{called}: {error}") from None

    def fitted(one: Object, *arguments: Any) -> Any:
        return method(one, *fit(one, arguments))

    def run(live: Live, *arguments: Any) -> Any:
        return perform(live, live.states[name], fitted, arguments, _sendable, _small)

    return run


def _sendable(call: Call) -> Call:
    """Return a call with its arguments as plain values; raise if they do not fit into a letter."""
    call = msgspec.structs.replace(call, arguments=plain(call.arguments))
    _within(f"arguments of {call.operation}", call.arguments)
    return call


def _small(answer: Any) -> Any:
    """Return an answer as plain values; raise if it does not fit into a letter."""
    if answer is None:
        return None
    return msgspec.msgpack.decode(_within("answer", plain(answer)))


def _within(what: str, value: Any) -> bytes:
    """Return a value as bytes; raise if it has more than ``limits.letter_bytes_max`` bytes, or is nested deeper than
    ``limits.call_depth_max``. Both limits are the same at every replica; Python's own limit of nesting is not."""
    too_deep = ValueError(f"{what} nested deeper than {limits.call_depth_max}")
    try:
        encoded = _encode(value)
    except RecursionError:
        raise too_deep from None
    if len(encoded) > limits.letter_bytes_max:
        raise ValueError(f"{what} of {len(encoded)} bytes: at most {limits.letter_bytes_max}")
    if is_deep(value):
        raise too_deep
    return encoded


class Placed(msgspec.Struct, frozen=True):
    """An object as the topology declares it: its name, the servers of its replicas, and its class."""

    name: str
    servers: tuple[str, ...]
    kind: type[Object]


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One event of a step, as a trace shows it."""

    kind: str
    process: str
    message: str
    to: tuple[str, ...]
    instance: str
    operation: str
    type: str


class Called(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call that has not been answered."""

    caller: str
    """The address of the caller. The caller belongs to this server."""
    letter: str
    ask: str
    object: str
    operation: str


class ReplicasSpec(OrderSpec, frozen=True):
    """The specification of the order ``objects`` in a domain whose servers hold objects."""

    servers: tuple[str, ...] = ()
    objects: tuple[Placed, ...] = ()

    def create(self, me: int, members: int) -> "Replicas":
        if members != len(self.servers):
            raise OrderError(f"{members} members: expected {len(self.servers)}, one for each server of the domain")
        return Replicas(me, self.servers, self.objects, str(self.options.get("clocks", "eager")))

    def sample(self) -> Order:
        return self.create(0, len(self.servers))

    def object_names(self) -> frozenset[str]:
        return frozenset(one.name for one in self.objects)


def replicas(order: OrderSpec, servers: tuple[str, ...], objects: tuple[Placed, ...]) -> ReplicasSpec:
    """Return the order of a domain whose servers hold these objects. Raise OrderError if ``order`` is not suitable."""
    if order.kind is not Objects:
        raise OrderError(f"order {order.name} does not support replicated objects: use the order `objects`")
    if "conflicts" in order.options:
        raise OrderError(
            "remove the option 'conflicts' of the order objects: the objects' classes declare the conflicts"
        )
    return ReplicasSpec(order.kind, order.options, servers, objects)


class Placement(Members):
    """The servers of a domain and the objects whose replicas they hold. A call goes to all replicas of one object."""

    def __init__(self, servers: tuple[str, ...], objects: tuple[Placed, ...], me: int) -> None:
        super().__init__(servers)
        self._masks = {one.name: sum(1 << servers.index(server) for server in one.servers) for one in objects}
        self._me = me
        self.blind = frozenset(qualified(one.name, name) for one in objects for name in blind_operations(one.kind))
        """The operations (of all objects) that conflict with nothing, make no calls and return nothing."""

    def destination(self, call: Call) -> tuple[int, str]:
        if not isinstance(call.to, str):
            raise ObjectError("a call to several objects: expected one object (the call goes to all its replicas)")
        mask = self._masks.get(call.to, 0)
        if not mask:
            raise ObjectError(f"no object {call.to!r}")
        return mask, qualified(call.to, call.operation)

    def near(self, caller: str, operation: str, to: int) -> int:
        # Only for blind operations: others need one order at all replicas, or have values that might differ.
        alike = operation in self.blind and self._masks.get(parted(caller)[0]) == to
        return 1 << self._me if alike else to

    def united(self, made: Made, replies: dict[int, Answer]) -> Answer:
        members = sorted(replies)
        failed = next((replies[member] for member in members if not replies[member][0]), None)
        if failed is not None:
            return failed
        first = replies[members[0]]
        other = next((member for member in members if not _alike(replies[member], first)), None)
        if other is None:
            return first
        name, operation = parted(made.operation)
        one, two = self.names[members[0]], self.names[other]
        answers = f"{_brief(first[1])} at {one}, {_brief(replies[other][1])} at {two}"
        return False, f"the replicas of {name} answer {operation} differently ({answers}): is a conflict not declared?"


class Replicas(Site):
    """The site of one server. It computes calls at the replicas that the server holds. It also runs the roots (the
    outermost calls) of the server's clients and agents."""

    def __init__(self, me: int, servers: tuple[str, ...], objects: tuple[Placed, ...], clocks: str) -> None:
        every = {one.name: one.kind for one in objects}
        here = {one.name: one.kind for one in objects if servers[me] in one.servers}
        conflicts = "+".join(f"{one}~{other}" for one, other in conflicts_of(every)) or "none"
        placement = Placement(servers, objects, me)
        super().__init__(me, hosting(here), placement, conflicts, clocks)
        self.servers = servers
        self.objects = {one.name: one for one in objects}
        self.ended: list[tuple[Called, Answered]] = []
        """Calls that have ended, each with its result; :class:`~antecede.objects.calls.Calls` empties this list."""
        self.rows: list[Row] = []
        """The events of this step; :class:`~antecede.objects.calls.Calls` empties this list."""
        self.conflicts = {
            f"{one.name}@{server}": [list(pair) for pair in relation_of(one.kind).pairs()]
            for one in objects
            for server in one.servers
        }
        """The pairs of conflicting operations at each replica, in the format of a trace's metadata."""
        self.logged: dict[str, list[list[str]]] = {}
        """The table of conflicts that was last written to the log."""
        self._calls: dict[str, Called] = {}
        """The calls that are not answered, by the root's name."""
        self._processes: dict[tuple[str, int], str] = {}
        """A cache: (operation, member) → the name that the replica at this member has in a trace."""
        operations = [
            (qualified(one.name, name), it) for one in objects for name, it in operations_of(one.kind).items()
        ]
        self._nesting = {name for name, method in operations if inspect.isgeneratorfunction(method)}
        self._shareable = {name for name, _ in operations} - self._nesting
        self.execution.unconfirmed = frozenset(
            qualified(name, called) for name, kind in here.items() for called in unconfirmed_operations(kind)
        )
        self.failed: list[Failed] = []
        """Calls that failed here, although the server where they began had already committed and answered them. These
        failures are logged."""
        self.order.together = self.order.sparing = True

    def settle(self) -> Effects:
        """End a step of the server, and return effects. First admit the waiting roots (calls by users) that may run
        now. If no root may run, return the packets with clock times for other members. Call this method again until it
        returns no effects."""
        admitted = self.roots.admitted()
        for root in admitted:
            self._queue(root)
        return self._sort(self._finished()) if admitted else self.order.times()

    # Roots.

    def _admit(self) -> None:
        """Do nothing: roots are admitted at the end of a step, all at once."""

    def _called(self, root: Root) -> str:
        object_, operation = root.arguments[:2]
        return qualified(object_, operation)

    def _sharing(self) -> tuple[Any, ...]:
        return self._united, self._sharing_most

    def _sharing_most(self, operation: str) -> int:
        """Return how many calls of an operation may share a request; 0 if they must not share one."""
        if operation in self._shareable:
            return limits.shared_calls_max
        return limits.shared_nested_max if operation in self._nesting else 0

    def _united(self, parts: list[Root]) -> Root:
        """Return one root that makes the calls of all these roots."""
        self.roots.started += 1
        first = parts[0]
        name = f"{first.name.rpartition('.')[0]}.{self.roots.started}+{len(parts)}"
        arguments = (*first.arguments[:2], [part.arguments[2] for part in parts], True)
        deadline = min((part.deadline for part in parts if part.deadline is not None), default=None)
        return Root(name, ROOT, arguments, first.number, 1, deadline, sum(part.size for part in parts), parts)

    def _queue(self, root: Root | None) -> None:
        super()._queue(root)
        for part in root.parts if root is not None else ():
            self.outbox.add(Local("begin", part.attempt, ROOT, ""))

    def _undo_parts(self, root: Root) -> None:
        """For each part of a shared root (each root that was united), record that an execution was aborted."""
        for part in root.parts:
            self.outbox.add(Local(ABORT, part.attempt, ROOT, ""))
            part.tries += 1

    def _rest(self, attempt: str) -> None:
        self._undo_parts(self.roots.running[attempt])
        super()._rest(attempt)

    def _end(self, root: Root, answer: Answer, late: bool = False) -> None:
        if not root.parts:
            super()._end(root, answer, late)
            return
        self.roots.end(root)
        if answer[0]:
            for part, (went_well, value) in zip(root.parts, answer[1], strict=True):
                self.outbox.add(Local(COMMIT, part.attempt, ROOT, ""))
                self.outbox.add(Answered(part.name, went_well, value, part.tries))
        else:
            self._undo_parts(root)
            for part in root.parts:
                part.alone = True
            self.roots.put_back(root.parts)
        self._admit()

    def _expired(self, root: Root, now: float) -> None:
        if not root.parts:
            super()._expired(root, now)
            return
        if root.attempt in self.roots.running:
            self._undo_parts(root)
        self.roots.end(root)
        others = []
        for part in root.parts:
            if part.deadline is not None and part.deadline <= now:
                self.outbox.add(Answered(part.name, *TIMEOUT, part.tries, late=True))
            else:
                others.append(part)
        self.roots.put_back(others)
        self._admit()

    def is_sure(self, name: str, operation: str) -> bool:
        """Return whether a successful answer to a call of this operation is final as soon as all replicas have
        responded. A final answer may be sent before the responses are in the log.

        If a call conflicts with nothing and calls nothing, only its deadline can undo it. This server sends a request
        only when the request is durable here. A replica sends its response only when the response is durable there. So
        if this server crashes and loses the responses, the replicas send them again, and ``resumed`` removes the
        deadline after the restart. An unconfirmed answer (``confirm=False``) is different: it is given in the step
        in which the call begins, so it must wait until the call is in the log.
        """
        elsewhere = any(server != self.servers[self.me] for server in self.objects[name].servers)
        whole = qualified(name, operation)
        return elsewhere and self._is_harmless(whole) and whole not in self.execution.unconfirmed

    def _is_harmless(self, operation: str) -> bool:
        return operation in self._shareable and not self.order.relation.matters(operation)

    def resumed(self) -> None:
        """Prepare the site after a start of the server: remove the deadlines of running calls whose answers may have
        been sent before the server stopped. Then nothing can undo these calls. An agent (its name contains no @) gets
        an answer only when the answer is in the log. So a root that has only calls of agents keeps its deadline."""
        for root in self.roots.running.values():
            clients = any("@" in self._calls[part.name].caller for part in root.parts or [root])
            if clients and self._is_harmless(self._called(root)):
                self.roots.keep(root)

    def named(self, life: str) -> None:
        """Set ``life``, a text that identifies the server's data. After a restore from a backup, this text is
        different. All ids that are created at this server contain this text."""
        self.outbox.name = f"{self.servers[self.me]}.{life}"
        self._life = life

    @property
    def open_calls(self) -> int:
        """The number of unfinished calls of this server's clients and agents, including calls that wait to begin."""
        return len(self._calls)

    def state_of(self, name: str) -> dict[str, Any]:
        """Return the committed state of this server's replica of an object."""
        return state_in(self.objects[name].kind, name, self.state)

    # Requests of the server.

    def call(self, called: Called, arguments: list[Any], deadline_ms: int) -> Effects:
        """Begin a call of a client or agent of this server; when it ends, its result is added to ``ended``."""
        given = (called.object, called.operation, arguments)
        # A snapshot gives it back as a fraction, and must have the same bytes as before.
        name, effects = self.start(ROOT, given, deadline=float(deadline_ms), by=f"{called.caller}!{self._life}")
        self._calls[name] = called
        return self._sort(effects)

    def tick(self, now: float) -> Effects:
        return self._sort(super().tick(now))

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        verdict, effects = super().receive(packet)
        return verdict, self._sort(effects)

    def send(self, message: Message) -> Effects:
        """Send a message with letters (messages between agents). Such messages are in causal order with each other."""
        return self.order.send(message)

    def is_unhurried(self, packet: Packet) -> bool:
        # No operation waits for the end of one that conflicts with nothing, and no caller for a call that is answered.
        label = None if packet.message is None else packet.message.label
        if label is None or self.order.relation.matters(label.operation):
            return False
        if label.type == COMMIT:
            return True
        decided = label.type == REQUEST and label.operation in self.execution.unconfirmed
        return decided and label.by_operation == ROOT

    # Effects.

    def _sort(self, effects: Effects) -> Effects:
        """Return the effects that concern the network or agents. Store the other effects here, as rows of the trace, as
        results of calls, or as failures."""
        kept: Effects = []
        for effect in effects:
            kind: Any = type(effect)
            one: Any = effect
            if kind is Local:
                self._note("local", "", (), one.instance, one.operation, one.type)
            elif kind is Answered:
                self.ended.append((self._calls.pop(one.root), one))
            elif kind is Sent and (label := one.message.label) is not None:
                self._sent(one.message, label)
            elif kind is Failed:
                self.failed.append(one)
            elif kind is Stray:
                process = self._process(one.meant.operation, one.meant.instance, self.me)
                self.rows.append(Row("deliver", process, one.message.id, (), "", "", one.meant.type))
            elif kind is Deliver and (label := one.message.label) is not None:
                self._note("deliver", one.message.id, (), label.instance, label.operation, label.type)
            else:
                kept.append(effect)
        return kept

    def _sent(self, message: Message, label: Label) -> None:
        to = tuple(self._process(label.operation, label.instance, member) for member in members_of(message.to))
        self._note("send", message.id, to, label.by_instance, label.by_operation, label.type)

    def _note(self, kind: str, message: str, to: tuple[str, ...], instance: str, operation: str, type_: str) -> None:
        process = self._process(operation, instance, self.me)
        self.rows.append(Row(kind, process, message, to, instance, operation.rpartition(".")[2], type_))

    def _process(self, operation: str, instance: str, member: int) -> str:
        """Return the name of the process to which a row of the trace belongs. For a root, this is its caller; for any
        other instance, the replica at this member."""
        if operation == ROOT:
            return instance.partition("!")[0]
        process = self._processes.get((operation, member))
        if process is None:
            process = f"{parted(operation)[0]}@{self.servers[member]}"
            if operation in self._shareable or operation in operations_of(self.kind):
                self._processes[operation, member] = process
        return process

    # State.

    def dump(self) -> Any:
        calls = [(name, msgspec.to_builtins(one)) for name, one in sorted(self._calls.items())]
        return super().dump(), calls, self.logged

    def load(self, state: Any) -> None:
        site, calls, self.logged = state
        super().load(site)
        self._calls = {name: msgspec.convert(one, Called) for name, one in calls}


def _alike(one: Answer, other: Answer) -> bool:
    # NaN is not equal to itself, but has the same text.
    return one == other or msgspec.msgpack.encode(one) == msgspec.msgpack.encode(other)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
