"""``measure`` on Spark: each task computes sums over its rows, and this module combines the sums of all tasks.

The report and the tables have the same keys as those of :mod:`antecede.trace.measure`.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from antecede import __version__
from antecede.pipeline.judge.files import Given, flow_of, open_trace, spark_for
from antecede.pipeline.judge.orders import cut_cycles
from antecede.pipeline.judge.significant import Operations, Settings, precedences_among, settings_for
from antecede.pipeline.judge.trace import Trace, layout_for, verdict_on
from antecede.pipeline.judge.verdict import LinesTask
from antecede.pipeline.kernels import Longs
from antecede.pipeline.kernels.match import ARRIVE, DELIVER, HOP, SEND, VALID
from antecede.pipeline.kernels.races import ordered_pairs
from antecede.pipeline.kernels.significant import REQUEST, RESPONSE
from antecede.pipeline.kernels.walk import SENT, grown, slots_of
from antecede.pipeline.match import Lines, Numbering, Scratch, Walk, assemble, bucket_of, matched_instances, place_keys
from antecede.pipeline.pieces import Piece, Waits, pack, pack_struct, read_waits, unpack
from antecede.pipeline.sessions import Session
from antecede.trace.conflicts import Conflicts, conflicts_of
from antecede.trace.costs import Pair, Span, Stamps, drawn
from antecede.trace.measure import (
    Received,
    Tables,
    counted_at,
    figures,
    held_figures,
    held_rows,
    rate_rows,
    rates,
    seconds,
    stamp_figures,
    traffic_rows,
    write_tables,
)

# The second half of measuring: sums by sender, quantiles of delays, and figures from the sequence of events.
#
# **Exact quantiles without collecting all values.** Each task gets a part of the delays and sorts them. The *rank* of a
# value is its position in the sorted values. In the first round, each task reports a sample: the values at evenly
# spaced ranks. If a part has n values and its sample has s values, the sample shows the rank of any value in this part
# with an error of about n/s. From the samples of all parts, :func:`interval` computes an interval that must contain the
# quantile. In the second round, each task reports the number of its values below the interval, and all its values
# inside the interval.


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


# The first stage measures the rows of one bucket. The later stages add up values by sender, and compute the figures
# that depend on the sequence of events of each process.
#
# A bucket has all rows of its messages, so it knows their copies, stamps, hops, delays and arrivals. The output has
# several parts: all values of one sender go to the same part, where they are summed. Values that depend on the event
# sequence of a process are passed to the task that assembles the *lines*, the events of each process in sequence. All
# definitions are exactly the same as in :mod:`antecede.trace.costs`.


Bools = NDArray[np.bool_]

SUMMARY, LINES, SENDERS = 0, 1, 2
"""Numbers of output parts: the part for the buckets' summaries, the part for the data from which the lines are
assembled, and the first of the parts for values by sender."""

PARTS = 16
"""The number of output parts for values by sender. Each part has the values of some senders."""

_last = np.iinfo(np.int64).max


class Excluded(msgspec.Struct, frozen=True):
    """Rows that are valid after matching, but must not be measured, or must be measured only once. These are deliveries
    on a cycle, and ``hop`` rows with the same place (process and index) as another ``hop`` row."""

    circular: tuple[tuple[int, int], ...] = ()
    """The deliveries on a cycle, each as (split, number of the row)."""
    hops: tuple[tuple[int, int, int], ...] = ()
    """Ranges that contain all indices with more than one ``hop`` row, each as (process, first index, last index)."""
    torn: tuple[tuple[int, int], ...] = ()
    """The places within ``hops`` at which the rows differ, each as (process, index). All rows at these places are
    excluded. At any other place within ``hops`` the rows are equal, and one of them is measured."""


class Rows:
    """The valid rows of a bucket, with their values."""

    def __init__(self, packed: Iterable[bytes], numbering: Numbering, excluded: Excluded) -> None:
        bucket = self.bucket = bucket_of(packed, numbering)
        self.process, self.index, self.code = (
            bucket.process.astype(np.int64),
            bucket.index,
            bucket.code.astype(np.int64),
        )
        self.time, self.timed = self._numbers("time")
        self.stamp, self.stamped = self._numbers("stamp_bytes")
        self.hop, self.hop_known = self._numbers("hop")
        self.payload, self.weighed = self._numbers("payload")
        self.held, self.held_known = self._numbers("held")
        valid = bucket.reason == VALID
        if excluded.circular:
            at, _ = self._numbers("at")
            keys = place_keys(bucket.split.astype(np.int64), at)
            out = np.array(excluded.circular, np.int64)
            valid &= ~np.isin(keys, place_keys(out[:, 0], out[:, 1]))
        self.sends = np.flatnonzero(valid & (bucket.kind == SEND))
        self.delivers = np.flatnonzero(valid & (bucket.kind == DELIVER))
        self.arrives = np.flatnonzero(valid & (bucket.kind == ARRIVE))
        self.all_hops = self._uncontested(np.flatnonzero(bucket.kind == HOP), excluded)
        self.send_of = np.full(int(self.code.max()) + 1 if len(self.code) else 0, -1, np.int64)
        self.send_of[self.code[self.sends]] = self.sends
        self.hops = self.all_hops[self.send_of[self.code[self.all_hops]] >= 0]
        self.copy_send, self.copy_to = self._copies()

    def _numbers(self, name: str) -> tuple[Longs, Bools]:
        rows = self.bucket.table.num_rows
        if name not in self.bucket.table.schema.names:
            return np.zeros(rows, np.int64), np.zeros(rows, bool)
        column = self.bucket.table.column(name)
        known = column.is_valid().to_numpy().astype(bool)
        zero = False if name == "held" else 0
        return column.fill_null(zero).to_numpy().astype(np.int64, copy=False), known

    def texts(self, name: str, rows: Longs) -> list[str | None]:
        """Return the texts in the column ``name`` at these rows. If the table lacks the column, each text is None."""
        if name not in self.bucket.table.schema.names:
            return [None] * len(rows)
        return self.bucket.table.column(name).take(rows).to_pylist()  # type: ignore[no-any-return]

    def contested(self, excluded: Excluded) -> Longs:
        """Return the positions of all ``hop`` rows in the ranges ``excluded.hops``."""
        hops = np.flatnonzero(self.bucket.kind == HOP)
        inside = np.zeros(len(hops), bool)
        for process, first, last in excluded.hops:
            inside |= (self.process[hops] == process) & (self.index[hops] >= first) & (self.index[hops] <= last)
        return hops[inside]

    def _uncontested(self, hops: Longs, excluded: Excluded) -> Longs:
        if not excluded.hops:
            return hops
        out = np.array(excluded.torn, np.int64).reshape(-1, 2)
        keys = place_keys(self.process[hops], self.index[hops])
        hops = hops[~np.isin(keys, place_keys(out[:, 0], out[:, 1]))]
        # The rows that are left at a contested place are copies of one row; the first one stays.
        _, first = np.unique(place_keys(self.process[hops], self.index[hops]), return_index=True)
        return hops[np.sort(first)]

    def _copies(self) -> tuple[Longs, Longs]:
        """Return two arrays with one entry per copy (a message to one destination): the row of the send, and the
        destination."""
        known = self.bucket.to.known.astype(bool)
        pairs = []
        if "to" in self.bucket.table.schema.names:
            to = self.bucket.table.column("to").combine_chunks()
            sends = self.sends[known[self.sends]]
            lists = to.take(sends)
            sizes = np.diff(lists.offsets.to_numpy())
            pairs.append((np.repeat(sends, sizes), lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)))
        seen = np.concatenate([self.arrives, self.delivers])
        sent = self.send_of[self.code[seen]]
        open_ = ~known[sent]
        pairs.append((sent[open_], self.process[seen][open_]))
        keys = np.unique(place_keys(*(np.concatenate([pair[k] for pair in pairs]) for k in range(2))))
        return keys["process"].copy(), keys["index"].copy()

    def copy_keys(self, rows: Longs) -> Any:
        """Return for each of these rows a key that consists of its message and its process."""
        return place_keys(self.code[rows], self.process[rows])


def lookup(keys: Any, wanted: Any) -> tuple[Longs, Bools]:
    """Search for each wanted key in ``keys``, which must be ascending and without repeats. Return two arrays: the
    position of each wanted key, and whether this key was found. The position of a key that was not found has no
    meaning."""
    at = np.searchsorted(keys, wanted)
    if not len(keys):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    at = np.minimum(at, len(keys) - 1)
    return at, np.asarray(keys[at] == wanted)


def contested_hops(packed: Iterable[bytes], numbering: Numbering, excluded: Excluded) -> bytes:
    """Return the place and the values of some ``hop`` rows of one bucket: those in the ranges ``excluded.hops``, where
    several rows have the same process and index."""
    rows = Rows(packed, numbering, Excluded())
    found = rows.contested(excluded)
    claims = zip(
        rows.process[found].tolist(), rows.index[found].tolist(), rows.bucket.ids(found), rows.texts("domain", found),
        *(
            np.where(known, values, _last)[found].tolist()
            for values, known in (
                (rows.time, rows.timed), (rows.stamp, rows.stamped), (rows.hop, rows.hop_known),
                (rows.held, rows.held_known),
            )
        ),
        strict=True,
    )  # fmt: skip
    return msgspec.msgpack.encode(list(claims))


def measured(packed: Iterable[bytes], numbering: Numbering, excluded: Excluded) -> Iterator[tuple[int, bytes]]:
    """Measure the rows of one bucket. Yield each result with the number of its output part: ``SUMMARY``, ``LINES``, or
    a number from ``SENDERS`` on."""
    rows = Rows(packed, numbering, excluded)
    arrivals, direct, waits = _arrivals(rows, numbering.names)
    yield LINES, pack_struct(waits)
    stamps = _stamps(rows)
    yield SUMMARY, pack({
        **stamps, "bytes": str(stamps["bytes"]), **_hops(rows), **_span(rows), "hop_table": _hop_table(rows),
        "arrivals": arrivals, "direct": direct,
    })  # fmt: skip
    yield from _by_sender(rows)


def _arrivals(rows: Rows, names: int) -> tuple[Longs, Longs, Waits]:
    """Return three values. The first is the number of arrivals of each process. The second is the number of those
    arrivals of each process that are certainly direct (:class:`Waits` defines *direct*). The third has the undecided
    arrivals, each with the place of its delivery. Whether an undecided arrival is direct can be decided only from the
    sequence of all events of its process. A delivery or ``hop`` row in which ``held`` is recorded counts as one more
    arrival, and this arrival is direct if ``held`` is false."""
    order = rows.delivers[np.argsort(rows.copy_keys(rows.delivers))]
    at, there = lookup(rows.copy_keys(order), rows.copy_keys(rows.arrives))
    delivery = order[at] if len(order) else at
    delivered_at = np.where(there, rows.index[delivery] if len(order) else 0, _last)
    counts = rows.index[rows.arrives] < delivered_at
    arrives, delivery, there = rows.arrives[counts], delivery[counts], there[counts]
    arrivals = np.bincount(rows.process[arrives], minlength=names)
    # Only the last arrival before a delivery can be direct.
    arrives, delivery = arrives[there], delivery[there]
    order = np.lexsort((rows.index[arrives], delivery))
    arrives, delivery = arrives[order], delivery[order]
    last = np.append(delivery[1:] != delivery[:-1], True) if len(delivery) else np.zeros(0, bool)
    arrives, delivery = arrives[last], delivery[last]
    both = rows.timed[arrives] & rows.timed[delivery]
    at_once = ~both | (rows.time[arrives] == rows.time[delivery])
    arrives, delivery = arrives[at_once], delivery[at_once]
    next_to = rows.index[delivery] == rows.index[arrives] + 1
    direct = np.bincount(rows.process[arrives[next_to]], minlength=names)
    # The deliveries and hops of servers say themselves whether they were held.
    noted = np.concatenate([rows.delivers, rows.all_hops])
    noted = noted[rows.held_known[noted]]
    arrivals += np.bincount(rows.process[noted], minlength=names)
    direct += np.bincount(rows.process[noted[rows.held[noted] == 0]], minlength=names)
    others, their_delivery = arrives[~next_to], delivery[~next_to]
    process = rows.process[others].astype(np.int32)
    return arrivals, direct, Waits(rows.bucket.piece(), process, rows.index[others], rows.index[their_delivery])


def _stamps(rows: Rows) -> dict[str, Any]:
    """Return the number of copies with known stamps, the sum of the sizes of these stamps, and the largest size, in
    bytes."""
    reached = np.concatenate([rows.arrives, rows.delivers])
    stamped = reached[rows.stamped[reached]]
    order = stamped[np.lexsort((rows.index[stamped], rows.process[stamped], rows.code[stamped]))]
    keys, first = np.unique(rows.copy_keys(order), return_index=True)
    at, known = lookup(keys, place_keys(rows.code[rows.copy_send], rows.copy_to))
    size = rows.stamp[order[first[at]]] if len(keys) else np.zeros(len(known), np.int64)
    passed = np.zeros(len(rows.send_of), bool)
    passed[rows.code[rows.hops]] = True
    routed = passed[rows.code[rows.copy_send]]
    by_send = ~known & ~routed & rows.stamped[rows.copy_send]
    size = np.where(by_send, rows.stamp[rows.copy_send], size)
    alone = (known | by_send) & ~routed
    found = {"copies": int(alone.sum()), "bytes": exact_sum(size[alone]), "most": int(size[alone].max(initial=0))}
    if routed.any():
        _add_routed(rows, found, rows.code[rows.copy_send[routed]], size[routed], known[routed])
    return found


def _routers(rows: Rows) -> tuple[Longs, Longs, Longs, Longs, Bools]:
    """Return arrays with one entry for each message and each router that has ``hop`` rows for this message. A router
    that is the sender or a destination of the message is left out, because it gets no separate packet. The arrays have:
    the message, the router, the smallest number of hops before the router, the size of the smallest stamp that the
    router recorded for the message, and whether all rows of the router for the message have a stamp."""
    hops = rows.hops
    message, router = rows.code[hops], rows.process[hops]
    copies = np.sort(place_keys(rows.code[rows.copy_send], rows.copy_to))
    _, is_destination = lookup(copies, place_keys(message, router))
    own = ~is_destination & (router != rows.process[rows.send_of[message]])
    hops, message, router = hops[own], message[own], router[own]
    behind = np.where(rows.hop_known[hops], rows.hop[hops], 0)
    order = np.lexsort((behind, router, message))
    keys, first = np.unique(place_keys(message[order], router[order]), return_index=True)
    least, noted = np.zeros(0, np.int64), np.zeros(0, bool)
    if len(first):
        least = np.minimum.reduceat(rows.stamp[hops][order], first)
        noted = np.logical_and.reduceat(rows.stamped[hops][order], first)
    return keys["process"].copy(), keys["index"].copy(), behind[order][first], least, noted


def _add_routed(rows: Rows, found: dict[str, Any], message: Longs, size: Longs, known: Bools) -> None:
    """Update the figures in ``found``: add the stamps of the messages that routers forwarded. For such a message, the
    bytes of the stamps of all its packets are divided equally among its copies. A message is left out if the size of
    one of these stamps is unknown."""
    sends = rows.sends
    level_message = np.concatenate([rows.code[sends], rows.code[rows.hops]])
    behind = np.where(rows.hop_known[rows.hops], rows.hop[rows.hops], 0)
    level = np.concatenate([np.zeros(len(sends), np.int64), behind])
    left = np.concatenate([sends, rows.hops])
    keys, group = np.unique(place_keys(level_message, level), return_inverse=True)
    packets = np.bincount(group, minlength=len(keys))
    sized = np.bincount(group, weights=rows.stamped[left], minlength=len(keys)).astype(np.int64)
    total = np.zeros(len(keys), np.int64)
    np.add.at(total, group, np.where(rows.stamped[left], rows.stamp[left], 0))
    router_message, _, router_behind, received, noted = _routers(rows)
    at, there = lookup(keys, place_keys(router_message, router_behind - 1))
    there = there & (sized[at] == packets[at])
    mean = np.rint(total[at] / np.maximum(packets[at], 1)).astype(np.int64)
    # Without a size on the send, routers recorded the packets that they received.
    unsent = ~rows.stamped[rows.send_of[router_message]]
    mean, there = np.where(unsent, received, mean), np.where(unsent, noted, there)
    messages, back = np.unique(message, return_inverse=True)
    copies = np.bincount(back)
    sums, missing = np.zeros(len(messages), np.int64), np.zeros(len(messages), np.int64)
    np.add.at(sums, back, np.where(known, size, 0))
    np.add.at(missing, back, ~known)
    place, mine = lookup(messages, router_message)
    np.add.at(sums, place[mine], np.where(there, mean, 0)[mine])
    np.add.at(missing, place[mine], ~there[mine])
    whole = missing == 0
    found["copies"] += int(copies[whole].sum())
    found["bytes"] += int(sums[whole].sum())
    found["most"] = max(found["most"], int((-(-sums[whole] // copies[whole])).max(initial=0)))


def _hops(rows: Rows) -> dict[str, Any]:
    """Return four numbers: copies (``all_copies``), packets, ``hop`` rows (``passed``), and the largest number of hops
    before a router (``behind``, ``None`` if unknown)."""
    message, *_ = _routers(rows)
    sent_to = np.zeros(len(rows.send_of), bool)
    sent_to[rows.code[rows.copy_send]] = True
    behind = rows.hop[rows.hops[rows.hop_known[rows.hops]]]
    return {
        "all_copies": len(rows.copy_send),
        "packets": len(rows.copy_send) + int(sent_to[message].sum()),
        "passed": len(rows.hops),
        "behind": int(behind.max()) if len(behind) else None,
    }


def _hop_table(rows: Rows) -> list[list[Any]]:
    """Return a table. Each row has a router, a domain, the number of hops before the router, the number of messages,
    the number of known stamps, and the bytes of these stamps."""
    table: dict[tuple[int, str | None, int | None], list[int]] = {}
    hops = rows.all_hops
    for router, domain, hop, hop_known, stamp, stamped in zip(
        rows.process[hops].tolist(), rows.texts("domain", hops), rows.hop[hops].tolist(),
        rows.hop_known[hops].tolist(), rows.stamp[hops].tolist(), rows.stamped[hops].tolist(), strict=True,
    ):  # fmt: skip
        sums = table.setdefault((router, domain, hop if hop_known else None), [0, 0, 0])
        sums[0] += 1
        sums[1] += stamped
        sums[2] += stamp
    # The sum is text, because a sum of wrong sizes may be larger than the largest packable integer.
    return [[*key, messages, stamped, str(total)] for key, (messages, stamped, total) in table.items()]


def _span(rows: Rows) -> dict[str, Any]:
    events = np.concatenate([rows.sends, rows.arrives, rows.delivers])
    times = rows.time[events[rows.timed[events]]]
    return {"first": int(times.min()), "last": int(times.max())} if len(times) else {"first": None, "last": None}


def _by_sender(rows: Rows) -> Iterator[tuple[int, bytes]]:
    """Yield the copies, the delays and the times of sends, divided into output parts by sender."""
    sender = rows.process[rows.copy_send]
    sent = rows.bucket.send_row[rows.delivers]
    timed = rows.timed[rows.delivers] & rows.timed[sent]
    delivers, sent = rows.delivers[timed], sent[timed]
    sends = rows.sends[rows.timed[rows.sends]]
    columns = [
        (sender, {"from": sender, "to": rows.copy_to, "weighed": rows.weighed[rows.copy_send].astype(np.int64),
                  "bytes": rows.payload[rows.copy_send]}),
        (rows.process[sent], {"d_from": rows.process[sent], "d_to": rows.process[delivers],
                              "delay": _difference(rows.time[delivers], rows.time[sent])}),
        (rows.process[sends], {"process": rows.process[sends], "time": rows.time[sends]}),
    ]  # fmt: skip
    for part in range(PARTS):
        mine = [{name: array[key % PARTS == part] for name, array in one.items()} for key, one in columns]
        if any(len(array) for one in mine for array in one.values()):
            yield SENDERS + part, pack({name: array for one in mine for name, array in one.items()})


def _difference(later: Longs, earlier: Longs) -> Longs:
    """Return later − earlier. A result above 2^63 - 1 becomes 2^63 - 1. A result below -(2^63 - 1) becomes
    -(2^63 - 1)."""
    with np.errstate(over="ignore"):
        found = later - earlier
    lost = ((later ^ earlier) < 0) & ((found ^ later) < 0)
    found = np.where(lost, np.where(later < 0, -_last, _last), found)
    return np.asarray(np.maximum(found, -_last))


# ``measure`` on Spark: count the orderings that causal order enforces, but significant order does not need.
#
# An *ordering* consists of two messages and a process that delivered both (:mod:`antecede.trace.measure`).


_received_as = {0: None, REQUEST: "request", RESPONSE: "response"}


def orderings_on(trace: Trace, conflicts: Conflicts) -> dict[str, Any] | None:
    """Return the report's ``significance``. If no delivery belongs to an instance, return ``None``. The trace must have
    been read with its column of instances (``instances=True``)."""
    pieces = trace.from_buckets(partial(matched_instances, numbering=trace.numbering), 1)
    counts = unpack(pieces.gather(partial(counted, settings=settings_for(trace, conflicts)), [0])[0])
    return figures(counts["messages"], counts["causal"], counts["significant"]) if counts["judged"] else None


def counted(packed: Iterable[bytes], settings: Settings) -> bytes:
    """Count the orderings that causal order enforces. Also count those of them that are necessary for significant
    order. If there are too many messages, only a random sample of them is compared. One task does the work for the
    whole trace."""
    operations = Operations(packed, settings)
    lines = operations.lines
    sends = np.flatnonzero(lines.source == SENT)
    picked = sends[np.array(drawn(len(sends)), np.int64)]
    # Look up the sends before the walk replaces the numbers of deliveries by slot numbers.
    delivered = np.flatnonzero(lines.source >= 0)
    number = np.searchsorted(picked, lines.send_of(delivered))
    some = picked[np.minimum(number, len(picked) - 1)] == lines.send_of(delivered) if len(picked) else number < 0
    delivered, number = delivered[some], number[some]
    causal, significant = precedences_among(operations, picked)
    rivals = np.split(operations.rivals, operations.rival_from[1:-1])
    request_rivals = np.split(operations.request_rivals, operations.request_rival_from[1:-1])
    total = needed = 0
    process = lines.process_at(delivered)
    for p in np.unique(process).tolist():
        received = [
            _received(operations, int(at), int(which))
            for at, which in zip(*_of(p, process, delivered, number), strict=True)
        ]
        found = counted_at(received, causal, significant, rivals, request_rivals)
        total, needed = total + found[0], needed + found[1]
    return pack({"judged": operations.judged, "messages": len(picked), "causal": total, "significant": needed})


def _of(process: int, owner: Any, delivered: Any, number: Any) -> tuple[Any, Any]:
    return delivered[owner == process], number[owner == process]


def _received(operations: Operations, at: int, number: int) -> Received:
    own = int(operations.instance[at])
    if own < 0:
        return Received(number)
    name = operations.instance_names[operations.name[own]]
    return Received(number, name, int(operations.cell[own]), _received_as[int(operations.received_as[at])])


ReportStatus = Callable[[str], None]


def measure_files(
    paths: Sequence[str | os.PathLike[str]],
    tables: str | os.PathLike[str] | None = None,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    conflicts: Conflicts | None = None,
    report_status: ReportStatus = lambda _: None,
) -> dict[str, Any]:
    """Measure the traces at these paths together, as one trace, on a new Spark session. Return the report."""
    with spark_for(paths, master, conf, report_status) as (running, given):
        return measure_in(running, given, tables, conflicts, report_status)


def measure_in(
    running: Session,
    given: Given,
    tables: str | os.PathLike[str] | None = None,
    conflicts: Conflicts | None = None,
    report_status: ReportStatus = lambda _: None,
) -> dict[str, Any]:
    """Measure a trace in a running session. Return the report."""
    started = time.perf_counter()
    trace = open_trace(running, given, report_status, figures=True, numbered=True)
    report_status(f"measuring {trace.rows:,} rows")
    table = conflicts if conflicts is not None else conflicts_of(trace.given.metadata)
    report, tidy = measured_on(trace)
    if table is not None:
        # The trace is read again with other columns; few traces have a table of conflicts.
        layout = layout_for(trace.given, instances=True)
        scratch = str(running.scratch) if running.local else None
        report["significance"] = orderings_on(Trace(flow_of(running), trace.given, layout, scratch), table)
    if tables is not None:
        report_status("writing tables")
        write_tables(tables, tidy)
    return {
        **report,
        "session_seconds": round(running.seconds, 3),
        "seconds": round(time.perf_counter() - started, 3),
    }


def measured_on(trace: Trace) -> tuple[dict[str, Any], Tables]:
    """Return the report and the tables. The report does not have its timings yet. The layout of the trace must have
    ``figures=True`` and ``numbered=True``."""
    verdict = verdict_on(trace, ())
    counted = verdict.report
    excluded = _excluded(trace, tuple(verdict.circular))
    parts = trace.from_buckets(partial(measured, numbering=trace.numbering, excluded=excluded), SENDERS + PARTS)
    summary = _summary([unpack(blob) for blob in msgspec.msgpack.decode(parts.gather(_joined, [SUMMARY])[0])])
    senders = range(SENDERS, SENDERS + PARTS)
    sums = [unpack(blob) for blob in parts.gather(partial(by_sender, first=summary["first"]), senders)]
    lines = unpack(parts.gather(partial(on_lines, task=trace.task(())), [LINES])[0])
    traffic = _traffic(trace.names, sums)
    delays = _delay_rows(trace.names, sums)
    bounds = _bounds(sums)
    found = [unpack(blob) for blob in parts.gather(partial(inside, bounds=bounds), senders)] if bounds else []
    delay = _delay_figures(sums, found)
    by_second = _by_second(trace.names, sums)
    held = {
        trace.names[process]: (int(count), int(count - summary["direct"][process] - lines["direct"][process]))
        for process, count in enumerate(summary["arrivals"])
        if count
    }
    pairs = lines["compared"] * (lines["compared"] - 1) // 2
    span = Span(summary["first"], summary["last"]) if summary["first"] is not None else None
    report = {
        "version": __version__,
        "engine": "spark",
        "processes": counted["processes"],
        "events": counted["events"],
        "messages": counted["messages"],
        "deliveries": counted["deliveries"],
        "traffic": traffic_rows(traffic),
        "stamp": stamp_figures(Stamps(summary["copies"], summary["bytes"], summary["most"])),
        "delay": delay,
        **held_figures(held),
        "hops": {
            "mean": summary["packets"] / summary["all_copies"] if summary["passed"] and summary["all_copies"] else None,
            "max": summary["behind"] + 1 if summary["behind"] is not None else None,
        },
        "concurrency": 1 - lines["ordered"] / pairs if pairs else None,
        "concurrency_messages": lines["compared"],
        "significance": None,
        "rates": rates(span, by_second),
        "complete": counted["complete"],
        "quarantined": counted["quarantined"],
    }
    tables = {
        "traffic": report["traffic"],
        "delay": delays,
        "rates": rate_rows(by_second),
        "held": held_rows(held),
        "hops": _hop_rows(trace.names, summary["hop_table"]),
    }
    return report, tables


def _joined(blobs: Any) -> bytes:
    return msgspec.msgpack.encode(list(blobs))


def _excluded(trace: Trace, circular: tuple[tuple[int, int], ...]) -> Excluded:
    """Return two kinds of valid rows that need special treatment. Deliveries that are part of a cycle are not measured.
    If several ``hop`` rows have the same process and index, only one of them is measured, or none if they differ.
    ``circular`` has the deliveries that are part of a cycle, each as (split, number of the row)."""
    numbers = {name: number for number, name in enumerate(trace.names)}
    runs = tuple(
        (numbers[place.name], first, end - 1)
        for place in trace.places
        if place.hop and place.name in numbers
        for first, end in place.contested
    )
    excluded = Excluded(circular, runs)
    if not runs:
        return excluded
    claims: dict[tuple[int, int], set[tuple[Any, ...]]] = {}
    for packed in trace.on_buckets(partial(contested_hops, numbering=trace.numbering, excluded=excluded)):
        for process, index, *values in msgspec.msgpack.decode(packed):
            claims.setdefault((process, index), set()).add(tuple(values))
    torn = tuple(sorted(place for place, claimed in claims.items() if len(claimed) > 1))
    return msgspec.structs.replace(excluded, torn=torn)


def _summary(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine the summaries of all buckets into one summary. Add up the counts, and join the tables of hops. ``first``
    is the smallest value of all buckets. ``last``, ``most`` and ``behind`` are the largest values."""
    found: dict[str, Any] = {
        name: sum(int(one[name]) for one in summaries)
        for name in ("copies", "bytes", "all_copies", "packets", "passed")
    }
    found |= {name: sum((one[name] for one in summaries), np.zeros(1, np.int64)) for name in ("arrivals", "direct")}
    found["most"] = max(one["most"] for one in summaries)
    for name, choose in (("first", min), ("last", max), ("behind", max)):
        known = [one[name] for one in summaries if one[name] is not None]
        found[name] = choose(known) if known else None
    found["hop_table"] = [row for one in summaries for row in one["hop_table"]]
    return found


