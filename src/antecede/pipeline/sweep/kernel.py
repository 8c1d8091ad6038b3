"""``matrix`` and ``pruned`` as loops over arrays, for studies that the simulator is too slow for.

This is a second implementation of :mod:`antecede.orders.matrix` and :mod:`antecede.orders.pruned`, and of what
:mod:`antecede.simulator.bare` and :mod:`antecede.simulator.figures` do with them. It is there for speed alone and
judges nothing. It may be used only because ``tests/pipeline/test_sweep_kernel.py`` compares it with the orders
themselves: the same deliveries in the same sequence, and the same figures to the last bit.

A row of a matrix changes only when its owner sends, so a row is named by its owner and the number of its sends, and a
stamp is one such number per process. The rows of the last ``window`` sends are kept. The steps of ``pruned`` are in
:mod:`antecede.pipeline.sweep.pruned_log`.

Arrays have a fixed size. Where one is too small the run ends with the :data:`status <SLOTS>` that names it, and
the caller starts again with a larger one.
"""

from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled
from antecede.pipeline.sweep.pruned_log import (
    DONE,
    ENTRIES,
    IMPOSSIBLE,
    SLOTS,
    WINDOW,
    Ints,
    Logs,
    bits,
    constraints_size,
    control_size,
    learn_log,
    number_size,
    replace,
    stamp_log,
)
from antecede.pipeline.sweep.schedule import Schedule
from antecede.simulator.figures import BUCKETS_PER_E

MATRIX, PRUNED = range(2)

SENDS, DELIVERIES, ARRIVALS, HELD, COPIES, BYTES_TOTAL, BYTES_MAX, WEIGHED, COUNTS = range(9)
DEPENDENTS, BYTES, PAPER_BYTES, LATENCY, SUMS = range(5)

LOWEST_BUCKET = -2_100
BUCKETS = 4_200
"""Latencies from 10⁻⁹ to 10⁹ seconds; the last bucket counts deliveries that took no time."""


class Figures(NamedTuple):
    """What is counted, as in :class:`antecede.simulator.figures.Figures`."""

    counts: Ints
    sums: NDArray[np.float64]
    latencies: Ints
    delivered_at: Ints
    """The deliveries in their sequence, as process and message, if there is room for them."""
    delivered_message: Ints


class Messages(NamedTuple):
    """Messages that are not delivered everywhere, by slot, and their copies that have not been delivered."""

    slot_of: NDArray[np.int32]
    free: Ints
    number: Ints
    remaining: Ints
    weight: Ints
    """Of all copies of the message: dependents, bytes, and bytes as the paper counts."""
    copy_slot_of: NDArray[np.int32]
    copy_free: Ints
    left: Ints
    """How many slots and copy slots are free."""
    next_parked: Ints
    awaited: Ints
    """The number of the message that a parked copy waits for."""
    first_parked: Ints
    last_parked: Ints
    """For each process and sender: the copies that wait for a message of that sender, oldest first; −1 for none."""
    parked: NDArray[np.int32]
    """The copy in a copy slot."""


class Rows(NamedTuple):
    """The state of ``matrix``."""

    newest: Ints
    counts: NDArray[np.int32]
    size: Ints
    known: Ints
    stamp: Ints


# The matrix.


@compiled
def _send_row(rows: Rows, slot: int, source: int, to: int, members: int) -> int:
    """Count all destinations in the sender's row, and stamp with the rows that it knows. Return how it ended."""
    window = rows.size.shape[1]
    before, after = rows.newest[source] % window, (rows.newest[source] + 1) % window
    rows.newest[source] += 1
    size = rows.size[source, before]
    for target in range(members):
        count = rows.counts[source, before, target]
        if (to >> np.uint64(target)) & np.uint64(1):
            size += number_size(count + 1) - number_size(count)
            count += 1
        rows.counts[source, after, target] = count
    rows.size[source, after] = size
    rows.known[source, source] = rows.newest[source]
    for k in range(members):
        if rows.newest[k] - rows.known[source, k] >= window:
            return WINDOW
        rows.stamp[slot, k] = rows.known[source, k]
    return DONE


