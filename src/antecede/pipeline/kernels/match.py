"""Match sends and deliveries, and find the rows that are certainly wrong, in one bucket of messages at a time.

A bucket contains every row of its messages. So the quarantine rules from ``duplicate_send`` to ``before_send`` need no
rows of other buckets. Messages and processes are numbered from 0; a row is an index into the arrays. The rules are
applied in the sequence of ``docs/guide/trace.md``. Each rule examines only the rows that no earlier rule has set aside.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import Bytes, Ints, Longs, Words, compiled, inner
from antecede.pipeline.kernels.walk import SENT, Flat

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


# The *narrow* form of rows: it needs few bytes per row, and is used if the message ids are UUIDs. Rows are sorted into
# buckets in this form. Then the rows of each bucket are converted back to their usual, wide form.
#
# A row has one byte, its *code*, for its kind and the number of its destinations. Names are numbers of 16 bits, and
# indices have 32 bits; :mod:`antecede.pipeline.read.rows` uses this form only if all names and indices fit.


Shorts = NDArray[np.uint16]

_DELIVERED, _ARRIVED, _UNADDRESSED = 255, 254, 253
"""Codes of a delivery, an arrival, and a send without known destinations. The code of any other send is the number of
its destinations."""

_index_max = 2**31 - 1


class Given(NamedTuple):
    """Rows before they are sorted. If ``known[row]`` is true, the destinations of the row are
    ``to[ends[row] : ends[row + 1]]``."""

    process: Ints
    indices: Longs
    words: Words
    known: NDArray[np.bool_]
    ends: Ints
    to: Ints


class Narrow(NamedTuple):
    """Rows in their narrow form; the destinations of all rows are in ``to``, one row after the other."""

    words: Words
    indices: Ints
    process: Shorts
    to: Shorts
    code: Bytes


class Wide(NamedTuple):
    """Rows in their wide form. The sends and deliveries of a bucket are matched in this form."""

    process: Ints
    kind: Bytes
    unknown: NDArray[np.bool_]
    """For each row, whether its destinations are not known."""
    ends: Ints
    to: Ints


@compiled
def code_rows(given: Given, kind: Bytes, code: Bytes) -> bool:
    """Write the code of each row. Return whether all rows have a narrow form."""
    for i in range(len(kind)):
        if given.indices[i] > _index_max:
            return False
        if kind[i] == DELIVER:
            code[i] = _DELIVERED
        elif kind[i] == ARRIVE:
            code[i] = _ARRIVED
        elif kind[i] != SEND:
            return False
        elif not given.known[i]:
            code[i] = _UNADDRESSED
        else:
            count = given.ends[i + 1] - given.ends[i]
            if count >= _UNADDRESSED:
                return False
            code[i] = count
    return True


@compiled
def sort_rows(
    given: Given, code: Bytes, hashed: Words, bucket: Shorts, ends: Longs, to_ends: Longs, out: Narrow
) -> None:
    """Sort rows by bucket, and write them to ``out``. Within a bucket they keep their order.

    ``ends[b + 1]`` becomes the end of the rows of bucket b, and ``to_ends[b + 1]`` becomes the end of their
    destinations. ``ends[0]`` and ``to_ends[0]`` are 0. ``bucket`` is working space with one number for each row.
    """
    buckets = np.uint64(len(ends) - 1)
    for i in range(len(code)):
        b = hashed[i] % buckets
        bucket[i] = b
        ends[b + np.uint64(1)] += 1
        if code[i] < _UNADDRESSED:
            to_ends[b + np.uint64(1)] += code[i]
    for b in range(1, len(ends)):
        ends[b] += ends[b - 1]
        to_ends[b] += to_ends[b - 1]
    at, to_at = ends.copy(), to_ends.copy()
    for i in range(len(code)):
        b = bucket[i]
        k = at[b]
        at[b] = k + 1
        out.words[k, 0], out.words[k, 1] = given.words[i, 0], given.words[i, 1]
        out.indices[k] = given.indices[i]
        out.process[k] = given.process[i]
        out.code[k] = code[i]
        if code[i] < _UNADDRESSED:
            for j in range(code[i]):
                out.to[to_at[b]] = given.to[given.ends[i] + j]
                to_at[b] += 1


@compiled
def widen_rows(given: Narrow, ends: Longs, first: Longs, numbers: Ints, out: Wide) -> None:
    """Convert the rows of several pieces to their wide form. A piece has rows of one split (a part of the input). In a
    piece, a name is given by its number in this split. The function replaces this number by the name's number in the
    whole trace.

    Piece k ends before row ``ends[k]``. A name with the number n in the split of piece k has the number
    ``numbers[first[k] + n]`` in the whole trace.
    """
    row = to = 0
    out.ends[0] = 0
    for piece in range(len(ends)):
        base = first[piece]
        while row < ends[piece]:
            out.process[row] = numbers[base + given.process[row]]
            code = given.code[row]
            out.unknown[row] = code >= _UNADDRESSED
            if code < _UNADDRESSED:
                out.kind[row] = SEND
                for _ in range(code):
                    out.to[to] = numbers[base + given.to[to]]
                    to += 1
            elif code == _UNADDRESSED:
                out.kind[row] = SEND
            else:
                out.kind[row] = DELIVER if code == _DELIVERED else ARRIVE
            row += 1
            out.ends[row] = to


# Sort sends and deliveries by region, and write them into the lines.
#
# A line has the events of one process. All lines are stored one after the other in flat arrays
# (:mod:`antecede.pipeline.match`). A region is a part of these arrays. Here, the *place* of an event is its flat
# position minus the start of its region.


class Ends(NamedTuple):
    """The start and the end of each region in two arrays. One array has all sends, the other has all deliveries, and
    both are sorted by region. The sends of region k are at the positions from ``sends[k]`` to ``sends[k + 1]`` - 1. The
    deliveries of region k are at the positions from ``deliveries[k]`` to ``deliveries[k + 1]`` - 1."""

    sends: Longs
    deliveries: Longs


class Sorted(NamedTuple):
    """Sends and deliveries, sorted by region. The *place* of an event is its position in its region. The integer types
    are as small as the trace allows."""

    sent: Ints
    """The place of each send."""
    copies: NDArray[Any]
    """The number of valid deliveries of each send."""
    delivered: Ints
    """The place of each delivery."""
    source: NDArray[Any]
    """The sender of the message of each delivery."""
    argument: Ints
    """For each delivery, the position of its send in the sender's line."""


