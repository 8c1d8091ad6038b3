"""Consistent cuts through a matched trace. They divide the trace into chunks of time. No task reads the whole trace to
find the cuts.

First, cuts are *proposed* from a clock in the rows. This is the Lamport clock or, if most rows have none, the wall
clock. If most rows have no wall clock either, each cut contains the same share of the events of every process. A wrong
clock does no harm, because the proposed cuts are corrected.

Then the cuts are *lowered*, in rounds, to the greatest consistent cuts below them. The messages are divided into
buckets. In each round, one task per bucket looks for deliveries that are in a cut although their sends are not. For
such a cut, the task reports a smaller *bound* (the index at which the cut ends) for the receiving process. The smaller
bound excludes these deliveries. For each process, the smallest reported bound is used. With a correct Lamport clock
there is only one round, and it changes nothing. Cuts that still move after ``limits.cut_rounds_max`` rounds are
dropped. Then a chunk is longer, but the verdict stays right.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from antecede import limits
from antecede.pipeline.kernels.cuts import below, lower, units
from antecede.pipeline.packing import pack, unpack
from antecede.pipeline.pieces import Timed, joined, read_apart
from antecede.pipeline.spark.flow import Parts

Longs = NDArray[np.int64]

_marks_at_most = 1024
"""The largest number of clock values that a bucket reports. They are a sample, evenly spread over all clock values of
the bucket."""


class Cuts(msgspec.Struct, frozen=True):
    """Consistent cuts through a trace, in ascending order. A cut contains the first events of each process, up to a
    bound. The cuts divide the trace into units. There is one unit more than there are cuts."""

    processes: int
    bounds: bytes
    """For each process and each cut, the first index of the process that is not in the cut. The bytes are an array of
    int64."""
    lengths: bytes
    """For each process, its largest index + 1. The bytes are an array of int64."""

    @classmethod
    def of(cls, bounds: Longs, lengths: Longs) -> "Cuts":
        """Return cuts with these bounds. Cuts that contain no event, all events, or the same events as another cut are
        left out."""
        edges = np.column_stack([np.zeros(len(lengths), np.int64), bounds])
        kept = (edges[:, 1:] != edges[:, :-1]).any(axis=0) & (bounds != lengths[:, None]).any(axis=0)
        return cls(len(lengths), np.ascontiguousarray(bounds[:, kept]).tobytes(), lengths.tobytes())

    def table(self) -> Longs:
        """Return the bounds as a table: one row per process, one column per cut."""
        return np.frombuffer(self.bounds, np.int64).reshape(self.processes, self.units - 1)

    @property
    def units(self) -> int:
        return len(self.bounds) // 8 // max(1, self.processes) + 1

    def edge(self, unit: int) -> Longs:
        """Return, for each process, the index at which this unit begins. If ``unit`` equals the number of units, return
        the largest index + 1 of each process."""
        if unit == 0:
            return np.zeros(self.processes, np.int64)
        if unit == self.units:
            return np.frombuffer(self.lengths, np.int64)
        return self.table()[:, unit - 1]

    def units_of(self, process: Any, index: Any) -> NDArray[np.int32]:
        """Return, for each event, the number of the unit in which it lies."""
        return units(self.table(), process, index.astype(np.int64))


def cuts_of(parts: Parts, buckets: Sequence[int], lengths: Longs, wanted: int) -> Cuts:
    """Return at most ``wanted`` consistent cuts through the matched rows of these buckets."""
    wanted = max(0, min(wanted, limits.cut_entries_max // max(1, len(lengths))))
    if not wanted:
        return Cuts.of(np.zeros((len(lengths), 0), np.int64), lengths)
    bounds = _proposed(parts, buckets, lengths, wanted)
    moved = np.ones(wanted, bool)
    for _ in range(limits.cut_rounds_max):
        before = bounds.copy()
        for packed in parts.gather(partial(_lowered, bounds=pack({"bounds": bounds.ravel()})), buckets):
            lowered = unpack(packed)
            flat = bounds.reshape(-1)
            np.minimum.at(flat, lowered["at"], lowered["value"])
        moved = (bounds != before).any(axis=0)
        if not moved.any():
            break
    return Cuts.of(bounds[:, ~moved], lengths)


def _lowered(packed: Iterable[bytes], bounds: bytes) -> bytes:
    """Return the bounds that must be lowered because of the deliveries of one bucket: their positions in ``bounds``,
    and their new values."""
    given = unpack(bounds)["bounds"]
    piece = piece_in(packed)
    if piece is None:
        return pack({"at": np.zeros(0, np.int64), "value": np.zeros(0, np.int64)})
    table = given.reshape(piece.processes, -1).copy()
    rows = piece.deliveries
    lower(table, rows.process, rows.index.astype(np.int64), rows.source, rows.sent.astype(np.int64))
    at = np.flatnonzero(table.ravel() != given)
    return pack({"at": at, "value": table.ravel()[at]})


def _proposed(parts: Parts, buckets: Sequence[int], lengths: Longs, wanted: int) -> Longs:
    share = np.arange(1, wanted + 1)
    # Floats, because the product could be too large for integers; a proposal need not be exact.
    ranks = (lengths[:, None] * (share / (wanted + 1))[None, :]).astype(np.int64)
    summaries = [unpack(packed) for packed in parts.gather(_marks, buckets)]
    for clock in ("lamport", "time"):
        marks = [summary[clock] for summary in summaries if len(summary[clock])]
        # A clock in fewer than half of the rows is not used.
        if not marks or 2 * sum(summary[clock + "s"] for summary in summaries) < sum(
            summary["rows"] for summary in summaries
        ):
            continue
        weights = [
            np.full(len(summary[clock]), summary[clock + "s"] / len(summary[clock]))
            for summary in summaries
            if len(summary[clock])
        ]
        value, weight = np.concatenate(marks), np.concatenate(weights)
        order = np.argsort(value, kind="stable")
        reached = np.searchsorted(np.cumsum(weight[order]) / weight.sum(), share / (wanted + 1))
        thresholds = value[order][np.minimum(reached, len(value) - 1)]
        bounds = np.repeat(lengths[:, None], wanted, axis=1)
        for packed in parts.gather(partial(_below, clock=clock, thresholds=thresholds.tobytes()), buckets):
            lowered = unpack(packed)
            np.minimum.at(bounds.reshape(-1), lowered["at"], lowered["value"])
        return bounds
    return ranks


def _marks(packed: Iterable[bytes]) -> bytes:
    piece = piece_in(packed)
    summary: dict[str, Any] = {"rows": piece.rows if piece else 0}
    for name in ("lamport", "time"):
        clock = piece.clock(name) if piece else None
        values = np.sort(clock.value) if clock is not None else np.zeros(0, np.int64)
        picked = np.linspace(0, max(0, len(values) - 1), min(len(values), _marks_at_most)).astype(np.int64)
        summary |= {name: values[picked], name + "s": len(values)}
    return pack(summary)


def _below(packed: Iterable[bytes], clock: str, thresholds: bytes) -> bytes:
    piece = piece_in(packed)
    levels = np.frombuffer(thresholds, np.int64)
    bounds = np.full((piece.processes if piece else 0, len(levels)), np.iinfo(np.int64).max)
    rows = piece.clock(clock) if piece else None
    if rows is not None:
        below(levels, rows.process, rows.index, rows.value, bounds)
    at = np.flatnonzero(bounds.ravel() != np.iinfo(np.int64).max)
    return pack({"at": at, "value": bounds.ravel()[at]})


def piece_in(packed: Iterable[bytes]) -> Timed | None:
    """Return one struct with the deliveries and clocks of all buckets in the part ``packed``. If the part is empty,
    return ``None``."""
    return joined(piece for piece in map(read_apart, packed) if isinstance(piece, Timed))
