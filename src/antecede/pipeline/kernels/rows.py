"""The *narrow* form of rows: it needs few bytes per row, and is used if the message ids are UUIDs. Rows are sorted into
buckets in this form. Then the rows of each bucket are converted back to their usual, wide form.

A row has one byte, its *code*, for its kind and the number of its destinations. Names are numbers of 16 bits, and
indices have 32 bits; :mod:`antecede.pipeline.read.rows` uses this form only if all names and indices fit.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled
from antecede.pipeline.kernels.match import ARRIVE, DELIVER, SEND

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Shorts = NDArray[np.uint16]
Words = NDArray[np.uint64]

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