@compiled
def find_regions(offsets: Longs, events: int, rows: Rows, links: Links, region: Ints, place: Ints, ends: Ends) -> int:
    """Find the region of each valid send and each valid delivery, and its place (position) in this region. All other
    rows get the region -1. ``events`` is the number of flat positions in a region. Write the ends of the regions to
    ``ends``. Return the largest number of valid deliveries of a send."""
    most = 0
    for i in range(len(rows.kind)):
        region[i] = -1
        if links.reason[i] == VALID and rows.kind[i] <= DELIVER:
            at = offsets[rows.process[i]] + rows.indices[i]
            found = at // events
            region[i] = found
            place[i] = at - found * events
            if rows.kind[i] == SEND:
                ends.sends[found + 1] += 1
                most = max(most, links.awaited[i])
            else:
                ends.deliveries[found + 1] += 1
    for k in range(1, len(ends.sends)):
        ends.sends[k] += ends.sends[k - 1]
        ends.deliveries[k] += ends.deliveries[k - 1]
    return most


@compiled
def sort_regions(rows: Rows, links: Links, region: Ints, place: Ints, ends: Ends, out: Sorted) -> None:
    """Write the sends and deliveries to ``out``, sorted by region. Within a region, they keep their order."""
    sends, deliveries = ends.sends.copy(), ends.deliveries.copy()
    for i in range(len(region)):
        found = region[i]
        if found < 0:
            continue
        if rows.kind[i] == SEND:
            k = sends[found]
            sends[found] = k + 1
            out.sent[k], out.copies[k] = place[i], links.awaited[i]
        else:
            k = deliveries[found]
            deliveries[found] = k + 1
            send = links.send_row[i]
            out.delivered[k], out.source[k], out.argument[k] = place[i], rows.process[send], rows.indices[send]


@compiled
def place_region(lines: Flat, first: int, events: Sorted) -> None:
    """Write the events of one region into the lines. The region begins at the flat position ``first``."""
    for k in range(len(events.sent)):
        at = first + events.sent[k]
        lines.source[at], lines.argument[at] = SENT, events.copies[k]
    for k in range(len(events.delivered)):
        at = first + events.delivered[k]
        lines.source[at], lines.argument[at] = events.source[k], events.argument[k]
