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

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import Ints, Longs, compiled, inner

NOTHING, SENT = -1, -2
"""Values in ``source`` at events that are not deliveries: ``SENT`` for a send, ``NOTHING`` for any other event.
``NOTHING`` also replaces the value of a send or delivery that must not be judged, for example because its position was
only guessed when the trace was imported."""

MORE, DONE, STUCK = 0, 1, 2
"""The status that :func:`step` returns. ``MORE``: the arrays are full, so call ``step`` again. ``DONE``: the walk is
complete. ``STUCK``: the walk cannot continue, because an event would have to come before itself."""


class Flat(NamedTuple):
    """The lines (lists of events) of all processes, as arrays. :mod:`antecede.pipeline.match` explains the
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


# Slots store the data that messages carry. The kernels (compiled loops) that follow a walk over the events share this
# module.
#
# A message carries a vector (or a set) with the knowledge of its sender. The vector is stored in a *slot* from the send
# of the message to its last delivery. During that time, the entry of the send in the array ``argument`` is the number
# of the slot. Until the walk reaches the send, this entry is the number of deliveries of the message. A delivery knows
# the position of its send, so it finds the slot.
#
# Arguments that belong together are combined into named tuples. In compiled code, named tuples cost nothing.


Make = Callable[[tuple[int, int], Any], NDArray[Any]]

FIRST_SLOTS = 64


class Slots(NamedTuple):
    """The data that messages carry, one row per slot. A slot is in use until the last delivery of its messages."""

    rows: NDArray[Any]
    outstanding: Ints
    """For each slot, the number of deliveries that are still awaited."""
    free: Ints
    """The numbers of the free slots, in the first ``left[0]`` entries. The other entries are unused."""
    left: Longs


class Vectors(NamedTuple):
    """The vectors of the processes. The vector of a process shows which sends this process knows through deliveries."""

    lane_of: Ints
    """For each process, the lane of its entry in the vectors, or -1 if the process has no lane."""
    known: NDArray[Any]
    """For each process, the entries of its vector."""
    slot_of: Ints
    """For each process, the slot that its next send can share; -1 if there is no such slot."""


def slots_of(lanes: int, kind: Any, count: int = FIRST_SLOTS, make: Make = np.zeros) -> Slots:
    """Return ``count`` free slots."""
    return Slots(make((count, lanes), kind), np.zeros(count, np.int32), free_of(count), np.array([count], np.int64))


def free_of(count: int) -> Ints:
    """Return a list of free numbers: all numbers from 0 to ``count`` - 1."""
    return np.arange(count, dtype=np.int32)


def grown(slots: Slots, make: Make = np.zeros) -> Slots:
    """Return ``slots`` unchanged if one of them is free. Otherwise return twice as many slots; the new ones are
    free."""
    if slots.left[0]:
        return slots
    old = len(slots.outstanding)
    rows = make((2 * old, slots.rows.shape[1]), slots.rows.dtype)
    rows[:old] = slots.rows
    return Slots(rows, doubled(slots.outstanding), more_free(slots.free), np.array([old], np.int64))


def more_free(free: Ints) -> Ints:
    """Return a new list of free numbers, twice as long as ``free``. Call this only if all old numbers are in use. The
    first half of the new list has new numbers, which are free. The second half is unused."""
    old = len(free)
    return np.concatenate([np.arange(old, 2 * old, dtype=np.int32), np.zeros(old, np.int32)])


def doubled(rows: NDArray[Any], axis: int = 0) -> NDArray[Any]:
    """Return the array with twice as many rows. If ``axis`` is 1, it has twice as many columns instead. The new rows or
    columns are zero."""
    return np.concatenate([rows, np.zeros_like(rows)], axis=axis)


@compiled
def take(slots: Slots, deliveries: int) -> int:
    """Reserve a free slot for a message that has ``deliveries`` deliveries, and return the number of the slot. At least
    one slot must be free."""
    slots.left[0] -= 1
    slot: int = slots.free[slots.left[0]]
    slots.outstanding[slot] = deliveries
    return slot


@inner
def give_back(slots: Slots, slot: int) -> None:
    """Count one delivery of the message in ``slot``. After the last delivery, the slot becomes free. Call this only for
    a slot that no other send shares."""
    slots.outstanding[slot] -= 1
    if slots.outstanding[slot] == 0:
        slots.free[slots.left[0]] = slot
        slots.left[0] += 1


@inner
def depart(process: int, at: int, argument: Ints, vectors: Vectors, slots: Slots) -> bool:
    """Assign a slot to the send at ``at``. If the process has learned nothing since its previous send, both sends share
    one slot. Otherwise copy the vector of the process into a free slot. Return False if there is no free slot."""
    slot = vectors.slot_of[process]
    if slot < 0:
        if slots.left[0] == 0:
            return False
        slots.left[0] -= 1
        slot = slots.free[slots.left[0]]
        for k in range(vectors.known.shape[1]):
            slots.rows[slot, k] = vectors.known[process, k]
        vectors.slot_of[process] = slot
    slots.outstanding[slot] += argument[at]
    argument[at] = slot
    return True


@compiled
def arrive(slot: int, sender: int, vectors: Vectors, slots: Slots) -> None:
    """Count one delivery of a message in ``slot``. Several messages of ``sender`` may share the slot. After the last
    delivery of these messages, the slot becomes free, unless the next send of ``sender`` can share it."""
    slots.outstanding[slot] -= 1
    if slots.outstanding[slot] == 0 and vectors.slot_of[sender] != slot:
        slots.free[slots.left[0]] = slot
        slots.left[0] += 1


@inner
def renew(process: int, vectors: Vectors, slots: Slots) -> None:
    """Record that a process has learned something. Its next send then takes a new slot. The slot of its previous sends
    becomes free if all their messages have been delivered."""
    slot = vectors.slot_of[process]
    if slot >= 0:
        vectors.slot_of[process] = -1
        if slots.outstanding[slot] == 0:
            slots.free[slots.left[0]] = slot
            slots.left[0] += 1


# Check whether the message sequences of all processes can be merged into one sequence. If the sequences contain only
# deliveries, the answer shows whether the trace has total order. If they also contain sends, it shows whether the trace
# has synchronous order (see antecede.trace.total_order).
#
# A message is identified by the flat position of its send. A *flat position* is a position in the joined lines (event
# lists) of all processes. Messages are *released* one after the other. A message can be released when it is at the head
# of every sequence that contains it. It is then removed from these sequences. A message that can never be released lies
# on a cycle, or comes after a message on a cycle. The order in which messages are released does not matter.


@compiled
def message_at(offsets: Longs, source: Ints, argument: Ints, with_sends: bool, at: int) -> int:
    """Return the message of the event at the flat position ``at``. The message is given as the flat position of its
    send. Return -1 if the event is neither a delivery nor a send. If ``with_sends`` is false, also return -1 for a
    send."""
    sender = source[at]
    if sender >= 0:
        message: int = offsets[sender] + argument[at]
        return message
    return at if sender == SENT and with_sends else NOTHING


@compiled
def following(
    offsets: Longs, source: Ints, argument: Ints, with_sends: bool, process: int, position: int, besides: int
) -> int:
    """Return the position of the next event of ``process`` that has a message other than ``besides``. The search begins
    at ``position``. If there is no such event, return the length of the line (the number of events of the process)."""
    base = offsets[process]
    length = offsets[process + 1] - base
    while position < length:
        message = message_at(offsets, source, argument, with_sends, base + position)
        if message not in (NOTHING, besides):
            break
        position += 1
    return position


@compiled
def merge(
    offsets: Longs, source: Ints, argument: Ints, with_sends: bool, occurs: Ints, at_head: Ints, cursors: Longs
) -> bool:
    """Release all messages that can be released: repeatedly remove a message that is at the head of all its sequences.
    Return whether all messages were released. For each sequence, ``cursors`` gets the position of the first message
    that was not released. If all messages of a sequence were released, ``cursors`` gets the number of events of the
    process.

    ``occurs`` must be zero everywhere, and ``at_head`` must be -1 everywhere.
    """
    processes = len(offsets) - 1
    for process in range(processes):
        last = NOTHING
        for at in range(offsets[process], offsets[process + 1]):
            message = message_at(offsets, source, argument, with_sends, at)
            if message not in (NOTHING, last):
                occurs[message] += 1
                last = message
    next_here = np.full(processes, -1, np.int32)
    ready = np.empty(processes + 1, np.int64)
    waiting = 0
    for process in range(processes):
        cursors[process] = following(offsets, source, argument, with_sends, process, 0, NOTHING)
        waiting = _bring(
            offsets, source, argument, with_sends, process, cursors, occurs, at_head, next_here, ready, waiting
        )
    while waiting:
        waiting -= 1
        message = ready[waiting]
        process = at_head[message]
        while process >= 0:
            successor = next_here[process]
            cursors[process] = following(offsets, source, argument, with_sends, process, cursors[process], message)
            waiting = _bring(
                offsets, source, argument, with_sends, process, cursors, occurs, at_head, next_here, ready, waiting
            )
            process = successor
    stuck = 0
    for process in range(processes):
        stuck += cursors[process] < offsets[process + 1] - offsets[process]
    return stuck == 0


@inner
def _bring(
    offsets: Longs,
    source: Ints,
    argument: Ints,
    with_sends: bool,
    process: int,
    cursors: Longs,
    occurs: Ints,
    at_head: Ints,
    next_here: Ints,
    ready: Longs,
    waiting: int,
) -> int:
    """Record that the next unreleased message of ``process`` is now at the head of the sequence of this process. A
    message can be in the sequences of several processes. If the message is at the head of each of them, add it to
    ``ready``. Do nothing if ``process`` has no more messages. Return the new number of ready messages."""
    if cursors[process] < offsets[process + 1] - offsets[process]:
        message = message_at(offsets, source, argument, with_sends, offsets[process] + cursors[process])
        next_here[process] = at_head[message]
        at_head[message] = process
        occurs[message] -= 1
        if occurs[message] == 0:
            ready[waiting] = message
            waiting += 1
    return waiting


@compiled
def owners(offsets: Longs) -> Ints:
    """Return the process of every position in the joined lines (event lists) of all processes."""
    owner = np.empty(offsets[-1], np.int32)
    for process in range(len(offsets) - 1):
        owner[offsets[process] : offsets[process + 1]] = process
    return owner


@compiled
def deliveries_of(offsets: Longs, source: Ints, argument: Ints) -> tuple[Longs, Longs]:
    """Return two arrays, ``first`` and ``delivered``. ``delivered`` has the positions of all deliveries in the joined
    lines (event lists) of all processes. They are grouped by send. Each group is sorted by process. The group of the
    send at position k begins at ``first[k]`` and ends before ``first[k + 1]``."""
    events = len(source)
    first = np.zeros(events + 1, np.int64)
    for at in range(events):
        if source[at] >= 0:
            first[offsets[source[at]] + argument[at] + 1] += 1
    for at in range(events):
        first[at + 1] += first[at]
    delivered = np.empty(first[events], np.int64)
    fill = first[:-1].copy()
    for at in range(events):
        if source[at] >= 0:
            send = offsets[source[at]] + argument[at]
            delivered[fill[send]] = at
            fill[send] += 1
    return first, delivered


@compiled
def agree_pairwise(offsets: Longs, source: Ints, argument: Ints, owner: Ints, first: Longs, delivered: Longs) -> bool:
    """Return False if two processes deliver the same two messages in opposite orders, otherwise True."""
    processes = len(offsets) - 1
    reached = np.zeros(processes, np.int64)
    seen_by = np.full(processes, -1, np.int32)
    for process in range(processes):
        for at in range(offsets[process], offsets[process + 1]):
            if source[at] < 0:
                continue
            send = offsets[source[at]] + argument[at]
            for k in range(first[send], first[send + 1]):
                other = owner[delivered[k]]
                if other > process:
                    if seen_by[other] == process and delivered[k] < reached[other]:
                        return False
                    seen_by[other] = process
                    reached[other] = delivered[k]
    return True


# Number all events in the order in which a walk visits them. So each event gets a larger number than all events that
# happened before it.


@compiled
def number_segments(
    offsets: Longs, process: Ints, begin: Longs, end: Longs, count: int, moment: int, moments: Longs
) -> int:
    """Number the events of the next segments of the walk. A segment has consecutive events of one process. The first
    event gets the number ``moment``. Return the number for the first event after these segments."""
    for segment in range(count):
        base = offsets[process[segment]]
        for position in range(begin[segment], end[segment]):
            moments[base + position] = moment
            moment += 1
    return moment
