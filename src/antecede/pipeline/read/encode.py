"""The first stage: it reads a split (a part of the trace), and produces encoded rows, runs of indices, and a summary. A
*run* is a range of consecutive indices of one process or server.

The output is divided into numbered parts of two kinds. The first parts are for *places* (a place is a process and an
index). They get the runs of indices. All runs of one process go to the same part. Part 0 also gets the summaries. The
other parts are the *buckets*. They get the encoded rows. All rows of one message go to the same bucket.

``hop`` rows, and ``local`` rows without clocks, go to buckets only if the layout requests them. Otherwise these rows
are only counted, and later stages know only their indices.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from antecede import limits
from antecede.errors import TraceError
from antecede.pipeline.kernels import Ints, Longs
from antecede.pipeline.kernels.match import HOP, LOCAL, SEND
from antecede.pipeline.kernels.texts import WIDE, runs
from antecede.pipeline.pieces import REGION_EVENTS, decoder, pack, pack_struct
from antecede.pipeline.read.columns import Encoder, Names
from antecede.pipeline.read.rows import by_bucket, narrowed
from antecede.pipeline.read.splits import Arrow, Split, read
from antecede.trace.costs import payload_bytes
from antecede.trace.files import Item, content, items_in
from antecede.trace.schema import COLUMNS, INT64_MAX, NEEDED_BY_INSTANCES, Event, Fault, Nulled
from antecede.trace.schema import HOP as HOP_KIND
from antecede.trace.sources import Cut

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
        return FigureTask(split, layout).run()
    if layout.instances:
        return InstanceTask(split, layout).run()
    return Task(split, layout).run()


# The first stage for measuring: it adds times, sizes and hops to the encoded rows.
#
# Measuring needs the ``hop`` rows, which routers record. So each ``hop`` row is put into the same bucket (group of
# rows) as the other rows of its message, and the names of routers and processes are numbered together. Clocks are
# dropped, because measuring does not use them.


FIGURE_COLUMNS = ("stamp_bytes", "hop", "domain", "held", "payload")
"""The columns that measuring adds to encoded rows."""

_folded = "extra"
_sizes = {"bytes", "size"}
"""The columns that may contain the payload size. A file can also have a *folded* column. It has JSON texts with
the values outside the trace format, and such a text can also contain the size. So a row of a file that has both kinds
of columns may have two sizes. Such files are read by the reader that is used without Spark, because this reader handles
this case."""


class FigureTask(Task):
    """Encodes one split like :class:`Task`, and adds all values for measuring to the rows."""

    columns = (*COLUMNS, "bytes", "size", _folded)

    def batches(self, piece: Arrow | list[Item]) -> Iterator[Any]:
        if isinstance(piece, list):
            yield from self.take_items(piece)
        elif piece.plain and not (piece.folded and _sizes & set(piece.batch.schema.names)):
            batch, odd = self.encoder.from_arrow(piece.batch, piece.first, piece.folded)
            yield _with_figures(batch, piece)
            yield from self.take_items(odd)
        else:
            yield from self.take_items(list(items_in(piece.batch, piece.folded, piece.first + 1, False)))

    def from_items(self, items: Sequence[Item]) -> Iterator[Any]:
        events = [decoded for _, _, decoded in items if isinstance(decoded, Event)]
        for batch in super().from_items(items):
            sizes = [payload_bytes(event) if event.kind == "send" else None for event in events]
            yield _with_columns(
                batch,
                pa.array([event.stamp_bytes for event in events], pa.int64()),
                pa.array([event.hop for event in events], pa.int64()),
                pa.array([event.domain for event in events], pa.string()),
                pa.array([event.held for event in events], pa.bool_()),
                pa.array(sizes, pa.int64()),
            )

    def needed_part(self, batch: Any, kind: NDArray[np.uint8]) -> Any:
        hop = kind == HOP
        if hop.any():
            servers, process = self.encoder.servers.list(), batch.column("process").to_numpy().copy()
            table = np.array([self.encoder.names.of(name) for name in servers], np.int32)
            process[hop] = table[process[hop]]
            at = batch.schema.get_field_index("process")
            batch = batch.set_column(at, "process", pa.array(process, pa.int32()))
        dropped = ("lamport", "clock_name", "clock_entry")
        batch = batch.select([name for name in batch.schema.names if name not in dropped])
        keep = kind != LOCAL
        return batch if keep.all() else batch.filter(pa.array(keep))


def _with_columns(batch: Any, *columns: Any) -> Any:
    for name, column in zip(FIGURE_COLUMNS, columns, strict=True):
        batch = batch.append_column(name, column)
    return batch


def _with_figures(batch: Any, piece: Arrow) -> Any:
    """Add the columns for measuring to an encoded batch. The values of these columns are copied from ``piece``, which
    contains the same rows before they were encoded."""
    rows = pa.array(batch.column("at").to_numpy() - piece.first)
    given = piece.batch.take(rows)
    present = given.schema.names

    def column(name: str, kind: Any) -> Any:
        if name not in present:
            return pa.nulls(given.num_rows, kind)
        found = given.column(name)
        return (found.dictionary_decode() if pa.types.is_dictionary(found.type) else found).cast(kind)

    send = batch.column("kind").to_numpy() == SEND
    return _with_columns(
        batch,
        column("stamp_bytes", pa.int64()),
        column("hop", pa.int64()),
        column("domain", pa.string()),
        column("held", pa.bool_()),
        _payload(given, send, piece.folded),
    )


def _payload(given: Any, send: NDArray[np.bool_], folded: set[str]) -> Any:
    """Return a column with the payload size of each send, by the rules of :func:`antecede.trace.costs.payload_bytes`.
    All other rows get a null."""
    found = pa.nulls(given.num_rows, pa.int64())
    for name in ("bytes", "size"):
        if name in given.schema.names and pa.types.is_integer(given.column(name).type):
            column = given.column(name)
            low = pc.greater_equal(column, pa.scalar(0, column.type))
            if pa.types.is_uint64(column.type):
                low = pc.less_equal(column, pa.scalar(INT64_MAX, pa.uint64()))
            good = pc.if_else(pc.fill_null(low, False), column, pa.scalar(None, column.type))
            found = pc.coalesce(found, good.cast(pa.int64()))
    if _folded in folded and _folded in given.schema.names:
        found = _unfolded(given.column(_folded), found)
    return pc.if_else(pa.array(send), found, pa.scalar(None, pa.int64()))


def _unfolded(texts: Any, found: Any) -> Any:
    """Return the payload size of each row. ``found`` has the sizes that are known so far. ``texts`` has, for each row,
    a JSON object with those values of the row that are outside the trace format. A payload size in this object replaces
    the size in ``found``."""
    if texts.null_count == len(texts):
        return found
    sizes = found.to_pylist()
    for row, text in enumerate(texts.to_pylist()):
        if text is not None and ('"bytes"' in text or '"size"' in text):
            try:
                extra = msgspec.json.decode(text)
            except (msgspec.MsgspecError, RecursionError):
                continue
            if type(extra) is dict:
                sizes[row] = payload_bytes(Event("", 0, "send", extra=extra))
    return pa.array(sizes, pa.int64())


# The first stage of the pipeline for significant order: it adds the operation instances to the rows.
#
# The rows that go to buckets get four more columns with texts: ``instance``, ``operation``, ``parent`` and ``type``. A
# ``local`` row (an event without a message) also goes to a bucket if the row names an instance.


INSTANCE_COLUMNS = ("instance", "operation", "parent", "type")
"""The columns that significant order adds to encoded rows."""


class InstanceTask(Task):
    """Encodes one split like :class:`Task`, and adds the operation instances to the rows."""

    def batches(self, piece: Arrow | list[Item]) -> Iterator[Any]:
        if isinstance(piece, list):
            yield from self.take_items(piece)
        elif piece.plain:
            batch, odd = self.encoder.from_arrow(piece.batch, piece.first, piece.folded)
            given = piece.batch.take(pa.array(batch.column("at").to_numpy() - piece.first))
            yield _with_instances(batch, [_texts(given, name) for name in INSTANCE_COLUMNS])
            yield from self.take_items(odd)
        else:
            yield from self.take_items(list(items_in(piece.batch, piece.folded, piece.first + 1, False)))

    def from_items(self, items: Sequence[Item]) -> Iterator[Any]:
        events = [decoded for _, _, decoded in items if isinstance(decoded, Event)]
        for batch in super().from_items(items):
            yield _with_instances(
                batch, [pa.array([getattr(e, name) for e in events], pa.string()) for name in INSTANCE_COLUMNS]
            )


def _texts(given: Any, name: str) -> Any:
    if name not in given.schema.names:
        return pa.nulls(given.num_rows, pa.string())
    column = given.column(name)
    return (column.dictionary_decode() if pa.types.is_dictionary(column.type) else column).cast(pa.string())


def _with_instances(batch: Any, columns: Sequence[Any]) -> Any:
    for name, column in zip(INSTANCE_COLUMNS, columns, strict=True):
        batch = batch.append_column(name, column)
    return batch


# Check that every index of a process occurs exactly once. The pipeline does this before it matches sends and
# deliveries.
#
# A *place* is a process and an index. For a *hop* (a message that a router forwarded), a place is a server and an
# index. A process and a server with the same name have different places. Every split produces *runs*: ranges of
# consecutive indices. All runs together show which indices are missing and which are *contested*. An index is contested
# if more than one event claims it. Most traces have no contested indices. If a trace has some, it is read again, to
# compare the rows at the contested places. If rows are equal, the first of them stays, and the others are set aside as
# ``duplicate_row``. If a place then still has several different rows, all of them are set aside as ``duplicate_index``.


class Process(msgspec.Struct):
    """A summary of the indices of one process, or of one server's *hops* (messages that the server forwarded)."""

    name: str
    hop: bool
    rows: bool
    """True if at least one of the rows could be read as an event."""
    distinct: int
    """Number of different indices."""
    largest: int
    contested: list[tuple[int, int]]
    """Runs (ranges) of contested indices, each as (first index, last index + 1). An index is contested if more than one
    event claims it. If there are more than ``limits.contested_runs_max`` runs, the list has a single run from the start
    of the first one to the end of the last one."""


