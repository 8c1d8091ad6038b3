"""The first stage of ``pipeline.measuring``: it measures the rows of one bucket. The later stages
(:mod:`antecede.pipeline.measuring.sums`) add up values by sender, and compute the figures that depend on the sequence
of events of each process.

A bucket has all rows of its messages, so it knows their copies, stamps, hops, delays and arrivals. The output has
several parts: all values of one sender go to the same part, where they are summed. Values that depend on the event
sequence of a process are passed to the task that assembles the *lines*, the events of each process in sequence. All
definitions are exactly the same as in :mod:`antecede.trace.costs`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels.match import ARRIVE, DELIVER, HOP, SEND, VALID
from antecede.pipeline.match.buckets import Numbering, bucket_of, place_keys
from antecede.pipeline.measuring.sums import exact_sum
from antecede.pipeline.packing import pack, pack_struct
from antecede.pipeline.pieces import Waits

Longs = NDArray[np.int64]
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
