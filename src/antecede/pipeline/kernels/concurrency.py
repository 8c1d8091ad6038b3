"""Which of some messages were sent in the past of which, along a walk, with a bit for each of them.

Each process keeps the set of drawn messages whose sends lie in its past; a message carries its sender's set. A set that
is on its way lives in a slot from its send to its last delivery.
"""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled
from antecede.pipeline.kernels.walk import SENT

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Sets = NDArray[np.uint64]


@compiled
def bits_in(word: int) -> int:
    """How many bits of a word are set."""
    count = 0
    rest = np.uint64(word)
    while rest != np.uint64(0):
        rest &= rest - np.uint64(1)
        count += 1
    return count


@compiled
def ordered_pairs(
    offsets: Longs,
    source: Ints,
    argument: Ints,
    seg_process: Ints,
    seg_from: Longs,
    seg_to: Longs,
    begin: int,
    end: int,
    drawn: Longs,
    known: Sets,
    slot_of: Ints,
    slots: Sets,
    owed: Ints,
    free: Ints,
    counts: Longs,
) -> int:
    """Go through the segments from ``begin`` to ``end``; the segment to go on with, ``end`` when all are done.

    It stops early when no slot is free, having cut the segment to what is left of it. ``drawn`` are the flat positions
    of the drawn sends, ascending; ``slot_of`` is a send's slot while it is on its way. ``counts`` holds how many slots
    are free, and how many pairs are ordered.
    """
    words = known.shape[1]
    for s in range(begin, end):
        process = seg_process[s]
        base = offsets[process]
        for position in range(seg_from[s], seg_to[s]):
            at = base + position
            sender = source[at]
            if sender == SENT:
                if argument[at] > 0 and counts[0] == 0:
                    seg_from[s] = position
                    return s
                number = np.searchsorted(drawn, at)
                if number < len(drawn) and drawn[number] == at:
                    for k in range(words):
                        counts[1] += bits_in(known[process, k])
                    known[process, number >> 6] |= np.uint64(1) << np.uint64(number & 63)
                if argument[at] > 0:
                    counts[0] -= 1
                    slot = free[counts[0]]
                    slot_of[at] = slot
                    owed[slot] = argument[at]
                    for k in range(words):
                        slots[slot, k] = known[process, k]
            elif sender >= 0:
                slot = slot_of[offsets[sender] + argument[at]]
                for k in range(words):
                    known[process, k] |= slots[slot, k]
                owed[slot] -= 1
                if owed[slot] == 0:
                    free[counts[0]] = slot
                    counts[0] += 1
    return end
