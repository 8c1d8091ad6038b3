"""The operation instances of a trace: their rows, their duration, their parents.

An instance is one execution of an operation at one object. A row names its instance in ``instance``, and its object in
``process``. A row with the same instance name at another object belongs to another instance, for example to the
instance of the same call at another replica. Only ``send``, ``deliver`` and ``local`` rows belong to an instance. These
rules fill in missing information, so that a minimal trace can be judged too:

* An instance **runs from its first row to its last**. Its rows ``begin``, ``commit`` and ``abort`` are treated like its
  other rows. So if they are recorded, they mark its start and end. Let A and B be instances at one object. A *precedes*
  B if the last row of A comes before the first row of B (Enokido, Higaki, Takizawa §3.1). If neither precedes the
  other, they are interleaved.
* Its **operation** is the first operation that its rows name. Without an operation, it conflicts with no instance.
* It **aborted** if it has a ``local`` row of type ``abort``. Then all its effects are undone, and no later instance
  depends on it by a conflict. (By §4.1 of the paper, an object's vector includes only instances that commit.)
* Its **parent** is the first parent in the rows with the same instance name, in the order of processes and indices.
* The type of a delivery is its own ``type`` or, if it has none, the type of its send. ``commit`` and ``abort`` end an
  instance. All other types except ``request`` are treated as a **response**. An instance begins with its request (§3.2
  of the paper, R1). So there are two cases if the delivery and its send have no type. If the delivery is the first
  message that its instance received or sent, it is a request. Otherwise it is a response.
* An instance has **one request**, the first. If several replicas make the same nested call, the request of this call
  comes more than once. The later requests are ignored.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from antecede.trace.matched import Matched
from antecede.trace.schema import DELIVER, LOCAL, SEND, Event

REQUEST: Final = "request"
RESPONSE: Final = "response"
COMMIT: Final = "commit"
ABORT: Final = "abort"


class Instance(msgspec.Struct, gc=False):
    """One execution of an operation at one object. ``process`` is the number of the object's process. ``first``,
    ``last``, ``opening`` and ``request`` are positions in the list of this process's rows."""

    name: str
    process: int
    first: int
    last: int
    operation: str | None = None
    aborted: bool = False
    opening: int = -1
    """The position at which the instance sent or received its first message; -1 if it has no messages."""
    request: int = -1
    """The position at which the instance received its request; -1 if it received none."""


class Instances:
    """All instances of a trace."""

    def __init__(self, trace: Matched) -> None:
        self.trace = trace
        self.by_name: list[dict[str, Instance]] = [{} for _ in trace.lines]
        self._parents: dict[str, str] = {}
        self.judged = 0
        """The number of deliveries for which the trace names the instance that received the message."""
        for process, line in enumerate(trace.lines):
            for position, event in enumerate(line):
                if event.instance is not None and event.kind in (SEND, DELIVER, LOCAL):
                    self._take(process, position, event, event.instance)

    def _take(self, process: int, position: int, event: Event, name: str) -> None:
        found = self.by_name[process].get(name)
        if found is None:
            found = self.by_name[process][name] = Instance(name, process, position, position)
        found.last = position
        if found.operation is None:
            found.operation = event.operation
        if event.kind != LOCAL and found.opening < 0:
            found.opening = position
        if event.kind == DELIVER:
            self.judged += 1
            if found.request < 0 and self._type(event) in (
                (REQUEST, None) if found.opening == position else (REQUEST,)
            ):
                found.request = position
        elif event.kind == LOCAL and event.type == ABORT:
            found.aborted = True
        if event.parent is not None:
            self._parents.setdefault(name, event.parent)

    def operations(self) -> set[str]:
        """Return the operations of all instances."""
        return {one.operation for own in self.by_name for one in own.values() if one.operation is not None}

    def of(self, process: int, event: Event) -> Instance | None:
        """Return the instance to which a row belongs; ``None`` if it belongs to no instance."""
        if event.instance is None or event.kind not in (SEND, DELIVER, LOCAL):
            return None
        return self.by_name[process][event.instance]

    def received_as(self, process: int, position: int, event: Event) -> str | None:
        """Return the role that a delivery has for the rule "significant order": request or response. If this order
        ignores the delivery, return ``None``.

        The order ignores a delivery if no instance received it, or if its instance aborted. It also ignores a delivery
        that only ended its instance or repeats the instance's request.
        """
        instance = self.of(process, event)
        if instance is None or instance.aborted:
            return None
        if position == instance.request:
            return REQUEST
        return None if self._type(event) in (REQUEST, COMMIT, ABORT) else RESPONSE

    def _type(self, event: Event) -> str | None:
        return event.type if event.type is not None else self.trace.sent(event.message or "").type

    def ancestors_among(self, name: str, names: Collection[str]) -> list[str]:
        """Return the ancestors of one instance, beginning with the nearest, but only ancestors whose name is in
        ``names``. ``name`` is the name of the instance. If the parents form a cycle, the search stops when it reaches
        an instance for the second time."""
        found: list[str] = []
        seen = {name}
        current = self._parents.get(name)
        while current is not None and current not in seen:
            seen.add(current)
            if current in names:
                found.append(current)
            current = self._parents.get(current)
        return found
