"""The first stage: it reads a split (a part of the trace), and produces encoded rows, runs of indices, and a summary. A
*run* is a range of consecutive indices of one process or server.

The output is divided into numbered parts of two kinds. The first parts are for *places* (a place is a process and an
index). They get the runs of indices. All runs of one process go to the same part. Part 0 also gets the summaries. The
other parts are the *buckets*. They get the encoded rows. All rows of one message go to the same bucket.

``hop`` rows, and ``local`` rows without clocks, go to buckets only if the layout requests them. Otherwise these rows
are only counted, and later stages know only their indices.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from antecede.pipeline.kernels.match import HOP, LOCAL
from antecede.pipeline.kernels.texts import WIDE, runs
from antecede.pipeline.packing import decoder, pack_struct
from antecede.pipeline.pieces import REGION_EVENTS
from antecede.pipeline.read.columns import Encoder, Names
from antecede.pipeline.read.ids import narrowed
from antecede.pipeline.read.rows import by_bucket
from antecede.pipeline.read.splits import Arrow, Split, read
from antecede.trace.files import Item, items_in
from antecede.trace.schema import COLUMNS, NEEDED_BY_INSTANCES, Event, Fault, Nulled
from antecede.trace.sources import Cut

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

_runs_at_once = 1 << 20
_piece_rows = 8192
"""The average number of rows in a *piece* (a group of rows that is sent to a bucket as one packet). Pieces should be
large, because writing and reading a piece has a fixed cost."""


class Layout(msgspec.Struct, frozen=True):
    """The layout of the first stage's output: how many parts are for places (process and index), how many parts are
    buckets, and which optional values the rows contain for later stages."""

    places: int
    buckets: int
    cut: Cut = Cut()
    narrow: int = WIDE
    """Mask for the hashes of message ids. Tests keep fewer bits, so that different ids get the same hash."""
    numbered: bool = False
    """Whether rows contain their row number. The row number is used to find a row again, for example to copy it to the
    quarantine."""
    timed: bool = False
    """Whether rows contain their time, which is used to choose where the trace is divided into chunks."""
    figures: bool = False
    """Whether rows contain the values that are used for measuring: times, sizes and hops."""
    instances: bool = False
    """Whether rows contain the values for significant order: instances, operations, parents and types."""
    region_events: int = REGION_EVENTS
    """Number of events in a region. The lines (the events of each process, in sequence) are assembled one region at a
    time. Tests use smaller regions."""

    @property
    def parts(self) -> int:
        return self.places + self.buckets

    def place(self, name: str) -> int:
        return crc32(name.encode("utf-8", "surrogatepass")) % self.places


class Runs(msgspec.Struct, tag="runs"):
    """Runs of consecutive indices, each with its start and end. If ``hop`` is true, they are the indices of ``hop``
    rows, which servers record. Otherwise they are the indices of rows that processes record."""

    names: list[str]
    hop: bool
    fault: bool
    """True for the indices of faulty rows (rows that could not be read as events); false for the indices of events."""
    lane: Ints
    """For each run, the number of its process or server. This number is a position in the list ``names``."""
    start: Longs
    end: Longs


class Summary(msgspec.Struct, tag="split"):
    """The summary of a split: its names, and counts of its rows and of the faults in them."""

    split: int
    names: list[str]
    rows: int
    """The number of selected events. ``outside`` is the number of events that were not selected (:class:`Cut`)."""
    outside: int
    reasons: dict[str, int]
    unread_first: dict[str, tuple[int, str]]
    """For each kind of fault, the first row with this fault: the number of the row, and a description of the fault.
    Here, rows are numbered from 1, but ``at`` in encoded rows numbers them from 0."""
    nulled: dict[str, int]
    nulled_first: dict[str, tuple[int, str]]
    clocked: bool
    assumed: bool


read_places = decoder(Runs | Summary)


class _Runs:
    """Collects runs of consecutive indices, separately for each sequence of events (*lane*): the events of one process,
    or the ``hop`` rows of one server. The indices of events and the indices of rows that are not events are collected
    in different objects of this class."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._start = np.zeros(0, np.int64)
        self._end = np.zeros(0, np.int64)
        self._closed: list[tuple[Ints, Longs, Longs]] = []
        self.count = 0

    def take(self, lane: Ints, index: Longs) -> None:
        if len(self._names) > len(self._start):
            room = np.zeros(2 * len(self._names) - len(self._start), np.int64)
            self._start, self._end = np.concatenate([self._start, room]), np.concatenate([self._end, room])
        out = np.zeros(len(index), np.int32), np.zeros(len(index), np.int64), np.zeros(len(index), np.int64)
        closed = runs(lane, index, self._start, self._end, *out)
        if closed:
            self._keep((out[0][:closed].copy(), out[1][:closed].copy(), out[2][:closed].copy()))

    def _keep(self, closed: tuple[Ints, Longs, Longs]) -> None:
        self._closed.append(closed)
        self.count += len(closed[0])

    def drain(self, layout: Layout, hop: bool, fault: bool) -> Iterator[tuple[int, bytes]]:
        """Yield the collected runs, packed, and forget them. All runs of a process or server belong to one part of the
        output. The runs of a part are yielded together, with the number of the part."""
        open_ = np.flatnonzero(self._start != self._end)
        self._keep((open_.astype(np.int32), self._start[open_], self._end[open_]))
        self._start[open_] = self._end[open_]
        lane, start, end = (np.concatenate([run[k] for run in self._closed]) for k in range(3))
        self._closed, self.count = [], 0
        names = self._names.list()
        home = np.array([layout.place(name) for name in names], np.int64)
        if not len(lane):
            return
        for part in np.unique(home[lane]):
            mine = home[lane] == part
            lanes, numbers = np.unique(lane[mine], return_inverse=True)
            named = [names[k] for k in lanes]
            yield int(part), pack_struct(Runs(named, hop, fault, numbers.astype(np.int32), start[mine], end[mine]))


