"""The second half of measuring: sums by sender, quantiles of delays, and figures from the sequence of events.

**Exact quantiles without collecting all values.** Each task gets a part of the delays and sorts them. The *rank* of a
value is its position in the sorted values. In the first round, each task reports a sample: the values at evenly spaced
ranks. If a part has n values and its sample has s values, the sample shows the rank of any value in this part with an
error of about n/s. From the samples of all parts, :func:`interval` computes an interval that must contain the quantile.
In the second round, each task reports the number of its values below the interval, and all its values inside the
interval.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.judge.orders import cut_cycles
from antecede.pipeline.judge.verdict import LinesTask
from antecede.pipeline.kernels.concurrency import ordered_pairs
from antecede.pipeline.kernels.slots import grown, slots_of
from antecede.pipeline.kernels.walk import SENT
from antecede.pipeline.match.lines import Lines, Scratch, Walk, assemble
from antecede.pipeline.packing import pack, unpack
from antecede.pipeline.pieces import Piece, Waits, read_waits
from antecede.trace.costs import drawn

Longs = NDArray[np.int64]

_sample_size = 2_048
"""The largest number of delays in the sample that one task reports."""

_safe = 2**62
"""A sum is computed in 64 bits only if its absolute value is certainly below this number."""


def _columns(packed: Iterable[bytes], names: Sequence[str]) -> list[Longs]:
    found: list[list[Longs]] = [[] for _ in names]
    for blob in packed:
        arrays = unpack(blob)
        for column, name in zip(found, names, strict=True):
            column.append(arrays[name])
    return [np.concatenate(column) if column else np.zeros(0, np.int64) for column in found]


def _starts(*keys: Longs) -> Longs:
    """Return the position at which each group begins. The last entry of the result is the length of the arrays. A group
    consists of consecutive entries that are equal in every array of ``keys``. The entries must be sorted by these
    keys."""
    count = len(keys[0])
    if not count:
        return np.zeros(1, np.int64)
    new = np.zeros(count, bool)
    new[0] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.append(np.flatnonzero(new), count)


def exact_sum(values: Longs) -> int:
    """Return the exact sum, even if it does not fit into 64 bits."""
    return sum(_sums(values, np.array([0, len(values)]))) if len(values) else 0


def _sums(values: Longs, starts: Longs) -> list[int]:
    """Return the exact sum of the values of each group. ``starts`` is the result of :func:`_starts`."""
    if len(starts) == 1:
        return []
    if max(int(values.max()), -int(values.min())) < _safe // len(values):
        return [int(one) for one in np.add.reduceat(values, starts[:-1])]
    return [sum(values[a:b].tolist()) for a, b in pairwise(starts.tolist())]


def by_sender(packed: Iterable[bytes], first: int | None) -> bytes:
    """Return the figures of one part of the senders: the traffic to each receiver, the number of sends in each second,
    and the delays. ``first`` is the earliest time in the trace. Seconds are counted from this time."""
    blobs = list(packed)
    source, to, weighed, size = _columns(blobs, ("from", "to", "weighed", "bytes"))
    order = np.lexsort((to, source))
    source, to, weighed, size = source[order], to[order], weighed[order], size[order]
    starts = _starts(source, to)
    traffic = {
        "from": source[starts[:-1]], "to": to[starts[:-1]], "messages": np.diff(starts),
        "weighed": _sums(weighed, starts), "bytes": [str(one) for one in _sums(size, starts)],
    }  # fmt: skip
    process, time = _columns(blobs, ("process", "time"))
    # All times are at or after the first one, but the difference may be too large for a signed number.
    since = time.astype(np.uint64) - np.array(first or 0, np.int64).astype(np.uint64)
    second = (since // np.uint64(10**9)).astype(np.int64)
    order = np.lexsort((second, process))
    process, second = process[order], second[order]
    starts = _starts(process, second)
    rates = {"process": process[starts[:-1]], "second": second[starts[:-1]], "sent": np.diff(starts)}
    return pack({**traffic, **rates, **_delays(blobs)})


def _delays(blobs: list[bytes]) -> dict[str, Any]:
    """Return a summary of the delays for each pair of a sender and a receiver. Also return a sample: sort all delays of
    this part, and take the values at evenly spaced positions."""
    source, to, delay = _columns(blobs, ("d_from", "d_to", "delay"))
    order = np.lexsort((delay, to, source))
    source, to, delay = source[order], to[order], delay[order]
    starts = _starts(source, to)
    begin, count = starts[:-1], np.diff(starts)
    negative = np.add.reduceat((delay < 0).astype(np.int64), begin) if len(begin) else begin
    ascending = np.sort(delay)
    return {
        "d_from": source[begin], "d_to": to[begin], "d_count": count, "d_negative": negative,
        "d_sum": [str(one) for one in _sums(delay, starts)],
        "d_min": delay[begin], "d_max": delay[begin + count - 1],
        "d_p50": delay[begin + _rank(count, 50)], "d_p99": delay[begin + _rank(count, 99)],
        "ranks": _spaced(len(ascending)), "values": ascending[_spaced(len(ascending))],
    }  # fmt: skip


def _rank(count: Any, percent: int) -> Any:
    return np.maximum(0, -(-count * percent // 100) - 1)


def _spaced(count: int) -> Longs:
    if count <= _sample_size:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, _sample_size).astype(np.int64))


def interval(parts: Sequence[tuple[int, Longs, Longs]], rank: int) -> tuple[int, int]:
    """Return a lower and an upper bound of one value. This is the value at position ``rank`` (from 0) if the values of
    all parts are sorted together.

    Each part is a tuple: the number of its values, the positions of the sampled values in the sorted part, and the
    sampled values. The sample must contain the smallest and the largest value of the part.
    """
    sampled = np.unique(np.concatenate([values for _, _, values in parts]))
    at_least = np.zeros(len(sampled), np.int64)
    at_most = np.zeros(len(sampled), np.int64)
    for count, ranks, values in parts:
        if not count:
            continue
        # For each sampled value, bounds on how many of the part's values are not larger: at least, at most.
        upto = np.searchsorted(values, sampled, side="right")
        at_least += np.where(upto > 0, ranks[np.maximum(upto - 1, 0)] + 1, 0)
        at_most += np.where(upto < len(values), ranks[np.minimum(upto, len(values) - 1)], count)
    # The value of this rank has more than ``rank`` values up to it, and every smaller value has fewer.
    high = sampled[int(np.searchsorted(at_least, rank + 1))]
    below = int(np.searchsorted(at_most, rank, side="right"))
    return int(sampled[below]), int(high)


def inside(packed: Iterable[bytes], bounds: Sequence[tuple[int, int]]) -> bytes:
    """Return two results for each interval: the number of delays below the interval, and the sorted delays inside the
    interval. Only the delays of one part are used."""
    (delay,) = _columns(packed, ("delay",))
    ascending = np.sort(delay)
    found: dict[str, Any] = {}
    for number, (low, high) in enumerate(bounds):
        a, b = np.searchsorted(ascending, low), np.searchsorted(ascending, high, side="right")
        found |= {f"below{number}": int(a), f"values{number}": ascending[a:b]}
    return pack(found)


def on_lines(packed: Iterable[bytes], task: LinesTask) -> bytes:
    """Return three figures that depend on the sequence of events: the number of *direct* arrivals of each process, the
    number of compared messages, and the number of *ordered* pairs of these messages.

    The arrival of a message is direct if the process recorded only deliveries between this arrival and the delivery of
    the message. Only the arrivals in :class:`Waits` are examined. Two messages are ordered if one was sent in the
    causal past of the other.
    """
    waits: list[Waits] = []

    def pieces() -> Iterable[Piece]:
        for bucket in map(read_waits, packed):
            waits.append(bucket)
            yield bucket.piece

    lengths, sparse = np.frombuffer(task.lengths, np.int64), np.frombuffer(task.sparse, np.int32)
    lines, _ = assemble(lengths, sparse, pieces(), Scratch(task.scratch))
    cut_cycles(lines)
    process, arrived, delivered = (
        np.concatenate([getattr(wait, name) for wait in waits]) if waits else np.zeros(0, np.int64)
        for name in ("process", "arrived", "delivered")
    )
    compared, ordered = concurrency(lines)
    return pack({
        "direct": _direct(lines, process.astype(np.int32), arrived, delivered),
        "compared": compared, "ordered": ordered,
    })  # fmt: skip


def _direct(lines: Lines, process: NDArray[np.int32], arrived: Longs, delivered: Longs) -> Longs:
    """Return the number of direct arrivals of each process. An arrival is direct if all events of the process between
    the index in ``arrived`` and the index in ``delivered`` are deliveries."""
    if not len(process):
        return np.zeros(lines.processes, np.int64)
    before = lines.scratch.array(len(lines.source) + 1, np.int64)
    np.cumsum(lines.source >= 0, out=before[1:])
    between = before[lines.flat(process, delivered)] - before[lines.flat(process, arrived + 1)]
    return np.bincount(process[between == delivered - arrived - 1], minlength=lines.processes)


def concurrency(lines: Lines) -> tuple[int, int]:
    """Compare all messages or, if there are too many, a random sample of them. Return the number of compared messages,
    and the number of pairs in which one message was sent in the causal past of the other."""
    sends = np.flatnonzero(lines.source == SENT)
    picked = sends[np.array(drawn(len(sends)), np.int64)]
    words = max(1, -(-len(picked) // 64))
    known = lines.scratch.array((lines.processes, words), np.uint64)
    slot_of = lines.scratch.array(len(lines.source), np.int32)
    slots, ordered = slots_of(words, np.uint64), np.zeros(1, np.int64)
    walk = Walk(lines)

    def count(begin: int, end: int) -> int:
        return ordered_pairs(lines.arrays, walk.segments, begin, end, picked, known, slot_of, slots, ordered)

    for stopped in walk.through(count):
        if stopped:
            slots = grown(slots)
    return len(picked), int(ordered[0])
