"""Compare pairs of messages during a walk over all events: find whether one message was sent in the past of the other,
and whether one message significantly precedes the other.

The results are sets with one bit per message. To compute them, the walk keeps three kinds of sets:

* The *past* of a process is the set of messages that were sent causally before its current event. The past of a message
  is the past of its send.
* The *knowledge* of a message or of a running instance. A *cell* (a group of instances with the same conflicts) also
  has such a set: the knowledge of its completed instances.
* The *base* of a running instance.

The walk keeps the sets of a message until its last delivery. :mod:`antecede.trace.significant` defines knowledge and
base.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled
from antecede.pipeline.kernels.slots import Flat, Ints, Longs, Segments, Slots, give_back, take
from antecede.pipeline.kernels.walk import SENT

Bytes = NDArray[np.uint8]
Sets = NDArray[np.uint64]


class Instances(NamedTuple):
    """Operation instances: where they begin and end, and what they conflict with."""

    of: Ints
    """For each event, the number of its instance; -1 if it has none."""
    first: Longs
    last: Longs
    cell: Ints
    aborted: Bytes
    rival_from: Longs
    rivals: Ints


class Running(NamedTuple):
    """The sets of the running instances. Each running instance has one row in ``base`` and one in ``known``."""

    of: Ints
    """For each instance, the number of its row; -1 if it is not running."""
    base: Sets
    known: Sets
    free: Ints
    left: Longs


class Before(NamedTuple):
    """For each compared message, the messages that were sent in its past, and those that significantly precede it."""

    causal: Sets
    significant: Sets


@compiled
def precedences(
    lines: Flat,
    segments: Segments,
    begin: int,
    end: int,
    drawn: Longs,
    instances: Instances,
    past: Sets,
    done: Sets,
    running: Running,
    slots: Slots,
    before: Before,
) -> int:
    """Walk through the segments from ``begin`` to ``end`` − 1, and fill in ``before``. A segment has consecutive events
    of one process. Return ``end`` if all these segments are done. Stop early if there is no free slot, or no free row
    for a running instance. In this case, return the segment at which to continue.

    ``drawn`` has the flat positions of the sends of the compared messages, ascending. A flat position is a position in
    the joined lines (event lists) of all processes. A slot contains two sets of messages for one message: first its
    *past*, then its *knowledge* (see the docstring of this module).
    """
    offsets, source, argument = lines.offsets, lines.source, lines.argument
    first, last, cell = instances.first, instances.last, instances.cell
    base, known, carried = running.base, running.known, slots.rows
    words = past.shape[1]
    for s in range(begin, end):
        process = segments.process[s]
        offset = offsets[process]
        for position in range(segments.begin[s], segments.end[s]):
            at = offset + position
            own = instances.of[at]
            sender = source[at]
            if own < 0 and sender < 0 and sender != SENT:
                continue
            if slots.left[0] == 0 or running.left[0] == 0:
                segments.begin[s] = position
                return s
            if own >= 0 and at == first[own]:
                running.left[0] -= 1
                run = running.free[running.left[0]]
                running.of[own] = run
                for k in range(words):
                    base[run, k] = known[run, k] = 0
                if cell[own] >= 0:
                    for r in range(instances.rival_from[cell[own]], instances.rival_from[cell[own] + 1]):
                        for k in range(words):
                            base[run, k] |= done[instances.rivals[r], k]
            run = running.of[own] if own >= 0 else -1
            if sender == SENT:
                number = np.searchsorted(drawn, at)
                picked = number < len(drawn) and drawn[number] == at
                if run >= 0:
                    for k in range(words):
                        known[run, k] |= base[run, k]
                if picked:
                    bit = np.uint64(1) << np.uint64(number & 63)
                    for k in range(words):
                        before.causal[number, k] = past[process, k]
                        if run >= 0:
                            before.significant[number, k] = known[run, k]
                    past[process, number >> 6] |= bit
                    if run >= 0:
                        known[run, number >> 6] |= bit
                if argument[at] > 0:
                    slot = take(slots, argument[at])
                    argument[at] = slot
                    for k in range(words):
                        carried[slot, k] = past[process, k]
                        carried[slot, words + k] = known[run, k] if run >= 0 else np.uint64(0)
                    if picked and run < 0:
                        carried[slot, words + (number >> 6)] |= np.uint64(1) << np.uint64(number & 63)
            elif sender >= 0:
                slot = argument[offsets[sender] + argument[at]]
                for k in range(words):
                    past[process, k] |= carried[slot, k]
                    if run >= 0:
                        known[run, k] |= carried[slot, words + k]
                give_back(slots, slot)
            if own >= 0 and at == last[own]:
                if cell[own] >= 0 and not instances.aborted[own]:
                    for k in range(words):
                        done[cell[own], k] |= known[run, k]
                running.of[own] = -1
                running.free[running.left[0]] = run
                running.left[0] += 1
    return end
