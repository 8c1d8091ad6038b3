"""Sort sends and deliveries by region, and write them into the lines.

A line has the events of one process. All lines are stored one after the other in flat arrays
(:mod:`antecede.pipeline.match.lines`). A region is a part of these arrays. Here, the *place* of an event is its flat
position minus the start of its region.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled
from antecede.pipeline.kernels.match import DELIVER, SEND, VALID, Links, Rows
from antecede.pipeline.kernels.walk import SENT, Flat

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


class Ends(NamedTuple):
    """The start and the end of each region in two arrays. One array has all sends, the other has all deliveries, and
    both are sorted by region. The sends of region k are at the positions from ``sends[k]`` to ``sends[k + 1]`` - 1. The
    deliveries of region k are at the positions from ``deliveries[k]`` to ``deliveries[k + 1]`` - 1."""

    sends: Longs
    deliveries: Longs


class Sorted(NamedTuple):
    """Sends and deliveries, sorted by region. The *place* of an event is its position in its region. The integer types
    are as small as the trace allows."""

    sent: Ints
    """The place of each send."""
    copies: NDArray[Any]
    """The number of valid deliveries of each send."""
    delivered: Ints
    """The place of each delivery."""
    source: NDArray[Any]
    """The sender of the message of each delivery."""
    argument: Ints
    """For each delivery, the position of its send in the sender's line."""


@compiled
def find_regions(offsets: Longs, events: int, rows: Rows, links: Links, region: Ints, place: Ints, ends: Ends) -> int:
    """Find the region of each valid send and each valid delivery, and its place (position) in this region. All other
    rows get the region -1. ``events`` is the number of flat positions in a region. Write the ends of the regions to
    ``ends``. Return the largest number of valid deliveries of a send."""
    most = 0
    for i in range(len(rows.kind)):
        region[i] = -1
        if links.reason[i] == VALID and rows.kind[i] <= DELIVER:
            at = offsets[rows.process[i]] + rows.indices[i]
            found = at // events
            region[i] = found
            place[i] = at - found * events
            if rows.kind[i] == SEND:
                ends.sends[found + 1] += 1
                most = max(most, links.awaited[i])
            else:
                ends.deliveries[found + 1] += 1
    for k in range(1, len(ends.sends)):
        ends.sends[k] += ends.sends[k - 1]
        ends.deliveries[k] += ends.deliveries[k - 1]
    return most


@compiled
def sort_regions(rows: Rows, links: Links, region: Ints, place: Ints, ends: Ends, out: Sorted) -> None:
    """Write the sends and deliveries to ``out``, sorted by region. Within a region, they keep their order."""
    sends, deliveries = ends.sends.copy(), ends.deliveries.copy()
    for i in range(len(region)):
        found = region[i]
        if found < 0:
            continue
        if rows.kind[i] == SEND:
            k = sends[found]
            sends[found] = k + 1
            out.sent[k], out.copies[k] = place[i], links.awaited[i]
        else:
            k = deliveries[found]
            deliveries[found] = k + 1
            send = links.send_row[i]
            out.delivered[k], out.source[k], out.argument[k] = place[i], rows.process[send], rows.indices[send]


@compiled
def place_region(lines: Flat, first: int, events: Sorted) -> None:
    """Write the events of one region into the lines. The region begins at the flat position ``first``."""
    for k in range(len(events.sent)):
        at = first + events.sent[k]
        lines.source[at], lines.argument[at] = SENT, events.copies[k]
    for k in range(len(events.delivered)):
        at = first + events.delivered[k]
        lines.source[at], lines.argument[at] = events.source[k], events.argument[k]
