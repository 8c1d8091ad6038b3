"""Walk through all events, so that each event comes after all events that happened before it. Each process has one
cursor: the position of its next event.

After matching, each delivery contains the position of its send. So the walk can pass a delivery as soon as the cursor
of the sender is after the send. The walk begins with the processes that have the most deliveries. If a delivery must
wait for its send, the walk advances the sender, but only to this send. As a result, few messages are in transit at any
moment. This saves memory in all code that follows the walk, because such code stores data for each message in transit.

The result of the walk is a list of *segments* (process, from, to). It is written to arrays of bounded length. When the
arrays are full, the walk stops, and the next call continues there. Between two calls, the cursors are a consistent cut
of the trace.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled, inner

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

NOTHING, SENT = -1, -2
"""Values in ``source`` at events that are not deliveries: ``SENT`` for a send, ``NOTHING`` for any other event.
``NOTHING`` also replaces the value of a send or delivery that must not be judged, for example because its position was
only guessed when the trace was imported."""

MORE, DONE, STUCK = 0, 1, 2
"""The status that :func:`step` returns. ``MORE``: the arrays are full, so call ``step`` again. ``DONE``: the walk is
complete. ``STUCK``: the walk cannot continue, because an event would have to come before itself."""


class Flat(NamedTuple):
    """The lines (lists of events) of all processes, as arrays. :mod:`antecede.pipeline.match.lines` explains the
    arrays."""

    offsets: Longs
    source: Ints
    argument: Ints


class Segments(NamedTuple):
    """The segments of a walk, in sequence. A segment has the events of one process from position ``begin`` up to, but
    not including, ``end``. A kernel that stops early within a segment sets ``begin`` of this segment to the position at
    which to continue."""

    process: Ints
    begin: Longs
    end: Longs


class Cursors(NamedTuple):
    """The progress of a walk."""

    leaders: Ints
    """The processes, in the order in which the walk selects them. The walk goes to the end of one process, and then
    selects the next."""
    state: Longs
    """Two numbers: the position in ``leaders`` of the process that is selected next, and the number of entries on the
    stack (``stack_process`` and ``stack_target``)."""
    at: Longs
    """For each process, the position up to which its line was walked."""
    waiting: NDArray[np.uint8]
    stack_process: Ints
    stack_target: Longs


@compiled
def step(lines: Flat, walked: Cursors, segments: Segments) -> tuple[int, int]:
    """Continue the walk. Return the number of segments written, and the status."""
    offsets, source, argument = lines.offsets, lines.source, lines.argument
    leaders, state, cursors, waiting = walked.leaders, walked.state, walked.at, walked.waiting
    stack_process, stack_target = walked.stack_process, walked.stack_target
    out_process, out_from, out_to = segments.process, segments.begin, segments.end
    written = 0
    next_leader, depth = state[0], state[1]
    status = MORE
    while written < len(out_process):
        if depth == 0:
            if next_leader == len(leaders):
                status = DONE
                break
            leader = leaders[next_leader]
            next_leader += 1
            stack_process[0] = leader
            stack_target[0] = offsets[leader + 1] - offsets[leader]
            waiting[leader] = 1
            depth = 1
        process = stack_process[depth - 1]
        target = stack_target[depth - 1]
        base = offsets[process]
        begun = cursors[process]
        position = begun
        blocked_on = -1
        while position < target:
            sender = source[base + position]
            if sender >= 0:
                sent = argument[base + position]
                if (sender == process and sent >= position) or (sender != process and cursors[sender] <= sent):
                    blocked_on = sender
                    break
            position += 1
        cursors[process] = position
        if position > begun:
            out_process[written] = process
            out_from[written] = begun
            out_to[written] = position
            written += 1
        if blocked_on < 0:
            waiting[process] = 0
            depth -= 1
        elif waiting[blocked_on]:
            status = STUCK
            break
        else:
            waiting[blocked_on] = 1
            stack_process[depth] = blocked_on
            stack_target[depth] = argument[base + position] + 1
            depth += 1
    state[0], state[1] = next_leader, depth
    return written, status


@compiled
def place(
    offsets: Longs, source: Ints, argument: Ints, process: Ints, position: Longs, sender: Ints, sent: Longs
) -> None:
    """Write deliveries into the lines. At each delivery, write its sender, and the position of its send in the sender's
    line. At this send, write ``SENT`` and add 1 to the number of deliveries."""
    for row in range(len(process)):
        at = offsets[process[row]] + position[row]
        source[at], argument[at] = sender[row], sent[row]
        at = offsets[sender[row]] + sent[row]
        source[at] = SENT
        argument[at] += 1


@compiled
def weigh(offsets: Longs, source: Ints, first: int, last: int, weights: Longs) -> None:
    """Count the deliveries of each of the processes ``first`` to ``last`` − 1, and add the counts to ``weights``."""
    for process in range(first, last):
        for k in range(offsets[process], offsets[process + 1]):
            weights[process] += source[k] >= 0


@compiled
def mark_senders(source: Ints, sending: NDArray[np.bool_]) -> None:
    """For each delivery in ``source``, mark the sender of its message in ``sending``. ``source`` is a part of the array
    with this name in :class:`Flat`."""
    for k in range(len(source)):
        if source[k] >= 0:
            sending[source[k]] = True


@compiled
def recount(lines: Flat, segments: Segments, count: int) -> None:
    """Restore the number of deliveries at each send. An earlier walk has replaced these numbers by slot numbers (a slot
    is the place in memory for a message in transit). Each call processes the next ``count`` segments of
    a new walk: it sets the number at each send to 0, and then adds 1 to this number for each delivery of the send."""
    offsets, source, argument = lines.offsets, lines.source, lines.argument
    for s in range(count):
        base = offsets[segments.process[s]]
        for position in range(segments.begin[s], segments.end[s]):
            sender = source[base + position]
            if sender == SENT:
                argument[base + position] = 0
            elif sender >= 0:
                argument[offsets[sender] + argument[base + position]] += 1


@compiled
def circular(offsets: Longs, source: Ints, argument: Ints, cursors: Longs) -> Longs:
    """Return the flat positions of the deliveries that lie on a cycle together with their sends. (Each event on a cycle
    would have to happen before itself.)

    No event before the cut ``cursors`` lies on a cycle, so only the later events are searched. The events form a graph.
    An edge leads from each event to the next event of its process, and from each send to each of its deliveries. A
    delivery lies on a cycle together with its send iff both are in one strongly connected component of this graph.
    Tarjan's algorithm, without recursion, finds the components (see antecede.trace.quarantine).
    """
    processes = len(offsets) - 1
    events = offsets[processes]
    owner = np.empty(events, np.int32)
    first = np.zeros(events + 1, np.int64)
    for process in range(processes):
        for k in range(offsets[process], offsets[process + 1]):
            owner[k] = process
            if k - offsets[process] >= cursors[process] and source[k] >= 0:
                send = offsets[source[k]] + argument[k]
                if argument[k] >= cursors[source[k]]:
                    first[send + 1] += 1
    for k in range(events):
        first[k + 1] += first[k]
    delivered_as = np.empty(first[events], np.int64)
    fill = first[:-1].copy()
    for process in range(processes):
        for k in range(offsets[process] + cursors[process], offsets[process + 1]):
            if source[k] >= 0 and argument[k] >= cursors[source[k]]:
                send = offsets[source[k]] + argument[k]
                delivered_as[fill[send]] = k
                fill[send] += 1
    component = _components(offsets, owner, first, delivered_as, cursors)
    found = np.zeros(0, np.int64)
    for only_count in (True, False):
        count = 0
        for process in range(processes):
            for k in range(offsets[process] + cursors[process], offsets[process + 1]):
                if source[k] >= 0 and argument[k] >= cursors[source[k]]:
                    send = offsets[source[k]] + argument[k]
                    if component[send] == component[k]:
                        if not only_count:
                            found[count] = k
                        count += 1
        if only_count:
            found = np.empty(count, np.int64)
    return found


@inner
def _components(offsets: Longs, owner: Ints, first: Longs, delivered_as: Longs, cursors: Longs) -> Longs:
    events = len(owner)
    unseen = -1
    number = np.full(events, unseen, np.int64)
    lowest = np.zeros(events, np.int64)
    component = np.full(events, unseen, np.int64)
    open_nodes = np.empty(events, np.int64)
    path_node = np.empty(events + 1, np.int64)
    path_edge = np.empty(events + 1, np.int64)
    opened = counted = 0
    for process in range(len(offsets) - 1):
        for root in range(offsets[process] + cursors[process], offsets[process + 1]):
            if number[root] != unseen:
                continue
            depth = 1
            path_node[0], path_edge[0] = root, 0
            while depth:
                depth -= 1
                node, edge = path_node[depth], path_edge[depth]
                # Edge 0 leads to the next event of the process, if there is one; the others lead to the deliveries of a
                # send.
                edges = 1 + first[node + 1] - first[node]
                if edge == 0:
                    number[node] = lowest[node] = counted
                    counted += 1
                    open_nodes[opened] = node
                    opened += 1
                else:
                    child = node + 1 if edge == 1 else delivered_as[first[node] + edge - 2]
                    lowest[node] = min(lowest[node], lowest[child])
                descended = False
                while edge < edges:
                    target = node + 1 if edge == 0 else delivered_as[first[node] + edge - 1]
                    edge += 1
                    if edge == 1 and target >= offsets[owner[node] + 1]:
                        continue
                    if number[target] == unseen:
                        path_node[depth], path_edge[depth] = node, edge
                        path_node[depth + 1], path_edge[depth + 1] = target, 0
                        depth += 2
                        descended = True
                        break
                    if component[target] == unseen:
                        lowest[node] = min(lowest[node], number[target])
                if not descended and lowest[node] == number[node]:
                    while True:
                        opened -= 1
                        member = open_nodes[opened]
                        component[member] = node
                        if member == node:
                            break
    return component
