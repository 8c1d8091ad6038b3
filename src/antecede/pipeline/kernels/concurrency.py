"""Which of some messages were sent in the past of which, along a walk, with a bit for each of them.

Each process keeps the set of drawn messages whose sends lie in its past; a message carries its sender's set. A set that
is on its way lives in a slot from its send to its last delivery.
"""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled
from antecede.pipeline.kernels.slots import Flat, Ints, Longs, Segments, Slots, give_back, take
from antecede.pipeline.kernels.walk import SENT

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
    """Go through the segments from ``begin`` to ``end``; the segment to go on with, ``end`` when all are done.

    It stops early when no slot is free. ``drawn`` are the flat positions of the drawn sends, ascending; ``slot_of`` is
    a send's slot while it is on its way. ``ordered`` counts the pairs that are.
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