@compiled
def _missing_row(rows: Rows, delivered: Ints, slot: int, source: int, target: int, members: int) -> tuple[int, int]:
    """The first message that a stamp counts and that is missing: sender and number; (−1, 0) if none is, and (−2, 0) if
    a row is too old to be known."""
    window = rows.size.shape[1]
    for k in range(members):
        version = rows.stamp[slot, k]
        if rows.newest[k] - version >= window:
            return -2, 0
        count = int(rows.counts[k, version % window, target])
        if k == source:
            count -= 1
        if count > delivered[target, k]:
            return k, count
    return -1, 0


class Run(NamedTuple):
    """All of a run. ``delivered`` is the number of the last message delivered at each process from each sender."""

    kind: int
    warmup: int
    plan: Schedule
    found: Figures
    kept: Messages
    rows: Rows
    logs: Logs
    delivered: Ints


# Both.


@compiled
def _send(state: Run, message: int, copy_slots: Ints) -> int:
    """Send a message: stamp its copies, and weigh them."""
    kind, plan, found, kept, rows, logs = state.kind, state.plan, state.found, state.kept, state.rows, state.logs
    members = rows.known.shape[0]
    source, to = plan.source[message], plan.to[message]
    first, end = plan.first_copy[message], plan.first_copy[message + 1]
    if kept.left[0] < 1 or kept.left[1] < end - first:
        return SLOTS
    kept.left[0] -= 1
    slot = kept.free[kept.left[0]]
    kept.slot_of[message] = slot
    kept.remaining[slot] = end - first
    for copy in range(first, end):
        kept.left[1] -= 1
        place = kept.copy_free[kept.left[1]]
        kept.copy_slot_of[copy] = place
        kept.parked[place] = copy
        copy_slots[plan.copy_target[copy]] = place
        if kind == PRUNED:
            logs.constraints[place] = 0
    if kind == MATRIX:
        ended = _send_row(rows, slot, source, to, members)
    else:
        logs.clock[source] += 1
        kept.number[slot] = logs.clock[source]
        ended = replace(logs, source, to, members, copy_slots)
        if ended == DONE:
            ended = stamp_log(logs, slot, source, members)
        if ended == DONE:
            # S5, with S3 of the next send.
            length = logs.length[source, source]
            if length and not logs.mask[source, source, length - 1]:
                length -= 1
            if length == logs.time.shape[2]:
                return ENTRIES
            logs.time[source, source, length] = logs.clock[source]
            logs.mask[source, source, length] = to
            logs.length[source, source] = length + 1
    if ended != DONE or message < state.warmup:
        return ended
    found.counts[SENDS] += 1
    copies = end - first
    if kind == MATRIX:
        size = 0
        for k in range(members):
            size += rows.size[k, rows.stamp[slot, k] % rows.size.shape[1]]
        kept.weight[slot, 0] = copies * members * members
        kept.weight[slot, 1] = copies * size
        kept.weight[slot, 2] = copies * 4 * members * members
        found.counts[BYTES_MAX] = max(found.counts[BYTES_MAX], size)
        return DONE
    entries = logs.stamp_first[slot, members]
    destinations = 0
    for at in range(entries):
        destinations += bits(logs.stamp_mask[slot, at])
    control = control_size(logs, slot, logs.clock[source], members)
    kept.weight[slot, :] = 0
    for copy in range(first, end):
        place = kept.copy_slot_of[copy]
        count = logs.constraints[place]
        size = control + constraints_size(logs, slot, place)
        kept.weight[slot, 0] += entries + count
        kept.weight[slot, 1] += size
        kept.weight[slot, 2] += 4 * entries + 2 * destinations + 6 * count
        found.counts[BYTES_MAX] = max(found.counts[BYTES_MAX], size)
    return DONE


@compiled
def _missing(state: Run, slot: int, place: int, source: int, target: int) -> tuple[int, int]:
    rows, logs, delivered = state.rows, state.logs, state.delivered
    if state.kind == MATRIX:
        return _missing_row(rows, delivered, slot, source, target, rows.known.shape[0])
    for at in range(logs.constraints[place]):
        k = logs.constraint_sender[place, at]
        if logs.constraint_time[place, at] > delivered[target, k]:
            return k, logs.constraint_time[place, at]
    return -1, 0


