"""Consistent cuts of a trace, many at a time, without an order of its events.

A cut is one index a process: the events below it. It is *consistent* if no delivery is in it without its send. Cuts
that rise from each to the next divide the trace into *units*; ``bounds[p, k]`` is where cut k ends process p's line,
and an event lies in the unit whose number is how many cuts leave it out.

Any cut has a greatest consistent cut below it (consistent cuts are a lattice: Mattern, *Virtual time and global states
of distributed systems*): whenever a delivery is in the cut and its send is not, lower the receiver to that delivery,
until nothing moves. A delivery needs its own message only, so buckets of messages can be asked apart, and the least
answer counts.
"""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


@compiled
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
    """The unit of each event."""
    found = np.empty(len(process), np.int32)
    for row in range(len(process)):
        found[row] = _unit(bounds, process[row], index[row])
    return found


@compiled
def lower(bounds: Longs, process: Ints, index: Longs, source: Ints, sent: Longs) -> bool:
    """Lower all cuts to the greatest ones below them with which these deliveries are content; whether one moved."""
    moved = False
    moving = True
    while moving:
        moving = False
        for row in range(len(process)):
            delivered = _unit(bounds, process[row], index[row])
            # The cuts from the delivery's unit on hold the delivery, those from the send's unit on hold the send.
            for k in range(delivered, _unit(bounds, source[row], sent[row])):
                bounds[process[row], k] = index[row]
                moved = moving = True
    return moved


@compiled
def below(thresholds: Longs, process: Ints, index: Longs, clock: Longs, bounds: Longs) -> None:
    """Lower cut k to leave out the events whose clock has reached threshold k."""
    for row in range(len(process)):
        reached = np.searchsorted(thresholds, clock[row], side="right")
        if reached and index[row] < bounds[process[row], reached - 1]:
            bounds[process[row], reached - 1] = index[row]
    for p in range(bounds.shape[0]):
        for k in range(bounds.shape[1] - 2, -1, -1):
            bounds[p, k] = min(bounds[p, k], bounds[p, k + 1])


@compiled
def tiers(sent: Ints, delivered: Ints, chunk_units: int, halo_units: int) -> tuple[NDArray[np.uint8], Ints]:
    """The tier of each message, and its chunk there, by the units of its send and its delivery: the lowest tier on
    which the delivery lies in the chunk of the send or in that chunk's halo."""
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
    """For each tier and chunk the first and the last unit in which a message is sent, and the last of a delivery."""
    for row in range(len(sent)):
        t, h = tier[row], home[row]
        first[t, h] = min(first[t, h], sent[row])
        last[t, h] = max(last[t, h], sent[row])
        end[t, h] = max(end[t, h], delivered[row])
