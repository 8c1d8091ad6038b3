"""Consistent cuts through a matched trace that no single task reads: where chunks of time begin and end.

Cuts are *proposed* by whatever clock the rows carry, for it needs no truth to be useful: by Lamport clock, else by wall
clock, else by rank (the same share of each process's events). Then they are *lowered* to the greatest consistent cuts
below them, a round at a time: every bucket of messages says which of its deliveries the cuts hold without their sends,
and the least answer counts. A recorded Lamport clock that is right needs one round, which only finds nothing to do.
Cuts that have not come to rest after so many rounds are left out, which makes a chunk longer and nothing wrong.
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
"""How many values of a clock a bucket tells, evenly spread over its own."""


class Cuts(msgspec.Struct, frozen=True):
    """Cuts that rise, all consistent: between them are the units, one more than there are cuts."""

    processes: int
    bounds: bytes
    """For each process where each cut ends its line, as int64."""
    lengths: bytes
    """For each process where its line ends, as int64."""

    @classmethod
    def of(cls, bounds: Longs, lengths: Longs) -> "Cuts":
        """Cuts from bounds, without those that are no cut at all or the same as the one before."""
        edges = np.column_stack([np.zeros(len(lengths), np.int64), bounds])
        kept = (edges[:, 1:] != edges[:, :-1]).any(axis=0) & (bounds != lengths[:, None]).any(axis=0)
        return cls(len(lengths), np.ascontiguousarray(bounds[:, kept]).tobytes(), lengths.tobytes())

    def table(self) -> Longs:
        """For each process a row, for each cut a column."""
        return np.frombuffer(self.bounds, np.int64).reshape(self.processes, self.units - 1)

    @property
    def units(self) -> int:
        return len(self.bounds) // 8 // max(1, self.processes) + 1

    def edge(self, unit: int) -> Longs:
        """Where a unit begins in each process's line; behind the last one, where the lines end."""
        if unit == 0:
            return np.zeros(self.processes, np.int64)
        if unit == self.units:
            return np.frombuffer(self.lengths, np.int64)
        return self.table()[:, unit - 1]

    def units_of(self, process: Any, index: Any) -> NDArray[np.int32]:
        """The unit of each event."""
        return units(self.table(), process, index.astype(np.int64))


def cuts_of(parts: Parts, buckets: Sequence[int], lengths: Longs, wanted: int) -> Cuts:
    """Consistent cuts through the matched rows of some buckets, about as many as wanted."""
    wanted = max(0, min(wanted, limits.cut_entries_max // max(1, len(lengths))))
    if not wanted:
        return Cuts.of(np.zeros((len(lengths), 0), np.int64), lengths)
    bounds = _proposed(parts, buckets, lengths, wanted)
    moved = np.ones(wanted, bool)
    for _ in range(limits.cut_rounds_max):
        before = bounds.copy()
        for packed in parts.gather(partial(_lowered, bounds=pack({"bounds": bounds.ravel()})), buckets):
            said = unpack(packed)
            flat = bounds.reshape(-1)
            np.minimum.at(flat, said["at"], said["value"])
        moved = (bounds != before).any(axis=0)
        if not moved.any():
            break
    return Cuts.of(bounds[:, ~moved], lengths)


def _lowered(packed: Iterable[bytes], bounds: bytes) -> bytes:
    """What the deliveries of one bucket ask of the cuts: the bounds that are lower now."""
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
    # As floats only where the product could be too large; where exactly a proposal lies does not matter.
    ranks = (lengths[:, None] * (share / (wanted + 1))[None, :]).astype(np.int64)
    told = [unpack(packed) for packed in parts.gather(_marks, buckets)]
    for clock in ("lamport", "time"):
        marks = [said[clock] for said in told if len(said[clock])]
        # A clock that only some rows have says little of the others.
        if not marks or 2 * sum(said[clock + "s"] for said in told) < sum(said["rows"] for said in told):
            continue
        weights = [np.full(len(said[clock]), said[clock + "s"] / len(said[clock])) for said in told if len(said[clock])]
        value, weight = np.concatenate(marks), np.concatenate(weights)
        order = np.argsort(value, kind="stable")
        reached = np.searchsorted(np.cumsum(weight[order]) / weight.sum(), share / (wanted + 1))
        thresholds = value[order][np.minimum(reached, len(value) - 1)]
        bounds = np.repeat(lengths[:, None], wanted, axis=1)
        for packed in parts.gather(partial(_below, clock=clock, thresholds=thresholds.tobytes()), buckets):
            said = unpack(packed)
            np.minimum.at(bounds.reshape(-1), said["at"], said["value"])
        return bounds
    return ranks


def _marks(packed: Iterable[bytes]) -> bytes:
    piece = piece_in(packed)
    said: dict[str, Any] = {"rows": piece.rows if piece else 0}
    for name in ("lamport", "time"):
        clock = piece.clock(name) if piece else None
        values = np.sort(clock.value) if clock is not None else np.zeros(0, np.int64)
        picked = np.linspace(0, max(0, len(values) - 1), min(len(values), _marks_at_most)).astype(np.int64)
        said |= {name: values[picked], name + "s": len(values)}
    return pack(said)


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
    """The matched rows among what a part holds: the buckets' pieces as one."""
    return joined(said for said in map(read_apart, packed) if isinstance(said, Timed))
