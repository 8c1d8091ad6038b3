"""The array kernel: it simulates four orders by loops over arrays, because the simulator is too slow for large studies.

The kernel is a second implementation of the orders ``matrix``, ``pruned``, ``direct`` and ``updates``, and of the
modules :mod:`antecede.simulator.bare` and :mod:`antecede.simulator.figures`. It exists only for speed, and no verdict
depends on it. ``tests/pipeline/test_sweep_kernel.py`` compares the kernel with the first implementation: both must give
the same deliveries in the same sequence, and exactly the same figures. Without this test, the kernel must not be used.

This module has the code that the four orders share: it processes the events of the schedule, keeps copies that wait,
and counts figures. The steps of each order are in a separate module.

Arrays have a fixed size. If an array is too small, the run ends with a status that says which size was too small. The
caller then repeats the run with larger arrays.
"""

from math import floor, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled, inner
from antecede.pipeline.sweep.basics import DONE, FORGOTTEN, IMPOSSIBLE, NOTHING, SLOTS, WINDOW, Ints, Shorts
from antecede.pipeline.sweep.direct_sets import Sets, learn_sets, missing_sets, send_sets, weigh_sets
from antecede.pipeline.sweep.matrix_rows import Rows, learn_row, missing_row, number_row, send_row, weigh_row
from antecede.pipeline.sweep.pruned_log import Logs, learn_log, missing_log, send_log, weigh_log
from antecede.pipeline.sweep.schedule import Schedule
from antecede.pipeline.sweep.updates_entries import (
    Entries,
    learn_entries,
    missing_entry,
    number_entry,
    send_entries,
    weigh_entries,
)
from antecede.simulator.figures import BUCKETS_PER_E

MATRIX, PRUNED, DIRECT, UPDATES = range(4)

SENDS, DELIVERIES, ARRIVALS, HELD, COPIES, BYTES_TOTAL, BYTES_MAX, WEIGHED, COUNTS = range(9)
DEPENDENTS, BYTES, PAPER_BYTES, LATENCY, SUMS = range(5)

LOWEST_BUCKET = -2_100
BUCKETS = 4_200
"""The number of buckets that count latencies from 10⁻⁹ to 10⁹ seconds. One more bucket counts deliveries that took at
most 10⁻⁹ seconds. This includes deliveries that took no time."""


class Figures(NamedTuple):
    """The figures of a run, counted in the same way as in :class:`antecede.simulator.figures.Figures`."""

    counts: Ints
    sums: NDArray[np.float64]
    latencies: Ints
    delivered_at: Ints
    """``delivered_at`` and ``delivered_message``: the process and the message of each delivery, in the sequence of the
    deliveries. Both arrays are empty if deliveries are not recorded."""
    delivered_message: Ints


class Messages(NamedTuple):
    """The messages that have undelivered copies, and these copies. Each of these messages has a *slot*: its index in
    arrays such as ``weight``. Each undelivered copy has a *copy slot*: its index in arrays such as ``number``."""

    slot_of: Shorts
    free: Ints
    remaining: Ints
    weight: Ints
    """For each slot, three sums over the stamps of all copies of its message: the number of dependencies, the bytes,
    and the bytes as Jang et al. count them."""
    copy_slot_of: Shorts
    copy_free: Ints
    number: Ints
    """For each copy slot, the number that :func:`_number` returned for the copy's message."""
    left: Ints
    """The number of free slots, and the number of free copy slots."""
    next_parked: Ints
    awaited: Ints
    """For each copy slot with a waiting copy, the number of the message that the copy waits for."""
    first_parked: Ints
    last_parked: Ints
    """For each process p and each process s, there is a list of the copies that wait at p for a message of s, oldest
    first. ``first_parked[p, s]`` and ``last_parked[p, s]`` are the copy slots of the first and last copy in this list,
    or −1 if the list is empty. For each copy slot in a list, ``next_parked`` contains the next copy slot of this list,
    or −1 at the end."""
    parked: Shorts
    """For each copy slot, the number of the copy in it. The schedule numbers the copies."""


