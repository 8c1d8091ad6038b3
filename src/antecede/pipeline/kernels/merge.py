"""Check whether the message sequences of all processes can be merged into one sequence. If the sequences contain only
deliveries, the answer shows whether the trace has total order. If they also contain sends, it shows whether the trace
has synchronous order (see antecede.trace.oracle).

A message is identified by the flat position of its send. A *flat position* is a position in the joined lines (event
lists) of all processes. Messages are *released* one after the other. A message can be released when it is at the head
of every sequence that contains it. It is then removed from these sequences. A message that can never be released lies
on a cycle, or comes after a message on a cycle. The order in which messages are released does not matter.
"""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled, inner
from antecede.pipeline.kernels.walk import NOTHING, SENT

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


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
