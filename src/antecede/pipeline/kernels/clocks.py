"""Recorded clocks against the events, along a walk (the rules are those of antecede.trace.clocks).

Both rules for vector clocks ask something of each entry on its own, so entries can be taken in blocks: an event
disagrees if it does so in one of them. ``known`` is, for each entry, how far into that process's line the past reaches;
``floor`` the largest that the entry was in the past.
"""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled
from antecede.pipeline.kernels.walk import SENT

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]


@compiled
def clocks(
    offsets: Longs,
    source: Ints,
    argument: Ints,
    indices: Longs,
    seg_process: Ints,
    seg_from: Longs,
    seg_to: Longs,
    begin: int,
    end: int,
    low: int,
    exact: bool,
    clocked: Longs,
    first: Longs,
    name: Ints,
    entry: Longs,
    own_sorted: Longs,
    known: Longs,
    floor: Longs,
    slots: Longs,
    owed: Ints,
    free: Ints,
    counts: Longs,
    disagrees: Bytes,
) -> int:
    """Check the segments from ``begin`` to ``end``; the segment to go on with, early where no slot is free.

    ``clocked`` are the flat positions that have a clock, ascending, their entries from ``first`` on. ``own_sorted``
    are, process by process as in ``clocked``, the own entries in ascending order. ``indices`` gives the index at a flat
    position, or is empty where positions are indices. The block is of the names from ``low`` on.
    """
    lanes = known.shape[1]
    processes = len(offsets) - 1
    said = np.zeros(lanes, np.int64)
    for s in range(begin, end):
        process = seg_process[s]
        base = offsets[process]
        c = np.searchsorted(clocked, base + seg_from[s])
        for position in range(seg_from[s], seg_to[s]):
            at = base + position
            sender = source[at]
            if sender == SENT and argument[at] > 0 and counts[0] == 0:
                seg_from[s] = position
                return s
            if sender >= 0:
                sent = argument[at]
                slot = argument[offsets[sender] + sent]
                for k in range(lanes):
                    known[process, k] = max(known[process, k], slots[slot, k])
                    floor[process, k] = max(floor[process, k], slots[slot, lanes + k])
                if low <= sender < low + lanes:
                    known[process, sender - low] = max(known[process, sender - low], sent + 1)
                owed[slot] -= 1
                if owed[slot] == 0:
                    free[counts[0]] = slot
                    counts[0] += 1
            if c < len(clocked) and clocked[c] == at:
                said[:] = 0
                for e in range(first[c], first[c + 1]):
                    if low <= name[e] < low + lanes:
                        said[name[e] - low] = entry[e]
                for k in range(lanes):
                    other = low + k
                    reached = 0
                    if other < processes:
                        reached = position + 1 if other == process else known[process, k]
                    if exact:
                        wanted = 0
                        if reached > 0:
                            wanted = reached if len(indices) == 0 else indices[offsets[other] + reached - 1] + 1
                        if said[k] != wanted:
                            disagrees[c] = 1
                    else:
                        if floor[process, k] > 0 and said[k] < floor[process, k]:
                            disagrees[c] = 1
                        if other < processes:
                            a = np.searchsorted(clocked, offsets[other])
                            b = np.searchsorted(clocked, offsets[other + 1])
                            past = np.searchsorted(clocked, offsets[other] + reached)
                            if np.searchsorted(own_sorted[a:b], said[k], side="right") != past - a:
                                disagrees[c] = 1
                    floor[process, k] = max(floor[process, k], said[k])
                c += 1
            if sender == SENT and argument[at] > 0:
                counts[0] -= 1
                slot = free[counts[0]]
                for k in range(lanes):
                    slots[slot, k] = known[process, k]
                    slots[slot, lanes + k] = floor[process, k]
                owed[slot] = argument[at]
                argument[at] = slot
    return end


@compiled
def lamport(offsets: Longs, source: Ints, argument: Ints, clocked: Longs, value: Longs) -> int:
    """How many Lamport clocks don't rise from the row before them in their process, or from their send."""
    disagree = 0
    for process in range(len(offsets) - 1):
        start = np.searchsorted(clocked, offsets[process])
        end = np.searchsorted(clocked, offsets[process + 1])
        for c in range(start, end):
            at = clocked[c]
            wrong = c > start and value[c] <= value[c - 1]
            if source[at] >= 0 and not wrong:
                send = offsets[source[at]] + argument[at]
                k = np.searchsorted(clocked, send)
                wrong = k < len(clocked) and clocked[k] == send and value[c] <= value[k]
            disagree += wrong
    return disagree
