"""Match each delivery with its send, one bucket of messages at a time. Then assemble lines (event lists) from the
matched rows."""

import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from antecede.errors import TraceError
from antecede.pipeline.kernels import Ints, Longs
from antecede.pipeline.kernels.match import (
    DELIVER,
    LEFT_OUT,
    LOCAL,
    REASON_NAMES,
    SEND,
    VALID,
    Destinations,
    Ends,
    Links,
    Rows,
    Sorted,
    find_regions,
    leave_out,
    match,
    place_region,
    sort_regions,
)
from antecede.pipeline.kernels.walk import (
    MORE,
    NOTHING,
    SENT,
    STUCK,
    Cursors,
    Flat,
    Segments,
    place,
    recount,
    step,
    weigh,
)
from antecede.pipeline.pieces import (
    REGION_EVENTS,
    Clocks,
    Counted,
    Deliveries,
    Instances,
    Lamports,
    Piece,
    Places,
    Region,
    pack,
    pack_struct,
    read_matched,
)
from antecede.pipeline.read.columns import joined
from antecede.pipeline.read.encode import INSTANCE_COLUMNS
from antecede.pipeline.read.rows import as_texts, hashed_ids, numbered_ids, together, unpacked

# A matched trace as arrays: one line of events per process, in which every delivery points to its send.
#
# All lines are stored one after the other in flat arrays; the line of process p is from ``offsets[p]`` to ``offsets[p +
# 1]``. A *flat position* is an index into these arrays. Processes are numbered in the order of their names, so sorting
# by number is also sorting by name.
#
# * ``source`` is, at a delivery, the number of the sender; at a send, -2; at any other event, -1.
# * ``argument`` is, at a send, the number of its valid deliveries; at a delivery, the position of its send in the
#   sender's line.
# * If the indices of a process have few gaps, the position of an event in the line is the event's index in the trace.
#   If they have many gaps, the line contains only sends, deliveries and events with clocks or instances. Then
#   ``indices`` has the index of each event.
#
# The arrays of a large trace are files in a scratch directory, mapped into memory. At short intervals their pages are
# released to the system's page cache (:meth:`Scratch.rest`), so only the part in use needs memory. Therefore all code
# processes one *region* at a time (:data:`REGION_EVENTS`), or follows the walk, which reads every line from its
# beginning to its end. A *bucket* has all rows of some messages, and these rows come from all regions. In a large
# trace, each bucket sorts its rows by region (:class:`Regions`). Then the regions are filled one after the other, each
# with its rows from all buckets. Without this sorting, each bucket would read and write all regions.


_mapped_bytes_min = 64 * 1024 * 1024
_segments_at_once = 1 << 18
_ahead_events_min = 1 << 20
"""The number of events above which a separate thread for the walk saves time."""


