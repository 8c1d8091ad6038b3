"""Find the races in a trace. A race is a pair of deliveries at one process that happened in the right order only
because of their timing. The *slack* of a race is how much later the first message could have arrived without being
late. :mod:`antecede.trace.races` defines both words.

:mod:`antecede.pipeline.kernels.causal` explains vectors, slots and blocks of lanes. For each block, there are two walks
over the trace. The first walk computes ``reach`` for each delivery. Let q be the process of the delivery. Then
``reach`` is the position after the last send of q that is in the past of the delivered message. A separate walk is
needed to compute ``reach``, because the lane of q and the lanes of the senders may be in different blocks. The second
walk finds, for each delivery, the earlier deliveries at the same process that are in a race with it. Deliveries are
linked in lists, one list for each process and sender. ``head`` leads to the last delivery in a list. ``before`` leads
from a delivery to the previous delivery in its list. ``head`` and ``before`` contain positions + 1, so 0 means that
there is no such delivery.

A heap contains the races with the smallest slack. Of these races, the race at the top of the heap has the largest
slack. Each race is one row with five numbers. The first number is 1 if the slack is unknown because times are missing,
otherwise 0. The other numbers are the slack, the process, the position of the second delivery, and the position of the
first.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import Ints, Longs, compiled, inner
from antecede.pipeline.kernels.walk import SENT, Flat, Segments, Slots, Vectors, arrive, depart, give_back, renew, take

UNKNOWN = np.iinfo(np.int64).min
"""The value for a time that was not recorded."""

LATE, PAIRS, UNTIMED, KEPT = 0, 1, 2, 3
"""The positions of these numbers in ``counts``: late deliveries, races, races without times, and the size of the
heap."""


class Times(NamedTuple):
    """The times at which each delivered message arrived, could be delivered, and was delivered."""

    arrived: Longs
    released: Longs
    delivered: Longs


class Before(NamedTuple):
    """Arrays from which the second walk finds the earlier deliveries that race with a delivery."""

    reach: Ints
    """For each delivery, a position in the line of the process that delivers the message. The sends of this process
    before this position are in the past of the message; its later sends are not."""
    head: Ints
    """For each process and each lane (sender): the last delivery, so far, of a message from this sender to this
    process. The value is the position of this delivery + 1, or 0 if there is no such delivery."""
    before: Ints
    """For each delivery: the previous delivery at the same process of a message from the same sender. The value is the
    position of the previous delivery + 1, or 0 if there is no such delivery."""
    sender_of: Ints
    """The sender of each lane."""


class Wanted(NamedTuple):
    """The settings that decide which races are counted."""

    fifo: bool
    every: bool
    within: int


class Races(NamedTuple):
    """The races that were found: their counts, and a heap with the races that have the smallest slack."""

    counts: Longs
    heap: Longs


@compiled
def races(
    lines: Flat,
    segments: Segments,
    begin: int,
    end: int,
    vectors: Vectors,
    slots: Slots,
    second_walk: bool,
    seen: Before,
    times: Times,
    wanted: Wanted,
    found: Races,
) -> int:
    """Walk through the segments from ``begin`` to ``end`` - 1. A segment has consecutive events of one process. The
    first walk computes ``seen.reach`` and counts late deliveries. The second walk finds the races. Stop early if there
    is no free slot for the vector of a message. Return the segment at which to continue."""
    offsets, source, argument = lines.offsets, lines.source, lines.argument
    known, carried = vectors.known, slots.rows
    lanes = known.shape[1]
    for s in range(begin, end):
        process = segments.process[s]
        base = offsets[process]
        own = vectors.lane_of[process]
        for position in range(segments.begin[s], segments.end[s]):
            at = base + position
            sender = source[at]
            if sender == SENT:
                if argument[at] > 0 and not depart(process, at, argument, vectors, slots):
                    segments.begin[s] = position
                    return s
            elif sender >= 0:
                sent = argument[at]
                slot = argument[offsets[sender] + sent]
                lane = vectors.lane_of[sender]
                if not second_walk:
                    if sender == process:
                        seen.reach[at] = sent + 1
                    elif own >= 0:
                        seen.reach[at] = carried[slot, own]
                    if lane >= 0 and known[process, lane] > sent:
                        found.counts[LATE] += 1
                else:
                    for k in range(lanes):
                        limit = sent + 1 if k == lane else carried[slot, k]
                        if limit == 0 or (wanted.fifo and seen.sender_of[k] == sender):
                            continue
                        other = seen.head[process, k] - 1
                        while other >= seen.reach[at]:
                            if argument[base + other] < limit:
                                _count(process, position, other, base, times, wanted.within, found)
                                if not wanted.every:
                                    break
                            other = seen.before[base + other] - 1
                    if lane >= 0:
                        seen.before[at] = seen.head[process, lane]
                        seen.head[process, lane] = position + 1
                if lane < 0 or known[process, lane] <= sent:
                    if sender != process:
                        for k in range(lanes):
                            known[process, k] = max(known[process, k], carried[slot, k])
                        renew(process, vectors, slots)
                    if lane >= 0:
                        known[process, lane] = sent + 1
                arrive(slot, sender, vectors, slots)
        if segments.end[s] == offsets[process + 1] - base:
            renew(process, vectors, slots)
    return end


@compiled
def _count(process: int, second: int, first: int, base: int, times: Times, within: int, found: Races) -> None:
    """Count the race between two deliveries of a process. ``first`` and ``second`` are their positions in the line (the
    list of events) of the process. ``base`` is the start of this line in the joined lines of all processes. If
    ``within`` is set, ignore the race if its slack is unknown or larger than ``within``. Store the race in the heap if
    it is among the races with the smallest slack."""
    counts, heap = found.counts, found.heap
    untimed, slack = 0, 0
    if times.released[base + second] != UNKNOWN and times.arrived[base + first] != UNKNOWN:
        slack = times.released[base + second] - times.arrived[base + first]
    elif times.delivered[base + second] != UNKNOWN and times.delivered[base + first] != UNKNOWN:
        slack = times.delivered[base + second] - times.delivered[base + first]
    else:
        untimed = 1
    if within != UNKNOWN and (untimed or slack > within):
        return
    counts[PAIRS] += 1
    counts[UNTIMED] += untimed
    if not len(heap):
        return
    if counts[KEPT] == len(heap) and (untimed > heap[0, 0] or (untimed == heap[0, 0] and slack > heap[0, 1])):
        return
    race = np.array([untimed, slack, process, second, first], np.int64)
    if counts[KEPT] < len(heap):
        child = counts[KEPT]
        counts[KEPT] += 1
        while child > 0:
            parent = (child - 1) // 2
            if not _less(heap[parent], race):
                break
            heap[child] = heap[parent]
            child = parent
        heap[child] = race
    elif _less(race, heap[0]):
        _sink(heap, race)


@inner
def _sink(heap: Longs, race: Longs) -> None:
    """Remove the race with the largest slack, which is at the top of the heap, and insert ``race``."""
    place, size = 0, len(heap)
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _less(heap[child], heap[child + 1]):
            child += 1
        if not _less(race, heap[child]):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = race


@compiled
def _less(a: Longs, b: Longs) -> bool:
    for k in range(5):
        if a[k] != b[k]:
            return bool(a[k] < b[k])
    return False


@compiled
def release(lines: Flat, times: Times, fifo: bool) -> None:
    """Compute the time at which each message could be delivered. Without ``fifo``, this is the time of its arrival.
    With ``fifo``, the message also waits for the arrival of other messages. These are the messages of the same sender
    that the process delivered earlier."""
    offsets, source, arrived, released = lines.offsets, lines.source, times.arrived, times.released
    last, seen = np.zeros(len(offsets), np.int64), np.full(len(offsets), -1, np.int32)
    for process in range(len(offsets) - 1):
        for at in range(offsets[process], offsets[process + 1]):
            sender = source[at]
            if sender < 0:
                continue
            moment = arrived[at]
            if fifo and moment != UNKNOWN and seen[sender] == process and last[sender] != UNKNOWN:
                moment = max(moment, last[sender])
            seen[sender], last[sender] = process, moment
            released[at] = moment


# Count the pairs of messages in which one message was sent causally before the other. The pairs are counted during a
# walk over all events.
#
# All messages are compared, or a random sample of them. Each process has a set of messages: those compared messages
# that were sent causally before the current event of the process. A set has one bit per compared message. Each message
# carries the set of its sender. This set is stored in a slot from the send of the message to its last delivery.


Sets = NDArray[np.uint64]


@inner
def bits_in(word: int) -> int:
    """Return the number of 1 bits in a word."""
    count = 0
    rest = np.uint64(word)
    while rest != np.uint64(0):
        rest &= rest - np.uint64(1)
        count += 1
    return count


@compiled
def ordered_pairs(
    lines: Flat,
    segments: Segments,
    begin: int,
    end: int,
    drawn: Longs,
    known: Sets,
    slot_of: Ints,
    slots: Slots,
    ordered: Longs,
) -> int:
    """Walk through the segments from ``begin`` to ``end`` - 1, and count the pairs. A segment has consecutive events of
    one process. Return the number of the segment at which to continue. If all segments are done, this is ``end``.

    The kernel stops early if no slot is free for the set of a message. For each pair in which the send of one message
    happened before the send of the other, ``ordered[0]`` increases by one.

    A *flat position* is a position in the joined lines (event lists) of all processes. ``drawn`` has the flat positions
    of the sends of all compared messages, ascending. ``slot_of`` has, at the flat position of a send, the slot of its
    message.
    """
    offsets, source, argument = lines.offsets, lines.source, lines.argument
    words = known.shape[1]
    for s in range(begin, end):
        process = segments.process[s]
        base = offsets[process]
        for position in range(segments.begin[s], segments.end[s]):
            at = base + position
            sender = source[at]
            if sender == SENT:
                if argument[at] > 0 and slots.left[0] == 0:
                    segments.begin[s] = position
                    return s
                number = np.searchsorted(drawn, at)
                if number < len(drawn) and drawn[number] == at:
                    for k in range(words):
                        ordered[0] += bits_in(known[process, k])
                    known[process, number >> 6] |= np.uint64(1) << np.uint64(number & 63)
                if argument[at] > 0:
                    slot = take(slots, argument[at])
                    slot_of[at] = slot
                    for k in range(words):
                        slots.rows[slot, k] = known[process, k]
            elif sender >= 0:
                slot = slot_of[offsets[sender] + argument[at]]
                for k in range(words):
                    known[process, k] |= slots.rows[slot, k]
                give_back(slots, slot)
    return end
