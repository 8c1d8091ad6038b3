"""Find many consistent cuts of a trace at once, without a walk over all events.

A cut has one index for each process. The cut contains those events of the process whose indices are smaller. A cut is
*consistent* if, for each delivery in the cut, the send is in the cut too. Several cuts, each contained in the next one,
divide the trace into *units*. ``bounds[p, k]`` is the index of cut k for process p. The number of an event's unit is
the number of cuts that do not contain the event.

Consistent cuts form a lattice (Mattern, *Virtual time and global states of distributed systems*). So every cut
contains a greatest consistent cut. To find it, look for deliveries that are in the cut, but whose sends are not in the
cut. For each such delivery, lower the bound of the receiver to the index of the delivery. Repeat this until nothing
changes. Each delivery is compared only with the send of the same message. So each bucket (all rows of some messages)
can be processed separately. For each process and each cut, the lowest bound of all buckets is then used.
"""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import Ints, Longs, compiled, inner


@inner
def _unit(bounds: Longs, process: int, index: int) -> int:
    low, high = 0, bounds.shape[1]
    while low < high:
        middle = (low + high) // 2
        if bounds[process, middle] <= index:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def units(bounds: Longs, process: Ints, index: Longs) -> Ints:
    """Return, for each event, the number of its unit: the number of cuts that do not contain the event."""
    found = np.empty(len(process), np.int32)
    for row in range(len(process)):
        found[row] = _unit(bounds, process[row], index[row])
    return found


@compiled
def lower(bounds: Longs, process: Ints, index: Longs, source: Ints, sent: Longs) -> bool:
    """Make each cut consistent for these deliveries: if the cut contains a delivery, it must also contain the send. The
    bounds of the cuts are lowered for this, but only as far as necessary. Return whether a bound was lowered."""
    moved = False
    moving = True
    while moving:
        moving = False
        for row in range(len(process)):
            delivered = _unit(bounds, process[row], index[row])
            # The cuts from the delivery's unit on contain the delivery; those from the send's unit on contain the send.
            for k in range(delivered, _unit(bounds, source[row], sent[row])):
                bounds[process[row], k] = index[row]
                moved = moving = True
    return moved


@compiled
def below(thresholds: Longs, process: Ints, index: Longs, clock: Longs, bounds: Longs) -> None:
    """For each k, lower cut k so that every event in it has a clock below ``thresholds[k]``."""
    for row in range(len(process)):
        reached = np.searchsorted(thresholds, clock[row], side="right")
        if reached and index[row] < bounds[process[row], reached - 1]:
            bounds[process[row], reached - 1] = index[row]
    for p in range(bounds.shape[0]):
        for k in range(bounds.shape[1] - 2, -1, -1):
            bounds[p, k] = min(bounds[p, k], bounds[p, k + 1])


@compiled
def tiers(sent: Ints, delivered: Ints, chunk_units: int, halo_units: int) -> tuple[NDArray[np.uint8], Ints]:
    """Return the tier of each delivery, and the number of the chunk that contains the send on this tier. Each tier
    divides the trace into chunks. The *halo* of a chunk is a part of the trace directly after the chunk. The tier of a
    delivery is the lowest tier on which the delivery lies in the same chunk as the send, or in the halo of this chunk.
    A *unit* is a part of the trace between two cuts. For each delivery, ``sent`` has the unit of the send, and
    ``delivered`` has the unit of the delivery. :mod:`antecede.pipeline.judge.chunks` explains tiers."""
    tier, home = np.zeros(len(sent), np.uint8), np.zeros(len(sent), np.int32)
    for row in range(len(sent)):
        begun, ended, step = sent[row], delivered[row], 0
        while ended >= (begun // chunk_units + 1) * chunk_units + halo_units:
            begun >>= 2
            ended >>= 2
            step += 1
        tier[row], home[row] = step, begun // chunk_units
    return tier, home


@compiled
def tally(sent: Ints, delivered: Ints, tier: NDArray[np.uint8], home: Ints, first: Ints, last: Ints, end: Ints) -> None:
    """Fill ``first``, ``last`` and ``end``, with one entry for each chunk of each tier. The messages of the chunk are
    sent in the units ``first`` to ``last``. The last of their deliveries is in the unit ``end``."""
    for row in range(len(sent)):
        t, h = tier[row], home[row]
        first[t, h] = min(first[t, h], sent[row])
        last[t, h] = max(last[t, h], sent[row])
        end[t, h] = max(end[t, h], delivered[row])
