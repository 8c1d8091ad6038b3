"""The objects of a server: its member of the order ``objects``, where clients and agents call and are answered.

**Replicas.** An object of the topology has a replica on each of its servers. A call goes to all of them as one message,
so the order sees one request to several objects, and conflicting ones are computed in the same order everywhere. The
answer is that of all replicas; where they differ the call fails and is undone, for then somebody forgot to declare a
conflict. A replica that repeats a nested call is one of several callers of one instance.

**Roots.** Whoever calls does so at its own server, which need not hold a replica: an instance of the operation ``call``
there is the root. It belongs to the caller, so the rows that it leaves in a trace are the caller's; its name says
whose it is: ``alice@s1!3f2a1b.7`` is the seventh call that began at s1, ``alice@s1!3f2a1b.7/1`` what it called.

**What is kept.** A server's step hands packets, calls and expired deadlines to its site, in the sequence of its record,
and the record keeps them: to take them again is to arrive at the same state, with the same messages. But that means
that operations are *computed again* in a recovery, and the code may have changed. So a record also keeps what its step
did (:class:`Row`), from which the trace is made without anybody's code, and with which a recovery compares itself.
"""

from typing import Any

import msgspec

from antecede.errors import OrderError
from antecede.messages import Deliver, Effects, Label, Message, Packet, Sent, Verdict, members_of
from antecede.objects.hosting import ROOT, conflicts_of, hosting, parted, qualified, state_in
from antecede.objects.instances import Answer, Answered, Local, Made
from antecede.objects.model import Call, Object, relation_of
from antecede.objects.site import TIMEOUT, Site
from antecede.orders import OrderSpec
from antecede.orders.contract import Order
from antecede.orders.objects import Objects

_failed_within = "CallFailed: "


class Placed(msgspec.Struct, frozen=True):
    """An object of the topology."""

    name: str
    servers: tuple[str, ...]
    kind: type[Object]


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step did, as a trace tells it."""

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
    """An address of this server."""
    letter: str
    ask: str
    object: str
    operation: str


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A call has come to its end."""

    called: Called
    ok: bool
    answer: Any
    late: bool
    tries: int


class ReplicasSpec(OrderSpec, frozen=True):
    """The order ``objects`` of a domain whose servers hold objects."""

    servers: tuple[str, ...] = ()
    objects: tuple[Placed, ...] = ()

    def create(self, me: int, members: int) -> "Replicas":
        if members != len(self.servers):
            raise OrderError(f"{members} members: this domain has {len(self.servers)} servers")
        return Replicas(me, self.servers, self.objects, str(self.options.get("clocks", "eager")))

    def sample(self) -> Order:
        return self.create(0, len(self.servers))


def replicas(order: OrderSpec, servers: tuple[str, ...], objects: tuple[Placed, ...]) -> ReplicasSpec:
    """What the servers of a domain run if it has objects."""
    if order.kind is not Objects:
        raise OrderError(f"order {order.name} has no objects")
    if "conflicts" in order.options:
        raise OrderError("option conflicts: what conflicts is declared by the objects' classes")
    return ReplicasSpec(order.kind, order.options, servers, objects)


