"""Verify a whole trace: run the stages one after the other, in this process or on Spark, and make the report.

Stages and the data between them::

    splits ── encode ──▶ summaries, runs of indices, encoded rows by bucket
    runs ──── survey ──▶ processes, missing and contested places
    buckets ─ matched ─▶ matched rows, reasons
    matched ─ judged ──▶ verdicts in places ── look_up ──▶ message ids for the report

A *place* is a process and an index. A place is *contested* if several rows have it. Then the input is read a second
time, to compare these rows.

A :class:`Trace` is a trace after the stages ``encode`` and ``survey``. :meth:`Trace.judge`, :meth:`Trace.on_lines` and
:meth:`Trace.ids` compute verdicts, explanations and figures from it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.flow import Flow, FrameParts, HereParts, Parts
from antecede.pipeline.judge import chunks, verdict
from antecede.pipeline.judge.chunks import Cuts, Grain
from antecede.pipeline.judge.verdict import LATE_PARTS, LinesTask, assemble_report, late_rows
from antecede.pipeline.kernels import Longs
from antecede.pipeline.kernels.match import DELIVER, SEND
from antecede.pipeline.match import (
    Lines,
    Numbering,
    Regions,
    Sought,
    ids_at,
    look_up,
    marks_of,
    matched,
    place_keys,
    set_aside,
)
from antecede.pipeline.pieces import Judged, read_apart, read_judged, read_late, unpack
from antecede.pipeline.read.encode import Contest, Layout, Process, Summary, claims, encode, settle, survey, surveyed
from antecede.pipeline.read.splits import Batches, Input, line_before
from antecede.trace.epochs import Epochs, Tally
from antecede.trace.verdicts import ORDERS

_bucket_rows = 500_000
_bucket_bytes = 48 * 1024 * 1024
_few_places = 64


def layout_for(given: Input, **options: Any) -> Layout:
    """Return a layout whose buckets fit into a worker's memory and the processor's caches."""
    buckets = given.rows // _bucket_rows if given.rows is not None else given.bytes // _bucket_bytes
    return Layout(places=min(4, len(given.splits)) or 1, buckets=int(min(4096, max(2, buckets))), **options)


class Trace:
    """A trace whose rows have been encoded and whose processes are known. Its rows are matched when they are first
    needed."""

    def __init__(self, flow: Flow, given: Input, layout: Layout, scratch: str | None = None) -> None:
        self.given, self.layout, self._scratch = given, layout, scratch
        self._flow = flow
        self._encoded = flow.scatter(partial(encode, layout=layout), given.splits, layout.parts)
        self.places: list[Process] = []
        summaries: list[Summary] = []
        for packed in self._encoded.gather(survey, range(layout.places)):
            processes, split_summaries = surveyed(packed)
            self.places += processes
            summaries += split_summaries
        self.unread: Counter[str] = Counter()
        self.rows = self.outside = 0
        self.clocked = any(summary.clocked for summary in summaries)
        self.assumed = any(summary.assumed for summary in summaries)
        self.nulled: Counter[str] = Counter()
        for summary in summaries:
            self.unread.update(summary.reasons)
            self.nulled.update(summary.nulled)
            self.rows += summary.rows
            self.outside += summary.outside
        self.unread_first = self._first((summary.split, summary.unread_first) for summary in summaries)
        self.nulled_first = self._first((summary.split, summary.nulled_first) for summary in summaries)
        self._number([(summary.split, summary.names) for summary in summaries])
        self._settle()
        self._matched: Parts | None = None
        self._regions: tuple[Regions, Parts] | None = None
        """The regions (parts of the joined event sequences of all processes), and the rows of each region. ``None`` if
        the matched rows were not divided into regions."""

    def _first(self, by_split: Iterable[tuple[int, dict[str, tuple[int, str]]]]) -> dict[str, str]:
        """Find the first error of each kind. Return, for each kind, a text with the file, the line and a description of
        the error. A kind is a key of the dictionaries in ``by_split``: a reason why rows are not events, or the name of
        a column with wrong values. The files are searched in the given sequence. Errors in a DataFrame are left out,
        because its rows have no file."""
        found: dict[str, tuple[int, int, str]] = {}
        for split, firsts in by_split:
            for name, (number, detail) in firsts.items():
                found[name] = min(found.get(name, (split + 1, 0, "")), (split, number, detail))
        # The partitions of a DataFrame do not belong to a file.
        splits = {split.number: split for split in self.given.splits if not isinstance(split, Batches)}
        return {
            name: f"{splits[split].name}:{line_before(splits[split]) + number}: {detail}"
            for name, (split, number, detail) in found.items()
            if split in splits
        }

    def _number(self, by_split: list[tuple[int, list[str]]]) -> None:
        own = {process.name: process for process in self.places if not process.hop}
        self.names = sorted({name for _, names in by_split for name in names} | own.keys())
        numbers = {name: number for number, name in enumerate(self.names)}
        splits = {split: np.array([numbers[name] for name in names], np.int32).tobytes() for split, names in by_split}
        self.numbering = Numbering(len(self.names), splits, narrow=self.layout.narrow)
        self.has_rows = np.zeros(len(self.names), bool)
        lengths = np.zeros(len(self.names), np.int64)
        self.ends = lengths.copy()
        sparse = []
        for name, process in own.items():
            number = numbers[name]
            self.has_rows[number] = True
            self.ends[number] = min(process.largest + 1, np.iinfo(np.int64).max)
            if process.largest + 1 > 4 * process.distinct + 1024:
                sparse.append(number)
            else:
                lengths[number] = process.largest + 1
        self._lengths, self._sparse = lengths, np.array(sorted(sparse), np.int32)
        self._narrow_index = not sparse
        self._numbers = numbers

    def _settle(self) -> None:
        self.again = self.different = 0
        self.contested_rows: list[tuple[int, int, bool]] = []
        contest = {("h" if p.hop else "p") + p.name: p.contested for p in self.places if p.contested}
        if not contest:
            return
        stage = partial(claims, layout=self.layout, contest=Contest(contest))
        parts = self._flow.scatter(stage, self.given.splits, self.layout.parts)
        settled = parts.gather(partial(settle, with_rows=self.layout.numbered), range(self.layout.places))
        runs = []
        for packed in settled:
            outcome = unpack(packed)
            self.again += outcome["again"]
            self.different += outcome["different"]
            self.contested_rows += [tuple(row) for row in outcome["rows"]]
            runs += [(self._numbers[name], first, end - 1, once) for name, first, end, once in outcome["runs"]]
        runs.sort()
        columns = list(zip(*runs, strict=True)) or [(), (), (), ()]
        self.numbering = msgspec.structs.replace(
            self.numbering,
            run_process=np.array(columns[0], np.int32).tobytes(),
            run_first=np.array(columns[1], np.int64).tobytes(),
            run_last=np.array(columns[2], np.int64).tobytes(),
            run_once=np.array(columns[3], np.uint8).tobytes(),
        )

    @property
    def _buckets(self) -> range:
        return range(self.layout.places, self.layout.parts)

    def matched(self) -> Parts:
        """Match the rows, unless this has been done already. Return a single part that contains the counts of all
        buckets, and the pieces from which the lines (the event sequences of the processes) are assembled."""
        if self._matched is None:
            ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._lengths)])
            regions = Regions(ends.tobytes(), self.layout.region_events)
            stage = partial(matched, numbering=self.numbering, narrow_index=self._narrow_index)
            if regions.count == 1 or len(self._sparse):
                self._matched = self._encoded.scatter(stage, self._buckets, 1)
            else:
                by_region = self._encoded.scatter(partial(stage, regions=regions), self._buckets, regions.count)
                self._regions, self._matched = (regions, by_region), by_region.joined()
        return self._matched

    def task(self, orders: tuple[str, ...], **options: Any) -> LinesTask:
        """Return the settings of a task that assembles the lines (the event sequences of the processes)."""
        return LinesTask(self._lengths.tobytes(), self._sparse.tobytes(), orders, scratch=self._scratch, **options)

    def judge(self, orders: tuple[str, ...], every_late: bool = False, **options: Any) -> tuple[Judged, Parts | None]:
        """Judge the trace. Return the summary. If ``every_late`` is true, also return the parts of the output,
        otherwise None. All parts except the first contain late deliveries."""
        task = self.task(orders, every_late=every_late, **options)
        if not every_late:
            return read_judged(self.matched().gather(partial(verdict.only_summary, task=task), [0])[0]), None
        parts = self.matched().scatter(partial(verdict.judged, task=task), [0], 1 + LATE_PARTS)
        return read_judged(parts.gather(b"".join, [0])[0]), parts

    def judge_by_chunks(
        self,
        orders: tuple[str, ...],
        every_late: bool = False,
        grain: Grain | None = None,
        cuts: Cuts | None = None,
    ) -> tuple[Judged, Parts | None]:
        """Return the same verdicts as :meth:`judge`, but judge FIFO and causal order by chunks of time. Other orders
        are judged in one walk.

        If the places of some rows were guessed when the trace was imported, all orders are judged in one walk. Such a
        trace is small enough for that.
        """
        if self.assumed:
            return self.judge(orders, every_late)
        part_count = self.layout.buckets
        stage = partial(
            chunks.matched_apart, numbering=self.numbering, narrow_index=self._narrow_index, part_count=part_count
        )
        rows = self._encoded.scatter(stage, self._buckets, part_count)
        by_time = tuple(order for order in orders if order in ("fifo", "causal"))
        others = tuple(order for order in orders if order not in by_time)
        plan = chunks.planned(
            rows, range(part_count), self.ends, self._sparse, self.rows, grain or Grain(), cuts,
            orders=by_time, every_late=every_late, scratch=self._scratch,
        )  # fmt: skip
        tasks = len(plan.tasks)
        dealt = rows.scatter(partial(chunks.dealt, plan=plan), range(part_count), tasks)
        parts = dealt.scatter(partial(chunks.judged, plan=plan), range(tasks), 1 + LATE_PARTS)
        summary: Judged = read_judged(parts.gather(chunks.merged, [0])[0])
        sums = [read_apart(packed) for packed in rows.gather(chunks.summed, range(part_count)) if packed]
        summary.counted = verdict.counted(sums)
        if others or self.clocked:
            walked, _ = self.judge(others)
            for name in ("pairwise", "cycle", "crown", "clocks", "lamport"):
                setattr(summary, name, getattr(walked, name))
        return summary, parts if every_late else None

    def on_lines(self, work: Callable[[Lines], bytes]) -> bytes:
        """Assemble the lines (the event sequences of the processes) in one task, and run a function on them in the same
        task. Return the function's result, which must be small."""
        return self.matched().gather(partial(verdict.on_lines, task=self.task(()), work=work), [0])[0]

    def on_buckets(self, stage: Callable[[Iterable[bytes]], bytes]) -> list[bytes]:
        """Run a function on each bucket (the rows of some messages). Return the results, which must be small."""
        return self._encoded.gather(stage, self._buckets)

    def from_buckets(self, stage: Callable[[Iterable[bytes]], Iterator[tuple[int, bytes]]], part_count: int) -> Parts:
        """Run a stage on each bucket of encoded rows. Return its output, grouped into ``part_count`` parts."""
        return self._encoded.scatter(stage, self._buckets, part_count)

    def bucket_rows(self, stage: Callable[[Iterable[bytes]], Iterator[Any]], schema: Any) -> Any:
        """Run a stage on each bucket of encoded rows. Return its output as an Arrow table or a DataFrame."""
        assert isinstance(self._encoded, HereParts | FrameParts)
        return self._encoded.frame(stage, schema, self._buckets)

    def look_up(self, process: Sequence[int] | NDArray[Any], index: Sequence[int] | NDArray[Any]) -> dict[str, Any]:
        """Look up the valid deliveries at these places. Return three arrays, in the order of the places. ``known`` is 1
        if the send of the delivery has known destinations. ``split`` is the split (a piece of the input) that contains
        the row. ``at`` is the number of the row, or -1 if the rows are not numbered."""
        columns = {name: np.zeros(len(process), np.int64) for name in ("known", "split", "at")}
        for found, back, answer in self._sought(look_up, DELIVER, process, index, self._buckets):
            for name, column in columns.items():
                values = np.zeros(len(found), np.int64)
                values[answer["found"]] = answer[name]
                hit = np.isin(back, answer["found"])
                column[hit] = values[back[hit]]
        return columns

    def ids(self, process: Sequence[int] | NDArray[Any], index: Sequence[int] | NDArray[Any]) -> list[str]:
        """Return the ids of the messages sent at these places."""
        ids = [""] * len(process)
        for _, back, answer in self._sought(ids_at, SEND, process, index, self._homes(process, index)):
            texts = dict(zip(answer["found"].tolist(), answer["ids"], strict=True))
            for k in np.flatnonzero(np.isin(back, answer["found"])).tolist():
                ids[k] = texts[back[k]]
        return ids

    def _homes(self, process: Any, index: Any) -> Sequence[int]:
        """Return the buckets that contain the messages sent at these places. If a search for these buckets would not
        save time, return all buckets."""
        if self._regions is None or not 0 < len(process) <= _few_places:
            return self._buckets
        regions, parts = self._regions
        at, number = np.asarray(process, np.int32), np.asarray(index, np.int64)
        stage = partial(marks_of, sought=Sought(SEND, at.tobytes(), number.tobytes()), regions=regions)
        marks = [mark for packed in parts.gather(stage, regions.of(at, number)) for mark in unpack(packed)["marks"]]
        return sorted({self.layout.places + mark % self.layout.buckets for mark in marks})

    def _sought(
        self, stage: Any, kind: int, process: Any, index: Any, buckets: Sequence[int]
    ) -> Iterator[tuple[Any, Longs, dict[str, Any]]]:
        """Search for rows at the given places. Yield three values for each bucket. The first is the list of the given
        places, sorted and without repeats. The second has, for each given place, its position in this list. The third
        has the rows that were found in the bucket."""
        keys = place_keys(np.asarray(process, np.int64), np.asarray(index, np.int64))
        unique, back = np.unique(keys, return_inverse=True)
        if not len(unique):
            return
        sought = Sought(kind, unique["process"].astype(np.int32).tobytes(), unique["index"].tobytes())
        for packed in self._encoded.gather(partial(stage, numbering=self.numbering, sought=sought), buckets):
            yield unique, back, unpack(packed)

    def set_aside(self) -> Parts:
        """Return the rows that were set aside during matching, one output part per split (a piece of the input)."""
        return self._encoded.scatter(
            partial(set_aside, numbering=self.numbering), self._buckets, len(self.given.splits)
        )


