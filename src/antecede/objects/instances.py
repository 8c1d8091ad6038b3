"""Operation instances and roots at one object, and the messages between instances.

An instance's name is a path: the root's name, and for each level of nesting the number of the call. So the n-th call of
an instance has one name wherever it is computed. If several replicas make the same nested call, they give it the same
name. At the called object these calls are *one* instance: it is computed once, and each replica gets the answer.

A root is an operation that a user starts. Its name contains its home and its number there. Each new try after an abort
gets a new name (``P1.3~2``), but keeps the root's first number, so that it is older than all roots that began later.
"""

from typing import Any

import msgspec

from antecede.messages import Deliver, Label, Message
from antecede.orders.contract import pack_message, unpack_message

Number = tuple[int, int, int]
"""A root's age: the time of its first start, its home, its number there. The smallest is the oldest."""

Answer = tuple[bool, Any]
"""Whether a call succeeded; and its result, or the reason of its failure."""

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
    """Its answer, or the reason of its failure in one line."""
    tries: int
    late: bool = False
    """Whether it was aborted because its time was up."""


class Failed(msgspec.Struct, frozen=True):
    """An effect: a call that its home has decided and answered fails here, so this replica differs from others."""

    instance: str
    operation: str
    reason: str


class Stray(Deliver, frozen=True):
    """An effect: the delivery of a message that no instance receives, because its instance has ended here, never
    begins, or does not need the message. The label of the delivered message does not name an instance."""

    meant: Label
    """The original label of the message, which names its instance."""


class Request(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a request."""

    root: str
    number: Number
    arguments: tuple[Any, ...]
    shared: bool = False
    """Whether the request has the arguments of several calls, which are computed one after the other."""
    final: bool = False
    """Whether the root has committed already: then the request is applied immediately, and not answered."""


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
    """Whether no commit or abort is to be sent to the called members: they already got an abort, or the call could not
    be sent, or its home has already decided it."""


class Instance(msgspec.Struct):
    """An operation instance at this object."""

    id: str
    operation: str
    arguments: tuple[Any, ...]
    root: str
    number: Number
    parent: str
    place: int
    """While the instance is queued: its number in the sequence in which instances were queued here. Later: its number
    in the sequence in which instances began here."""
    state: str = QUEUED
    pending: list[Message] = []
    """Requests that were handed over and not delivered, because the instance has not begun."""
    callers: list[Caller] = []
    calls: list[Made] = []
    answers: list[Answer] = []
    replies: dict[int, Answer] = {}
    """The answers, so far, to the call for which the instance waits, by member."""
    answer: Answer | None = None
    decided: bool = False
    """Whether the commit of its root has reached this instance."""
    shared: bool = False
    """Whether it computes several calls, one after the other."""

    @property
    def home(self) -> int:
        return self.number[1]

    def sources(self) -> set[int]:
        """Return the members whose requests led to this instance."""
        return {caller.source for caller in self.callers} | {message.source for message in self.pending}


class Root(msgspec.Struct):
    """A root that was started at this object."""

    name: str
    operation: str
    arguments: tuple[Any, ...]
    number: Number
    tries: int = 1
    deadline: float | None = None
    size: int = 0
    """The bytes of its arguments."""
    parts: list["Root"] = []
    """The roots that were united into this one, which makes the calls of all of them."""
    alone: bool = False
    """Whether it must not be united with other roots, because it was part of a shared root that failed."""

    @property
    def attempt(self) -> str:
        """The name of the root's present try."""
        return self.name if self.tries == 1 else f"{self.name}~{self.tries}"


def instance_out(one: Instance) -> Any:
    """Return an instance as plain values."""
    pending = [(pack_message(message), message.label) for message in one.pending]
    rest = (one.callers, one.calls, one.answers, sorted(one.replies.items()), one.answer, one.decided, one.shared)
    return msgspec.to_builtins((msgspec.structs.astuple(one)[:8], pending, rest), builtin_types=(bytes,))


def instance_in(state: Any) -> Instance:
    """Return the instance of ``instance_out``."""
    head, pending, rest = state
    # Older states do not say whether it is shared.
    callers, calls, answers, replies, *end = msgspec.convert((*rest, False)[:7], _Rest)
    messages = [
        msgspec.structs.replace(unpack_message(packed), label=msgspec.convert(label, Label))
        for packed, label in pending
    ]
    fields: list[Any] = [*msgspec.convert(head, _Head), messages, callers, calls, answers, dict(replies), *end]
    return Instance(*fields)


_Head = tuple[str, str, tuple[Any, ...], str, Number, str, int, str]
_Rest = tuple[list[Caller], list[Made], list[Answer], list[tuple[int, Answer]], Answer | None, bool, bool]
