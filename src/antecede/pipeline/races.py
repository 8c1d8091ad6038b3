"""``races`` on Spark: one task per bucket collects times, and a single task then finds the races.

A *bucket* has all rows of some messages, so its task knows when each copy of a message arrived and was delivered. The
task emits these times and a *piece*, which contains the valid rows of the bucket. The last task gets all pieces. From
these pieces it assembles the *lines* (for each process, the sequence of its events). Then it searches the lines for
races. The report has the same keys as the report of :mod:`antecede.trace.races`.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from antecede.pipeline.explaining import Chains
from antecede.pipeline.judge.files import Given, open_trace, spark_for
from antecede.pipeline.judge.orders import blocks, cut_cycles
from antecede.pipeline.judge.trace import Trace, verdict_on
from antecede.pipeline.judge.verdict import LinesTask
from antecede.pipeline.kernels import Ints, Longs
from antecede.pipeline.kernels import races as kernel
from antecede.pipeline.kernels.walk import Vectors, grown, slots_of
from antecede.pipeline.match import Lines, Numbering, Scratch, Walk, assemble, lend_slots, recounted
from antecede.pipeline.measuring import Excluded, Rows, lookup
from antecede.pipeline.pieces import Piece, Places, decoder, pack, pack_struct, unpack
from antecede.pipeline.sessions import Session
from antecede.trace.explain import Link
from antecede.trace.races import Declare, Declared, Found, Wanted, assembled, race_of, resolution_of
from antecede.trace.schema import DELIVER, SEND, Event

ReportStatus = Callable[[str], None]


class Question(msgspec.Struct, frozen=True):
    """The settings of a search for races. ``fifo`` is true if the declared guarantee of the trace is FIFO order."""

    fifo: bool
    wanted: Wanted


class TimedPiece(msgspec.Struct):
    """A piece (the valid rows of one bucket), and the times at which the bucket's messages arrived and were
    delivered."""

    piece: Piece
    rows: Places
    """The deliveries of the bucket. ``arrived`` and ``delivered`` have one time for each delivery, in the same
    sequence."""
    arrived: Longs
    delivered: Longs
    resolution: int | None
    """The resolution of the clocks, estimated from the times in the bucket."""


_read = decoder(TimedPiece)


def races_files(
    paths: Sequence[str | os.PathLike[str]],
    declare: Declare,
    wanted: Wanted,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    report_status: ReportStatus = lambda _: None,
) -> dict[str, Any]:
    """Read the traces at these paths together, as one trace, on a new Spark session, and find the races. Return the
    report."""
    wanted.check()
    with spark_for(paths, master, conf, report_status) as (running, given):
        return races_in(running, given, declare, wanted, report_status)


def races_in(
    running: Session, given: Given, declare: Declare, wanted: Wanted, report_status: ReportStatus = lambda _: None
) -> dict[str, Any]:
    """Find the races in a trace, in a running session. Return the report."""
    started = time.perf_counter()
    trace = open_trace(running, given, report_status, figures=True, numbered=True)
    report_status(f"looking for races among {trace.rows:,} rows")
    return {
        **races_on(trace, declare(trace.given.metadata), wanted),
        "session_seconds": round(running.seconds, 3),
        "seconds": round(time.perf_counter() - started, 3),
    }


def races_on(trace: Trace, declared: Declared, wanted: Wanted) -> dict[str, Any]:
    """Find the races in a trace. Return the report without the duration of the work. The layout of the trace must have
    ``figures=True`` and ``numbered=True``, so that the rows have times and row numbers."""
    verdict = verdict_on(trace, ())
    stage = partial(timed, numbering=trace.numbering, excluded=Excluded(tuple(verdict.circular)))
    parts = trace.from_buckets(stage, 1)
    question = Question(declared.guarantee == "fifo", wanted) if declared.guarantee != "causal" else None
    result = unpack(parts.gather(partial(raced, task=trace.task(()), question=question), [0])[0])
    found = Found(result["pairs"], result["untimed"], result["late"], [], result["resolution"])
    return assembled("spark", declared, found, _race_rows(trace, result), verdict.report)


def timed(packed: Iterable[bytes], numbering: Numbering, excluded: Excluded) -> Iterator[tuple[int, bytes]]:
    """Yield one pair: the number of the output part, which is 0, and a packed :class:`TimedPiece`. This struct contains
    the piece (the valid rows) of the bucket. For each delivery of the bucket, it also contains the time of the delivery
    and the time at which the same copy of the message arrived."""
    rows = Rows(packed, numbering, excluded)
    delivers, arrives = rows.delivers, rows.arrives
    order = arrives[np.lexsort((rows.index[arrives], rows.process[arrives], rows.code[arrives]))]
    keys, first = np.unique(rows.copy_keys(order), return_index=True)
    at, known = lookup(keys, rows.copy_keys(delivers))
    arrived = np.full(len(delivers), kernel.UNKNOWN, np.int64)
    if len(keys):
        found = order[first[at]]
        known &= (rows.index[found] < rows.index[delivers]) & rows.timed[found]
        arrived[known] = rows.time[found[known]]
    used = np.concatenate([rows.time[some[rows.timed[some]]] for some in (delivers, arrives)])
    yield (
        0,
        pack_struct(
            TimedPiece(
                rows.bucket.piece(),
                Places(rows.process[delivers].astype(np.int32), rows.index[delivers]),
                arrived,
                np.where(rows.timed[delivers], rows.time[delivers], kernel.UNKNOWN),
                resolution_of(iter(np.unique(used).tolist())),
            )
        ),
    )


def raced(packed: Iterable[bytes], task: LinesTask, question: Question | None) -> bytes:
    """Assemble the lines (the events of each process) and find the races. Return packed bytes with the counts, the
    resolution of the times, and the races with the smallest *slack*. A race is a pair of messages that
    were delivered in the right order only because of their timing. Its slack is how much later the first message could
    have arrived without being late. Each race is returned with the chain of messages from the send of the first message
    to the delivery of the second. The events of a race are given by process and index. If ``question`` is None, no
    search is made: the counts are 0, and no race is returned."""
    times: list[TimedPiece] = []

    def pieces() -> Iterator[Piece]:
        for bucket in map(_read, packed):
            times.append(bucket)
            yield bucket.piece

    lengths, sparse = np.frombuffer(task.lengths, np.int64), np.frombuffer(task.sparse, np.int32)
    lines, _ = assemble(lengths, sparse, pieces(), Scratch(task.scratch))
    cut_cycles(lines)
    units = [one.resolution for one in times if one.resolution is not None]
    counts, heap = np.zeros(4, np.int64), np.zeros((0, 5), np.int64)
    if question is not None:
        arrived, delivered = (lines.scratch.array(len(lines.source), np.int64, kernel.UNKNOWN) for _ in range(2))
        for piece in times:
            at = lines.flat(piece.rows.process, piece.rows.index)
            arrived[at], delivered[at] = piece.arrived, piece.delivered
        counts, heap = _Search(lines, question, arrived, delivered).run(task.lanes_max, task.segments)
    return pack({
        "pairs": int(counts[kernel.PAIRS]), "untimed": int(counts[kernel.UNTIMED]), "late": int(counts[kernel.LATE]),
        "resolution": min(units, default=None), **_by_place(lines, heap),
    })  # fmt: skip


class _Search:
    """The search for races. It keeps a vector for each process, with one entry (*lane*) for each sender. A process
    knows some of the sends of each sender. The entry is the position after the last of these sends. The lanes are
    divided into blocks, so that the vectors of one block fit into memory. The search goes through all events twice for
    each block."""

    def __init__(self, lines: Lines, question: Question, arrived: Longs, delivered: Longs) -> None:
        self._lines, self._question = lines, question
        events, scratch = len(lines.source), lines.scratch
        self._times = kernel.Times(arrived, scratch.array(events, np.int64, kernel.UNKNOWN), delivered)
        kernel.release(lines.arrays, self._times, question.fifo)
        self._reach, self._before = (scratch.array(events, np.int32) for _ in range(2))
        self._found = kernel.Races(np.zeros(4, np.int64), np.zeros((question.wanted.first, 5), np.int64))

    def run(self, lanes_max: int | None, segments: int) -> tuple[Longs, Longs]:
        """Run the search. Return two arrays: the counts, and the races with the smallest slack. The second array has
        one race per row, in ascending order of slack."""
        lines = self._lines
        senders = np.unique(lines.source[lines.source >= 0])
        for second in (False, True):
            for lane_of, lanes in blocks(lines, senders, lanes_max):
                self._walk(lane_of, lanes, second, segments)
        recounted(lines)
        heap = self._found.heap[: self._found.counts[kernel.KEPT]]
        return self._found.counts, heap[np.lexsort(heap.T[::-1])]

    def _walk(self, lane_of: Ints, lanes: int, second: bool, segments: int) -> None:
        lines, question = self._lines, self._question
        make = lines.scratch.array
        vectors = Vectors(lane_of, make((lines.processes, lanes), np.int32), np.full(lines.processes, -1, np.int32))
        slots = slots_of(lanes, np.int32)
        head = make((lines.processes, lanes if second else 1), np.int32)
        seen = kernel.Before(self._reach, head, self._before, np.flatnonzero(lane_of >= 0).astype(np.int32))
        within = kernel.UNKNOWN if question.wanted.within is None else question.wanted.within
        wanted = kernel.Wanted(question.fifo, question.wanted.every, within)
        lend_slots(lines)
        walk = Walk(lines, segments)

        def look(begin: int, end: int) -> int:
            return kernel.races(
                lines.arrays, walk.segments, begin, end, vectors, slots, second, seen, self._times, wanted, self._found
            )

        for stopped in walk.through(look):
            if stopped:
                slots = grown(slots)


class _Reaching(Chains):
    """Finds chains of messages from one send to another."""

    def between(self, sent: int, until: int) -> list[tuple[int, int]]:
        """Return the shortest chain of messages from the send ``sent`` to the send ``until``. The first
        message of the chain is sent in the process of ``sent``, at ``sent`` or later. The last message is delivered in
        the process of ``until``, before ``until``. The chain is empty if both sends are in the same process."""
        source, target = self._lines.process_at(np.array([sent, until])).tolist()
        return [] if source == target else self._between(sent, until)


def _by_place(lines: Lines, heap: Longs) -> dict[str, Any]:
    """Return the races and their chains, with each event given by its process number and its index."""
    base = lines.offsets[heap[:, 2]] if len(heap) else np.zeros(0, np.int64)
    second, first = base + heap[:, 3], base + heap[:, 4]
    sent, after = lines.send_of(first), lines.send_of(second)
    chains = _Reaching(lines) if len(heap) else None
    steps: list[tuple[int, int]] = []
    lengths = []
    for number in range(len(heap)):
        assert chains is not None
        chain = [*chains.between(int(sent[number]), int(after[number])), (int(after[number]), int(second[number]))]
        lengths.append(len(chain))
        steps += chain
    flat = np.array(steps, np.int64).reshape(-1, 2)

    def places(at: Longs) -> list[list[int]]:
        return [lines.process_at(at).tolist(), lines.index_at(at).tolist()]

    return {
        "slack": [None if untimed else slack for untimed, slack in heap[:, :2].tolist()],
        "first": places(first), "second": places(second), "sent": places(sent), "lengths": lengths,
        "chain_sent": places(flat[:, 0]), "chain_delivered": places(flat[:, 1]),
    }  # fmt: skip


def _race_rows(trace: Trace, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the races as they are reported, with process names and message ids."""
    sent, chain_sent = result["sent"], result["chain_sent"]
    ids = trace.ids(sent[0] + chain_sent[0], sent[1] + chain_sent[1])
    names, count = trace.names, len(sent[0])
    links = [
        Link(message, names[source], send_index, names[to], deliver_index)
        for message, source, send_index, to, deliver_index in zip(
            ids[count:], *chain_sent, *result["chain_delivered"], strict=True
        )
    ]
    rows, begin = [], 0
    for k, length in enumerate(result["lengths"]):
        chain = links[begin : begin + length]
        begin += length
        at = names[result["first"][0][k]]
        first = Event(at, result["first"][1][k], DELIVER, ids[k])
        second = Event(at, result["second"][1][k], DELIVER, chain[-1].message)
        send = Event(names[sent[0][k]], sent[1][k], SEND, ids[k])
        rows.append(race_of(first, send, second, result["slack"][k], chain))
    return rows