def survey(packed: Iterable[bytes]) -> bytes:
    """Combine the runs (ranges of indices) in one part of the first stage's output. Return two packed lists. The first
    list has a :class:`Process` for each process, and for each server with hops. The second list has the summaries of
    splits. Only part 0 contains summaries."""
    summaries: list[Summary] = []
    runs: dict[tuple[bool, str], list[tuple[bool, Longs, Longs]]] = {}
    for blob in packed:
        part = read_places(blob)
        if isinstance(part, Summary):
            summaries.append(part)
            continue
        order = np.argsort(part.lane, kind="stable")
        ends = np.searchsorted(part.lane[order], np.arange(len(part.names) + 1))
        for k, name in enumerate(part.names):
            mine = order[ends[k] : ends[k + 1]]
            runs.setdefault((part.hop, name), []).append((part.fault, part.start[mine], part.end[mine]))
    found = []
    for (hop, name), pieces in sorted(runs.items()):
        events = [piece[1:] for piece in pieces if not piece[0]]
        distinct, largest, _ = _overlaps([piece[1:] for piece in pieces])
        contested = _overlaps(events)[2] if events else []
        found.append(Process(name, hop, bool(events), distinct, largest, contested))
    return msgspec.msgpack.encode((found, summaries))


def surveyed(packed: bytes) -> tuple[list[Process], list[Summary]]:
    """Unpack the result of :func:`survey`: the processes, and the summaries of splits."""
    return msgspec.msgpack.decode(packed, type=tuple[list[Process], list[Summary]])


