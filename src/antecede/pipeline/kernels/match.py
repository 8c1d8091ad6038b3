"""Match sends and deliveries, and find the rows that are certainly wrong, in one bucket of messages at a time.

A bucket contains every row of its messages. So the quarantine rules from ``duplicate_send`` to ``before_send`` need no
rows of other buckets. Messages and processes are numbered from 0; a row is an index into the arrays. The rules are
applied in the sequence of ``docs/guide/trace.md``. Each rule examines only the rows that no earlier rule has set aside.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled, inner

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]

SEND, DELIVER, ARRIVE, LOCAL, HOP = 0, 1, 2, 3, 4
"""The kinds of events, as numbers."""

VALID, DUPLICATE_SEND, DUPLICATE_DELIVERY, ORPHAN_DELIVERY, ORPHAN_ARRIVAL, NOT_ADDRESSED, BEFORE_SEND, LEFT_OUT = (
    range(8)
)
"""The possible verdicts on a row: ``VALID``, or the reason why the row is not valid. ``LEFT_OUT`` means that the row
was set aside before matching, because its place (process and index) is also the place of a different row, or of an
earlier copy of this row."""

REASON_NAMES = (
    "",
    "duplicate_send",
    "duplicate_delivery",
    "orphan_delivery",
    "orphan_arrival",
    "not_addressed",
    "before_send",
    "",
)


class Rows(NamedTuple):
    """The rows of a bucket: all rows of some of the trace's messages."""

    code: Ints
    """The number of each row's message."""
    kind: Bytes
    process: Ints
    indices: Longs


class Destinations(NamedTuple):
    """The destinations of each row. The destinations of row i are ``names[start[i]:end[i]]``."""

    known: Bytes
    start: Longs
    end: Longs
    names: Ints


class Links(NamedTuple):
    """Arrays for the results, which :func:`match` fills in."""

    reason: Bytes
    """The verdict on each row. Rows that were set aside before matching already have ``LEFT_OUT``."""
    send_row: Longs
    """For each valid delivery, the row of its send."""
    awaited: Ints
    """For each valid send, the number of its valid deliveries."""
    named: Bytes
    """``named[k]`` is 1 if the name with the number k is a destination of a valid send, otherwise 0."""


@compiled
def match(messages: int, given: Rows, to: Destinations, links: Links) -> int:
    """Judge every row of a bucket. Return the number of undelivered copies (a message has one copy for each known
    destination).

    The destinations of each valid send are sorted in place, and duplicates are removed.
    """
    code, kind, process, index = given
    to_known, to_start, to_end, names = to
    reason, send_row, awaited, named = links
    rows = len(code)
    unsent, twice = -1, -2
    send_of = np.full(messages, unsent, np.int64)
    for i in range(rows):
        if kind[i] == SEND and reason[i] == VALID:
            send_of[code[i]] = i if send_of[code[i]] == unsent else twice
    starts = np.zeros(messages + 1, np.int64)
    for i in range(rows):
        if kind[i] <= DELIVER and reason[i] == VALID:
            if send_of[code[i]] == twice:
                reason[i] = DUPLICATE_SEND
            elif kind[i] == DELIVER:
                starts[code[i] + 1] += 1
    for c in range(messages):
        starts[c + 1] += starts[c]
    by_message = np.empty(starts[messages], np.int64)
    fill = starts[:-1].copy()
    for i in range(rows):
        if kind[i] == DELIVER and reason[i] == VALID:
            by_message[fill[code[i]]] = i
            fill[code[i]] += 1
    for c in range(messages):
        if starts[c + 1] - starts[c] > 1:
            _one_delivery_each(by_message[starts[c] : starts[c + 1]], process, index, reason)
    undelivered = 0
    for i in range(rows):
        if kind[i] == SEND and reason[i] == VALID and to_known[i]:
            to_end[i] = _as_set(names, to_start[i], to_end[i])
            undelivered += to_end[i] - to_start[i]
            for k in range(to_start[i], to_end[i]):
                named[names[k]] = 1
    for i in range(rows):
        if reason[i] != VALID or (kind[i] != DELIVER and kind[i] != ARRIVE):
            continue
        send = send_of[code[i]]
        if send < 0:
            reason[i] = ORPHAN_DELIVERY if kind[i] == DELIVER else ORPHAN_ARRIVAL
        elif kind[i] == DELIVER:
            if to_known[send] and not _among(names, to_start[send], to_end[send], process[i]):
                reason[i] = NOT_ADDRESSED
            elif process[send] == process[i] and index[i] < index[send]:
                reason[i] = BEFORE_SEND
            else:
                send_row[i] = send
                awaited[send] += 1
                if to_known[send]:
                    undelivered -= 1
    return undelivered


@inner
def _one_delivery_each(rows: Longs, process: Ints, index: Longs, reason: Bytes) -> None:
    """Mark duplicate deliveries of one message: in each process, only the delivery with the smallest index remains
    valid."""
    if len(rows) <= 8:
        for a in range(len(rows)):
            for b in range(a):
                if process[rows[a]] == process[rows[b]]:
                    later = rows[a] if index[rows[a]] > index[rows[b]] else rows[b]
                    reason[later] = DUPLICATE_DELIVERY
        return
    ordered = rows[np.argsort(process[rows], kind="mergesort")]
    kept = ordered[0]
    for k in range(1, len(ordered)):
        row = ordered[k]
        if process[row] != process[kept]:
            kept = row
        elif index[row] < index[kept]:
            reason[kept] = DUPLICATE_DELIVERY
            kept = row
        else:
            reason[row] = DUPLICATE_DELIVERY


@inner
def _as_set(values: Ints, start: int, end: int) -> int:
    """Sort a slice of an array, and remove duplicate values from it. Return the new end of the slice."""
    if end - start > 16:
        values[start:end] = np.sort(values[start:end])
    else:
        for i in range(start + 1, end):
            value = values[i]
            j = i
            while j > start and values[j - 1] > value:
                values[j] = values[j - 1]
                j -= 1
            values[j] = value
    kept = start
    for i in range(start, end):
        if i == start or values[i] != values[kept - 1]:
            values[kept] = values[i]
            kept += 1
    return kept


@inner
def _among(values: Ints, start: int, end: int, wanted: int) -> bool:
    low, high = start, end
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low < end and values[low] == wanted


@compiled
def leave_out(
    process: Ints,
    index: Longs,
    kind: Bytes,
    run_process: Ints,
    run_start: Longs,
    run_last: Longs,
    run_once: Bytes,
    reason: Bytes,
    once: Bytes,
) -> None:
    """Mark the rows at contested places. The place of a row is its process and its index. A place is contested if
    several rows have it. If the rows at a place differ, mark them with ``LEFT_OUT`` in ``reason``. If they are copies
    of one row, mark them in ``once``. The contested places are given as runs. A run has consecutive indices of one
    process, from ``run_start`` to ``run_last``. The runs are sorted by (process, start) and do not overlap.
    ``run_once`` is 1 if, at each place of the run, all rows are copies of one row."""
    for i in range(len(process)):
        if kind[i] == HOP:
            continue
        low, high = 0, len(run_process)
        while low < high:
            middle = (low + high) // 2
            if run_process[middle] < process[i] or (run_process[middle] == process[i] and run_last[middle] < index[i]):
                low = middle + 1
            else:
                high = middle
        if low < len(run_process) and run_process[low] == process[i] and run_start[low] <= index[i]:
            if run_once[low]:
                once[i] = 1
            else:
                reason[i] = LEFT_OUT