class Task:
    """Encodes one split, and divides the output into numbered parts."""

    columns: Sequence[str] = COLUMNS
    """The columns that are read from Parquet files."""

    def __init__(self, split: Split, layout: Layout) -> None:
        self.split, self.layout = split, layout
        self.encoder = Encoder()
        self.fault_names = {False: Names(), True: Names()}
        self.runs = {False: _Runs(self.encoder.names), True: _Runs(self.encoder.servers)}
        self.fault_runs = {hop: _Runs(names) for hop, names in self.fault_names.items()}
        self.reasons: Counter[str] = Counter()
        self.unread_first: dict[str, tuple[int, str]] = {}
        self.nulled = Nulled(NEEDED_BY_INSTANCES if layout.instances else ())
        self.kinds = np.zeros(5, np.int64)
        self.outside = 0
        """Number of events that ``layout.cut`` does not select."""
        self.sequence = 0
        self._waiting: list[Any] = []
        """Encoded batches that wait until enough rows can be sent to the buckets together."""
        self.clocked = self.lamported = self.assumed = False

    def run(self) -> Iterator[tuple[int, bytes]]:
        for piece in read(self.split, self.columns):
            for batch in self.batches(piece):
                yield from self._take(batch)
        yield from self._depart()
        for hop in (False, True):
            yield from self.runs[hop].drain(self.layout, hop, fault=False)
            yield from self.fault_runs[hop].drain(self.layout, hop, fault=True)
        yield 0, pack_struct(
            Summary(
                self.split.number, self.encoder.names.list(), int(self.kinds.sum()), self.outside, dict(self.reasons),
                self.unread_first, dict(self.nulled.counts), self.nulled.first, self.clocked or self.lamported,
                self.assumed,
            )
        )  # fmt: skip

    def batches(self, piece: Arrow | list[Item]) -> Iterator[Any]:
        if isinstance(piece, list):
            yield from self.take_items(piece)
        elif piece.plain:
            batch, odd = self.encoder.from_arrow(piece.batch, piece.first, piece.folded)
            yield batch
            yield from self.take_items(odd)
        else:
            yield from self.take_items(list(items_in(piece.batch, piece.folded, piece.first + 1, False)))

    def take_items(self, items: Sequence[Item]) -> Iterator[Any]:
        """Encode rows that were read one by one. Optional values of a wrong type become null and are counted."""
        return self.from_items([(number, raw, self.nulled.take(number, decoded)) for number, raw, decoded in items])

    def from_items(self, items: Sequence[Item]) -> Iterator[Any]:
        events, at = [], []
        for number, _, decoded in items:
            if isinstance(decoded, Event):
                events.append(decoded)
                at.append(number - 1)
            else:
                self.unread_first.setdefault(decoded.reason, (number, decoded.detail))
                self.fault(decoded)
        if events:
            yield self.encoder.from_events(events, at)

    def fault(self, fault: Fault) -> None:
        self.reasons[fault.reason] += 1
        if fault.process is not None and fault.index is not None:
            lane = self.fault_names[fault.hop].of(fault.process)
            self.fault_runs[fault.hop].take(np.array([lane], np.int32), np.array([fault.index], np.int64))

    def _take(self, batch: Any) -> Iterator[tuple[int, bytes]]:
        whole = batch.num_rows
        batch = self._cut(batch)
        self.outside += whole - batch.num_rows
        if not batch.num_rows:
            return
        kind = batch.column("kind").to_numpy()
        self.kinds += np.bincount(kind, minlength=5)
        process, index = batch.column("process").to_numpy(), batch.column("index").to_numpy()
        hop = kind == HOP
        if hop.any():
            self.runs[True].take(process[hop], index[hop])
            self.runs[False].take(process[~hop], index[~hop])
        else:
            self.runs[False].take(process, index)
        for lanes, is_hop in ((self.runs[False], False), (self.runs[True], True)):
            if lanes.count > _runs_at_once:
                yield from lanes.drain(self.layout, is_hop, fault=False)
        yield from self._gather(self.needed_part(batch, kind))

    def _cut(self, batch: Any) -> Any:
        cut = self.layout.cut
        if not cut:
            return batch
        keep = np.ones(batch.num_rows, bool)
        if "time" in batch.schema.names and (cut.since is not None or cut.until is not None):
            time = batch.column("time")
            known = time.is_valid().to_numpy(zero_copy_only=False)
            value = time.fill_null(0).to_numpy()
            if cut.since is not None:
                keep &= ~known | (value >= cut.since)
            if cut.until is not None:
                keep &= ~known | (value < cut.until)
        if cut.processes is not None:
            wanted = set(cut.processes)
            process = batch.column("process").to_numpy()
            hop = batch.column("kind").to_numpy() == HOP
            for names, lane in ((self.encoder.names, ~hop), (self.encoder.servers, hop)):
                table = np.array([name in wanted for name in names.list()] or [False], bool)
                keep[lane] &= table[process[lane]]
        return batch if keep.all() else batch.filter(pa.array(keep))

    def needed_part(self, batch: Any, kind: NDArray[np.uint8]) -> Any:
        """Return a batch with only those rows and columns that later stages need."""
        keep = kind < LOCAL
        drop = set() if self.layout.timed else {"time"}
        drop |= set() if self.layout.numbered else {"at"}
        for mark, flag in (("lamport", "lamported"), ("clock_name", "clocked")):
            if mark in batch.schema.names and batch.column(mark).null_count < batch.num_rows:
                keep = keep | batch.column(mark).is_valid().to_numpy(zero_copy_only=False)
                setattr(self, flag, True)
            elif mark in batch.schema.names:
                drop |= {mark, "clock_entry"} if mark == "clock_name" else {mark}
        if "assumed" in batch.schema.names:
            self.assumed = self.assumed or bool(pc.any(batch.column("assumed")).as_py())
        if self.layout.instances:
            keep = keep | ((kind == LOCAL) & batch.column("instance").is_valid().to_numpy(zero_copy_only=False))
        batch = batch.select([name for name in batch.schema.names if name not in drop])
        return batch if keep.all() else batch.filter(pa.array(keep))

    def _gather(self, batch: Any) -> Iterator[tuple[int, bytes]]:
        """Collect rows until there are ``_piece_rows`` rows per bucket on average. Then yield the rows, grouped by
        bucket."""
        at = batch.schema.get_field_index("message")
        batch = batch.set_column(at, "message", narrowed(batch.column(at)))
        if self._waiting and self._waiting[0].schema != batch.schema:
            yield from self._depart()
        self._waiting.append(batch)
        if sum(one.num_rows for one in self._waiting) >= _piece_rows * self.layout.buckets:
            yield from self._depart()

    def _depart(self) -> Iterator[tuple[int, bytes]]:
        together, self._waiting = self._waiting, []
        if len(together) > 1:
            whole = pa.Table.from_batches(together).combine_chunks()
            together = whole.to_batches()
        for batch in together:
            yield from self._scatter(batch)

    def _scatter(self, batch: Any) -> Iterator[tuple[int, bytes]]:
        """Divide the rows by the buckets of their messages. Yield the rows of each bucket with the number of its output
        part. A local row without a message may go to any bucket."""
        if not batch.num_rows:
            return
        layout, names = self.layout, len(self.encoder.names)
        self.sequence += 1
        for bucket, packed in by_bucket(batch, layout.buckets, layout.narrow, names, self.split.number, self.sequence):
            yield layout.places + bucket, packed


def encode(split: Split, layout: Layout) -> Iterator[tuple[int, bytes]]:
    """Read one split. Yield its encoded rows, its runs of indices and its summary, each with the number of its output
    part."""
    if layout.figures:
        from antecede.pipeline.read.figures import FigureTask

        return FigureTask(split, layout).run()
    if layout.instances:
        from antecede.pipeline.read.instances import InstanceTask

        return InstanceTask(split, layout).run()
    return Task(split, layout).run()