class Run(NamedTuple):
    """The whole state of a run. ``delivered[p, s]`` is the number of the last message from sender s that process p has
    delivered."""

    kind: int
    warmup: int
    plan: Schedule
    found: Figures
    kept: Messages
    delivered: Ints
    rows: Rows
    logs: Logs
    sets: Sets
    entries: Entries


@inner
def _stamp(state: Run, slot: int, source: int, to: int, copy_slots: Ints) -> int:
    """Stamp the message in ``slot`` according to the order of the run. Return ``DONE``, or ``WINDOW`` or ``ENTRIES`` if
    an array is too small."""
    if state.kind == MATRIX:
        return send_row(state.rows, slot, source, to)
    if state.kind == PRUNED:
        return send_log(state.logs, slot, source, to, copy_slots)
    if state.kind == DIRECT:
        send_sets(state.sets, slot, source, to)
    else:
        send_entries(state.entries, source, to, copy_slots)
    return DONE


@inner
def _number(state: Run, source: int, target: int) -> int:
    """Return the number of the message that ``source`` has just sent. ``pruned`` and ``direct`` count all messages of
    the source; ``matrix`` and ``updates`` count only its messages to ``target``."""
    if state.kind == MATRIX:
        return number_row(state.rows, source, target)
    if state.kind == PRUNED:
        return int(state.logs.clock[source])
    if state.kind == DIRECT:
        return int(state.sets.clock[source])
    return number_entry(state.entries, source, target)


@inner
def _missing(state: Run, slot: int, place: int, source: int, target: int) -> tuple[int, int]:
    """Find a *missing* message: the target has not delivered it, but must deliver it before the copy in copy slot
    ``place``. Return the sender and number of the missing message. If no message is missing, return ``NOTHING`` and 0.
    Return ``FORGOTTEN`` and 0 if the search needs a row of the matrix that is no longer stored. This happens only under
    the order ``matrix``."""
    if state.kind == MATRIX:
        return missing_row(state.rows, state.delivered, slot, source, target)
    if state.kind == PRUNED:
        return missing_log(state.logs, state.delivered, place, target)
    if state.kind == DIRECT:
        return missing_sets(state.sets, state.delivered, slot, target)
    return missing_entry(state.entries, state.delivered, place, state.kept.number[place], source, target)


@inner
def _learn(state: Run, slot: int, place: int, source: int, to: int, target: int) -> int:
    """Merge the stamp of a copy into the state of the process that delivers the copy. Return ``DONE``, or ``ENTRIES``
    if an array is too small. The orders ``direct`` and ``updates`` return ``IMPOSSIBLE`` if the process has sent the
    copy to itself."""
    number = state.kept.number[place]
    if state.kind == MATRIX:
        learn_row(state.rows, slot, target)
        return DONE
    if state.kind == PRUNED:
        return learn_log(state.logs, slot, number, source, to, target)
    if state.kind == DIRECT:
        return learn_sets(state.sets, slot, number, source, to, target)
    return learn_entries(state.entries, place, number, source, target)


@inner
def _weigh(state: Run, slot: int, copies: int, places: Ints) -> int:
    """Compute three sums over the stamps of all copies of a message: the number of dependencies, the bytes, and the
    bytes as Jang et al. count them. Store the sums in the ``weight`` of the message's slot. Return the bytes of the
    largest stamp."""
    weight, numbers = state.kept.weight[slot], state.kept.number
    weight[:] = 0
    if state.kind == MATRIX:
        return weigh_row(state.rows, slot, copies, weight)
    if state.kind == PRUNED:
        return weigh_log(state.logs, slot, numbers[places[0]], places, copies, weight)
    if state.kind == DIRECT:
        return weigh_sets(state.sets, slot, numbers[places[0]], copies, weight)
    return weigh_entries(state.entries, places, numbers, copies, weight)


