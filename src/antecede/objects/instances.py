"""Operation instances and roots at one object, and the messages between instances.

A *root* is an operation that a user starts; its *home* is the object where it is started. The root's name contains its
home and its number there: ``P1.3``. After an abort, the root is tried again. Each new try gets a new name (``P1.3~2``).
But the root keeps the time of its first start (:data:`Number`), so it stays older than all roots that began later.

The name of an instance is a path: the root's name, and the numbers of the nested calls. For example, ``P1.3/2/1`` is
the first call of the second call of ``P1.3``. So the n-th call of an instance has the same name at every replica that
computes the instance. If several replicas make the same nested call, the called object has only *one* instance for it.
This instance is computed once, and each replica gets the answer.
"""

from typing import Any

import msgspec

from antecede.messages import Deliver, Label, Message
from antecede.orders.contract import pack_message, unpack_message

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
