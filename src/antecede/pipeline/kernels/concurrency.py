"""Count the pairs of messages in which one message was sent causally before the other. The pairs are counted during a
walk over all events.

All messages are compared, or a random sample of them. Each process has a set of messages: those compared messages that
were sent causally before the current event of the process. A set has one bit per compared message. Each message carries
the set of its sender. This set is stored in a slot from the send of the message to its last delivery.
"""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled, inner
from antecede.pipeline.kernels.slots import Flat, Ints, Longs, Segments, Slots, give_back, take
from antecede.pipeline.kernels.walk import SENT

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
