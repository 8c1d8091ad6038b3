"""Check whether the recorded clocks agree with the events. :mod:`antecede.trace.clocks` explains the rules.

There are two rules for vector clocks, and both check each entry of a clock separately. A recorded clock is wrong if one
of its entries is wrong. So the entries can be checked in blocks, with one walk over all events for each block. An entry
belongs to one process p. At each event, the walk has two numbers for each entry. ``known`` is the number of p's events
in the past of the event. ``floor`` is the largest value of this entry in all clocks that were recorded in this past.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled
from antecede.pipeline.kernels.slots import Flat, Ints, Longs, Segments, Slots, give_back, take
from antecede.pipeline.kernels.walk import SENT

Bytes = NDArray[np.uint8]


class Recorded(NamedTuple):
    """The recorded vector clocks, in the order of their flat positions. A flat position is an index into the arrays
    that contain the lines of all processes, one after the other."""

    at: Longs
    """The flat positions that have a clock, ascending."""
    first: Longs
    """For each clock, the index of its first entry in the arrays ``name`` and ``entry``."""
    name: Ints
    entry: Longs
    own: Longs
    """The own entries of all clocks, sorted by process and then by value. The own entry of a clock is its entry for the
    process that recorded the clock, or 0 if the clock has no such entry."""
    indices: Longs
    """For each flat position, the index of the event there. The array is empty if the index of every event is equal to
    its position in the line."""


@compiled
def clocks(
    lines: Flat,
    segments: Segments,
    begin: int,
    end: int,
    low: int,
    exact: bool,
    recorded: Recorded,
    known: Longs,
    floor: Longs,
    slots: Slots,
    disagrees: Bytes,
) -> int:
    """Check the clocks in the segments from number ``begin`` to ``end`` - 1. A segment has consecutive events of one
    process. Set ``disagrees`` for each wrong clock. Return the segment at which to continue: ``end``, or an earlier
    segment if no slot was free.

    Only one block of entries is checked. Each name that occurs in clocks has a number. The block contains the entries
    for the names from number ``low`` on, one name for each column of ``known``. A slot contains the values of ``known``
    and then those of ``floor``.
    """
    offsets, source, argument = lines.offsets, lines.source, lines.argument
    clocked, first, indices, carried = recorded.at, recorded.first, recorded.indices, slots.rows
    lanes = known.shape[1]
    processes = len(offsets) - 1
    entries = np.zeros(lanes, np.int64)
    for s in range(begin, end):
        process = segments.process[s]
        base = offsets[process]
        c = np.searchsorted(clocked, base + segments.begin[s])
        for position in range(segments.begin[s], segments.end[s]):
            at = base + position
            sender = source[at]
            if sender == SENT and argument[at] > 0 and slots.left[0] == 0:
                segments.begin[s] = position
                return s
            if sender >= 0:
                sent = argument[at]
                slot = argument[offsets[sender] + sent]
                for k in range(lanes):
                    known[process, k] = max(known[process, k], carried[slot, k])
                    floor[process, k] = max(floor[process, k], carried[slot, lanes + k])
                if low <= sender < low + lanes:
                    known[process, sender - low] = max(known[process, sender - low], sent + 1)
                give_back(slots, slot)
            if c < len(clocked) and clocked[c] == at:
                entries[:] = 0
                for e in range(first[c], first[c + 1]):
                    if low <= recorded.name[e] < low + lanes:
                        entries[recorded.name[e] - low] = recorded.entry[e]
                for k in range(lanes):
                    other = low + k
                    reached = 0
                    if other < processes:
                        reached = position + 1 if other == process else known[process, k]
                    if exact:
                        wanted = 0
                        if reached > 0:
                            wanted = reached if len(indices) == 0 else indices[offsets[other] + reached - 1] + 1
                        if entries[k] != wanted:
                            disagrees[c] = 1
                    else:
                        if floor[process, k] > 0 and entries[k] < floor[process, k]:
                            disagrees[c] = 1
                        if other < processes:
                            a = np.searchsorted(clocked, offsets[other])
                            b = np.searchsorted(clocked, offsets[other + 1])
                            past = np.searchsorted(clocked, offsets[other] + reached)
                            if np.searchsorted(recorded.own[a:b], entries[k], side="right") != past - a:
                                disagrees[c] = 1
                    floor[process, k] = max(floor[process, k], entries[k])
                c += 1
            if sender == SENT and argument[at] > 0:
                slot = take(slots, argument[at])
                for k in range(lanes):
                    carried[slot, k] = known[process, k]
                    carried[slot, lanes + k] = floor[process, k]
                argument[at] = slot
    return end


@compiled
def lamport(lines: Flat, clocked: Longs, value: Longs) -> int:
    """Return the number of Lamport clocks that are too small. A clock must be larger than the previous Lamport clock in
    the same process. At a delivery, it must also be larger than the clock of the send."""
    offsets, source, argument = lines.offsets, lines.source, lines.argument
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
