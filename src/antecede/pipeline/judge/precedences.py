"""Compare pairs of messages in one walk over the trace. Did the send of one message happen before the send of the
other? Does one message significantly precede the other?"""

from typing import Any

import numpy as np

from antecede.pipeline.judge.operations import Operations
from antecede.pipeline.kernels.orderings import Before, Instances, Running, precedences
from antecede.pipeline.kernels.slots import FIRST_SLOTS, doubled, free_of, grown, more_free, slots_of
from antecede.pipeline.match.lines import Walk, lend_slots


def precedences_among(operations: Operations, picked: Any) -> tuple[list[int], list[int]]:
    """Compare the messages that were sent at the positions ``picked`` in the joined event sequences of all processes.
    Return two lists with one bit mask per message, in the order of ``picked``. Let m be one of these messages, and let
    n be the message that was sent at ``picked[k]``. In the first list, bit k in the mask of m is set if the send of n
    happened before the send of m. In the second list, this bit is set if n significantly precedes m."""
    lines = operations.lines
    lend_slots(lines)
    words = max(1, -(-len(picked) // 64))
    past = np.zeros((lines.processes, words), np.uint64)
    done = np.zeros((len(operations.operation), words), np.uint64)
    instances = Instances(
        np.where(operations.instance < operations.count, operations.instance, -1),
        *(
            operations.first,
            operations.last,
            operations.cell,
            operations.aborted,
            operations.rival_from,
            operations.rivals,
        ),
    )
    slots = slots_of(2 * words, np.uint64)
    running = Running(
        np.full(operations.count, -1, np.int32),
        np.zeros((FIRST_SLOTS, words), np.uint64),
        np.zeros((FIRST_SLOTS, words), np.uint64),
        free_of(FIRST_SLOTS),
        np.array([FIRST_SLOTS], np.int64),
    )
    before = Before(*(np.zeros((len(picked), words), np.uint64) for _ in range(2)))
    walk = Walk(lines)

    def follow(begin: int, end: int) -> int:
        return precedences(
            lines.arrays, walk.segments, begin, end, picked, instances, past, done, running, slots, before
        )

    for stopped in walk.through(follow):
        if stopped:
            slots, running = grown(slots), _enlarged(running)
    return _masks(before.causal), _masks(before.significant)


def _enlarged(running: Running) -> Running:
    """Return ``running`` unchanged if it has a free row for the next instance, otherwise with twice as many rows."""
    if running.left[0]:
        return running
    left = np.array([len(running.free)], np.int64)
    return Running(running.of, doubled(running.base), doubled(running.known), more_free(running.free), left)


def _masks(sets: Any) -> list[int]:
    return [int.from_bytes(row.astype("<u8").tobytes(), "little") for row in sets]
