"""Late deliveries by causal order, along a walk, with a vector a process.

Let V_q be process q's vector: for each sender p, the position after the last send of p that deliveries brought to q's
knowledge. **A delivery of m, sent by p at position s, at q is late iff V_q[p] > s just before it**: its
send was already in q's past. V_q[q] is what came back to q, so that a message to oneself needs no rule of its own.

**What a message carries.** Sends of one process with no new knowledge between them differ in their own entry alone,
which is their position. So they share one copy of the vector, a *slot*, which is taken when the first of them is sent
and given back when the last of them was delivered for the last time. The number of a message's slot is written where
its send had the number of awaited deliveries, so that a delivery finds it by position.

**Blocks.** Only entries of senders are kept, in lanes; if there are more lanes than fit, the trace is walked once for
each block of lanes, and a block decides the messages of its own senders. ``lane_of`` is -1 outside the block.

**Who overtook.** V_q[p] only grows, so the delivery that first raised it beyond s is the first that q made of a message
sent causally after m. The questions of one (q, p) are sorted by s, and one more walk answers all of them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled
from antecede.pipeline.kernels.walk import SENT

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


@compiled
def causal(
    offsets: Longs,
    source: Ints,
    argument: Ints,
    seg_process: Ints,
    seg_from: Longs,
    seg_to: Longs,
    begin: int,
    end: int,
    lane_of: Ints,
    known: Ints,
    slot_of: Ints,
    slots: Ints,
    owed: Ints,
    free: Ints,
    counts: Longs,
    late: Longs,
    asker: Ints,
    next_question: Longs,
    last_question: Longs,
    question: Ints,
    answer: Longs,
) -> int:
    """Judge the segments from ``begin`` to ``end``; the segment to go on with, which is ``end`` when all were judged.

    It stops early when no slot is free or ``late`` is full, having cut the segment to what is left of it. ``counts``
    holds how many slots are free and how many deliveries were late. ``asker`` is a process's row in the table of
    questions, or -1.
    """
    lanes = known.shape[1]
    for s in range(begin, end):
        process = seg_process[s]
        base = offsets[process]
        for position in range(seg_from[s], seg_to[s]):
            at = base + position
            sender = source[at]
            if sender == SENT:
                if argument[at] > 0 and not depart(process, at, argument, known, slot_of, slots, owed, free, counts):
                    seg_from[s] = position
                    return s
            elif sender >= 0:
                if counts[1] == len(late):
                    seg_from[s] = position
                    return s
                sent = argument[at]
                slot = argument[offsets[sender] + sent]
                lane = lane_of[sender]
                if lane >= 0 and known[process, lane] > sent:
                    late[counts[1]] = at
                    counts[1] += 1
                else:
                    if asker[process] >= 0:
                        row = asker[process]
                        for k in range(lanes):
                            reached = sent + 1 if k == lane else slots[slot, k]
                            if reached > known[process, k]:
                                q = next_question[row, k]
                                while q < last_question[row, k] and question[q] < reached:
                                    answer[q] = at
                                    q += 1
                                next_question[row, k] = q
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
def depart(
    process: int,
    at: int,
    argument: Ints,
    known: NDArray[Any],
    slot_of: Ints,
    slots: NDArray[Any],
    owed: Ints,
    free: Ints,
    counts: Longs,
) -> bool:
    """Give a send the slot of what its process knows, a new one if that has changed; False: none is free."""
    slot = slot_of[process]
    if slot < 0:
        if counts[0] == 0:
            return False
        counts[0] -= 1
        slot = free[counts[0]]
        for k in range(known.shape[1]):
            slots[slot, k] = known[process, k]
        slot_of[process] = slot
    owed[slot] += argument[at]
    argument[at] = slot
    return True


@compiled
def arrive(slot: int, sender: int, slot_of: Ints, owed: Ints, free: Ints, counts: Longs) -> None:
    """One delivery less is awaited from a slot; it is free after the last, unless its sender's next send shares it."""
    owed[slot] -= 1
    if owed[slot] == 0 and slot_of[sender] != slot:
        free[counts[0]] = slot
        counts[0] += 1


@compiled
def renew(process: int, slot_of: Ints, owed: Ints, free: Ints, counts: Longs) -> None:
    """Let go of the slot that a process's next send would have shared."""
    slot = slot_of[process]
    if slot >= 0:
        slot_of[process] = -1
        if owed[slot] == 0:
            free[counts[0]] = slot
            counts[0] += 1