class Outcome(msgspec.Struct):
    """A report without its timings, and an iterator over every late delivery."""

    report: dict[str, Any]
    late: Iterator[dict[str, Any]]
    circular: list[tuple[int, int]]
    """For each delivery on a cycle of events, the split (a piece of the input) that contains its row, and the number of
    the row (-1 if the rows are not numbered)."""


def verdict_on(
    trace: Trace,
    orders: Sequence[str],
    every_late: bool = False,
    causal: str = "walk",
    epochs: Epochs | None = None,
    **options: Any,
) -> Outcome:
    """Judge a trace. Return an outcome with the same report as :func:`antecede.trace.verify`.

    ``causal`` is ``walk`` or ``chunks``; ``options`` are those of :meth:`Trace.judge` or :meth:`Trace.judge_by_chunks`.
    """
    asked = tuple(order for order in ORDERS if order in orders)
    judging = trace.judge_by_chunks if causal == "chunks" else trace.judge
    summary, parts = judging(asked, every_late, **options)
    tally = None if epochs is None else Tally(epochs, asked)
    if tally is not None and (summary.fifo_late or summary.causal_late):
        # Every late delivery is needed to judge it by its epoch. Without any, which is usual, one judgement is enough.
        if parts is None:
            summary, parts = judging(asked, True, **options)
        assert parts is not None
        _judge_by_epoch(trace, summary, parts, tally)
    assert summary.counted is not None, "the summary of a whole trace has what was counted"
    named = np.unpackbits(summary.counted.named)[: len(trace.names)].astype(bool)
    circular = trace.look_up(summary.circular.process, summary.circular.index)
    report = assemble_report(
        names=trace.names,
        orders=asked,
        judged=summary,
        counted=summary.counted,
        unread=trace.unread,
        unread_first=trace.unread_first,
        nulled=trace.nulled,
        nulled_first=trace.nulled_first,
        aside={"duplicate_row": trace.again, "duplicate_index": trace.different},
        rows=trace.rows,
        outside=trace.outside,
        processes=int(trace.has_rows.sum()),
        silent=[trace.names[at] for at in np.flatnonzero(named & ~trace.has_rows).tolist()],
        missing=sum(process.largest + 1 - process.distinct for process in trace.places),
        ids=trace.ids,
        lost=int(circular["known"].sum()),
    )
    if tally is not None:
        tally.complete(report)
    rows = list(zip(circular["split"].tolist(), circular["at"].tolist(), strict=True))
    return Outcome(report, late_in(trace, parts, summary.late_blobs) if parts else iter(()), rows)


