"""Judge FIFO and causal order by chunks of time, with many tasks. Most tasks read only a small part of the trace.

Consistent cuts divide the trace into units. A task reads some consecutive units. At the start, all its vector clocks
are zero. Its first units are its *core*, and its other units are its *halo*. The task judges messages that were sent in
its core, and reads the halo to find the deliveries of these messages.
:mod:`antecede.pipeline.kernels.causal` explains why the result is exact.

**Tiers.** On tier j the trace is divided into parts of 4^j units. A chunk has ``chunk_units`` parts. Its halo is the
next parts after the chunk, at most ``halo_units`` parts. A message has one tier for each of its deliveries: the lowest
tier on which the delivery lies in the chunk of the send, or in the halo of that chunk. On a tier that is high enough
the whole trace is one chunk, so each delivery has a tier. A message that is never delivered belongs to no task, so no
task waits for it.

A task above tier 0 reads all units between the first send and the last delivery of the messages that it judges. It
keeps lanes (entries of vectors) only for the senders of these messages. So if a message spans the whole trace, one task
judges it. This task reads the whole trace, but perhaps with only one lane. It keeps the events of each process in
files, like a task that judges a whole trace in one walk.

**Cycles.** A consistent cut contains either all events of a cycle or none of them, so each cycle lies within one unit.
Every task that reads this unit removes the cycle. Only one task reports the cycle: the task of tier 0 that has this
unit in its core.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from antecede import limits
from antecede.pipeline.flow import Parts
from antecede.pipeline.judge import orders as judge
from antecede.pipeline.judge.verdict import LateRows, counted, late_places, least, places_at
from antecede.pipeline.kernels import Ints, Longs
from antecede.pipeline.kernels.causal import Core
from antecede.pipeline.kernels.cuts import below, lower, tally, tiers, units
from antecede.pipeline.kernels.match import DELIVER, SEND, VALID
from antecede.pipeline.match import Numbering, Scratch, Walk, assemble, bucket_of
from antecede.pipeline.pieces import (
    Counted,
    Dealt,
    Deliveries,
    Judged,
    Piece,
    Places,
    Timed,
    joined,
    pack,
    pack_struct,
    read_apart,
    read_dealt,
    read_judged,
    unpack,
)

# Consistent cuts through a matched trace. They divide the trace into chunks of time. No task reads the whole trace to
# find the cuts.
#
# First, cuts are *proposed* from a clock in the rows. This is the Lamport clock or, if most rows have none, the wall
# clock. If most rows have no wall clock either, each cut contains the same share of the events of every process. A
# wrong clock does no harm, because the proposed cuts are corrected.
#
# Then the cuts are *lowered*, in rounds, to the greatest consistent cuts below them. The messages are divided into
# buckets. In each round, one task per bucket looks for deliveries that are in a cut although their sends are not. For
# such a cut, the task reports a smaller *bound* (the index at which the cut ends) for the receiving process. The
# smaller bound excludes these deliveries. For each process, the smallest reported bound is used. With a correct Lamport
# clock there is only one round, and it changes nothing. Cuts that still move after ``limits.cut_rounds_max`` rounds are
# dropped. Then a chunk is longer, but the verdict stays right.


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


class Grain(msgspec.Struct, frozen=True):
    """The settings that decide how a trace is divided into chunks and halos."""

    chunk_events: int = limits.chunk_events_wanted
    chunk_units: int = 8
    """The number of units in a chunk of tier 0 (the smallest chunks)."""
    halo_units: int = 1
    """The largest number of units in the halo of a chunk of tier 0. The halo is the part of the trace after the chunk
    that the task reads only to find deliveries."""
    segments: int = 1 << 18
    lanes_max: int | None = None

    def cuts(self, events: int) -> int:
        """Return the number of cuts that divide a trace of ``events`` events into units."""
        return max(0, -(-events * self.chunk_units // self.chunk_events) - 1)

    def tier_of(self, sent: Any, delivered: Any) -> tuple[Any, Any]:
        """Return the chunk that judges each delivery, as two arrays: the tier of the chunk (0 for the smallest chunks,
        larger numbers for larger chunks), and the number of the chunk on this tier. ``sent`` and ``delivered`` have,
        for each delivery, the unit of its send and the unit of the delivery."""
        return tiers(sent, delivered, self.chunk_units, self.halo_units)


class Task(msgspec.Struct, frozen=True):
    """The units that one task reads. (A unit is the part of the trace between two cuts.) The task judges the messages
    that were sent in its core, the units from ``start`` to ``core`` - 1. It reads its halo, the units from ``core`` to
    ``end`` - 1, only to find deliveries."""

    tier: int
    chunk: int
    start: int
    core: int
    end: int


class Plan(msgspec.Struct, frozen=True):
    """The plan for judging a trace by chunks of time: all tasks, and the settings that they share."""

    cuts: Cuts
    grain: Grain
    sparse: bytes
    """The numbers of the processes whose indices have too many gaps to be used as positions in an array. The bytes are
    an array of int32."""
    tasks: list[Task]
    orders: tuple[str, ...]
    every_late: bool = False
    scratch: str | None = None


def matched_apart(
    packed: Iterable[bytes], numbering: Numbering, narrow_index: bool, part_count: int
) -> Iterator[tuple[int, bytes]]:
    """Match the rows of one bucket (all rows of some of the messages). Yield two results. The first has the counts of
    the bucket. The second has its deliveries, and the recorded clocks of its sends and deliveries. (These clocks are
    used later to divide the trace into chunks of time.) Each result is a pair (number of the output part, data). Each
    bucket has its own output part, which has the number of the bucket. ``part_count`` is the number of all buckets."""
    bucket = bucket_of(packed, numbering)
    valid = np.flatnonzero(((bucket.kind == SEND) | (bucket.kind == DELIVER)) & (bucket.reason == VALID))
    deliveries = bucket.deliveries().narrowed() if narrow_index else bucket.deliveries()
    clocks = (bucket.numbers_at(name, valid) for name in ("lamport", "time"))
    yield bucket.mark % part_count, pack_struct(bucket.counted())
    yield bucket.mark % part_count, pack_struct(Timed(numbering.names, len(valid), deliveries, *clocks))


def planned(
    parts: Parts,
    buckets: Sequence[int],
    lengths: Longs,
    sparse: Ints,
    events: int,
    grain: Grain,
    cuts: Cuts | None = None,
    **options: Any,
) -> Plan:
    """Return a plan: the cuts, and the tasks that result from them. ``lengths`` has the largest index + 1 of every
    process, including the processes in ``sparse`` (those whose indices have many gaps)."""
    cuts = cuts or cuts_of(parts, buckets, lengths, grain.cuts(events))
    own: dict[tuple[int, int], list[int]] = {}
    for packed in parts.gather(partial(_tally, cuts=cuts, grain=grain), buckets):
        for tier, home, first, last, end in zip(*unpack(packed)["tasks"], strict=True):
            found = own.setdefault((tier, home), [first, last, end])
            found[:] = [min(found[0], first), max(found[1], last), max(found[2], end)]
    tasks = []
    for home in range(-(-cuts.units // grain.chunk_units)):
        start = home * grain.chunk_units
        core = min(start + grain.chunk_units, cuts.units)
        _, _, last = own.pop((0, home), [0, 0, 0])
        tasks.append(Task(0, home, start, core, max(core, last + 1)))
    tasks += [Task(*key, first, last + 1, end + 1) for key, (first, last, end) in sorted(own.items())]
    return Plan(cuts, grain, sparse.tobytes(), tasks, **options)


def _tally(packed: Iterable[bytes], cuts: Cuts, grain: Grain) -> bytes:
    """Return five lists for the messages of one bucket. Each list has one entry for each chunk that judges some of
    these messages. The entries are the tier of the chunk, its number on this tier, the first and the last unit in which
    the messages are sent, and the last unit in which they are delivered."""
    piece = piece_in(packed)
    if piece is None:
        return pack({"tasks": [[]] * 5})
    sent = cuts.units_of(piece.deliveries.source, piece.deliveries.sent)
    delivered = cuts.units_of(piece.deliveries.process, piece.deliveries.index)
    tier, home = grain.tier_of(sent, delivered)
    shape = int(tier.max(initial=0)) + 1, int(home.max(initial=0)) + 1
    first, last, end = np.full(shape, cuts.units, np.int32), np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
    tally(sent, delivered, tier, home, first, last, end)
    tier, home = np.nonzero(last >= 0)
    found: list[Any] = [tier, home, first[tier, home], last[tier, home], end[tier, home]]
    return pack({"tasks": [column.tolist() for column in found]})


def dealt(packed: Iterable[bytes], plan: Plan) -> Iterator[tuple[int, bytes]]:
    """Divide the deliveries of one bucket among the tasks. For each task, yield its number and the deliveries that it
    reads. A task that reads no delivery of the bucket is left out. A task reads only a part of the events of each
    process. In the result, the index of an event is counted from the beginning of this part."""
    piece = piece_in(packed)
    if piece is None:
        return
    cuts = plan.cuts
    unit = cuts.units_of(piece.deliveries.process, piece.deliveries.index)
    order = np.argsort(unit, kind="stable")
    unit = unit[order]
    found = piece.deliveries.some(order)
    sent_unit = cuts.units_of(found.source, found.sent)
    tier, home = plan.grain.tier_of(sent_unit, unit)
    wide = np.int64 if len(plan.sparse) else np.int32
    for number, task in enumerate(plan.tasks):
        begins = cuts.edge(task.start)
        first, last = np.searchsorted(unit, [task.start, task.end])
        # A message sent before the task's part begins carries no knowledge about sends in that part.
        rows = first + np.flatnonzero(sent_unit[first:last] >= task.start)
        if not len(rows):
            continue
        some = found.some(rows)
        some.index = (some.index - begins[some.process]).astype(wide)
        some.sent = (some.sent - begins[some.source]).astype(wide)
        mine = (tier[rows] == task.tier) & (home[rows] == task.chunk)
        yield number, pack_struct(Dealt(number, some, mine))


class _Chunk:
    """The events that one task reads: for each process, a part of its event sequence."""

    def __init__(self, given: Iterable[Dealt], task: Task, plan: Plan) -> None:
        begins = plan.cuts.edge(task.start)
        self._grain = plan.grain
        own: list[Deliveries] = []

        def pieces() -> Iterator[Piece]:
            for chunk in given:
                own.append(chunk.deliveries.some(chunk.mine))
                yield Piece(chunk.deliveries)

        sparse = np.frombuffer(plan.sparse, np.int32)
        lengths = plan.cuts.edge(task.end) - begins
        lengths[sparse] = 0
        self.lines, _ = assemble(lengths, sparse, pieces(), Scratch(plan.scratch))
        self.lines.begins = begins
        self.core = self._positions(plan.cuts.edge(task.core) - begins)
        self.mine = np.zeros(len(self.lines.source), np.uint8)
        for rows in own:
            self.mine[self.lines.flat(rows.process, rows.index)] = 1

    def _positions(self, index: Longs) -> Longs:
        """Find, for each process p, the first event whose index is ``index[p]`` or larger. Return the position of each
        of these events among the events of its process."""
        lines = self.lines
        if not len(lines.indices):
            return index
        spans = zip(lines.offsets[:-1], lines.offsets[1:], index, strict=True)
        return np.array([np.searchsorted(lines.indices[a:b], i) for a, b, i in spans], np.int64)

    def in_core(self, flat: Longs) -> Longs:
        """Return those of the given events that lie in the core of this chunk (the part before the halo). An event is
        given by its position in the joined event sequences of all processes."""
        process = self.lines.process_at(flat)
        return flat[flat - self.lines.offsets[process] < self.core[process]]

    def causal_late(self) -> Longs:
        """Return the deliveries that are late under causal order, as ascending positions in the joined event sequences
        of all processes. Only messages that this task must judge are examined."""
        lines = self.lines
        senders = np.unique(lines.source[np.flatnonzero((self.mine > 0) & (lines.source >= 0))])
        found = [np.zeros(0, np.int64)]
        for lane_of, lanes in judge.blocks(lines, senders, self._grain.lanes_max):
            walk = Walk(lines, self._grain.segments)
            counter = counter_type(self.core[lane_of >= 0])
            found += judge.causal_walk(walk, lane_of, lanes, core=Core(self.core, self.mine), counter=counter)
        return np.sort(np.concatenate(found))


def counter_type(core: Longs) -> Any:
    """Return uint16 if this type can count the events of every process in the core of a chunk, otherwise int32.
    ``core`` has, for each process, the position in its event sequence at which the core ends and the halo begins."""
    return np.uint16 if not len(core) or core.max() <= np.iinfo(np.uint16).max else np.int32


def judged(packed: Iterable[bytes], plan: Plan) -> Iterator[tuple[int, bytes]]:
    """Judge the rows of one task. Yield its summary for output part 0, and its late deliveries for the other output
    parts."""
    given = map(read_dealt, packed)
    first = next(given, None)
    if first is None:
        return
    number = first.task
    task = plan.tasks[number]
    here = _Chunk(chain([first], given), task, plan)
    lines, grain = here.lines, plan.grain
    circular = here.in_core(judge.cut_cycles(lines)) if task.tier == 0 else judge.cut_cycles(lines)[:0]
    summary = Judged(places_at(lines, circular))
    writer = LateRows(lines, number)
    if "fifo" in plan.orders:
        for late in judge.fifo_late(lines):
            late = late[here.mine[late] > 0]
            summary.fifo_late += len(late)
            if plan.every_late:
                yield from writer.rows("fifo", late, judge.fifo_overtaking(lines, late))
    if "causal" in plan.orders:
        late = here.causal_late()
        summary.causal_late = len(late)
        if len(late):
            # The overtaking message is in the chunk too: it was sent after the late message and delivered before it.
            asked = late if plan.every_late else np.array([least(lines, late)])
            over = judge.causal_overtakers(lines, asked, grain.lanes_max, grain.segments)
            candidate = asked == least(lines, late)
            summary.first = late_places(lines, asked[candidate], over[candidate])
            if plan.every_late:
                yield from writer.rows("causal", late, over)
    # The writer fills the parts from 1 + ``number`` on; this is the last of them.
    summary.late_blobs = number + writer.blobs if writer.blobs else 0
    yield 0, pack_struct(summary)


def merged(packed: Iterable[bytes]) -> bytes:
    """Return the summaries of all tasks, combined into one."""
    summaries = [read_judged(blob) for blob in packed]
    firsts = [one.first for one in summaries if one.first is not None]
    # Traces with assumed rows are judged in one walk, not by chunks, so nothing is undecided here.
    return pack_struct(
        Judged(
            Places(
                np.concatenate([np.zeros(0, np.int32), *(one.circular.process for one in summaries)]),
                np.concatenate([np.zeros(0, np.int64), *(one.circular.index for one in summaries)]),
            ),
            fifo_late=sum(one.fifo_late for one in summaries),
            causal_late=sum(one.causal_late for one in summaries),
            first=min(firsts, key=lambda one: (int(one.index[0]), int(one.process[0])), default=None),
            late_blobs=max((one.late_blobs for one in summaries), default=0),
        )
    )


def summed(packed: Iterable[bytes]) -> bytes:
    """Return the sum of the counts of all buckets in one part."""
    counts = [one for one in map(read_apart, packed) if isinstance(one, Counted)]
    return pack_struct(counted(counts)) if counts else b""