class Scratch:
    """Creates arrays that may be larger than memory. Large arrays are in unnamed files, which the operating system
    deletes when this program ends, even if it crashes."""

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        self._maps: list[mmap.mmap] = []

    def array(self, shape: int | tuple[int, ...], dtype: Any, fill: int = 0) -> NDArray[Any]:
        """Return an array filled with ``fill``: in memory if it is small, otherwise in an unnamed file."""
        dtype = np.dtype(dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        if size < _mapped_bytes_min:
            return np.full(shape, fill, dtype)
        with tempfile.TemporaryFile(dir=self._directory) as file:
            file.truncate(size)
            mapped = mmap.mmap(file.fileno(), size)
        self._maps.append(mapped)
        array = np.frombuffer(mapped, dtype).reshape(shape)
        if fill:
            flat = array.reshape(-1)
            for start in range(0, len(flat), REGION_EVENTS):
                flat[start : start + REGION_EVENTS] = fill
                self.rest()
        return array

    def rest(self) -> None:
        """Release the pages of all mapped arrays to the system's page cache."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)


class Lines:
    """The lines of all processes, as the flat arrays that the docstring of this module describes."""

    def __init__(self, offsets: Longs, source: Ints, argument: Ints, indices: Longs, scratch: Scratch) -> None:
        self.offsets = offsets
        self.source = source
        self.argument = argument
        self.indices = indices
        self.scratch = scratch
        self.slotted = False
        """Whether a walk may have replaced the numbers of deliveries in ``argument`` by slot numbers
        (:mod:`antecede.pipeline.kernels.walk`)."""
        self.assumed: Longs = np.zeros(0, np.int64)
        """The flat positions of sends and deliveries whose true place in the line is unknown. When the trace was
        imported, a place was assumed for them."""
        self.moved: Longs = np.zeros(0, np.int64)
        """The original flat positions of the sends that were moved out of their lines. Each of these sends is now alone
        in a new line; the new lines follow the lines of all processes
        (:func:`antecede.pipeline.judge.orders.certain`)."""
        self.begins: Longs | None = None
        """For each process, the index at which its line begins; ``None`` if all lines begin at 0. The values of
        ``indices`` are counted from this index."""

    @property
    def processes(self) -> int:
        return len(self.offsets) - 1

    @property
    def arrays(self) -> Flat:
        """Return the arrays as kernels expect them."""
        return Flat(self.offsets, self.source, self.argument)

    def process_at(self, flat: Longs) -> Longs:
        """Return, for each flat position in ``flat``, the process of the event at this position."""
        return np.searchsorted(self.offsets, flat, side="right").astype(np.int64) - 1

    def index_at(self, flat: Longs) -> Longs:
        """Return, for each flat position in ``flat``, the index of the event at this position in its process."""
        process = self.process_at(flat)
        counted: Longs = self.indices[flat] if len(self.indices) else flat - self.offsets[process]
        return counted if self.begins is None else counted + self.begins[process]

    def home(self, flat: Longs) -> Longs:
        """Return the flat positions, but replace the position of each moved send (``moved``) by its original
        position."""
        end = len(self.source) - len(self.moved)
        return np.where(flat < end, flat, self.moved[np.maximum(flat - end, 0)]) if len(self.moved) else flat

    def send_of(self, flat: Longs) -> Longs:
        """Return, for each delivery in ``flat`` (a flat position), the flat position of its send."""
        return self.offsets[self.source[flat]] + self.argument[flat]

    def flat(self, process: Ints, index: Longs) -> Longs:
        """Return the flat position of each event that is given by its process and index. The indices are counted from
        the beginning of each line, even if ``begins`` is set. The lines must contain all these events."""
        if not len(self.indices):
            return self.offsets[process] + index
        return _search(self.offsets, self.indices, process, index)


def spans(offsets: Longs, events: int = REGION_EVENTS) -> Iterator[tuple[int, int]]:
    """Divide the processes into groups of consecutive processes that have at most ``events`` events in total. Yield the
    first process of each group, and its last process + 1. A process with more events is a group by itself."""
    first, processes = 0, len(offsets) - 1
    while first < processes:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + events, side="right")) - 1)
        yield first, last
        first = last


def _segments(count: int) -> Segments:
    """Return arrays for ``count`` segments."""
    return Segments(np.zeros(count, np.int32), np.zeros(count, np.int64), np.zeros(count, np.int64))


class Walk:
    """Visits all events in causal order: a send before its deliveries, and the events of each process in sequence.

    Each iteration writes some segments (each has consecutive events of one process) to the arrays ``walk.segments`` and
    yields the number of these segments: ``for count in walk: …walk.segments…``. The next iteration overwrites the
    arrays.
    """

    def __init__(self, lines: Lines, segments: int = _segments_at_once) -> None:
        self.lines = lines
        count = lines.processes
        weights = np.zeros(count, np.int64)
        for first, last in spans(lines.offsets):
            weigh(lines.offsets, lines.source, first, last, weights)
            lines.scratch.rest()
        self._walked = Cursors(
            np.argsort(-weights, kind="stable").astype(np.int32),
            np.zeros(2, np.int64),
            np.zeros(count, np.int64),
            np.zeros(count, np.uint8),
            np.zeros(count + 1, np.int32),
            np.zeros(count + 1, np.int64),
        )
        self.cursors = self._walked.at
        """For each process, the position up to which its line was walked; valid after the walk."""
        self.segments = _segments(segments)
        self.stuck = False
        """Whether the walk ended early because of a cycle: an event would have to come before itself."""

    def __iter__(self) -> Iterator[int]:
        ahead = len(self.lines.source) >= _ahead_events_min
        with ThreadPoolExecutor(1) if ahead else nullcontext() as other:
            yield from self._ahead(other) if other is not None else self._alone()

    def _alone(self) -> Iterator[int]:
        status = MORE
        while status == MORE:
            count, status = self._step(self.segments)
            if count:
                yield count
            self.lines.scratch.rest()

    def _ahead(self, other: Executor) -> Iterator[int]:
        """Continue the walk in another thread while the caller works on the previous segments. Both threads may use the
        same lines, because the walk reads ``argument`` only at deliveries, and the caller's kernels write it only at
        sends."""
        free = _segments(len(self.segments.process))
        count, status = self._step(self.segments)
        while status == MORE:
            following = other.submit(self._step, free)
            if count:
                yield count
            count, status = following.result()
            self.segments, free = free, self.segments
            self.lines.scratch.rest()
        if count:
            yield count
        self.lines.scratch.rest()

    def _step(self, segments: Segments) -> tuple[int, int]:
        count, status = step(self.lines.arrays, self._walked, segments)
        self.stuck = status == STUCK
        return count, status

    def through(self, kernel: Callable[[int, int], int]) -> Iterator[bool]:
        """Call a kernel until it has processed all segments. The kernel gets the number of the next segment and the
        number at which the segments end. It returns the number of the first segment that it did not complete. After
        each call, yield whether the kernel stopped before the end."""
        for count in self:
            begin = 0
            while begin < count:
                begin = kernel(begin, count)
                yield begin < count


def recounted(lines: Lines, segments: int = _segments_at_once) -> None:
    """Restore the number of deliveries in ``argument`` at every send, if a walk has replaced these numbers by slot
    numbers."""
    if lines.slotted:
        walk = Walk(lines, segments)
        for count in walk:
            recount(lines.arrays, walk.segments, count)
        lines.slotted = False


def lend_slots(lines: Lines, segments: int = _segments_at_once) -> None:
    """Prepare the lines for a walk. At each send, the lines contain the number of deliveries, which the walk replaces
    by a slot number. If an earlier walk has left slot numbers there, first restore the numbers of deliveries. Then set
    ``lines.slotted``."""
    recounted(lines, segments)
    lines.slotted = True


class ClockRows(msgspec.Struct):
    """The clocks and instances of one piece (the valid rows of some messages), and the positions of their rows. A
    position is an index into the joined lines of all processes."""

    lamport: Lamports | None = None
    lamport_flat: Longs | None = None
    clocks: Clocks | None = None
    clocks_flat: Longs | None = None
    instances: Instances | None = None
    instances_flat: Longs | None = None


def assemble(
    lengths: Longs, sparse: Ints, pieces: Iterable[Piece | Region], scratch: Scratch
) -> tuple[Lines, list[ClockRows]]:
    """Put matched rows into lines. Return the lines. Also return the clocks and the instances in the pieces, each with
    the flat position of its row.

    ``lengths`` has the largest index + 1 of each process. ``sparse`` has the processes whose indices have too many gaps
    to be used as positions in a line.
    """
    indices = np.zeros(0, np.int64)
    if len(sparse):
        held = list(pieces)
        pieces = held
        offsets, indices = _ranks(lengths, sparse, held)
    else:
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    if len(lengths) and int(np.diff(offsets).max()) > np.iinfo(np.int32).max:
        raise TraceError("a process has more than 2,147,483,647 events: longer processes cannot be judged")
    count = int(offsets[-1])
    lines = Lines(
        offsets,
        scratch.array(count, np.int32, NOTHING),
        scratch.array(count, np.int32),
        indices,
        scratch,
    )
    clocks: list[ClockRows] = []
    assumed: list[Longs] = []
    region = 0
    for piece in pieces:
        if isinstance(piece, Region):
            if piece.number != region:
                region = piece.number
                scratch.rest()
            events = Sorted(piece.sent, piece.copies, piece.delivered, piece.source, piece.argument)
            place_region(lines.arrays, piece.first, events)
            continue
        if piece.sends is not None:
            lines.source[lines.flat(piece.sends.process, piece.sends.index)] = SENT
        given = piece.deliveries
        position, sent = given.index, given.sent
        if len(sparse):
            position = lines.flat(given.process, position) - offsets[given.process]
            sent = lines.flat(given.source, sent) - offsets[given.source]
        place(offsets, lines.source, lines.argument, given.process, position, given.source, sent)
        if piece.assumed is not None:
            assumed.append(lines.flat(piece.assumed.process, piece.assumed.index))
        if piece.lamport is not None or piece.clocks is not None or piece.instances is not None:
            clocks.append(
                ClockRows(
                    piece.lamport, _flat_of(lines, piece.lamport), piece.clocks, _flat_of(lines, piece.clocks),
                    piece.instances, _flat_of(lines, piece.instances),
                )
            )  # fmt: skip
        scratch.rest()
    scratch.rest()
    lines.assumed = np.concatenate(assumed) if assumed else lines.assumed
    return lines, clocks


def _flat_of(lines: Lines, rows: Places | None) -> Longs | None:
    return lines.flat(rows.process, rows.index) if rows is not None else None


class Regions(msgspec.Struct, frozen=True):
    """The division of large lines into regions. Tasks use it to sort their rows by region."""

    offsets: bytes
    events: int = REGION_EVENTS

    @property
    def count(self) -> int:
        return max(1, -(-int(np.frombuffer(self.offsets, np.int64)[-1]) // self.events))

    def of(self, process: Ints, index: Longs) -> list[int]:
        """Return the numbers of the regions that contain these places, ascending and without repeats."""
        at = np.frombuffer(self.offsets, np.int64)[process] + index
        return [int(region) for region in np.unique(at // self.events)]

    def place(self, process: int, index: int) -> tuple[int, int]:
        """Return the region of an event, and the position of the event in the region."""
        return divmod(int(np.frombuffer(self.offsets, np.int64)[process]) + int(index), self.events)

    def parted(self, rows: Rows, links: Links, names: int, mark: int) -> Iterator[Region]:
        """Divide the valid sends and deliveries of a bucket (all rows of some messages) among the regions (parts of the
        joined lines), and yield one :class:`Region` for each. ``names``: the number of processes. ``mark``: a number
        that identifies the bucket."""
        count = len(rows.kind)
        region, place = np.empty(count, np.int32), np.empty(count, np.int32)
        ends = Ends(np.zeros(self.count + 1, np.int64), np.zeros(self.count + 1, np.int64))
        most = find_regions(np.frombuffer(self.offsets, np.int64), self.events, rows, links, region, place, ends)
        sends, deliveries = int(ends.sends[-1]), int(ends.deliveries[-1])
        out = Sorted(
            np.empty(sends, np.int32),
            np.empty(sends, np.uint8 if most < 1 << 8 else np.int32),
            np.empty(deliveries, np.int32),
            np.empty(deliveries, np.uint16 if names <= 1 << 16 else np.int32),
            np.empty(deliveries, np.int32),
        )
        sort_regions(rows, links, region, place, ends, out)
        for number in range(self.count):
            (a, b), (c, d) = ends.sends[number : number + 2], ends.deliveries[number : number + 2]
            if b > a or d > c:
                first = number * self.events
                delivered = out.delivered[c:d], out.source[c:d], out.argument[c:d]
                yield Region(number, first, mark, out.sent[a:b], out.copies[a:b], *delivered)


def _ranks(lengths: Longs, sparse: Ints, pieces: list[Piece | Region]) -> tuple[Longs, Longs]:
    """Return the offsets of the lines, and the index of each event. ``sparse`` has the processes whose indices have
    many gaps. The line of such a process has only the events that occur in the pieces."""
    is_sparse = np.zeros(len(lengths), bool)
    is_sparse[sparse] = True
    places = []
    for piece in pieces:
        assert isinstance(piece, Piece), "only a trace without sparse processes has regions"
        for rows in piece.places():
            keep = is_sparse[rows.process]
            places.append((rows.process[keep], rows.index[keep]))
    process = np.concatenate([place[0] for place in places]) if places else np.zeros(0, np.int32)
    index = np.concatenate([place[1] for place in places]).astype(np.int64) if places else np.zeros(0, np.int64)
    order = np.lexsort((index, process))
    process, index = process[order], index[order]
    new = np.ones(len(process), bool)
    new[1:] = (process[1:] != process[:-1]) | (index[1:] != index[:-1])
    process, index = process[new], index[new]
    sizes = np.where(is_sparse, 0, lengths)
    np.add.at(sizes, process, 1)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    indices = np.arange(offsets[-1], dtype=np.int64) - np.repeat(offsets[:-1], sizes)
    for p in sparse:
        indices[offsets[p] : offsets[p + 1]] = index[np.searchsorted(process, p) : np.searchsorted(process, p, "right")]
    return offsets, indices


def _search(offsets: Longs, indices: Longs, process: Ints, index: Longs) -> Longs:
    low = offsets[process].copy()
    high = offsets[process.astype(np.int64) + 1].copy()
    while True:
        middle = (low + high) // 2
        going = low < high
        if not going.any():
            return low
        smaller = going & (indices[np.minimum(middle, len(indices) - 1)] < index)
        low = np.where(smaller, middle + 1, low)
        high = np.where(going & ~smaller, middle, high)


# Match the sends and deliveries of one bucket of messages at a time. This is the larger part of the pipeline's second
# stage.
#
# A bucket contains every row of its messages. So the bucket alone shows which send belongs to which delivery, and which
# rows are invalid (:mod:`antecede.pipeline.kernels.match`). Valid rows are passed to the task that assembles the lines
# (the events of each process, in sequence). For this task, a row is given by its process and its index, as numbers of
# fixed width. Invalid rows are only counted, separately for each reason, and the counts are passed on. The row numbers
# of invalid rows are returned only if a caller asks for them (:func:`set_aside`).


Runs = tuple[Ints, Longs, Longs, NDArray[np.uint8]]
"""Ranges of contested places (places that several rows claim). The four arrays have one entry per range: the process,
the first index, the last index, and whether all rows at the same place are copies of one row."""


class Numbering(msgspec.Struct, frozen=True):
    """The combined result of the first stage: the number that each name has in the whole trace, and the contested
    places (places that several rows claim)."""

    names: int
    splits: dict[int, bytes]
    """For each split, a table (int32) from the number of a name in the split to its number in the whole trace."""
    run_process: bytes = b""
    run_first: bytes = b""
    run_last: bytes = b""
    run_once: bytes = b""
    narrow: int = 2**64 - 1

    def together(self) -> tuple[Longs, Ints]:
        """Join the tables of all splits (``splits``) into one array. Return the positions at which the tables begin in
        this array, and the array."""
        first = np.zeros(max(self.splits, default=-1) + 1, np.int64)
        tables = []
        total = 0
        for split, table in self.splits.items():
            first[split] = total
            tables.append(np.frombuffer(table, np.int32))
            total += len(tables[-1])
        return first, np.concatenate(tables) if tables else np.zeros(0, np.int32)

    def runs(self) -> Runs:
        return (
            np.frombuffer(self.run_process, np.int32),
            np.frombuffer(self.run_first, np.int64),
            np.frombuffer(self.run_last, np.int64),
            np.frombuffer(self.run_once, np.uint8),
        )


def bucket_of(packed: Iterable[bytes], numbering: Numbering) -> "Bucket":
    """Decode the rows of one bucket, match them, and return the bucket."""
    pieces = sorted(map(unpacked, packed), key=lambda piece: (piece.split, piece.number))
    split = np.repeat(np.array([piece.split for piece in pieces], np.int32), [len(piece) for piece in pieces])
    table = together(pieces, *numbering.together())
    if table is None:
        table = _renumbered(joined(_alike([piece.batch() for piece in pieces])), split, numbering)
    return Bucket(table, split, numbering.names, numbering.narrow, numbering.runs())


def _alike(batches: list[Any]) -> list[Any]:
    """Return the batches unchanged if all message ids are texts, or if all are UUIDs as bytes. Otherwise return the
    batches with all ids as texts."""
    if len({batch.column("message").type for batch in batches}) < 2:
        return batches
    return [
        batch.set_column(at, "message", as_texts(batch.column(at)))
        for batch in batches
        for at in (batch.schema.get_field_index("message"),)
    ]


class Bucket:
    """The matched rows of one bucket. A name is given by its number in the whole trace."""

    extras = frozenset({"lamport", "clock_name", "assumed"})
    """Optional columns of the table. If the table has one of these columns, its values are added to the piece of the
    bucket (the valid rows, as arrays)."""

    def __init__(self, table: Any, split: Ints, names: int, narrow: int, runs: Runs | None = None) -> None:
        self.split = split
        self.table = table.combine_chunks()
        self.process = self._numbers("process", np.int32)
        self.index = self._numbers("index", np.int64)
        self.kind = self._numbers("kind", np.uint8)
        rows = len(self.process)
        self.reason = np.zeros(rows, np.uint8)
        if runs is not None and len(runs[0]):
            self._leave_out(runs)
        self._message = _one_chunk(self.table.column("message"))
        hashed = hashed_ids(self._message, narrow)
        self.mark = int(hashed[0]) if rows else 0
        """The hash of one message id of the bucket. The bucket's number is ``mark`` modulo the number of buckets."""
        self.code, messages = numbered_ids(self._message, hashed)
        self.to = self._destinations(rows)
        self.send_row = np.full(rows, -1, np.int64)
        self.awaited = np.zeros(rows, np.int32)
        self.named = np.zeros(names, np.uint8)
        self.rows = Rows(self.code, self.kind, self.process, self.index)
        self.links = Links(self.reason, self.send_row, self.awaited, self.named)
        self.undelivered = match(messages, self.rows, self.to, self.links)

    @property
    def message(self) -> Any:
        """The message ids of all rows, as texts."""
        return as_texts(self._message)

    def column(self, name: str) -> Any:
        """Return a column of the rows as one array."""
        return _one_chunk(self.table.column(name))

    def _numbers(self, name: str, kind: Any) -> Any:
        return _one_chunk(self.table.column(name)).to_numpy(zero_copy_only=False).astype(kind, copy=False)

    def _destinations(self, rows: int) -> Destinations:
        if "to" not in self.table.schema.names:
            nothing = np.zeros(rows, np.int64)
            return Destinations(np.zeros(rows, np.uint8), nothing, nothing.copy(), np.zeros(0, np.int32))
        to = _one_chunk(self.table.column("to"))
        known = to.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
        ends = to.offsets.to_numpy().astype(np.int64)
        values = to.values.to_numpy(zero_copy_only=False).astype(np.int32)
        return Destinations(known, ends[:-1].copy(), ends[1:].copy(), values.copy())

    def _leave_out(self, runs: Runs) -> None:
        once = np.zeros(len(self.process), np.uint8)
        leave_out(self.process, self.index, self.kind, *runs, self.reason, once)
        rows = np.flatnonzero(once)
        # Copies of a row are equal in every column, so they are all in this bucket; the first one stays.
        order = rows[np.lexsort((rows, self.index[rows], self.process[rows]))]
        again = (self.process[order][1:] == self.process[order][:-1]) & (
            self.index[order][1:] == self.index[order][:-1]
        )
        self.reason[order[1:][again]] = LEFT_OUT

    def valid(self, kind: int) -> Longs:
        """Return the valid rows of a kind."""
        return np.flatnonzero((self.kind == kind) & (self.reason == VALID))

    def ids(self, rows: Longs) -> list[str]:
        """Return the message ids of these rows."""
        return as_texts(self._message.take(pa.array(rows))).to_pylist()  # type: ignore[no-any-return]

    def deliveries(self) -> Deliveries:
        """Return the valid deliveries, with the places of their sends."""
        rows = self.valid(DELIVER)
        sent = self.send_row[rows]
        return Deliveries(self.process[rows], self.index[rows], self.process[sent], self.index[sent])

    def undelivered_sends(self) -> Places:
        """Return the valid sends without a delivery."""
        rows = self.valid(SEND)
        return self._places(rows[self.awaited[rows] == 0])

    def piece(self) -> Piece:
        """Return the piece of this bucket: its valid rows, as arrays. The lines (the events of each process) are
        assembled from the pieces of all buckets."""
        return Piece(self.deliveries(), self.undelivered_sends(), self._lamport(), self._clocks(), self._assumed())

    def _places(self, rows: Longs) -> Places:
        return Places(self.process[rows], self.index[rows])

    def _lamport(self) -> Lamports | None:
        rows = np.flatnonzero(self.reason == VALID)
        return self.numbers_at("lamport", rows)

    def numbers_at(self, name: str, rows: Longs) -> Lamports | None:
        """Return the numbers that the column ``name`` has in these rows, each with the place (process and index) of its
        row. Rows without a number are left out. Return ``None`` if the table lacks the column."""
        if name not in self.table.schema.names:
            return None
        column = self.column(name)
        rows = rows[column.is_valid().to_numpy(zero_copy_only=False)[rows]]
        return Lamports(self.process[rows], self.index[rows], column.fill_null(0).to_numpy()[rows].astype(np.int64))

    def _assumed(self) -> Places | None:
        if "assumed" not in self.table.schema.names:
            return None
        assumed = self.column("assumed").fill_null(False).to_numpy(zero_copy_only=False)
        return self._places(np.flatnonzero((self.reason == VALID) & assumed & (self.kind <= DELIVER)))

    def _clocks(self) -> Clocks | None:
        if "clock_name" not in self.table.schema.names:
            return None
        clock = self.column("clock_name")
        rows = np.flatnonzero((self.reason == VALID) & clock.is_valid().to_numpy(zero_copy_only=False))
        keep = pa.array(rows)
        clock, entries = clock.take(keep), self.column("clock_entry").take(keep)
        return Clocks(
            self.process[rows],
            self.index[rows],
            np.diff(clock.offsets.to_numpy()).astype(np.int64),
            clock.flatten().to_numpy(zero_copy_only=False),
            entries.flatten().to_numpy(zero_copy_only=False),
        )

    def counted(self) -> Counted:
        """Return the counts for the report."""
        counts = np.bincount(self.reason, minlength=len(REASON_NAMES))
        reasons = {name: int(count) for name, count in zip(REASON_NAMES, counts, strict=True) if name and count}
        deliveries = len(self.valid(DELIVER))
        return Counted(reasons, len(self.valid(SEND)), deliveries, int(self.undelivered), np.packbits(self.named))


def _renumbered(table: Any, split: Ints, numbering: Numbering) -> Any:
    """Return the table with new numbers for names. A name's number in its split (a part of the input) is replaced by
    the name's number in the whole trace."""
    if not table.num_rows:
        return table
    first, numbers = numbering.together()
    base = first[split]
    columns = {name: _one_chunk(table.column(name)) for name in table.schema.names}
    columns["process"] = pa.array(numbers[base + columns["process"].to_numpy()])
    columns["index"] = columns["index"].cast(pa.int64())
    for name in ("to", "clock_name"):
        if name in columns:
            lists = columns[name]
            ends = lists.offsets.to_numpy()
            values = lists.values.to_numpy(zero_copy_only=False)[ends[0] : ends[-1]]
            renamed = numbers[np.repeat(base, np.diff(ends)) + values] if len(values) else np.zeros(0, np.int32)
            columns[name] = pa.ListArray.from_arrays(
                pa.array(ends - ends[0]), pa.array(renamed), mask=lists.is_null() if lists.null_count else None
            )
    return pa.table(columns)


def _one_chunk(column: Any) -> Any:
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.array([], column.type)


def matched(
    packed: Iterable[bytes], numbering: Numbering, narrow_index: bool, regions: Regions | None = None
) -> Iterator[tuple[int, bytes]]:
    """Match one bucket. Yield each result with the number of the output part that gets it.

    The counts of the bucket go to part 0. Without ``regions``, the piece of the bucket (its valid rows, as arrays) goes
    to part 0 too. With ``regions``, the sends and deliveries are yielded by region, and the number of a region is the
    number of its part. Then the piece contains only the clocks, and the places of rows whose position was guessed when
    the trace was imported. If the table has columns for such values, the piece goes to part 0. Otherwise it is not
    yielded.
    """
    bucket = bucket_of(packed, numbering)
    yield 0, pack_struct(bucket.counted())
    if regions is None:
        piece = bucket.piece()
        if narrow_index:
            piece.deliveries = piece.deliveries.narrowed()
            piece.sends = piece.sends.narrowed() if piece.sends is not None else None
        yield 0, pack_struct(piece)
        return
    for region in regions.parted(bucket.rows, bucket.links, numbering.names, bucket.mark):
        yield region.number, pack_struct(region)
    if not bucket.extras.isdisjoint(bucket.table.schema.names):
        piece = bucket.piece()
        # The sends and deliveries were yielded with their regions.
        piece.sends, piece.deliveries = None, piece.deliveries.some(slice(0))
        yield 0, pack_struct(piece)


class Sought(msgspec.Struct, frozen=True):
    """A search for the rows of one kind at given places. The places are sorted by process and then by index."""

    kind: int
    process: bytes
    index: bytes


def look_up(packed: Iterable[bytes], numbering: Numbering, sought: Sought) -> bytes:
    """Match one bucket. Return its valid rows at the places in ``sought``, as packed columns. The column ``found`` has,
    for each row, the number of its place; the places in ``sought`` are numbered from 0. The other columns are: the
    message id (``ids``), whether the destinations of the message are known (``known``), the split of the row
    (``split``), and the number of the row (``at``; -1 if the rows have no numbers)."""
    key = place_keys(np.frombuffer(sought.process, np.int32), np.frombuffer(sought.index, np.int64))
    bucket = bucket_of(packed, numbering)
    rows = bucket.valid(sought.kind)
    mine = place_keys(bucket.process[rows], bucket.index[rows])
    found = np.searchsorted(key, mine)
    hit = key[np.minimum(found, len(key) - 1)] == mine if len(key) else np.zeros(len(rows), bool)
    rows = rows[hit]
    sends = bucket.send_row[rows] if sought.kind == DELIVER else rows
    numbered = "at" in bucket.table.schema.names
    return pack({
        "found": found[hit].astype(np.int64),
        "ids": bucket.ids(rows),
        "known": bucket.to.known[sends],
        "split": bucket.split[rows],
        "at": _one_chunk(bucket.table.column("at")).to_numpy()[rows] if numbered else np.full(len(rows), -1, np.int64),
    })  # fmt: skip


def ids_at(packed: Iterable[bytes], numbering: Numbering, sought: Sought) -> bytes:
    """Return the ids of the messages that were sent at the places in ``sought`` (``ids``). For each id, also return the
    number of its place (``found``); the places in ``sought`` are numbered from 0. The rows are not matched, because the
    sends at these places are known to be valid."""
    process, index = np.frombuffer(sought.process, np.int32), np.frombuffer(sought.index, np.int64)
    key = place_keys(process, index)
    asked = np.zeros(numbering.names, bool)
    asked[process] = True
    found: list[int] = []
    ids: list[str] = []
    for blob in packed:
        piece = unpacked(blob)
        batch, numbers = piece.batch(), np.frombuffer(numbering.splits[piece.split], np.int32)
        local = batch.column("process").to_numpy()
        rows = np.flatnonzero(asked[numbers][local] & (batch.column("kind").to_numpy() == SEND))
        mine = place_keys(numbers[local[rows]], batch.column("index").to_numpy()[rows])
        at = np.searchsorted(key, mine)
        hit = key[np.minimum(at, len(key) - 1)] == mine
        if hit.any():
            found += at[hit].tolist()
            ids += as_texts(batch.column("message").take(pa.array(rows[hit]))).to_pylist()
    return pack({"found": np.array(found, np.int64), "ids": ids})


def marks_of(packed: Iterable[bytes], sought: Sought, regions: Regions) -> bytes:
    """Return the marks of all buckets that have a send at one of the places in ``sought``. A mark
    (:attr:`Bucket.mark`) is a number that identifies a bucket. ``packed`` has the rows of one region, so only places in
    this region are found."""
    places = map(regions.place, np.frombuffer(sought.process, np.int32), np.frombuffer(sought.index, np.int64))
    wanted: dict[int, list[int]] = {}
    for number, at in places:
        wanted.setdefault(number, []).append(at)
    marks = set()
    for part in map(read_matched, packed):
        if isinstance(part, Region) and any((part.sent == place).any() for place in wanted.get(part.number, ())):
            marks.add(part.mark)
    return pack({"marks": sorted(marks)})


def place_keys(process: Any, index: Any) -> Any:
    """Return places as values that sort by process and then index."""
    keys = np.zeros(len(process), [("process", np.int64), ("index", np.int64)])
    keys["process"], keys["index"] = process, index
    return keys


def set_aside(packed: Iterable[bytes], numbering: Numbering) -> Iterator[tuple[int, bytes]]:
    """Match one bucket. For each split with invalid rows, yield the number of the split, and two packed columns: the
    number (``at``) and the reason (``reason``) of each invalid row. The number of the split is also the number of the
    output part. Rows that were set aside before matching (``LEFT_OUT``) are not included."""
    bucket = bucket_of(packed, numbering)
    rows = np.flatnonzero((bucket.reason != VALID) & (bucket.reason != LEFT_OUT))
    at = bucket.table.column("at").combine_chunks().to_numpy() if len(rows) else np.zeros(0, np.int64)
    for split in np.unique(bucket.split[rows]):
        mine = rows[bucket.split[rows] == split]
        yield int(split), pack({"at": at[mine], "reason": bucket.reason[mine]})


# Match the sends and deliveries of each bucket of rows, and collect the operation instances of the rows. This is the
# pipeline's second stage for significant order.
#
# In each bucket, the names of instances, operations and parents get numbers. A later task joins the rows of all
# buckets. It gives new numbers to the names, which are the same in the whole trace. It also decides which row belongs
# to which instance, by the rules of :mod:`antecede.trace.significant`.


_nothing = pa.array([], pa.string())

UNTYPED, REQUESTED, OTHERWISE, COMMITTED, ABORTED = range(5)
"""Numbers for the type of a row: no type, ``request``, any other type, ``commit``, ``abort``."""


def matched_instances(packed: Iterable[bytes], numbering: Numbering) -> Iterator[tuple[int, bytes]]:
    """Match the sends and deliveries of one bucket of rows. Yield one pair: the number of the output part, which is 0,
    and a piece as bytes. The piece has the operation instances of the rows, but no clocks."""
    bucket = bucket_of(packed, numbering)
    kinds = (bucket.kind == SEND) | (bucket.kind == DELIVER) | (bucket.kind == LOCAL)
    valid = np.flatnonzero(kinds & (bucket.reason == VALID))
    # A bucket without rows does not have the columns of instances.
    columns = {
        name: _one(bucket.table.column(name)).take(pa.array(valid)) if len(valid) else _nothing
        for name in INSTANCE_COLUMNS
    }
    # A row without an instance is needed only if it is a send, which may give the type of its message.
    some = columns["instance"].is_valid().to_numpy(zero_copy_only=False) | (bucket.kind[valid] == SEND)
    rows = valid[some]
    columns = {name: column.filter(pa.array(some)) for name, column in columns.items()}
    encoded = [columns[name].dictionary_encode() for name in INSTANCE_COLUMNS[:3]]
    codes = [one.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32) for one in encoded]
    texts = [one.dictionary.to_pylist() for one in encoded]
    about = Instances(
        bucket.process[rows], bucket.index[rows], bucket.kind[rows], _types(columns["type"]), *codes, *texts
    )
    yield 0, pack_struct(Piece(bucket.deliveries(), bucket.undelivered_sends(), instances=about))


def _one(column: Any) -> Any:
    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.array([], column.type)


def _types(column: Any) -> NDArray[np.uint8]:
    table = {"request": REQUESTED, "commit": COMMITTED, "abort": ABORTED}
    encoded = column.dictionary_encode()
    codes = np.array([table.get(text, OTHERWISE) for text in encoded.dictionary.to_pylist()] + [UNTYPED], np.uint8)
    return np.asarray(codes[encoded.indices.fill_null(len(codes) - 1).to_numpy(zero_copy_only=False)])
