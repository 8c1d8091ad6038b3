"""Code that the array kernels of all orders share: statuses, types of arrays, and the sizes of numbers and sets."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled, inner

DONE, SLOTS, ENTRIES, WINDOW, IMPOSSIBLE = range(5)
"""The status of a run: complete; too few slots, entries or rows; or a state that the order cannot reach."""

NOTHING, FORGOTTEN = -1, -2
"""Values in place of the sender of a missing message. ``NOTHING``: no message is missing. ``FORGOTTEN``: this is
unknown, because a row that is needed is too old and no longer stored."""

Ints = NDArray[np.int64]
Shorts = NDArray[np.int32]
Masks = NDArray[np.uint64]


@inner
def number_size(value: int) -> int:
    """Return the same as ``orders.encoding.number_size``."""
    size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


@compiled
def bits(mask: Any) -> int:
    """Return the number of members in a set."""
    count = 0
    while mask:
        mask &= mask - np.uint64(1)
        count += 1
    return count


@compiled
def within(to: Any, member: int) -> bool:
    """Return whether a member is in a set."""
    return bool((to >> np.uint64(member)) & np.uint64(1))
