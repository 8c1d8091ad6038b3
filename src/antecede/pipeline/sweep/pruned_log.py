"""The order ``pruned``, computed over arrays: its log, its stamps and their sizes (see
:mod:`antecede.pipeline.sweep.kernel`).

The computation follows Jang et al. §4.2, as in :mod:`antecede.orders.pruned`. Names such as S2 and R5 are rules of that
paper. The functions return statuses such as ``DONE``, which :mod:`antecede.pipeline.sweep.basics` defines. The sizes
are those of :mod:`antecede.orders.pruned_stamp`. The log of a process has a separate list of entries for each sender.
An entry has a timestamp and a set of destinations. The entries of a list are sorted by timestamp.
"""

from typing import NamedTuple

import numpy as np

from antecede.pipeline.kernels import inner
from antecede.pipeline.sweep.basics import DONE, ENTRIES, NOTHING, Ints, Masks, bits, number_size, within


class Logs(NamedTuple):
    """The arrays of ``pruned``: the logs of all processes, the stamps of undelivered messages, and the delivery
    constraints of undelivered copies. Each of these messages and copies has a number, its *slot*, which is its index in
    the arrays."""

    clock: Ints
    length: Ints
    time: Ints
    mask: Masks
    stamp_first: Ints
    stamp_time: Ints
    stamp_mask: Masks
    constraints: Ints
    constraint_sender: Ints
    constraint_time: Ints
    scratch_time: Ints
    scratch_mask: Masks


@inner
def _set_size(mask: int, members: int) -> int:
    count = bits(mask)
    return min(number_size(count + 1) + count, 1 + ((members + 7) >> 3))


@inner
def _replace(logs: Logs, process: int, to: int, members: int, copy_slots: Ints) -> int:
    """Apply the rules S2 and S3 of Jang et al. when a message is sent. The *constraints* of a destination are the
    messages that it must deliver before the new message. Move the constraints of each destination from the sender's log
    to the copy for that destination. Afterwards, :func:`send_log` adds the new message to the log, in place of the
    constraints. Return ``DONE``, or ``ENTRIES`` if the array of constraints is too small."""
    room = logs.constraint_time.shape[1]
    for k in range(members):
        length = logs.length[process, k]
        hits = np.uint64(0)
        for at in range(length):
            hits |= logs.mask[process, k, at] & to
        if not hits:
            continue
        newest = logs.time[process, k, length - 1]
        kept = 0
        for at in range(length):
            time, mask = logs.time[process, k, at], logs.mask[process, k, at]
            hit = mask & to
            if hit:
                for target in range(members):
                    if within(hit, target):
                        copy = copy_slots[target]
                        place = logs.constraints[copy]
                        if place == room:
                            return ENTRIES
                        logs.constraint_sender[copy, place] = k
                        logs.constraint_time[copy, place] = time
                        logs.constraints[copy] = place + 1
            mask ^= hit
            if mask or time == newest:
                logs.time[process, k, kept] = time
                logs.mask[process, k, kept] = mask
                kept += 1
        logs.length[process, k] = kept
    return DONE


@inner
def _stamp_log(logs: Logs, slot: int, process: int, members: int) -> int:
    """Copy the sender's log into the stamp. Return ``DONE``, or ``ENTRIES`` if the arrays of stamps are too small."""
    room = logs.stamp_time.shape[1]
    place = 0
    for k in range(members):
        logs.stamp_first[slot, k] = place
        length = logs.length[process, k]
        if place + length > room:
            return ENTRIES
        for at in range(length):
            logs.stamp_time[slot, place + at] = logs.time[process, k, at]
            logs.stamp_mask[slot, place + at] = logs.mask[process, k, at]
        place += length
    logs.stamp_first[slot, members] = place
    return DONE


@inner
def _control_size(logs: Logs, slot: int, time: int, members: int) -> int:
    """Return the size of a stamp without its constraints, in bytes; the same number as ``Control.size`` of
    ``orders.pruned_stamp``."""
    size = number_size(time) + 2 * ((members + 7) >> 3)
    for k in range(members):
        first, end = logs.stamp_first[slot, k], logs.stamp_first[slot, k + 1]
        if first == end:
            continue
        newest = logs.stamp_time[slot, end - 1]
        distance = newest - time
        size += number_size(distance << 1 if distance >= 0 else (-distance << 1) - 1)
        if end - first == 1:
            if logs.stamp_mask[slot, first]:
                size += 1 + _set_size(logs.stamp_mask[slot, first], members)
            continue
        size += number_size(end - first) + _set_size(logs.stamp_mask[slot, end - 1], members)
        previous = newest
        for at in range(end - 2, first - 1, -1):
            size += number_size(previous - logs.stamp_time[slot, at])
            size += _set_size(logs.stamp_mask[slot, at], members)
            previous = logs.stamp_time[slot, at]
    return size


@inner
def _constraints_size(logs: Logs, slot: int, copy: int) -> int:
    """Return the size of a copy's constraints in bytes; the same number as ``constraints_size`` of
    ``orders.pruned_stamp``."""
    count = logs.constraints[copy]
    size = number_size(count)
    previous = 0
    for at in range(count):
        k = logs.constraint_sender[copy, at]
        newest = logs.stamp_time[slot, logs.stamp_first[slot, k + 1] - 1]
        size += number_size(newest - logs.constraint_time[copy, at]) + number_size(k - previous)
        previous = k
    return size


