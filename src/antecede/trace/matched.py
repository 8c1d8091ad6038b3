"""A valid trace, prepared for all verdicts: each process has a number, and a table gives the send of each message.

``lines[p]`` are the valid events of process ``p`` in the order of their indices, without ``hop`` rows. Processes are
numbered in the order of their names, so sorting by number also sorts by name. ``sends[m]`` is the send of message
``m``, as (process, position in ``lines[process]``). ``origins`` has the same pair for each delivery, because in a trace
of millions of events it is slow to look up every message id in ``sends``.

**The walk over all events.** :meth:`Matched.in_causal_order` yields all events. Each event comes after all events that
happened before it. The method keeps a cursor for each process: the position of its next event. The method yields a
delivery only after the cursor of the sender has passed the send. The method takes one process after the other,
beginning with the process that has the most deliveries. It advances the other processes only as far as is necessary for
the next delivery. Therefore, only a few messages are in transit at any moment. This saves memory in the code that uses
the events.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import cast

import msgspec

from antecede.errors import TraceError
from antecede.trace.schema import DELIVER, HOP, SEND, Event
from antecede.trace.verdicts import Late

_by_index = attrgetter("index")


class Matched(msgspec.Struct, frozen=True):
    """The valid events of a trace, by process and by message."""

    names: list[str]
    lines: list[list[Event]]
    sends: dict[str, tuple[int, int]]
    origins: list[list[tuple[int, int] | None]]
    """One list for each list in ``lines``, with one entry for each event. For a delivery, the entry says where its
    message was sent: (process, position), as in ``sends``. For any other event, the entry is ``None``."""
    deliveries: int

    def sent(self, message: str) -> Event:
        """The send event of a message."""
        process, position = self.sends[message]
        return self.lines[process][position]

    def late(self, delivery: Event, overtaken_by: str = "", rule: str = "") -> Late:
        """Return the :class:`Late` that describes a late delivery."""
        message = delivery.message or ""
        send = self.sent(message)
        return Late(delivery.index, delivery.process, message, send.process, send.index, overtaken_by, rule)

    def undelivered(self) -> int:
        """Return how many copies were not delivered. A message has one copy for each destination. If the destinations
        of a message are unknown, the message is not counted."""
        sends = [event for line in self.lines for event in line if event.kind == SEND]
        expected = sum(len(event.to) for event in sends if event.to)
        unknown = {event.message for event in sends if event.to is None}
        if not unknown:
            return expected - self.deliveries
        known = (e.kind == DELIVER and e.message not in unknown for line in self.lines for e in line)
        return expected - sum(known)

    def in_causal_order(self) -> Iterator[tuple[int, int, Event]]:
        """Yield every event as (process, position, event). Each event comes after all events that happened before it.

        Raises :class:`TraceError` if this is impossible, because some events form a cycle.
        """
        lines = self.lines
        cursors = [0] * len(lines)
        waiting = [False] * len(lines)
        weight = [len(origins) - origins.count(None) for origins in self.origins]
        for leader in sorted(range(len(lines)), key=lambda p: -weight[p]):
            stack = [(leader, len(lines[leader]))]
            waiting[leader] = True
            while stack:
                process, target = stack[-1]
                line, origins = lines[process], self.origins[process]
                position = cursors[process]
                while position < target:
                    event, origin = line[position], origins[position]
                    if origin is not None:
                        source, sent = origin
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
    """Return a :class:`Matched` of well-formed events, which may come in any order. Rows of kind ``hop`` are left
    out."""
    by_process: dict[str, list[Event]] = {}
    for event in events:
        if event.kind != HOP:
            line = by_process.get(event.process)
            if line is None:
                line = by_process[event.process] = []
            line.append(event)
    for line in by_process.values():
        line.sort(key=_by_index)
    names = sorted(by_process)
    return of_lines(names, [by_process[name] for name in names])


def of_lines(names: list[str], lines: list[list[Event]]) -> Matched:
    """Return a :class:`Matched` of events that are already grouped by process and sorted by index."""
    sends: dict[str | None, tuple[int, int]] = {
        event.message: (process, position)
        for process, line in enumerate(lines)
        for position, event in enumerate(line)
        if event.kind == SEND
    }
    origins = [[sends[event.message] if event.kind == DELIVER else None for event in line] for line in lines]
    deliveries = sum(len(line) - line.count(None) for line in origins)
    return Matched(names, lines, cast("dict[str, tuple[int, int]]", sends), origins, deliveries)


def merged(
    lengths: Sequence[int],
    needs: Callable[[int, int], Iterable[tuple[int, int]]],
    rank: Callable[[int, int], int] = lambda line, position: 0,
) -> Iterator[tuple[int, int]]:
    """Merge several sequences (lines) into one sequence, in which the elements of each line keep their order. Yield
    each element as (line, position). ``needs`` returns the elements that must come before a given element.

    ``lengths`` are the lengths of the lines. Among the elements that may come next, the one with the smallest rank
    comes first. Elements that would have to come before each other (a *cycle*) are left out, and also all
    elements that must come after a cycle.
    """
    cursors = [0] * len(lengths)
    waiting: dict[tuple[int, int], list[int]] = {}
    ready = [(rank(line, 0), line) for line, length in enumerate(lengths) if length]
    heapify(ready)
    while ready:
        _, line = heappop(ready)
        place = line, cursors[line]
        missing = next((need for need in needs(*place) if cursors[need[0]] <= need[1]), None)
        if missing is not None:
            waiting.setdefault(missing, []).append(line)
            continue
        yield place
        cursors[line] += 1
        for following in (line, *waiting.pop(place, ())):
            if cursors[following] < lengths[following]:
                heappush(ready, (rank(following, cursors[following]), following))
