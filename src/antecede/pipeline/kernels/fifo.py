"""Find the deliveries that are late under FIFO order. A delivery is late if its process had already delivered a message
that the same sender sent later."""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


@compiled
def fifo(
    offsets: Longs, source: Ints, argument: Ints, first: int, last: int, newest: Longs, seen_by: Ints, late: Longs,
    counts: Longs,
) -> int:  # fmt: skip
    """Find the late deliveries of the processes from ``first`` to ``last`` (exclusive), and add their positions to
    ``late``. Stop before a process if the array ``late`` has too few free entries for all events of this process.
    Return the process at which to continue, or ``last`` if all processes are done."""
    for process in range(first, last):
        if counts[0] + offsets[process + 1] - offsets[process] > len(late):
            return process
        for at in range(offsets[process], offsets[process + 1]):
            sender = source[at]
            if sender >= 0:
                if seen_by[sender] != process:
                    seen_by[sender] = process
                    newest[sender] = -1
                if argument[at] < newest[sender]:
                    late[counts[0]] = at
                    counts[0] += 1
                else:
                    newest[sender] = argument[at]
    return last


@compiled
def fifo_overtakers(
    start: int, end: int, source: Ints, argument: Ints, senders: int, late: Longs, answer: Longs
) -> None:
    """Find, for each late delivery of one process, the delivery that overtook it. This is the first delivery, at the
    same process, of a message that the same sender sent after the late message. Write the position of this delivery to
    ``answer``.

    A delivery is a candidate if its message is newer than all messages of the same sender that were delivered earlier.
    The answer for a late delivery is the first candidate of the same sender whose message is newer than the late
    message. The candidates of each sender are stored in the sequence of the deliveries. Each of them has a newer
    message than the candidate before it, so a binary search finds the answer.
    """
    room = np.zeros(senders + 1, np.int64)
    for at in range(start, end):
        if source[at] >= 0:
            room[source[at] + 1] += 1
    for sender in range(senders):
        room[sender + 1] += room[sender]
    kept = np.zeros(senders, np.int64)
    newest = np.empty(room[senders], np.int64)
    asked = 0
    for at in range(start, end):
        sender = source[at]
        if sender < 0:
            continue
        base = room[sender]
        if kept[sender] and argument[at] < argument[newest[base + kept[sender] - 1]]:
            low, high = base, base + kept[sender] - 1
            while low < high:
                middle = (low + high) // 2
                if argument[newest[middle]] > argument[at]:
                    high = middle
                else:
                    low = middle + 1
            if asked < len(late) and late[asked] == at:
                answer[asked] = newest[low]
                asked += 1
        else:
            newest[base + kept[sender]] = at
            kept[sender] += 1
