"""A matched trace as arrays: one line of events per process, in which every delivery points to its send.

All lines are stored one after the other in flat arrays; the line of process p is from ``offsets[p]`` to
``offsets[p + 1]``. A *flat position* is an index into these arrays. Processes are numbered in the order of their names,
so sorting by number is also sorting by name.

* ``source`` is, at a delivery, the number of the sender; at a send, -2; at any other event, -1.
* ``argument`` is, at a send, the number of its valid deliveries; at a delivery, the position of its send in the
  sender's line.
* If the indices of a process have few gaps, the position of an event in the line is the event's index in the trace. If
  they have many gaps, the line contains only sends, deliveries and events with clocks or instances. Then ``indices``
  has the index of each event.

The arrays of a large trace are files in a scratch directory, mapped into memory. At short intervals their pages are
released to the system's page cache (:meth:`Scratch.rest`), so only the part in use needs memory. Therefore all code
processes one *region* at a time (:data:`REGION_EVENTS`), or follows the walk, which reads every line from its beginning
to its end. A *bucket* has all rows of some messages, and these rows come from all regions. In a large trace, each
bucket sorts its rows by region (:class:`Regions`). Then the regions are filled one after the other, each with its rows
from all buckets. Without this sorting, each bucket would read and write all regions.
"""

import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from antecede.errors import TraceError
from antecede.pipeline.kernels.match import Links, Rows
from antecede.pipeline.kernels.regions import Ends, Sorted, find_regions, place_region, sort_regions
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
    Instances,
    Lamports,
    Piece,
    Places,
    Region,
)

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

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
        (:mod:`antecede.pipeline.kernels.slots`)."""
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
