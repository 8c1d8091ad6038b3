"""Operation instances and roots at one object, and the messages between instances.

A *root* is an operation that a user starts; its *home* is the object where it is started. The root's name contains its
home and its number there: ``P1.3``. After an abort, the root is tried again. Each new try gets a new name (``P1.3~2``).
But the root keeps the time of its first start (:data:`Number`), so it stays older than all roots that began later.

The name of an instance is a path: the root's name, and the numbers of the nested calls. For example, ``P1.3/2/1`` is
the first call of the second call of ``P1.3``. So the n-th call of an instance has the same name at every replica that
computes the instance. If several replicas make the same nested call, the called object has only *one* instance for it.
This instance is computed once, and each replica gets the answer.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from antecede.messages import Deliver, Label, Message
from antecede.orders.contract import pack_message, unpack_message
from antecede.orders.relation import Relation

Number = tuple[int, int, int]
"""A value by which the ages of roots are compared: the time of the root's first start, its home (a member number), and
its number at this home. The oldest root has the smallest value."""

Answer = tuple[bool, Any]
"""The answer to a call: whether the call succeeded, and its result or the reason of its failure."""

QUEUED = "queued"
RUNNING = "running"
DONE = "done"


class Local(msgspec.Struct, frozen=True):
    """An effect: an instance begins, commits or aborts here."""

    type: str
    instance: str
    operation: str
    parent: str


class Answered(msgspec.Struct, frozen=True):
    """An effect: a root that was started here has ended."""

    root: str
    """The name that ``Site.start`` returned."""
    ok: bool
    answer: Any
    """The root's answer, or the reason of its failure as a text."""
    tries: int
    late: bool = False
    """Whether the root was aborted because its deadline had passed."""


class Failed(msgspec.Struct, frozen=True):
    """An effect: a call fails at this replica, but another server (where the call began) has already committed and
    answered it. So the state of this replica now differs from the state of other replicas."""

    instance: str
    operation: str
    reason: str


class Stray(Deliver, frozen=True):
    """An effect: the delivery of a message that no instance receives. The message was meant for an instance that has
    ended here, never begins, or does not need the message. The label of the delivered message does not name an
    instance."""

    meant: Label
    """The original label of the message, which names its instance."""


