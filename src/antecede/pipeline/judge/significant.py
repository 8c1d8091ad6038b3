"""Judge significant order on Spark. One task judges the assembled lines, which contain only numbers. Names and message
ids are looked up later, and only for the report.

The verdict is equal to that of :mod:`antecede.trace.significant` in every detail. The task needs memory for the lines
and for the vectors of :mod:`antecede.pipeline.kernels.significant`. In addition, it needs six bytes per event (four of
them for the number of its instance) and about twenty bytes per instance.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.judge.operations import Operations, Settings, settings_for
from antecede.pipeline.judge.precedences import precedences_among
from antecede.pipeline.judge.report import late_rows
from antecede.pipeline.judge.trace import Trace
from antecede.pipeline.judge.verdict import late_places
from antecede.pipeline.kernels.merge import deliveries_of
from antecede.pipeline.kernels.significant import (
    LANES,
    LATE,
    PUT_OFF,
    REQUEST,
    RUNS,
    Cells,
    Copies,
    Instances,
    Lanes,
    QuestionLists,
    Running,
    crossed,
    significant,
    unsettled,
)
from antecede.pipeline.kernels.slots import FIRST_SLOTS, doubled, free_of, grown, more_free, slots_of
from antecede.pipeline.kernels.walk import SENT
from antecede.pipeline.match.instances import matched_instances
from antecede.pipeline.match.lines import Lines, Walk, lend_slots
from antecede.pipeline.packing import decoder, pack_struct
from antecede.pipeline.pieces import LatePlaces, read_late
from antecede.trace.conflicts import Conflicts
from antecede.trace.significant import nothing_to_judge, unlisted

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_late_at_once = 1 << 16
_rows_at_once = 1 << 18
_settled_at_once = 1 << 12
"""The largest number of pairs of requests that one walk over the trace compares. The walk needs sets with one bit for
each message in these pairs."""

_vector_bytes = 512 * 1024 * 1024
"""The largest size of all vectors together, in bytes. If this is not enough, some instances are judged in another
walk over the trace."""

SUMMARY, ROWS = range(2)
"""The output parts of the judging task: the summary, and the late deliveries."""


class _Vectors:
    """The arrays that the kernel needs during one walk over the trace. Arrays without a free entry can be enlarged."""

    def __init__(
        self, operations: Operations, wanted: Bytes, lanes_max: int | None, lanes: int = 16, rows: int = FIRST_SLOTS
    ) -> None:
        self._lanes_max = lanes_max
        lines = operations.lines
        instance_count = len(wanted)
        remaining = np.zeros(instance_count, np.int64)
        sends = np.flatnonzero(lines.source == SENT)
        np.add.at(remaining, operations.instance[sends], lines.argument[sends])
        lanes = min(lanes, lanes_max or lanes)
        self.owners = Lanes(wanted, remaining, np.full(instance_count, -1, np.int32), free_of(lanes))
        vectors = (np.zeros((rows, lanes), np.int64) for _ in range(3))
        self.running = Running(np.full(instance_count, -1, np.int32), free_of(rows), *vectors)
        self.cells = Cells(*(np.zeros((len(operations.operation), lanes), np.int64) for _ in range(2)))
        self.slots = slots_of(lanes, np.int64, rows)
        self.counts = np.array([lanes, rows, 0, 0, 0], np.int64)

    @property
    def grows(self) -> bool:
        """Return whether the number of lanes (entries of each vector) may be doubled. The limit is ``lanes_max`` or, if
        this is not set, the memory for vectors."""
        lanes = len(self.owners.free)
        rows = len(self.slots.outstanding) + 3 * len(self.running.free) + 2 * len(self.cells.done)
        return 2 * lanes <= self._lanes_max if self._lanes_max else 16 * lanes * rows <= _vector_bytes

    def grow(self) -> None:
        """Double the slots (the vectors that undelivered messages carry) if no slot is free. Double the rows for
        running instances if no such row is free. Double the lanes (the entries of every vector) if no lane is free and
        :attr:`grows` is true."""
        self.slots = grown(self.slots)
        if self.counts[RUNS] == 0:
            of, free, *vectors = self.running
            self.counts[RUNS] = len(free)
            self.running = Running(of, more_free(free), *map(doubled, vectors))
        if self.counts[LANES] == 0 and self.grows:
            self.counts[LANES] = len(self.owners.free)
            self.owners = self.owners._replace(free=more_free(self.owners.free))
            of, free, *vectors = self.running
            self.running = Running(of, free, *(doubled(one, axis=1) for one in vectors))
            self.cells = Cells(*(doubled(one, axis=1) for one in self.cells))
            self.slots = self.slots._replace(rows=doubled(self.slots.rows, axis=1))


class Questions:
    """A list of late deliveries. A search stores two answers for each of them: the delivery that overtook the late
    delivery, and the rule that the late delivery breaks."""

    def __init__(self, operations: Operations, late: Longs) -> None:
        sends = operations.lines.send_of(late)
        order = np.argsort(sends, kind="stable")
        self.late, self.send = late[order], sends[order]
        self.serial = np.zeros(len(late), np.int64)
        self.next = np.full(len(late), -1, np.int32)
        self.answer = np.full(len(late), -1, np.int64)
        self.rule = np.zeros(len(late), np.uint8)


def late_by_precedence(
    operations: Operations, questions: Questions | None = None, lanes_max: int | None = None, segments: int = 1 << 18
) -> Iterator[Longs]:
    """Find the deliveries that break rule (1) of :mod:`antecede.trace.significant`. Yield their positions in the joined
    event sequences of all processes, in several arrays. If ``questions`` is given, judge only messages from the
    instances that sent the late messages in ``questions``. For each of these late messages, store in ``questions`` the
    delivery that overtook it, and the part of the rule that was broken."""
    lines = operations.lines
    instance_count = int(operations.instance.max(initial=-1)) + 1
    wanted = np.ones(instance_count, np.uint8)
    if questions is not None:
        wanted[:] = 0
        wanted[operations.instance[questions.send]] = 1
    asked = questions or Questions(operations, np.zeros(0, np.int64))
    instances = instances_of(operations)
    late = np.zeros(_late_at_once, np.int64)
    while wanted.any():
        lend_slots(lines, segments)
        state = _Vectors(operations, wanted, lanes_max)
        heads = np.full(lines.processes, -1, np.int32)
        open_ = QuestionLists(asked.send, asked.late, asked.serial, asked.next, heads, asked.answer, asked.rule)
        walk = Walk(lines, segments)

        def judge(
            begin: int, end: int, state: _Vectors = state, open_: QuestionLists = open_, walk: Walk = walk
        ) -> int:
            return significant(
                lines.arrays, walk.segments, begin, end, state.grows, instances, state.owners, state.running,
                state.cells, state.slots, open_, state.counts, late,
            )  # fmt: skip

        for stopped in walk.through(judge):
            if state.counts[LATE]:
                yield late[: state.counts[LATE]].copy()
                state.counts[LATE] = 0
            if stopped:
                state.grow()
        assert state.counts[PUT_OFF] == (state.owners.of == -2).sum()
        wanted = (state.owners.of == -2).astype(np.uint8)


def instances_of(operations: Operations) -> Instances:
    """Return the instances in the form that kernels expect. They include the artificial instances in ``operations``:
    one for each send that has no instance in the trace. An artificial instance has only this send."""
    others = max(0, int(operations.instance.max(initial=-1)) + 1 - operations.count)
    return Instances(
        operations.instance,
        operations.received_as,
        np.concatenate([operations.first, np.full(others, -1)]),
        np.concatenate([operations.last, np.full(others, -1)]),
        np.concatenate([operations.cell, np.full(others, -1, np.int32)]),
        np.concatenate([operations.aborted, np.zeros(others, np.uint8)]),
        operations.rival_from,
        operations.rivals,
        operations.request_rival_from,
        operations.request_rivals,
    )


class Verdict(msgspec.Struct):
    """All late deliveries, with the deliveries that overtook them and the rules that they break. An overtaking delivery
    and a rule are missing if they were not searched for."""

    late: Longs
    """The flat positions of the late deliveries, sorted by index and then by process. A flat position is a position in
    the joined event sequences of all processes."""
    over: Longs
    """For each late delivery, the flat position of the delivery that overtook it; -1 if this was not searched for."""
    rule: Bytes
    """For each late delivery, the number of the broken rule in ``RULES``; 0 if this was not searched for."""


RULES = ("", "instance", "conflict", "agreement")


def judged_operations(
    operations: Operations, every_late: bool, lanes_max: int | None = None, segments: int = 1 << 18
) -> Verdict:
    """Judge significant order. If ``every_late`` is true, find the overtaking delivery for every late delivery. If it
    is false, find it only for the first late delivery and for late deliveries that break rule (2) of
    :mod:`antecede.trace.significant`."""
    lines = operations.lines
    portions = [*late_by_precedence(operations, lanes_max=lanes_max, segments=segments)]
    late = np.concatenate(portions) if portions else np.zeros(0, np.int64)
    over, rule = np.full(len(late), -1), np.zeros(len(late), np.uint8)
    before = _crossed(operations, late)
    disagree = np.flatnonzero(before >= 0)
    late, over = np.concatenate([late, disagree]), np.concatenate([over, before[disagree]])
    rule = np.concatenate([rule, np.full(len(disagree), 3, np.uint8)])
    order = np.lexsort((lines.process_at(late), lines.index_at(late)))
    verdict = Verdict(late[order], over[order], rule[order])
    open_ = np.flatnonzero(verdict.rule == 0)
    open_ = open_ if every_late else open_[open_ == 0]
    if len(open_):
        asked = _asked(operations, verdict.late[open_], lanes_max, segments)
        back = open_[np.argsort(verdict.late[open_])]
        order = np.argsort(asked.late)
        verdict.over[back], verdict.rule[back] = asked.answer[order], asked.rule[order]
    return verdict


def _crossed(operations: Operations, late: Longs) -> Longs:
    """Find the deliveries that break rule (2) of :mod:`antecede.trace.significant`: another delivery came before them
    at the same object, but should have come after them. Return an array with one entry per event. For a delivery that
    breaks the rule, the entry is the position of the other delivery in the joined event sequences of all processes. For
    any other event, the entry is -1."""
    lines = operations.lines
    mark = lines.scratch.array(len(lines.source), np.uint8)
    mark[late] = 1
    before = lines.scratch.array(len(lines.source), np.int64, -1)
    first, delivered = deliveries_of(lines.offsets, lines.source, lines.argument)
    instances, copies_of = instances_of(operations), Copies(mark, operations.place, first, delivered)
    crossed(lines.arrays, instances, copies_of, _pairs_of_cells(operations), before)
    # If a request m′ is late because of precedence, it may have come after m here only for this reason, and rightly
    # before m at another object.
    pairs = []
    requests = _requests(operations)
    sends = lines.send_of(requests)
    copies = first[sends + 1] - first[sends]
    requests, copies = requests[copies > 1], copies[copies > 1]
    for number in np.flatnonzero(mark[requests]).tolist():
        other = int(requests[number])
        begin = np.searchsorted(requests, lines.offsets[operations.place[operations.instance[other]]])
        others = requests[begin:number]
        found = np.empty((len(others) * int(copies[number]), 2), np.int64)
        pairs.append(found[: unsettled(others, other, lines.arrays, instances, copies_of, found)].copy())
    if pairs:
        _settle(operations, np.concatenate(pairs), before)
    return before


def _requests(operations: Operations) -> Longs:
    """Find all deliveries of requests for an operation. Return their positions in the joined event sequences of all
    processes, in ascending order."""
    at = np.flatnonzero(operations.received_as == REQUEST)
    return at[operations.cell[operations.instance[at]] >= 0] if len(at) else at


def _pairs_of_cells(operations: Operations) -> Longs:
    """Return the pairs of cells, at two different objects, that receive the same request. A cell is a group of
    instances of one operation at one object. Each pair is encoded as one number, as in the kernel's ``pair_of``. The
    numbers are ascending."""
    lines = operations.lines
    at = _requests(operations)
    cell = operations.cell[operations.instance[at]].astype(np.int64)
    order = np.lexsort((at, lines.send_of(at)))
    send, cell = lines.send_of(at)[order], cell[order]
    found = [np.zeros(0, np.int64)]
    # The copies of a send follow each other. Compare copies at each distance, until no two are that far apart.
    for distance in range(1, len(send)):
        same = np.flatnonzero(send[distance:] == send[:-distance])
        if not len(same):
            break
        found.append(np.unique(cell[same] * len(operations.operation) + cell[same + distance]))
    return np.unique(np.concatenate(found))


def _settle(operations: Operations, pairs: Longs, before: Longs) -> None:
    """Store in ``before`` which deliveries of requests came too late. Each row of ``pairs`` has the flat positions
    (positions in the joined event sequences) of two deliveries at one object: first the later delivery, then the
    earlier one. If the request of the earlier delivery significantly precedes the other request, the pair is ignored.
    Otherwise, the entry of the later delivery in ``before`` becomes the position of the earlier delivery. If this entry
    already has a position, the smaller of the two positions remains."""
    sends = operations.lines.send_of(pairs.reshape(-1)).reshape(-1, 2)
    start = 0
    while start < len(pairs):
        end = start + _settled_at_once
        some, picked = sends[start:end], np.unique(sends[start:end])
        _, significant = precedences_among(operations, picked)
        for (copy, twin), (later, earlier) in zip(pairs[start:end].tolist(), some.tolist(), strict=True):
            at, other = int(np.searchsorted(picked, later)), int(np.searchsorted(picked, earlier))
            if not significant[at] >> other & 1 and (before[copy] < 0 or twin < before[copy]):
                before[copy] = twin
        start = end


def _asked(operations: Operations, late: Longs, lanes_max: int | None, segments: int) -> Questions:
    questions = Questions(operations, late)
    if len(late):
        for _ in late_by_precedence(operations, questions, lanes_max, segments):
            pass
    return questions


def judged(packed: Iterable[bytes], settings: Settings) -> Iterator[tuple[int, bytes]]:
    """Judge a trace from its pieces. Each piece has the valid rows of some messages. Yield the summary. If the caller
    wants the late deliveries, also yield all of them."""
    operations = Operations(packed, settings)
    verdict = judged_operations(operations, settings.task.every_late, settings.lanes_max, settings.task.segments)
    summary = _Summary(
        len(verdict.late),
        int((verdict.rule == 3).sum()),
        operations.judged,
        operations.used,
        _places(operations.lines, verdict, slice(0, 1)) if len(verdict.late) else None,
        RULES[verdict.rule[0]] if len(verdict.late) else None,
    )
    yield SUMMARY, pack_struct(summary)
    if settings.task.every_late:
        for start in range(0, len(verdict.late), _rows_at_once):
            yield ROWS, pack_struct(_places(operations.lines, verdict, slice(start, start + _rows_at_once)))


class _Summary(msgspec.Struct):
    """The verdict that the task returns: counts, and the first late delivery. Events are given by their places (process
    and index)."""

    late: int
    crossed: int
    judged: int
    operations: list[str]
    first: LatePlaces | None
    rule: str | None
    """The rule that the first late delivery breaks."""


_read_summary = decoder(_Summary)


def _places(lines: Lines, verdict: Verdict, some: slice) -> LatePlaces:
    return late_places(lines, verdict.late[some], verdict.over[some])


def significant_on(
    trace: Trace, conflicts: Conflicts, deliveries: int, every_late: bool = False, lanes_max: int | None = None
) -> tuple[dict[str, Any], Callable[[], Iterator[dict[str, Any]]]]:
    """Return the report's entry for significant order, and a function that yields every late delivery. If
    ``every_late`` is false, this function yields nothing."""
    settings = settings_for(trace, conflicts, every_late, lanes_max)
    pieces = trace.from_buckets(partial(matched_instances, numbering=trace.numbering), 1)
    parts = pieces.scatter(partial(judged, settings=settings), [0], 2)
    summary: _Summary = _read_summary(parts.gather(b"".join, [SUMMARY])[0])
    if deliveries and not summary.judged:
        raise nothing_to_judge()
    first = None
    if summary.first is not None:
        first = next(late_rows(summary.first, trace.names, trace.ids)) | {"rule": summary.rule}
    entry = {
        "holds": not summary.late if deliveries else None,
        "late": summary.late,
        "crossed": summary.crossed,
        "first": first,
        "unlisted": unlisted(summary.operations, conflicts.over(summary.operations)),
    }

    def rows() -> Iterator[dict[str, Any]]:
        for packed in parts.stream(lambda blobs: blobs, [ROWS]):
            for row in late_rows(read_late(packed), trace.names, trace.ids):
                yield {"order": "significant", **row}

    return entry, rows