def _traffic(names: Sequence[str], sums: list[dict[str, Any]]) -> dict[Pair, tuple[int, int | None]]:
    traffic = {}
    for one in sums:
        for source, to, messages, weighed, size in zip(
            one["from"].tolist(),
            one["to"].tolist(),
            one["messages"].tolist(),
            one["weighed"],
            one["bytes"],
            strict=True,
        ):
            traffic[names[source], names[to]] = messages, int(size) if weighed == messages else None
    return traffic


def _by_second(names: Sequence[str], sums: list[dict[str, Any]]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for one in sums:
        for process, second, sent in zip(
            one["process"].tolist(), one["second"].tolist(), one["sent"].tolist(), strict=True
        ):
            found.setdefault(names[process], {})[second] = sent
    return found


def _delay_rows(names: Sequence[str], sums: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for one in sums:
        columns = [
            one[f"d_{name}"].tolist() for name in ("from", "to", "count", "negative", "p50", "p99", "min", "max")
        ]
        for total, source, to, count, negative, p50, p99, least, most in zip(one["d_sum"], *columns, strict=True):
            rows.append(
                {
                    "from": names[source],
                    "to": names[to],
                    "mean": seconds(int(total) / count),
                    "p50": seconds(p50),
                    "p99": seconds(p99),
                    "min": seconds(least),
                    "max": seconds(most),
                    "deliveries": count,
                    "negative": negative,
                }
            )
    return sorted(rows, key=lambda row: (row["from"], row["to"]))


def _ranks(sums: list[dict[str, Any]]) -> tuple[int, list[int]]:
    """Return the number of delays, and the ranks (from 0) of the median and of the 99 % quantile of the delays."""
    count = sum(int(one["d_count"].sum()) for one in sums)
    return count, [max(0, -(-count * percent // 100) - 1) for percent in (50, 99)]


def _bounds(sums: list[dict[str, Any]]) -> list[tuple[int, int]]:
    count, ranks = _ranks(sums)
    samples = [(int(one["d_count"].sum()), one["ranks"], one["values"]) for one in sums]
    return [interval(samples, rank) for rank in ranks] if count else []


def _delay_figures(sums: list[dict[str, Any]], found: list[dict[str, Any]]) -> dict[str, Any]:
    count, ranks = _ranks(sums)
    if not count:
        return dict.fromkeys(("unit", "mean", "p50", "p99", "min", "max", "deliveries", "negative"))
    quantiles = []
    for number, rank in enumerate(ranks):
        below = sum(one[f"below{number}"] for one in found)
        values = np.sort(np.concatenate([one[f"values{number}"] for one in found]))
        quantiles.append(int(values[rank - below]))
    return {
        "unit": "s",
        "mean": seconds(sum(int(one) for part in sums for one in part["d_sum"]) / count),
        "p50": seconds(quantiles[0]),
        "p99": seconds(quantiles[1]),
        "min": seconds(min(int(one["d_min"].min()) for one in sums if len(one["d_min"]))),
        "max": seconds(max(int(one["d_max"].max()) for one in sums if len(one["d_max"]))),
        "deliveries": count,
        "negative": sum(int(one["d_negative"].sum()) for one in sums),
    }


def _hop_rows(names: Sequence[str], table: list[list[Any]]) -> list[dict[str, Any]]:
    merged: dict[tuple[str, str | None, int | None], list[int]] = {}
    for router, domain, hop, *counts in table:
        sums = merged.setdefault((names[router], domain, hop), [0, 0, 0])
        for k, count in enumerate(counts):
            sums[k] += int(count)
    return [
        {
            "router": router,
            "domain": domain,
            "hop": hop,
            "messages": messages,
            "stamp_bytes": size if stamped == messages else None,
        }
        for (router, domain, hop), (messages, stamped, size) in sorted(merged.items(), key=lambda item: str(item[0]))
    ]
