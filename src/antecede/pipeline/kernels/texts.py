"""Message ids as exact numbers: two rows get the same number iff their ids are the same text.

Texts are stored in one array of bytes, as in Arrow. Each is hashed to 64 bits to find its bucket and its place in a
table, but the texts themselves are compared. So the quality of the hash affects only the speed, never the result, and
two different ids never get the same number. (``narrow`` keeps few bits of the hash, so that a test can show this.)
"""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

WIDE = 2**64 - 1
"""Keep all bits of the hash."""


@compiled
def mix(offsets: Ints, data: Bytes, narrow: np.uint64, out: Words) -> None:
    """Hash each text to 64 bits; ``narrow`` is a mask of the bits that are kept."""
    first, second = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
    for i in range(len(offsets) - 1):
        k, end = offsets[i], offsets[i + 1]
        mixed = np.uint64(end - k) * first
        while k + 8 <= end:
            word = (
                np.uint64(data[k])
                | np.uint64(data[k + 1]) << np.uint64(8)
                | np.uint64(data[k + 2]) << np.uint64(16)
                | np.uint64(data[k + 3]) << np.uint64(24)
                | np.uint64(data[k + 4]) << np.uint64(32)
                | np.uint64(data[k + 5]) << np.uint64(40)
                | np.uint64(data[k + 6]) << np.uint64(48)
                | np.uint64(data[k + 7]) << np.uint64(56)
            )
            mixed = (mixed ^ word) * second
            mixed ^= mixed >> np.uint64(29)
            k += 8
        while k < end:
            mixed = (mixed ^ np.uint64(data[k])) * second
            k += 1
        mixed ^= mixed >> np.uint64(32)
        mixed *= first
        mixed ^= mixed >> np.uint64(29)
        out[i] = mixed & narrow


@compiled
def number(offsets: Ints, data: Bytes, mixed: Words, out: Ints) -> int:
    """Number the texts from 0; equal texts get the same number. Return how many numbers there are."""
    size = 16
    while size < 2 * len(mixed):
        size *= 2
    mask = np.uint64(size - 1)
    table = np.full(size, -1, np.int32)
    count = 0
    for i in range(len(mixed)):
        # The lower bits selected the bucket, so the table uses other bits.
        slot = (mixed[i] >> np.uint64(24)) & mask
        while True:
            other = table[slot]
            if other < 0:
                table[slot] = i
                out[i] = count
                count += 1
                break
            if mixed[other] == mixed[i] and _same(data, offsets[other], offsets[other + 1], offsets[i], offsets[i + 1]):
                out[i] = out[other]
                break
            slot = (slot + np.uint64(1)) & mask
    return count


@compiled
def _same(data: Bytes, a: int, a_end: int, b: int, b_end: int) -> bool:
    if a_end - a != b_end - b:
        return False
    while a < a_end:
        if data[a] != data[b]:
            return False
        a += 1
        b += 1
    return True


@compiled
def runs(lane: Ints, index: Longs, start: Longs, end: Longs, out_lane: Ints, out_start: Longs, out_end: Longs) -> int:
    """Combine indices into runs, lane by lane. Return the number of closed runs.

    ``start`` and ``end`` have the open run of each lane; they are equal if there is none. The arrays for closed runs
    are as long as ``index``. The rows of a process are mostly in its own order, so a run is long if the trace is in
    order.
    """
    closed = 0
    for i in range(len(index)):
        a = lane[i]
        if index[i] != end[a] or start[a] == end[a]:
            if start[a] != end[a]:
                out_lane[closed] = a
                out_start[closed] = start[a]
                out_end[closed] = end[a]
                closed += 1
            start[a] = index[i]
        end[a] = index[i] + 1
    return closed
