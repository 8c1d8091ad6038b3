"""A valid trace in the form that every verdict starts from: processes as numbers, sends by message.

``lines[p]`` are the valid events of process ``p`` in the order of their indices, without ``hop`` rows; processes are
numbered in the order of their names, so that whatever is decided by number is decided by name. ``sends[m]`` says where
message ``m`` was sent, as (process, position in its line).

**The causal order of events.** :meth:`Matched.in_causal_order` walks all events so that each comes after everything
that happened before it. After matching, a delivery may come as soon as its sender's cursor has passed the send, so
one cursor a process is all the state there is. A process is advanced only as far as some delivery needs it, and the
processes that deliver most lead: few messages are then on their way at any moment, which keeps the walk's users small.
"""

from collections.abc import Iterable, Iterator
from operator import attrgetter

import msgspec

from antecede.errors import TraceError
from antecede.trace.schema import DELIVER, HOP, SEND, Event

_by_index = attrgetter("index")


class Matched(msgspec.Struct, frozen=True):
    """The valid events of a trace, by process and by message."""

    names: list[str]
    lines: list[list[Event]]
    sends: dict[str, tuple[int, int]]
    deliveries: int

    def sent(self, message: str) -> Event:
        """The send event of a message."""
        process, position = self.sends[message]
        return self.lines[process][position]

    def undelivered(self) -> int:
        """Pairs of a message and a destination that it never reached; unknown destinations lack nothing."""
        owed = sum(len(event.to) for line in self.lines for event in line if event.kind == SEND and event.to)
        for line in self.lines:
            for event in line:
                if event.kind == DELIVER and self.sent(event.message).to is not None:  # type: ignore[arg-type]
                    owed -= 1
        return owed

    def in_causal_order(self) -> Iterator[tuple[int, int, Event]]:
        """Every event as (process, position, event), after all that happened before it.

        Raises :class:`TraceError` where an event would have to come before itself.
        """
        lines, sends = self.lines, self.sends
        cursors = [0] * len(lines)
        waiting = [False] * len(lines)
        weight = [sum(event.kind == DELIVER for event in line) for line in lines]
        for leader in sorted(range(len(lines)), key=lambda p: -weight[p]):
            stack = [(leader, len(lines[leader]))]
            waiting[leader] = True
            while stack:
                process, target = stack[-1]
                line = lines[process]
                position = cursors[process]
                while position < target:
                    event = line[position]
                    if event.kind == DELIVER:
                        source, sent = sends[event.message]  # type: ignore[index]
                        if source == process:
                            if sent >= position:
                                raise TraceError(f"message {event.message} is delivered before it is sent")
                        elif cursors[source] <= sent:
                            break
                    yield process, position, event
                    position += 1
                cursors[process] = position
                if position >= target:
                    waiting[process] = False
                    stack.pop()
                elif waiting[source]:
                    raise TraceError(f"message {event.message} is delivered before it is sent")
                else:
                    waiting[source] = True
                    stack.append((source, sent + 1))


def match(events: Iterable[Event]) -> Matched:
    """Number the processes and find the sends of events that are known to be well formed."""
    by_process: dict[str, list[Event]] = {}
    for event in events:
        if event.kind != HOP:
            line = by_process.get(event.process)
            if line is None:
                line = by_process[event.process] = []
            line.append(event)
    names = sorted(by_process)
    lines = [by_process[name] for name in names]
    sends: dict[str, tuple[int, int]] = {}
    deliveries = 0
    for process, line in enumerate(lines):
        line.sort(key=_by_index)
        for position, event in enumerate(line):
            if event.kind == SEND:
                sends[event.message] = process, position  # type: ignore[index]
            elif event.kind == DELIVER:
                deliveries += 1
    return Matched(names, lines, sends, deliveries)