@inner
def _send(state: Run, message: int, copy_slots: Ints, places: Ints) -> int:
    """Send a message: reserve its slots, and stamp its copies. After the warm-up, also count the sizes of the stamps.
    Return ``DONE``, or ``SLOTS``, ``WINDOW`` or ``ENTRIES`` if an array is too small."""
    plan, kept = state.plan, state.kept
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
        places[copy - first] = place
    ended = _stamp(state, slot, source, to, copy_slots)
    if ended != DONE:
        return ended
    for copy in range(first, end):
        kept.number[places[copy - first]] = _number(state, source, plan.copy_target[copy])
    if message >= state.warmup:
        counts = state.found.counts
        counts[SENDS] += 1
        counts[BYTES_MAX] = max(counts[BYTES_MAX], _weigh(state, slot, end - first, places))
    return DONE


@inner
def _park(kept: Messages, place: int, target: int, sender: int, number: int) -> None:
    kept.awaited[place] = number
    kept.next_parked[place] = -1
    last = kept.last_parked[target, sender]
    if last < 0:
        kept.first_parked[target, sender] = place
    else:
        kept.next_parked[last] = place
    kept.last_parked[target, sender] = place


@inner
def _unpark(kept: Messages, target: int, sender: int, number: int, freed: Ints, count: int) -> int:
    """Find the copies that wait at ``target`` for message ``number`` of ``sender``. Remove these copies from the list
    of waiting copies, and append them to ``freed``, oldest first. Return the new number of copies in ``freed``."""
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


@inner
def _count_delivery(state: Run, copy: int, slot: int, now: float, seen: int) -> None:
    """Count a delivery, in the same way as ``antecede.simulator.figures.Figures.delivered``. Free the copy slot. If all
    copies of the message are delivered, also free the slot of the message."""
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
            found.latencies[floor(log(latency) * BUCKETS_PER_E) - LOWEST_BUCKET] += 1
        else:
            found.latencies[BUCKETS] += 1


@compiled
def run(state: Run) -> int:
    """Simulate all events of the schedule under the order ``state.kind``. Return the status with which the run ends:
    ``DONE``, ``SLOTS``, ``ENTRIES``, ``WINDOW`` or ``IMPOSSIBLE``."""
    plan, found, kept, delivered = state.plan, state.found, state.kept, state.delivered
    sends = len(plan.source)
    copy_slots = np.zeros(len(delivered), np.int64)
    places = np.zeros(len(delivered), np.int64)
    freed = np.zeros(len(kept.copy_free), np.int64)
    seen = 0
    for event in plan.events:
        if event < sends:
            ended = _send(state, event, copy_slots, places)
            if ended != DONE:
                return ended
            continue
        now = plan.arrival[event - sends]
        freed[0] = kept.copy_slot_of[event - sends]
        count, at = 1, 0
        while at < count:
            place = freed[at]
            at += 1
            copy, number = kept.parked[place], kept.number[place]
            message, target = plan.copy_message[copy], plan.copy_target[copy]
            source, slot = plan.source[message], kept.slot_of[message]
            sender, awaited = _missing(state, slot, place, source, target)
            if sender == FORGOTTEN:
                return WINDOW
            if at == 1 and message >= state.warmup:
                found.counts[ARRIVALS] += 1
                found.counts[HELD] += sender != NOTHING
            if sender != NOTHING:
                _park(kept, place, target, sender, awaited)
                continue
            if number <= delivered[target, source]:
                return IMPOSSIBLE
            delivered[target, source] = number
            ended = _learn(state, slot, place, source, plan.to[message], target)
            if ended != DONE:
                return ended
            _count_delivery(state, copy, slot, now, seen)
            seen += 1
            count = _unpark(kept, target, source, number, freed, count)
    return DONE
