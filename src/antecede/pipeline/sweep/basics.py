"""Code that the array kernels of all orders share: statuses, types of arrays, and the sizes of numbers and sets."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled, inner

DONE, SLOTS, ENTRIES, WINDOW, IMPOSSIBLE = range(5)
"""The status with which a run ends. ``DONE``: the run is complete. The next three mean that an array is too small.
``SLOTS``: there are too few slots (places for undelivered messages). ``ENTRIES``: there is not enough space for log
entries. ``WINDOW``: too few old rows of the matrix are stored. ``IMPOSSIBLE``: the run found a state that a correct run
never reaches, for example a second delivery of a message."""

NOTHING, FORGOTTEN = -1, -2
"""Two special results of functions that look for a missing message. These functions normally return the sender of the
missing message. ``NOTHING``: no message is missing. ``FORGOTTEN``: it is unknown whether a message is missing, because
the function needs an old row of the matrix, and this row is no longer stored."""

Ints = NDArray[np.int64]
Shorts = NDArray[np.int32]
Masks = NDArray[np.uint64]


@inner
def number_size(value: int) -> int:
    """Return how many bytes ``value`` takes when it is encoded. This function is a compiled version of
    ``orders.encoding.number_size``."""
    size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


@compiled
def bits(mask: Any) -> int:
    """Return the number of members in a set. The set is a mask with one bit per member."""
    count = 0
    while mask:
        mask &= mask - np.uint64(1)
        count += 1
    return count


@compiled
def within(to: Any, member: int) -> bool:
    """Return whether a member is in the set ``to``, a mask with one bit per member."""
    return bool((to >> np.uint64(member)) & np.uint64(1))
