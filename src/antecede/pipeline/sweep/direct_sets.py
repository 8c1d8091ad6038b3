"""The steps of the order ``direct``, computed on arrays (see :mod:`antecede.pipeline.sweep.kernel` and
:mod:`antecede.orders.direct`).

A set of messages is stored as an array with one entry per sender. The entry is the number of the sender's newest
message in the set, or 0 if the set has no message of this sender.
"""

from typing import NamedTuple

from antecede.pipeline.kernels import inner
from antecede.pipeline.sweep.basics import DONE, IMPOSSIBLE, NOTHING, Ints, Shorts, number_size, within


class Sets(NamedTuple):
    """The arrays of ``direct``: the state of all processes, and the stamps of undelivered messages. The first axis
    of ``stamp_recent`` and ``stamp_before`` is the *slot* (each undelivered message has one). The first axis of the
    other arrays is the process. ``clock`` has only this axis. In all other arrays, the last axis is the sender.
    ``before``, ``known`` and ``stamp_before`` also have a middle axis: the target."""

    clock: Ints
    recent: Shorts
    before: Shorts
    known: Shorts
    stamp_recent: Shorts
    stamp_before: Shorts


@inner
def send_sets(sets: Sets, slot: int, source: int, to: int) -> None:
    """Stamp a message. Then change the sender's sets. For each destination of the message, the sender has a set: the
    direct predecessors of its next message to that destination. The stamped message replaces all messages in this
    set."""
    sets.clock[source] += 1
    sets.stamp_recent[slot] = sets.recent[source]
    sets.stamp_before[slot] = sets.before[source]
    for target in range(sets.recent.shape[0]):
        if within(to, target):
            sets.before[source, target, :] = 0
            sets.before[source, target, source] = sets.clock[source]


@inner
def missing_sets(sets: Sets, delivered: Ints, slot: int, target: int) -> tuple[int, int]:
    """Check the direct predecessors of the message in ``slot``. Return the sender and number of the first predecessor
    that the target has not delivered. If the target has delivered all of them, return ``NOTHING`` and 0."""
    for k in range(sets.recent.shape[0]):
        time = int(sets.stamp_before[slot, target, k])
        if time > delivered[target, k]:
            return k, time
    return NOTHING, 0


@inner
def learn_sets(sets: Sets, slot: int, number: int, source: int, to: int, process: int) -> int:
    """Merge the stamp of a message into the sets of the process that delivers the message. Return ``DONE``, or
    ``IMPOSSIBLE`` if the process has sent the message to itself."""
    members = sets.recent.shape[0]
    if source == process:
        # In the workloads of studies no process sends to itself, and the order treats such messages differently.
        return IMPOSSIBLE
    own_known = sets.known[process]
    for k in range(members):
        own_known[source, k] = max(own_known[source, k], sets.stamp_recent[slot, k])
    for p in range(members):
        if p == process:
            continue
        mine, theirs, known = sets.before[process, p], sets.stamp_before[slot, p], own_known[p]
        if within(to, p):
            for k in range(members):
                mine[k] = mine[k] if mine[k] > theirs[k] else 0
            mine[source] = max(mine[source], number)
            for k in range(members):
                mine[k] = mine[k] if mine[k] > known[k] else 0
        else:
            for k in range(members):
                newest = max(mine[k], theirs[k])
                mine[k] = newest if newest > known[k] else 0
    recent, implied = sets.recent[process], sets.stamp_before[slot, process]
    for k in range(members):
        recent[k] = recent[k] if recent[k] > implied[k] else 0
    recent[source] = number
    return DONE


@inner
def _set_entries(newest: Shorts, weight: Ints) -> int:
    """Add the number of entries of a set to ``weight[0]``. Return the size of the encoded set in bytes."""
    entries, size, previous = 0, 0, 0
    for k in range(len(newest)):
        if newest[k]:
            size += number_size(k - previous) + number_size(newest[k])
            previous = k
            entries += 1
    weight[0] += entries
    return size + number_size(entries)


@inner
def weigh_sets(sets: Sets, slot: int, time: int, copies: int, weight: Ints) -> int:
    """Compute three sums over the stamps of all copies of a message: the number of dependencies, the bytes, and the
    bytes as Jang et al. count them. Store the sums in ``weight``, which must contain zeros at the call. Return the
    bytes of one stamp. All copies have the same stamp."""
    size = number_size(time) + _set_entries(sets.stamp_recent[slot], weight)
    for target in range(sets.recent.shape[0]):
        size += _set_entries(sets.stamp_before[slot, target], weight)
    weight[0] *= copies
    weight[1] += copies * size
    weight[2] += 6 * weight[0]
    return size
