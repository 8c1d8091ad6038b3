"""The steps of the order ``updates``, computed on arrays (see :mod:`antecede.pipeline.sweep.kernel` and
:mod:`antecede.orders.updates`).

Each process has a matrix of n × n entries for n processes. Entry (line, column) has the number line · n + column. The
stamp of a copy is a list of the entries that changed since the sender's last stamp for the same target. The stamp does
not contain entries that the sender learned from this target. There is one exception: one entry counts the messages
that the target has sent to itself. If this entry changed, the stamp always contains it.
"""

from typing import NamedTuple

from antecede.pipeline.kernels import inner
from antecede.pipeline.sweep.basics import DONE, IMPOSSIBLE, NOTHING, Ints, Shorts, number_size, within


class Entries(NamedTuple):
    """The arrays of the order ``updates``: the state of all processes, and the stamp of each undelivered copy. A stamp
    is stored at the copy slot that the copy occupies (:class:`antecede.pipeline.sweep.kernel.Messages`)."""

    state: Ints
    stamped: Ints
    value: Shorts
    when: Shorts
    node: Shorts
    changes: Ints
    """For each copy slot, the number of entries in the stamp of its copy."""
    change_key: Shorts
    change_value: Shorts


@inner
def send_entries(entries: Entries, source: int, to: int, copy_slots: Ints) -> None:
    """Count a message in the sender's matrix, for each destination of the message. Then stamp each copy with the
    entries that changed since the sender's last stamp for the copy's target. Leave out the entries that the sender
    learned from this target, with one exception: the number of messages that the target has sent to itself."""
    members = entries.stamped.shape[0]
    line, state = source * members, entries.state[source]
    value, when, node = entries.value[source], entries.when[source], entries.node[source]
    for target in range(members):
        if within(to, target):
            value[line + target] += 1
            when[line + target] = state
            node[line + target] = target
    for target in range(members):
        if within(to, target):
            place, since, count = copy_slots[target], entries.stamped[source, target], 0
            to_itself = target * members + target
            for key in range(members * members):
                if when[key] > since and (node[key] != target or key == to_itself):
                    entries.change_key[place, count] = key
                    entries.change_value[place, count] = value[key]
                    count += 1
            entries.changes[place] = count
            entries.stamped[source, target] = state
    entries.state[source] += 1


@inner
def number_entry(entries: Entries, source: int, target: int) -> int:
    """Return the number of the message that ``source`` has just sent to ``target``. Only messages from ``source`` to
    ``target`` are counted."""
    return int(entries.value[source, source * entries.stamped.shape[0] + target])


@inner
def missing_entry(
    entries: Entries, delivered: Ints, place: int, number: int, source: int, target: int
) -> tuple[int, int]:
    """Find a sender with a *missing* message: the target has not delivered this message, but must deliver it before the
    copy in copy slot ``place``. Return the sender and the number of its newest missing message. If no message is
    missing, return ``NOTHING`` and 0."""
    if number - 1 > delivered[target, source]:
        return source, number - 1
    members = entries.stamped.shape[0]
    for at in range(entries.changes[place]):
        line, column = divmod(entries.change_key[place, at], members)
        if column == target and entries.change_value[place, at] > delivered[target, line]:
            return line, int(entries.change_value[place, at])
    return NOTHING, 0


@inner
def learn_entries(entries: Entries, place: int, number: int, source: int, process: int) -> int:
    """Merge the stamp of a copy into the matrix of the process that delivers the copy. Return ``DONE``, or
    ``IMPOSSIBLE`` if this process is also the sender of the copy."""
    if source == process:
        # In the workloads of studies no process sends to itself, and the order treats such messages differently.
        return IMPOSSIBLE
    value, when, node = entries.value[process], entries.when[process], entries.node[process]
    state = entries.state[process]
    for at in range(entries.changes[place]):
        key, found = entries.change_key[place, at], entries.change_value[place, at]
        if value[key] < found:
            value[key] = found
            when[key] = state
            node[key] = source
    own = source * entries.stamped.shape[0] + process
    value[own] = number
    when[own] = state
    node[own] = source
    return DONE


@inner
def weigh_entries(entries: Entries, places: Ints, numbers: Ints, copies: int, weight: Ints) -> int:
    """Compute three sums over the stamps of all copies of a message, and add them to ``weight``: the number of
    dependencies, the bytes, and the bytes as Jang et al. count them. Return the bytes of the largest stamp."""
    largest = 0
    for copy in range(copies):
        place = places[copy]
        count = entries.changes[place]
        size = number_size(numbers[place]) + number_size(count)
        last = 0
        for at in range(count):
            key = entries.change_key[place, at]
            size += number_size(key - last) + number_size(entries.change_value[place, at])
            last = key
        weight[0] += 1 + count
        weight[1] += size
        weight[2] += 4 + 8 * count
        largest = max(largest, size)
    return largest