def _overlaps(pieces: list[tuple[Longs, Longs]]) -> tuple[int, int, list[tuple[int, int]]]:
    """Combine ranges of indices. Return the number of different indices, the largest index, and the ranges of indices
    that occur more than once."""
    # Ends are unsigned numbers, since the end of the largest index is that index + 1.
    start = np.concatenate([piece[0] for piece in pieces]).astype(np.uint64)
    end = np.concatenate([piece[1] for piece in pieces]).astype(np.uint64)
    points = np.concatenate([start, end])
    change = np.concatenate([np.ones(len(start), np.int64), np.full(len(end), -1, np.int64)])
    order = np.argsort(points, kind="stable")
    points, depth = points[order], np.cumsum(change[order])
    width = np.diff(points)
    distinct = int(width[depth[:-1] > 0].sum())
    contested: list[tuple[int, int]] = []
    for k in np.flatnonzero((depth[:-1] > 1) & (width > 0)):
        low, high = int(points[k]), int(points[k + 1])
        if contested and contested[-1][1] == low:
            contested[-1] = contested[-1][0], high
        else:
            contested.append((low, high))
    if len(contested) > limits.contested_runs_max:
        # There are too many runs to list. Comparing all rows in between gives the same answer.
        contested = [(contested[0][0], contested[-1][1])]
    return distinct, int(points[-1]) - 1, contested