@compiled
def _park(kept: Messages, place: int, target: int, sender: int, number: int) -> None:
    kept.awaited[place] = number
    kept.next_parked[place] = -1
    last = kept.last_parked[target, sender]
    if last < 0:
        kept.first_parked[target, sender] = place
    else:
        kept.next_parked[last] = place
    kept.last_parked[target, sender] = place


@compiled
def _unpark(kept: Messages, target: int, sender: int, number: int, freed: Ints, count: int) -> int:
    """Append the copies that waited for that very message to ``freed``, oldest first; return how many there are now."""
    place, before = kept.first_parked[target, sender], -1
    while place >= 0:
        after = kept.next_parked[place]
        if kept.awaited[place] == number:
            freed[count] = place
            count += 1
            if before < 0:
                kept.first_parked[target, sender] = after
            else:
                kept.next_parked[before] = after
            if after < 0:
                kept.last_parked[target, sender] = before
        else:
            before = place
        place = after
    return count


@compiled
def _count_delivery(state: Run, copy: int, slot: int, now: float, seen: int) -> None:
    """Count as ``Figures.delivered`` does, and free what the message no longer needs."""
    plan, found, kept = state.plan, state.found, state.kept
    message = plan.copy_message[copy]
    if seen < len(found.delivered_at):
        found.delivered_at[seen] = plan.copy_target[copy]
        found.delivered_message[seen] = message
    kept.copy_free[kept.left[1]] = kept.copy_slot_of[copy]
    kept.left[1] += 1
    kept.remaining[slot] -= 1
    counted = message >= state.warmup
    if not kept.remaining[slot]:
        kept.free[kept.left[0]] = slot
        kept.left[0] += 1
        if counted:
            copies = plan.first_copy[message + 1] - plan.first_copy[message]
            found.counts[WEIGHED] += 1
            found.counts[COPIES] += copies
            found.counts[BYTES_TOTAL] += kept.weight[slot, 1]
            found.sums[DEPENDENTS] += kept.weight[slot, 0] / copies
            found.sums[BYTES] += kept.weight[slot, 1] / copies
            found.sums[PAPER_BYTES] += kept.weight[slot, 2] / copies
    if counted:
        latency = now - plan.send_time[message]
        found.counts[DELIVERIES] += 1
        found.sums[LATENCY] += latency
        if latency > 1e-9:
            found.latencies[int(log(latency) * BUCKETS_PER_E) - LOWEST_BUCKET] += 1
        else:
            found.latencies[BUCKETS] += 1


@compiled
def run(state: Run) -> int:
    """Walk the schedule under one of the orders. Return how the run ended."""
    kind, plan, found, kept, rows, logs = state.kind, state.plan, state.found, state.kept, state.rows, state.logs
    delivered = state.delivered
    members = rows.known.shape[0]
    sends = len(plan.source)
    window = rows.size.shape[1]
    copy_slots = np.zeros(members, np.int64)
    freed = np.zeros(len(kept.copy_free), np.int64)
    seen = 0
    for event in plan.events:
        if event < sends:
            ended = _send(state, event, copy_slots)
            if ended != DONE:
                return ended
            continue
        now = plan.arrival[event - sends]
        freed[0] = kept.copy_slot_of[event - sends]
        count, at = 1, 0
        while at < count:
            place = freed[at]
            at += 1
            copy = kept.parked[place]
            message, target = plan.copy_message[copy], plan.copy_target[copy]
            source, slot = plan.source[message], kept.slot_of[message]
            sender, number = _missing(state, slot, place, source, target)
            if sender == -2:
                return WINDOW
            if at == 1 and message >= state.warmup:
                found.counts[ARRIVALS] += 1
                found.counts[HELD] += sender >= 0
            if sender >= 0:
                _park(kept, place, target, sender, number)
                continue
            if kind == MATRIX:
                own = int(rows.counts[source, rows.stamp[slot, source] % window, target])
            else:
                own = kept.number[slot]
            if own <= delivered[target, source]:
                return IMPOSSIBLE
            delivered[target, source] = own
            if kind == MATRIX:
                for k in range(members):
                    rows.known[target, k] = max(rows.known[target, k], rows.stamp[slot, k])
            else:
                ended = learn_log(logs, slot, own, source, plan.to[message], target, members)
                if ended != DONE:
                    return ended
            _count_delivery(state, copy, slot, now, seen)
            seen += 1
            count = _unpark(kept, target, source, own, freed, count)
    return DONE