class Replicas(Site):
    """All objects of one server."""

    def __init__(self, me: int, servers: tuple[str, ...], objects: tuple[Placed, ...], clocks: str) -> None:
        every = {one.name: one.kind for one in objects}
        here = {one.name: one.kind for one in objects if servers[me] in one.servers}
        conflicts = "+".join(f"{one}~{other}" for one, other in conflicts_of(every)) or "none"
        super().__init__(me, hosting(here), servers, conflicts, clocks)
        self.servers = servers
        self.objects = {one.name: one for one in objects}
        self._masks = {one.name: sum(1 << servers.index(server) for server in one.servers) for one in objects}
        self.ended: list[Ended] = []
        """Calls that have come to their end; whoever drives the site empties it."""
        self.rows: list[Row] = []
        """What was done; whoever drives the site empties it."""
        self.conflicts = {
            f"{one.name}@{server}": [list(pair) for pair in relation_of(one.kind).pairs()]
            for one in objects
            for server in one.servers
        }
        """Which operations conflict, at each replica, as a trace's metadata tell it."""
        self.told: dict[str, list[list[str]]] = {}
        """The table of conflicts that the log was told last."""
        self._calls: dict[str, Called] = {}
        """By the root's name."""
        self._strays: dict[str, str] = {}
        """Where messages were delivered that no instance received."""

    def named(self, life: str) -> None:
        """Let all ids that are given here be of this life of the server's data."""
        self.names = tuple(f"{server}.{life}" for server in self.servers)
        self._life = life

    @property
    def open_calls(self) -> int:
        """Calls that began here, or wait to begin, and have not ended."""
        return len(self._calls)

    def state_of(self, name: str) -> dict[str, Any]:
        """What has been committed to the replica of an object here."""
        return state_in(self.objects[name].kind, name, self.state)

    # What the server asks for.

    def call(self, called: Called, arguments: list[Any], deadline_ms: int) -> Effects:
        """Somebody here calls an object; its end will be among ``ended``."""
        given = (called.object, called.operation, arguments)
        name, effects = self.start(ROOT, given, deadline=deadline_ms, by=f"{called.caller}!{self._life}")
        self._calls[name] = called
        return self._sort(effects)

    def tick(self, now: float) -> Effects:
        return self._sort(super().tick(now))

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        verdict, effects = super().receive(packet)
        return verdict, self._sort(effects)

    def send(self, message: Message) -> Effects:
        """A train of letters between agents: no object's business, in causal order with its like."""
        return self.order.send(message)

    # Objects and replicas.

    def _destination(self, call: Call) -> tuple[int, str]:
        if not isinstance(call.to, str):
            return 0, "a call goes to one object at a time: all its replicas get it"
        mask = self._masks.get(call.to, 0)
        return (mask, qualified(call.to, call.operation)) if mask else (0, f"no object {call.to!r}")

    def _united(self, made: Made, replies: dict[int, Answer]) -> Answer:
        failed = next((replies[member] for member in sorted(replies) if not replies[member][0]), None)
        if failed is not None:
            return failed
        members = sorted(replies)
        first = replies[members[0]]
        other = next((member for member in members if replies[member] != first), None)
        if other is not None and msgspec.msgpack.encode(replies[other]) == msgspec.msgpack.encode(first):
            # Not a number is not equal to itself.
            other = None
        if other is None:
            return first
        name, operation = parted(made.operation)
        one, two = self.servers[members[0]], self.servers[other]
        said = f"{_brief(first[1])} at {one}, {_brief(replies[other][1])} at {two}"
        return False, f"the replicas of {name} answer {operation} differently ({said}): is a conflict not declared?"

    def _handed_over(self, message: Message) -> None:
        if message.label is None:
            self.order.begin(message)
        super()._handed_over(message)

    def _deliver_to_nobody(self, message: Message) -> None:
        label = message.label
        assert label is not None
        self._strays[message.id] = self._process(label.operation, label.instance, self.me)
        super()._deliver_to_nobody(message)

    # What was done.

    def _sort(self, effects: Effects) -> Effects:
        """Keep what is for the network and for agents; the rest is told in rows, and to those who called."""
        kept: Effects = []
        for effect in effects:
            if isinstance(effect, Local):
                self._note("local", "", (), effect.instance, effect.operation, effect.type)
            elif isinstance(effect, Answered):
                self._answer(effect)
            elif isinstance(effect, Sent) and effect.message.label is not None:
                self._sent(effect.message, effect.message.label)
            elif isinstance(effect, Deliver) and effect.message.label is not None:
                self._delivered(effect.message, effect.message.label)
            else:
                kept.append(effect)
        return kept

    def _answer(self, answered: Answered) -> None:
        late = not answered.ok and answered.answer == TIMEOUT
        answer = answered.answer
        if not answered.ok:
            answer = str(answer).removeprefix(_failed_within)
        self.ended.append(Ended(self._calls.pop(answered.root), answered.ok, answer, late, answered.tries))

    def _sent(self, message: Message, label: Label) -> None:
        to = tuple(self._process(label.operation, label.instance, member) for member in members_of(message.to))
        self._note("send", message.id, to, label.by_instance, label.by_operation, label.type)

    def _delivered(self, message: Message, label: Label) -> None:
        stray = self._strays.pop(message.id, "")
        if stray:
            self.rows.append(Row("deliver", stray, message.id, (), "", "", label.type))
        else:
            self._note("deliver", message.id, (), label.instance, label.operation, label.type)

    def _note(self, kind: str, message: str, to: tuple[str, ...], instance: str, operation: str, type_: str) -> None:
        process = self._process(operation, instance, self.me)
        self.rows.append(Row(kind, process, message, to, instance, parted(operation)[1], type_))

    def _process(self, operation: str, instance: str, member: int) -> str:
        """Who does something in a trace: a replica, or for a root whoever called."""
        if operation == ROOT:
            return instance.partition("!")[0]
        return f"{parted(operation)[0]}@{self.servers[member]}"

    # State.

    def dump(self) -> Any:
        calls = [(name, msgspec.to_builtins(one)) for name, one in sorted(self._calls.items())]
        return super().dump(), calls, self.told

    def load(self, state: Any) -> None:
        site, calls, self.told = state
        super().load(site)
        self._calls = {name: msgspec.convert(one, Called) for name, one in calls}


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
