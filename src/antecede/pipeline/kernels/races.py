"""Races along a walk: pairs of deliveries that only timing kept in order (:mod:`antecede.trace.races` defines them).

The vectors are those of :mod:`antecede.pipeline.kernels.causal`, with the same slots and blocks of lanes. The trace is
walked twice for each block. The first walk notes, for each delivery at q, how far the past of its send reaches in q
itself, ``reach``: the lane of q may be in another block than the senders of the pairs. The second walk looks at each
delivery for the deliveries before it, by sender: ``head`` is the last one at a process of a lane, ``before`` the one
before that of the same sender, both as a position + 1, so that 0 is none.

The pairs with the smallest slack are a heap with the largest on top, one row for each pair: untimed, slack, process,
position of the second delivery, position of the first.
"""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled
from antecede.pipeline.kernels.causal import arrive, depart, renew
from antecede.pipeline.kernels.walk import SENT

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

UNKNOWN = np.iinfo(np.int64).min
"""A time that was not recorded."""

FREE, LATE, PAIRS, UNTIMED, KEPT = 0, 1, 2, 3, 4
"""What ``counts`` holds: free slots, late deliveries, races, those without times, and the size of the heap."""


@compiled
def races(
    offsets: Longs,
    source: Ints,
    argument: Ints,
    seg_process: Ints,
    seg_from: Longs,
    seg_to: Longs,
    begin: int,
    end: int,
    lane_of: Ints,
    sender_of: Ints,
    known: Ints,
    slot_of: Ints,
    slots: Ints,
    owed: Ints,
    free: Ints,
    counts: Longs,
    second_walk: bool,
    reach: Ints,
    head: Ints,
    before: Ints,
    arrived: Longs,
    released: Longs,
    delivered: Longs,
    fifo: bool,
    every: bool,
    within: int,
    heap: Longs,
) -> int:
    """Look at the segments from ``begin`` to ``end``; the segment to go on with when there is a free slot again."""
    lanes = known.shape[1]
    for s in range(begin, end):
        process = seg_process[s]
        base = offsets[process]
        own = lane_of[process]
        for position in range(seg_from[s], seg_to[s]):
            at = base + position
            sender = source[at]
            if sender == SENT:
                if argument[at] > 0 and not depart(process, at, argument, known, slot_of, slots, owed, free, counts):
                    seg_from[s] = position
                    return s
            elif sender >= 0:
                sent = argument[at]
                slot = argument[offsets[sender] + sent]
                lane = lane_of[sender]
                if not second_walk:
                    if sender == process:
                        reach[at] = sent + 1
                    elif own >= 0:
                        reach[at] = slots[slot, own]
                    if lane >= 0 and known[process, lane] > sent:
                        counts[LATE] += 1
                else:
                    for k in range(lanes):
                        limit = sent + 1 if k == lane else slots[slot, k]
                        if limit == 0 or (fifo and sender_of[k] == sender):
                            continue
                        other = head[process, k] - 1
                        while other >= reach[at]:
                            if argument[base + other] < limit:
                                _count(
                                    process, position, other, base, arrived, released, delivered, within, counts, heap
                                )
                                if not every:
                                    break
                            other = before[base + other] - 1
                    if lane >= 0:
                        before[at] = head[process, lane]
                        head[process, lane] = position + 1
                if lane < 0 or known[process, lane] <= sent:
                    if sender != process:
                        for k in range(lanes):
                            known[process, k] = max(known[process, k], slots[slot, k])
                        renew(process, slot_of, owed, free, counts)
                    if lane >= 0:
                        known[process, lane] = sent + 1
                arrive(slot, sender, slot_of, owed, free, counts)
        if seg_to[s] == offsets[process + 1] - base:
            renew(process, slot_of, owed, free, counts)
    return end


@compiled
def _count(
    process: int,
    second: int,
    first: int,
    base: int,
    arrived: Longs,
    released: Longs,
    delivered: Longs,
    within: int,
    counts: Longs,
    heap: Longs,
) -> None:
    """Count one race, and keep it if it is among those with the smallest slack."""
    untimed, slack = 0, 0
    if released[base + second] != UNKNOWN and arrived[base + first] != UNKNOWN:
        slack = released[base + second] - arrived[base + first]
    elif delivered[base + second] != UNKNOWN and delivered[base + first] != UNKNOWN:
        slack = delivered[base + second] - delivered[base + first]
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


@compiled
def _sink(heap: Longs, race: Longs) -> None:
    """Put a race in the place of the largest."""
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
def release(offsets: Longs, source: Ints, arrived: Longs, fifo: bool, last: Longs, seen: Ints, released: Longs) -> None:
    """Fill in when each delivered message was free: under FIFO order not before its sender's earlier ones arrived."""
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
