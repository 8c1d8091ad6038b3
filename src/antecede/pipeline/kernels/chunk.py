"""Late deliveries of the messages that were sent in one chunk of a trace, from zero vectors at its beginning.

**Why a chunk can be judged alone.** Whatever makes a delivery of m late is a chain of messages from send(m) to a
delivery before deliver(m) at the same process; all of it lies between the two in happened-before. So a task that reads
from a consistent cut at or before send(m) to one behind deliver(m) sees all of it, and may know nothing of what was
before: a message sent before the first cut carries nothing about sends after it, and is no message here.

**The core and the halo.** Judged are messages sent in the *core*, up to ``core[p]`` in process p's line; what follows
is the halo, read on for their deliveries. A message sent in the halo is judged elsewhere, but it carries what its
sender knows of the core, its sender's own sends among it: without that, most violations that reach into the halo are
missed.

**Counters** hold positions in the core plus one, and a send in the halo counts as the core's end. So they are never
larger than the longest core of a line, and ``known`` and ``slots`` are of whatever unsigned type holds that.

The rule, the slots and the blocks of lanes are those of :mod:`antecede.pipeline.kernels.causal`, a message to oneself
included: V_q[q] is what deliveries brought back to q.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled
from antecede.pipeline.kernels.causal import arrive, depart, renew
from antecede.pipeline.kernels.walk import SENT

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


@compiled
def chunk(
    offsets: Longs,
    source: Ints,
    argument: Ints,
    seg_process: Ints,
    seg_from: Longs,
    seg_to: Longs,
    begin: int,
    end: int,
    core: Longs,
    mine: NDArray[np.uint8],
    lane_of: Ints,
    known: NDArray[Any],
    slot_of: Ints,
    slots: NDArray[Any],
    owed: Ints,
    free: Ints,
    counts: Longs,
    late: Longs,
) -> int:
    """Judge the segments from ``begin`` to ``end``; the segment to go on with, which is ``end`` when all were judged.

    ``mine`` marks the deliveries that are this chunk's to judge. It stops early when no slot is free or ``late`` is
    full, having cut the segment to what is left of it. ``counts`` holds how many slots are free and how many
    deliveries were late.
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
                    # A chunk that is not to judge it can leave it all the same: it brings nothing new.
                    if mine[at]:
                        late[counts[1]] = at
                        counts[1] += 1
                else:
                    if sender != process:
                        for k in range(lanes):
                            known[process, k] = max(known[process, k], slots[slot, k])
                        renew(process, slot_of, owed, free, counts)
                    if lane >= 0:
                        known[process, lane] = max(known[process, lane], min(sent + 1, core[sender]))
                arrive(slot, sender, slot_of, owed, free, counts)
        if seg_to[s] == offsets[process + 1] - base:
            renew(process, slot_of, owed, free, counts)
    return end
