"""The order ``matrix``, computed over arrays (see :mod:`antecede.pipeline.sweep.kernel`).

Each row of the matrix belongs to one process, its owner, and changes only when the owner sends. So a version of a row
is identified by the owner and the number of messages that the owner has sent. A stamp has one such number per process.
For each owner, the versions of the last ``window`` sends are stored.
"""

from typing import NamedTuple

from antecede.pipeline.kernels import inner
from antecede.pipeline.sweep.basics import DONE, FORGOTTEN, NOTHING, WINDOW, Ints, Shorts, number_size, within


class Rows(NamedTuple):
    """The arrays of ``matrix``: the state of all processes, and the stamps of undelivered messages. Each of these
    messages has a number, its *slot*, which is its index in the array of stamps."""

    newest: Ints
    counts: Shorts
    size: Ints
    known: Ints
    stamp: Ints


@inner
def send_row(rows: Rows, slot: int, source: int, to: int) -> int:
    """Count a message in the sender's row, for each destination of the message. Then stamp the message: for each row of
    the matrix, the stamp contains the number of the version that the sender knows. Return ``DONE``, or ``WINDOW`` if
    one of these versions is no longer stored."""
    members, window = rows.size.shape
    before, after = rows.newest[source] % window, (rows.newest[source] + 1) % window
    rows.newest[source] += 1
    size = rows.size[source, before]
    for target in range(members):
        count = rows.counts[source, before, target]
        if within(to, target):
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


@inner
def number_row(rows: Rows, source: int, target: int) -> int:
    """Return the number of the message that ``source`` has just sent to ``target``. Only messages from ``source`` to
    ``target`` are counted."""
    return int(rows.counts[source, rows.newest[source] % rows.size.shape[1], target])


@inner
def missing_row(rows: Rows, delivered: Ints, slot: int, source: int, target: int) -> tuple[int, int]:
    """Find the first sender with a *missing* message: the target has not delivered this message, but must deliver it
    before the message in ``slot``. Return the sender and the number of its newest missing message. If no message is
    missing, return ``NOTHING`` and 0. If the search needs a row that is no longer stored, return ``FORGOTTEN`` and
    0."""
    members, window = rows.size.shape
    for k in range(members):
        version = rows.stamp[slot, k]
        if rows.newest[k] - version >= window:
            return FORGOTTEN, 0
        count = int(rows.counts[k, version % window, target])
        if k == source:
            count -= 1
        if count > delivered[target, k]:
            return k, count
    return NOTHING, 0


@inner
def learn_row(rows: Rows, slot: int, process: int) -> None:
    """Merge a stamp into the matrix of ``process``: keep the newer version of each row."""
    for k in range(rows.size.shape[0]):
        rows.known[process, k] = max(rows.known[process, k], rows.stamp[slot, k])


@inner
def weigh_row(rows: Rows, slot: int, copies: int, weight: Ints) -> int:
    """Compute three sums over the stamps of all copies of a message, and add them to ``weight``: the number of
    dependencies, the bytes, and the bytes as Jang et al. count them. Return the bytes of one stamp. All copies have the
    same stamp."""
    members, window = rows.size.shape
    size = 0
    for k in range(members):
        size += rows.size[k, rows.stamp[slot, k] % window]
    weight[0] += copies * members * members
    weight[1] += copies * size
    weight[2] += copies * 4 * members * members
    return size
