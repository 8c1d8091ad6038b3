"""Which of some messages were sent in the past of which, and which precede which significantly, with a bit for each.

The sets are those of :mod:`antecede.trace.significance` and of happened-before, kept along one walk: a process's past,
what an instance knows and its base, what completed instances of an operation knew, and what a message on its way takes
along of either sort.
"""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled
from antecede.pipeline.kernels.walk import SENT

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Sets = NDArray[np.uint64]


@compiled
def precedences(
    offsets: Longs,
    source: Ints,
    argument: Ints,
    seg_process: Ints,
    seg_from: Longs,
    seg_to: Longs,
    begin: int,
    end: int,
    drawn: Longs,
    instance: Ints,
    first: Longs,
    last: Longs,
    cell: Ints,
    aborted: Bytes,
    rival_from: Longs,
    rivals: Ints,
    past: Sets,
    done: Sets,
    run_of: Ints,
    base: Sets,
    known: Sets,
    free_run: Ints,
    slots: Sets,
    owed: Ints,
    free_slot: Ints,
    counts: Longs,
    causal: Sets,
    significant: Sets,
) -> int:
    """Go through the segments from ``begin`` to ``end``; the segment to go on with, ``end`` when all are done.

    It stops early when no slot or no row for a running instance is free, having cut the segment to what is left of it;
    ``counts`` holds how many there are. ``drawn`` are the flat positions of the compared sends, ascending. A slot has
    the causal set first and the significant one after it.
    """
    words = past.shape[1]
    for s in range(begin, end):
        process = seg_process[s]
        offset = offsets[process]
        for position in range(seg_from[s], seg_to[s]):
            at = offset + position
            own = instance[at]
            sender = source[at]
            if own < 0 and sender < 0 and sender != SENT:
                continue
            if counts[0] == 0 or counts[1] == 0:
                seg_from[s] = position
                return s
            if own >= 0 and at == first[own]:
                counts[1] -= 1
                run = free_run[counts[1]]
                run_of[own] = run
                for k in range(words):
                    base[run, k] = known[run, k] = 0
                if cell[own] >= 0:
                    for r in range(rival_from[cell[own]], rival_from[cell[own] + 1]):
                        for k in range(words):
                            base[run, k] |= done[rivals[r], k]
            run = run_of[own] if own >= 0 else -1
            if sender == SENT:
                number = np.searchsorted(drawn, at)
                picked = number < len(drawn) and drawn[number] == at
                if run >= 0:
                    for k in range(words):
                        known[run, k] |= base[run, k]
                if picked:
                    bit = np.uint64(1) << np.uint64(number & 63)
                    for k in range(words):
                        causal[number, k] = past[process, k]
                        if run >= 0:
                            significant[number, k] = known[run, k]
                    past[process, number >> 6] |= bit
                    if run >= 0:
                        known[run, number >> 6] |= bit
                if argument[at] > 0:
                    counts[0] -= 1
                    slot = free_slot[counts[0]]
                    owed[slot] = argument[at]
                    argument[at] = slot
                    for k in range(words):
                        slots[slot, k] = past[process, k]
                        slots[slot, words + k] = known[run, k] if run >= 0 else np.uint64(0)
                    if picked and run < 0:
                        slots[slot, words + (number >> 6)] |= np.uint64(1) << np.uint64(number & 63)
            elif sender >= 0:
                slot = argument[offsets[sender] + argument[at]]
                for k in range(words):
                    past[process, k] |= slots[slot, k]
                    if run >= 0:
                        known[run, k] |= slots[slot, words + k]
                owed[slot] -= 1
                if owed[slot] == 0:
                    free_slot[counts[0]] = slot
                    counts[0] += 1
            if own >= 0 and at == last[own]:
                if cell[own] >= 0 and not aborted[own]:
                    for k in range(words):
                        done[cell[own], k] |= known[run, k]
                run_of[own] = -1
                free_run[counts[1]] = run
                counts[1] += 1
    return end