class Contest(msgspec.Struct, frozen=True):
    """The contested places: the places that several events claim. The rows at these places are compared."""

    runs: dict[str, list[tuple[int, int]]]
    """Sorted runs of contested indices. The key is ``p`` followed by the name of a process, or ``h`` followed by the
    name of a server (for its hops)."""


def claims(split: Split, layout: Layout, contest: Contest) -> Iterator[tuple[int, bytes]]:
    """Find the rows of a split that have a contested place. Yield pairs: the number of an output part, and packed rows
    for this part. All rows of one process belong to the same part. Each row has a digest of its content."""
    table = {key: np.array([bound for run in runs for bound in run], np.uint64) for key, runs in contest.runs.items()}
    found: dict[int, list[Any]] = {}
    nulled = Nulled(NEEDED_BY_INSTANCES if layout.instances else ())
    for piece in read(split):
        items = piece if isinstance(piece, list) else items_in(piece.batch, piece.folded, piece.first + 1, False)
        for number, _, read_as in items:
            event = nulled.take(number, read_as)
            if not isinstance(event, Event) or not layout.cut.keeps(event):
                continue
            hop = event.kind == HOP_KIND
            bounds = table.get(("h" if hop else "p") + event.process)
            if bounds is None or not np.searchsorted(bounds, np.uint64(event.index), side="right") % 2:
                continue
            digest = blake2b(content(event), digest_size=16).digest()
            row = [hop, event.process, event.index, digest, split.number, number]
            found.setdefault(layout.place(event.process), []).append(row)
        for part, rows in found.items():
            yield part, msgspec.msgpack.encode(rows)
        found = {}


def settle(packed: Iterable[bytes], with_rows: bool) -> bytes:
    """Compare the rows at the contested places of one part, and decide which rows are set aside. Return a packed
    dictionary:

    * ``again``: the number of rows that repeat another row at the same place.
    * ``different``: the number of rows that are set aside because their place has several different rows. Equal rows
      at a place are counted once.
    * ``runs``: the contested indices of processes (not of hops), each run as (process, first index, last index + 1,
      flag). The flag is true if each place of the run has only equal rows.
    * ``rows``: the rows that are set aside, each as (split, row number, flag). The flag is true if the row repeats
      another row. Without ``with_rows``, this list is empty.

    Raise TraceError if there are too many runs.
    """
    places: dict[tuple[bool, str, int], list[tuple[int, int, bytes]]] = {}
    for blob in packed:
        for hop, process, index, digest, split, number in msgspec.msgpack.decode(blob):
            places.setdefault((hop, process, index), []).append((split, number, digest))
    again = different = 0
    runs: list[list[Any]] = []
    rows: list[tuple[int, int, bool]] = []
    for (hop, process, index), claimed in sorted(places.items()):
        if len(claimed) < 2:
            continue
        firsts: dict[bytes, tuple[int, int]] = {}
        for split, number, digest in sorted(claimed):
            if firsts.setdefault(digest, (split, number)) != (split, number):
                again += 1
                rows.append((split, number, True))
        if len(firsts) > 1:
            different += len(firsts)
            rows += [(split, number, False) for split, number in firsts.values()]
        if not with_rows:
            rows.clear()
        if hop:
            continue
        once = len(firsts) == 1
        last = runs[-1] if runs else None
        if last and last[0] == process and last[2] == index and last[3] == once:
            last[2] = index + 1
        else:
            runs.append([process, index, index + 1, once])
    if len(runs) > limits.contested_runs_max:
        raise TraceError(
            "too many rows have the same process and index as another row: they form more than "
            f"{limits.contested_runs_max:,} separate runs of indices; remove the duplicate rows from the trace"
        )
    return pack({"again": again, "different": different, "runs": runs, "rows": rows})