class Request(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a request, which asks an object to compute an operation."""

    root: str
    number: Number
    arguments: tuple[Any, ...]
    shared: bool = False
    """Whether the request has the arguments of several calls, which are computed one after the other."""
    final: bool = False
    """Whether the call is already committed, because the server where it began has decided this. If so, each replica
    applies the request immediately, and does not answer it."""


class Caller(msgspec.Struct, frozen=True, array_like=True):
    """A caller that waits for an instance's answer."""

    source: int
    instance: str
    operation: str
    several: bool


class Made(msgspec.Struct, array_like=True):
    """A call that an instance has made."""

    operation: str
    to: int
    undone: bool = False
    """Whether the called members must get neither a commit nor an abort. There are three possible reasons: they already
    got an abort, the call could not be sent, or this object has already decided the call alone."""


class Instance(msgspec.Struct):
    """An operation instance at this object: one computation of an operation, with its arguments."""

    id: str
    operation: str
    arguments: tuple[Any, ...]
    root: str
    number: Number
    parent: str
    place: int
    """The position of the instance in a sequence. While the instance is queued, it is the position among the instances
    that were queued here. After it has begun, it is the position among the instances that began here."""
    state: str = QUEUED
    pending: list[Message] = []
    """Requests for this instance that the ordering protocol has already handed to this object. They are not delivered
    to the instance yet, because it has not begun."""
    callers: list[Caller] = []
    calls: list[Made] = []
    answers: list[Answer] = []
    replies: dict[int, Answer] = {}
    """The answers that have arrived for the instance's latest call, by the member that sent them."""
    answer: Answer | None = None
    decided: bool = False
    """Whether this instance has got the commit of its root."""
    shared: bool = False
    """Whether this instance computes several calls that share a request, one after the other."""

    @property
    def home(self) -> int:
        return self.number[1]

    def sources(self) -> set[int]:
        """Return the members whose requests led to this instance."""
        return {caller.source for caller in self.callers} | {message.source for message in self.pending}


class Root(msgspec.Struct):
    """A root: an operation that a user started at this object."""

    name: str
    operation: str
    arguments: tuple[Any, ...]
    number: Number
    tries: int = 1
    deadline: float | None = None
    size: int = 0
    """The size of the arguments in bytes."""
    parts: list["Root"] = []
    """The roots that were united into this root. This root makes the calls of all of them."""
    alone: bool = False
    """Whether this root must not be united with other roots, because it was part of a united root that failed."""

    @property
    def attempt(self) -> str:
        """The name of the present try (execution) of the root."""
        return self.name if self.tries == 1 else f"{self.name}~{self.tries}"


def instance_out(one: Instance) -> Any:
    """Return an instance as plain values."""
    pending = [(pack_message(message), message.label) for message in one.pending]
    rest = (one.callers, one.calls, one.answers, sorted(one.replies.items()), one.answer, one.decided, one.shared)
    return msgspec.to_builtins((msgspec.structs.astuple(one)[:8], pending, rest), builtin_types=(bytes,))


def instance_in(state: Any) -> Instance:
    """Return the instance from the plain values that ``instance_out`` returned."""
    head, pending, rest = state
    callers, calls, answers, replies, *end = msgspec.convert(rest, _Rest)
    messages = [
        msgspec.structs.replace(unpack_message(packed), label=msgspec.convert(label, Label))
        for packed, label in pending
    ]
    fields: list[Any] = [*msgspec.convert(head, _Head), messages, callers, calls, answers, dict(replies), *end]
    return Instance(*fields)


_Head = tuple[str, str, tuple[Any, ...], str, Number, str, int, str]
_Rest = tuple[list[Caller], list[Made], list[Answer], list[tuple[int, Answer]], Answer | None, bool, bool]


# The operation instances at one object, and the locks that decide when an instance may begin (*ready* in §4.3 of
# Enokido, Higaki, Takizawa).
#
# An instance is queued when its request is handed over, and begins when no conflicting instance blocks it. There are
# two cases in which a conflicting instance X blocks a queued instance Y:
#
# * X has begun, and X and Y belong to different roots. Then X blocks Y until the root of X has ended.
# * X was queued before Y and has not begun. So conflicting instances begin in the order in which they were handed over.
#   This order is the same at all objects that get both requests.


class Table:
    """All operation instances at one object: those that are queued, and those that have begun."""

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.instances: dict[str, Instance] = {}
        self.changed = True
        """Whether an instance was queued, began or was removed since the site last looked for instances that may
        begin."""
        self._handed = 0
        self._begun = 0
        self._queued: dict[str, Instance] = {}
        """The instances that have not begun, in the order in which they were queued."""
        self._by_root: dict[str, dict[str, Instance]] = {}
        self._by_operation: dict[str, dict[str, Instance]] = {}
        self._rank: dict[str, int] = {}
        """For each instance: its number in the sequence in which the instances were added to the table."""
        self._ranks = 0

    def queue(self, one: Instance) -> None:
        """Add a new instance to the end of the queue."""
        self._handed += 1
        one.place = self._handed
        self._add(one)
        self._queued[one.id] = one
        self.changed = True

    def _add(self, one: Instance) -> None:
        self.instances[one.id] = one
        self._by_root.setdefault(one.root, {})[one.id] = one
        self._by_operation.setdefault(one.operation, {})[one.id] = one
        self._ranks += 1
        self._rank[one.id] = self._ranks

    def remove(self, one: Instance) -> None:
        """Remove an instance that has ended."""
        del self.instances[one.id]
        del self._rank[one.id]
        self._queued.pop(one.id, None)
        for index, key in ((self._by_root, one.root), (self._by_operation, one.operation)):
            del index[key][one.id]
            if not index[key]:
                del index[key]
        self.changed = True

    def begin(self, one: Instance) -> None:
        """Mark a queued instance as running. Its operation is executed after the operations of all instances that began
        earlier."""
        self._begun += 1
        one.place = self._begun
        one.state = RUNNING
        del self._queued[one.id]
        self.changed = True

    def queued(self) -> list[Instance]:
        """Return the instances that have not begun, in the order in which they were queued."""
        return list(self._queued.values())

    def begun(self, root: str) -> list[Instance]:
        """Return the instances of a root that have begun here, in the order in which they began."""
        found = [one for one in self._by_root.get(root, {}).values() if one.state != QUEUED]
        return sorted(found, key=lambda one: one.place)

    def holds(self, root: str) -> bool:
        """Return whether an instance of this root is in the table."""
        return root in self._by_root

    def blocked(self, one: Instance) -> bool:
        """Return whether any instance blocks this queued instance."""
        return any(True for _ in self._in_its_way(one))

    def rivals(self, one: Instance) -> list[Instance]:
        """Return the instances that block this queued instance, in the sequence in which they came into the table."""
        return sorted(self._in_its_way(one), key=lambda other: self._rank[other.id])

    def _in_its_way(self, one: Instance) -> Iterator[Instance]:
        for operation, instances in self._by_operation.items():
            if self.relation.conflict(operation, one.operation):
                for other in instances.values():
                    if other is not one and self._in_the_way(other, one):
                        yield other

    def _in_the_way(self, other: Instance, one: Instance) -> bool:
        if not self.relation.conflict(other.operation, one.operation):
            return False
        return other.place < one.place if other.state == QUEUED else other.root != one.root

    def dump(self) -> Any:
        """Return the state as plain values. The sequence of the instances is kept: if several of them block an older
        instance, their roots are asked in this sequence to make way (to abort and wait)."""
        return (self._handed, self._begun, [instance_out(one) for one in self.instances.values()])

    def load(self, state: Any) -> None:
        """Load the state from ``dump``."""
        self._handed, self._begun, instances = state
        for index in (self.instances, self._by_root, self._by_operation, self._rank):
            index.clear()
        for one in map(instance_in, instances):
            self._add(one)
        queued = [one for one in self.instances.values() if one.state == QUEUED]
        self._queued = {one.id: one for one in sorted(queued, key=lambda one: one.place)}
