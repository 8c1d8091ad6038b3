"""Number all events in the order in which a walk visits them. So each event gets a larger number than all events
that happened before it."""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


@compiled
def number_segments(
    offsets: Longs, process: Ints, begin: Longs, end: Longs, count: int, moment: int, moments: Longs
) -> int:
    """Number the events of the next segments of the walk. A segment has consecutive events of one process. The first
    event gets the number ``moment``. Return the number for the first event after these segments."""
    for segment in range(count):
        base = offsets[process[segment]]
        for position in range(begin[segment], end[segment]):
            moments[base + position] = moment
            moment += 1
    return moment