def _judge_by_epoch(trace: Trace, summary: Judged, parts: Parts, tally: Tally) -> None:
    """Correct ``summary`` for a trace with epochs (one for each topology that the system had). Count only the late
    deliveries that are violations by the rule in :mod:`antecede.trace.epochs`. Replace the counts of late deliveries,
    and the first delivery that is late under causal order."""
    names, counts, first = trace.names, {"fifo": 0, "causal": 0}, None
    for packed in parts.stream(lambda blobs: blobs, range(1, 1 + min(summary.late_blobs, LATE_PARTS))):
        late = read_late(packed)
        columns = (late.source, late.send_index, late.process, late.over_process, late.over_index, late.index)
        for at, (source, sent, to, over, then, index) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            if tally.add(late.order, names[source], sent, names[to], names[over], then):
                counts[late.order] += 1
                if late.order == "causal" and (first is None or (index, to) < first[0]):
                    first = (index, to), late.at(at)
    summary.fifo_late, summary.causal_late = counts["fifo"], counts["causal"]
    summary.first = None if first is None else first[1]


def late_in(trace: Trace, parts: Parts, blobs: int) -> Iterator[dict[str, Any]]:
    """Yield every late delivery as a dictionary. It has the key ``order`` and the keys of ``first`` in the report.
    ``blobs`` is the number of the last output part that may contain late deliveries (:attr:`Judged.late_blobs`)."""
    for packed in parts.stream(lambda blobs: blobs, range(1, 1 + min(blobs, LATE_PARTS))):
        late = read_late(packed)
        for row in late_rows(late, trace.names, trace.ids):
            yield {"order": late.order, **row}