@inner
def _merge(logs: Logs, process: int, k: int, times: Ints, masks: Masks, first: int, end: int) -> int:
    """Apply the rules R5, R6 and R9 of Jang et al. for one sender ``k``: merge the entries ``first`` to ``end`` − 1 of
    ``times`` and ``masks`` into the log of a process. Return ``DONE``, or ``ENTRIES`` if the log is too small."""
    room = logs.time.shape[2]
    length = logs.length[process, k]
    own_time, own_mask = logs.time[process, k], logs.mask[process, k]
    if first == end:
        return DONE
    if length == 0 or own_time[length - 1] < times[first]:
        if end - first > room:
            return ENTRIES
        for at in range(end - first):
            own_time[at] = times[first + at]
            own_mask[at] = masks[first + at]
        logs.length[process, k] = end - first
        return DONE
    mine_newest, theirs_newest = own_time[length - 1], times[end - 1]
    if theirs_newest < own_time[0]:
        return DONE
    newest = max(mine_newest, theirs_newest)
    i, j, made = 0, first, 0
    while i < length or j < end:
        if j == end or (i < length and own_time[i] < times[j]):
            time, mask, kept = own_time[i], own_mask[i], own_time[i] > theirs_newest
            i += 1
        elif i == length or times[j] < own_time[i]:
            time, mask, kept = times[j], masks[j], times[j] > mine_newest
            j += 1
        else:
            time, mask, kept = own_time[i], own_mask[i] & masks[j], True
            i += 1
            j += 1
        if kept and (mask or time == newest):
            if made == room:
                return ENTRIES
            logs.scratch_time[made] = time
            logs.scratch_mask[made] = mask
            made += 1
    for at in range(made):
        own_time[at] = logs.scratch_time[at]
        own_mask[at] = logs.scratch_mask[at]
    logs.length[process, k] = made
    return DONE


@inner
def learn_log(logs: Logs, slot: int, number: int, source: int, to: int, process: int) -> int:
    """Merge the stamp of a message into the log of the process that delivers the message. Return ``DONE``, or
    ``ENTRIES`` if the arrays of logs are too small."""
    members = logs.length.shape[0]
    times, masks = logs.stamp_time[slot], logs.stamp_mask[slot]
    for k in range(members):
        if k != source:
            ended = _merge(logs, process, k, times, masks, logs.stamp_first[slot, k], logs.stamp_first[slot, k + 1])
            if ended != DONE:
                return ended
    # R4: add the message's own entry, without the receiver. It replaces an empty newest entry of the stamp.
    half = logs.scratch_time.shape[0] // 2
    first, end = logs.stamp_first[slot, source], logs.stamp_first[slot, source + 1]
    if end > first and not masks[end - 1]:
        end -= 1
    if end - first + 1 > half:
        return ENTRIES
    own_time, own_mask = logs.scratch_time[half:], logs.scratch_mask[half:]
    for at in range(end - first):
        own_time[at] = times[first + at]
        own_mask[at] = masks[first + at]
    own_time[end - first] = number
    own_mask[end - first] = to & ~(np.uint64(1) << np.uint64(process))
    return _merge(logs, process, source, own_time, own_mask, 0, end - first + 1)


@inner
def send_log(logs: Logs, slot: int, source: int, to: int, copy_slots: Ints) -> int:
    """Stamp a message, and add an entry for it to the sender's log. Return ``DONE``, or ``ENTRIES`` if an array is too
    small."""
    members = logs.length.shape[0]
    logs.clock[source] += 1  # S1
    for target in range(members):
        if within(to, target):
            logs.constraints[copy_slots[target]] = 0
    ended = _replace(logs, source, to, members, copy_slots)  # S2, S3
    if ended == DONE:
        ended = _stamp_log(logs, slot, source, members)
    if ended != DONE:
        return ended
    length = logs.length[source, source]
    if length and not logs.mask[source, source, length - 1]:
        length -= 1
    if length == logs.time.shape[2]:
        return ENTRIES
    logs.time[source, source, length] = logs.clock[source]  # S5, with S3 of the next send
    logs.mask[source, source, length] = to
    logs.length[source, source] = length + 1
    return DONE


@inner
def missing_log(logs: Logs, delivered: Ints, place: int, target: int) -> tuple[int, int]:
    """Check the messages in the constraints of a copy (rule R1 of Jang et al.). Return the sender and number of the
    first message that the target has not delivered. If the target has delivered all of them, return ``NOTHING`` and
    0."""
    for at in range(logs.constraints[place]):
        k = logs.constraint_sender[place, at]
        if logs.constraint_time[place, at] > delivered[target, k]:
            return k, logs.constraint_time[place, at]
    return NOTHING, 0


@inner
def weigh_log(logs: Logs, slot: int, time: int, places: Ints, copies: int, weight: Ints) -> int:
    """Compute three sums over the stamps of all copies of a message, and add them to ``weight``: the number of
    dependencies, the bytes, and the bytes as Jang et al. count them. Return the bytes of the largest stamp."""
    members = logs.length.shape[0]
    entries = logs.stamp_first[slot, members]
    destinations = 0
    for at in range(entries):
        destinations += bits(logs.stamp_mask[slot, at])
    control = _control_size(logs, slot, time, members)
    largest = 0
    for at in range(copies):
        count = logs.constraints[places[at]]
        size = control + _constraints_size(logs, slot, places[at])
        weight[0] += entries + count
        weight[1] += size
        weight[2] += 4 * entries + 2 * destinations + 6 * count
        largest = max(largest, size)
    return largest
