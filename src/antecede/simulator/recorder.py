"""The recorder, which turns the events of a simulated world into the rows of a trace.

It numbers the events of each process 0, 1, 2 … without gaps. The ``hop`` rows of routers are numbered separately,
because they are events of the server and not of its application. Virtual seconds become nanoseconds. The stamp size in
a send row is the mean over the copies that leave in the same step. The stamp size in an arrival row is the size of the
stamp of the copy that arrived.

A message between operations of objects contains a :class:`antecede.messages.Label` with the names of the instances and
their operations. These names fill the columns ``instance``, ``operation``, ``parent`` and ``type``.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from antecede.messages import REQUEST, Message, members_of
from antecede.trace import ARRIVE, DELIVER, HOP, LOCAL, SEND, Event
from antecede.trace.schema import INT64_MAX


def process_names(processes: int) -> list[str]:
    """Return the names that simulated processes have in traces: P1 … Pn."""
    return [f"P{number}" for number in range(1, processes + 1)]


def mean_size(sizes: list[int]) -> int | None:
    """Return the mean of these stamp sizes, rounded, or None if the list is empty."""
    return round(sum(sizes) / len(sizes)) if sizes else None


class Recorder:
    """An observer that hands every event to ``sink``, in the sequence in which the events happen."""

    weighs: ClassVar[bool] = True

    def __init__(self, names: Sequence[str], sink: Callable[[Event], None]) -> None:
        self.names = names
        self._sink = sink
        self._next = [0] * len(names)
        self._next_hop = [0] * len(names)

    def sent(self, process: int, message: Message, sizes: list[int], now: float | None) -> None:
        names, label = self.names, message.label
        to = tuple([names[target] for target in members_of(message.to)])
        columns = None if label is None else _columns(label.by_instance, label.by_operation, "", label.type)
        self.row(process, SEND, now, message.id, to, mean_size(sizes) if sizes else None, columns)

    def arrived(self, process: int, message: Message, size: int | None, now: float | None) -> None:
        self.row(process, ARRIVE, now, message.id, None, size)

    def delivered(self, process: int, message: Message, now: float | None) -> None:
        label, columns = message.label, None
        if label is not None:
            parent = label.by_instance if label.type == REQUEST else ""
            columns = _columns(label.instance, label.operation, parent, label.type)
        self.row(process, DELIVER, now, message.id, None, None, columns)

    def local(self, process: int, now: float, instance: str, operation: str, parent: str, type_: str) -> None:
        """Record that an operation begins or ends. ``instance`` is the name of this execution of the operation."""
        self.row(process, LOCAL, now, columns=_columns(instance, operation, parent, type_))

    def hopped(
        self, process: int, message: Message, domain: str, hop: int, sizes: list[int], now: float | None
    ) -> None:
        """Record that a router has forwarded a message into its next domain."""
        index = self._next_hop[process]
        self._next_hop[process] = index + 1
        columns: dict[str, Any] = {"domain": domain, "hop": hop, "stamp_bytes": mean_size(sizes)}
        self._sink(Event(self.names[process], index, HOP, message.id, time=_nanoseconds(now), **columns))

    def row(
        self,
        process: int,
        kind: str,
        now: float | None,
        message: str | None = None,
        to: tuple[str, ...] | None = None,
        size: int | None = None,
        columns: dict[str, Any] | None = None,
    ) -> None:
        """Record one event of the application."""
        index = self._next[process]
        self._next[process] = index + 1
        time = None if now is None else _nanoseconds(now)
        if columns:
            self._sink(Event(self.names[process], index, kind, message, to, time, None, None, size, **columns))
        else:
            self._sink(Event(self.names[process], index, kind, message, to, time, None, None, size))


def _columns(instance: str, operation: str, parent: str, type_: str) -> dict[str, str]:
    columns = {"instance": instance, "operation": operation, "parent": parent, "type": type_}
    return {name: value for name, value in columns.items() if value}


def _nanoseconds(now: float | None) -> int | None:
    """Return virtual seconds as nanoseconds, but at most the largest number that a trace can have (about 292 years)."""
    return None if now is None else min(round(now * 1e9), INT64_MAX)
