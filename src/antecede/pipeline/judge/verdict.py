"""The third stage: one task gets the matched rows of a whole trace and returns the verdicts.

The task assembles the lines (the event sequences of the processes). Then it judges causal order in one walk over all
events. These two steps are cheap: they take about a quarter of the processor time of a run (0.19 of 0.69 µs per event).
The earlier stages are spread over all cores. The task returns a summary of bounded size. In the summary, events are
given by their places (process and index). On request, the task also returns all late deliveries.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from antecede.pipeline.judge import orders as judge
from antecede.pipeline.kernels import Longs
from antecede.pipeline.match import ClockRows, Lines, Scratch, assemble
from antecede.pipeline.pieces import Counted, Judged, LatePlaces, Piece, Places, Region, pack_struct, read_matched
from antecede.trace.quarantine import REASONS, SILENT_SHOWN, readable
from antecede.trace.schema import COLUMNS
from antecede.trace.verdicts import ORDERS

LATE_PARTS = 64
"""The number of output parts for late deliveries. There are several parts, so that late deliveries can be fetched in
portions."""

_late_rows_at_once = 1 << 18


class LinesTask(msgspec.Struct, frozen=True):
    """The settings of a task that assembles the lines (the event sequences of the processes) and judges them."""

    lengths: bytes
    """For each process, its largest index + 1, or 0 if the process is in ``sparse``. The bytes are an array of
    int64."""
    sparse: bytes
    """The numbers of the processes whose indices have too many gaps to be used as positions in an array. The bytes are
    an array of int32."""
    orders: tuple[str, ...]
    every_late: bool = False
    scratch: str | None = None
    segments: int = 1 << 18
    lanes_max: int | None = None


def assembled(packed: Iterable[bytes], task: LinesTask) -> tuple[Lines, list[ClockRows], list[Counted]]:
    """Assemble the lines (the event sequences of the processes). Return the lines, the recorded clocks of their events,
    and the counts of the buckets."""
    summaries: list[Counted] = []

    def pieces() -> Iterator[Piece | Region]:
        for part in map(read_matched, packed):
            if isinstance(part, Counted):
                summaries.append(part)
            else:
                yield part

    lengths, sparse = np.frombuffer(task.lengths, np.int64), np.frombuffer(task.sparse, np.int32)
    lines, clocks = assemble(lengths, sparse, pieces(), Scratch(task.scratch))
    return lines, clocks, summaries


def counted(summaries: Sequence[Counted]) -> Counted:
    """Return the sum of the counts of all buckets."""
    reasons: Counter[str] = Counter()
    for one in summaries:
        reasons.update(one.reasons)
    return Counted(
        dict(reasons),
        sum(one.messages for one in summaries),
        sum(one.deliveries for one in summaries),
        sum(one.undelivered for one in summaries),
        np.bitwise_or.reduce([one.named for one in summaries]),
    )


def judged(packed: Iterable[bytes], task: LinesTask) -> Iterator[tuple[int, bytes]]:
    """Judge the trace. Yield the summary for output part 0, and late deliveries for the other output parts."""
    lines, clocks, summaries = assembled(packed, task)
    causal, circular = _causal_found(lines, task), np.zeros(0, np.int64)
    if causal is None:
        circular = judge.cut_cycles(lines)
        clocks = [judge.without(piece, circular) for piece in clocks]
        causal = _causal_found(lines, task)
        assert causal is not None, "there are cycles left after they were removed"
    sure, placed = judge.certain(lines), causal.count
    if sure is not lines:
        causal = _causal_found(sure, task)
        assert causal is not None, "there are cycles among certain edges"
    summary = Judged(places_at(lines, circular), counted(summaries))
    writer = LateRows(lines) if task.every_late else None
    if "fifo" in task.orders:
        count = 0
        for late in judge.fifo_late(sure):
            count += len(late)
            if writer:
                yield from writer.rows("fifo", late, judge.fifo_overtaking(sure, late))
        summary.fifo_late = count
        summary.fifo_undecided = 0 if sure is lines else sum(map(len, judge.fifo_late(lines))) - count
    if "causal" in task.orders:
        yield from _causal(lines, sure, task, causal, summary, writer)
        summary.causal_undecided = placed - causal.count
    if "total" in task.orders or "synchronous" in task.orders:
        sure = judge.certain(lines, sequences=True)
    if "total" in task.orders:
        circle = judge.Circle(sure, with_sends=False)
        summary.cycle = None if circle.merges else _witness(sure, circle)
        summary.pairwise = circle.merges or judge.pairwise(sure)
    if "synchronous" in task.orders:
        circle = judge.Circle(sure, with_sends=True)
        summary.crown = None if circle.merges else _witness(sure, circle)
    summary.lamport = judge.check_lamport(lines, clocks)
    summary.clocks = judge.check_clocks(lines, clocks, lines.processes, segments=task.segments)
    summary.late_blobs = writer.blobs if writer else 0
    yield 0, pack_struct(summary)


class _Late(msgspec.Struct):
    """The late deliveries that one walk over the trace found: their number, the first of them and, if the task asks
    for it, the list of all of them (``kept``)."""

    count: int = 0
    first: int | None = None
    kept: list[Longs] = []


def _causal_found(lines: Lines, task: LinesTask) -> _Late | None:
    """Find the deliveries that are late under causal order. Return their number, the first one and, if
    ``task.every_late`` is true, all of them. If causal order was not requested, the result is empty. If cycles must be
    removed first, return ``None``.

    Cycles are rare. So the walk that judges causal order also detects them, which saves a separate walk.
    """
    found = _Late()
    try:
        if "causal" not in task.orders:
            return None if judge.is_circular(lines) else found
        for late in judge.causal_late(lines, task.lanes_max, task.segments):
            found.count += len(late)
            candidate = least(lines, late)
            if found.first is None or _rank(lines, candidate) < _rank(lines, found.first):
                found.first = candidate
            if task.every_late:
                found.kept.append(late)
    except judge.Circular:
        return None
    return found


def _causal(
    lines: Lines, sure: Lines, task: LinesTask, found: _Late, summary: Judged, writer: "LateRows | None"
) -> Iterator[tuple[int, bytes]]:
    summary.causal_late = found.count
    if found.first is not None:
        at = np.array([found.first])
        over = judge.causal_overtakers(sure, at, task.lanes_max, task.segments)
        summary.first = late_places(lines, at, over)
    if writer and found.kept:
        late = np.sort(np.concatenate(found.kept))
        yield from writer.rows("causal", late, judge.causal_overtakers(sure, late, task.lanes_max, task.segments))


def least(lines: Lines, late: Longs) -> int:
    """Return the late delivery with the smallest index. If there are several, return the one with the smallest process
    number."""
    index, process = lines.index_at(late), lines.process_at(late)
    among = np.flatnonzero(index == index.min())
    return int(late[among[np.argmin(process[among])]])


def _rank(lines: Lines, flat: int) -> tuple[int, int]:
    at = np.array([flat])
    return int(lines.index_at(at)[0]), int(lines.process_at(at)[0])


def _witness(lines: Lines, circle: judge.Circle) -> Places:
    return places_at(lines, lines.home(np.array(circle.witness(), np.int64)))


def places_at(lines: Lines, flat: Longs) -> Places:
    """Return the places (process and index) of events. ``flat`` has the positions of the events in the joined event
    sequences of all processes."""
    return Places(lines.process_at(flat).astype(np.int32), lines.index_at(flat))


def late_places(lines: Lines, late: Longs, over: Longs, order: str = "") -> LatePlaces:
    """Return the places of late deliveries, of their sends, and of the sends of the messages that overtook them."""
    sent, other = lines.send_of(late), lines.send_of(over)
    return LatePlaces(
        *(lines.process_at(late), lines.index_at(late)),
        *(lines.process_at(sent), lines.index_at(sent)),
        *(lines.process_at(other), lines.index_at(other)),
        order,
    )


class LateRows:
    """A writer that packs late deliveries in blocks and distributes the blocks over the output parts. The first block
    goes to part ``1 + first % LATE_PARTS``, where ``first`` is an argument of the constructor. Each further block goes
    to the next part. After the last part comes part 1."""

    def __init__(self, lines: Lines, first: int = 0) -> None:
        self._lines = lines
        self._first = first
        self.blobs = 0

    def rows(self, order: str, late: Longs, over: Longs) -> Iterator[tuple[int, bytes]]:
        for start in range(0, len(late), _late_rows_at_once):
            some = slice(start, start + _late_rows_at_once)
            rows = late_places(self._lines, late[some], over[some], order)
            yield 1 + (self._first + self.blobs) % LATE_PARTS, pack_struct(rows)
            self.blobs += 1


def only_summary(packed: Iterable[bytes], task: LinesTask) -> bytes:
    """Judge the trace. Return the summary."""
    (_, summary), *none = judged(packed, task)
    assert not none
    return summary


def on_lines(packed: Iterable[bytes], task: LinesTask, work: Callable[[Lines], bytes]) -> bytes:
    """Assemble the lines (the event sequences of the processes), and remove cycles from them. Then run a function on
    the lines, in the same task. Return the result of the function."""
    lines, _, _ = assembled(packed, task)
    judge.cut_cycles(lines)
    return work(lines)


# Make the report of ``verify`` from the results of the stages. Process numbers are replaced by names, and places
# (process and index) by message ids.
#
# Reports for files and reports for DataFrames are both made here. So the two can differ only in the numbers that the
# stages computed.


Ids = Callable[[Any, Any], list[str]]
"""A function that gets the places of sends, as an array of processes and an array of indices, and returns the ids of
their messages."""


def assemble_report(
    *,
    names: Sequence[str],
    orders: tuple[str, ...],
    judged: Judged,
    counted: Counted,
    unread: Mapping[str, int],
    unread_first: Mapping[str, str],
    nulled: Mapping[str, int],
    nulled_first: Mapping[str, str],
    aside: Mapping[str, int],
    rows: int,
    processes: int,
    silent: Sequence[str],
    missing: int,
    ids: Ids,
    lost: int,
    outside: int = 0,
) -> dict[str, Any]:
    """Return the report without version, engine and timings.

    ``unread`` counts the rows that are not events. ``nulled`` counts, per column, the values of a wrong type. ``aside``
    counts, per reason, the rows that were set aside because another row has the same place. ``rows`` counts the events
    in the part of the trace that was judged, and ``outside`` counts all other events. ``lost`` counts the deliveries
    that lie on a cycle and belong to a send with known destinations. Each of them adds one to ``undelivered``.
    """
    cycle = len(judged.circular.process)
    reasons = Counter(counted.reasons) + Counter(aside)
    reasons["cycle"] += cycle
    set_aside = sum(reasons.values())
    reasons += Counter(unread)
    complete = not reasons
    reasons["index_gap"] = missing
    quarantined = {reason: reasons[reason] for reason in REASONS if reasons[reason]}
    read = rows + outside + sum(unread.values())
    deliveries = counted.deliveries - cycle
    return {
        "processes": processes,
        "silent": len(silent),
        "silent_first": list(silent[:SILENT_SHOWN]),
        "rows": read,
        "events": rows - set_aside,
        "messages": counted.messages,
        "deliveries": deliveries,
        "undelivered": counted.undelivered + lost,
        "complete": complete,
        "quarantined": quarantined,
        "readable": readable(read, quarantined),
        "unread_first": {reason: unread_first[reason] for reason in REASONS if reason in unread_first},
        "nulled": {column: nulled[column] for column in COLUMNS if nulled.get(column)},
        "nulled_first": {column: nulled_first[column] for column in COLUMNS if column in nulled_first},
        "orders": _orders(orders, judged, deliveries, names, ids),
        "clocks": msgspec.structs.asdict(judged.clocks),
        "lamport": msgspec.structs.asdict(judged.lamport),
    }


def _orders(asked: tuple[str, ...], judged: Judged, deliveries: int, names: Sequence[str], ids: Ids) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for order in ORDERS:
        if order not in asked:
            continue
        if order == "fifo":
            report[order] = {
                "holds": not judged.fifo_late,
                "late": judged.fifo_late,
                "undecided": judged.fifo_undecided,
            }
        elif order == "causal":
            first = next(late_rows(judged.first, names, ids)) if judged.first is not None else None
            report[order] = {
                "holds": not judged.causal_late,
                "late": judged.causal_late,
                "undecided": judged.causal_undecided,
                "first": first,
            }
        elif order == "total":
            cycle = _circle(judged.cycle, ids)
            agree = judged.pairwise if deliveries else None
            report[order] = {"holds": cycle is None, "pairwise": agree, "cycle": cycle}
        else:
            crown = _circle(judged.crown, ids) if deliveries else None
            report[order] = {"holds": crown is None, "crown": crown}
        if not deliveries:
            report[order]["holds"] = None
    return report


def _circle(places: Places | None, ids: Ids) -> list[str] | None:
    """Return the ids of the messages on a cycle, in the order of the cycle, beginning with the smallest id."""
    if places is None:
        return None
    found = ids(places.process, places.index)
    least = found.index(min(found))
    return found[least:] + found[:least]


def late_rows(late: LatePlaces, names: Sequence[str], ids: Ids) -> Iterator[dict[str, Any]]:
    """Yield each late delivery as a dictionary with the same keys as ``first`` in the report. Processes are given by
    their names, and messages by their ids."""
    found = ids(np.concatenate([late.source, late.over_process]), np.concatenate([late.send_index, late.over_index]))
    count = len(late.process)
    for k in range(count):
        yield {
            "message": found[k],
            "from": names[late.source[k]],
            "to": names[late.process[k]],
            "send_index": int(late.send_index[k]),
            "deliver_index": int(late.index[k]),
            "overtaken_by": found[count + k],
        }
