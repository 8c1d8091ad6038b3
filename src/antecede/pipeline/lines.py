"""A matched trace as arrays: every process a line of events, every delivery pointing at its send.

All lines lie one after the other in flat arrays; process p's line is from ``offsets[p]`` to ``offsets[p + 1]``.
Processes are numbered in the order of their names, so that whatever is decided by number is decided by name.

* ``source`` is -1 at an event without edges, -2 at a send, else the sender of the message delivered there.
* ``argument`` is, at a send, how many valid deliveries it has; at a delivery, the position of its send in the sender's
  line.
* A position is an index wherever a process's indices are dense enough. Where they are not, a line holds only the events
  that matter, and ``indices`` gives their indices back.

The arrays of a large trace are files in a scratch directory, mapped into memory, and given back to the system's page
cache as the work moves on (:meth:`Scratch.rest`): what they cost in memory is what is being looked at. So everybody
looks at a *region* at a time (:data:`REGION_EVENTS`) or follows the walk, along which all lines are read from their
beginnings to their ends. Buckets hold messages of all times; what they say of a large trace is sorted into regions
(:class:`Regions`), for else each of them would have all of it read and written.
"""

import mmap
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from antecede.errors import TraceError
from antecede.pipeline.kernels.walk import DONE, MORE, NOTHING, SENT, STUCK, place, recount, step, weigh

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

REGION_EVENTS = 1 << 23
"""Events of the lines that are looked at together: 64 MiB of ``source`` and ``argument``."""

_mapped_bytes_min = 64 * 1024 * 1024
_segments_at_once = 1 << 18


class Scratch:
    """Arrays that may be larger than memory should be; they vanish with the process, however it ends."""

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        self._maps: list[mmap.mmap] = []

    def array(self, shape: int | tuple[int, ...], dtype: Any, fill: int = 0) -> NDArray[Any]:
        """An array of that shape, in memory if it is small and in an unnamed file if it is not."""
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
        """Let the pages of all mapped arrays go out of this process, into the page cache."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)


class Lines:
    """The lines of all processes."""

    def __init__(self, offsets: Longs, source: Ints, argument: Ints, indices: Longs, scratch: Scratch) -> None:
        self.offsets = offsets
        self.source = source
        self.argument = argument
        self.indices = indices
        self.scratch = scratch
        self.slotted = False
        """Whether a walk has left slots at sends, where the number of their deliveries belongs."""
        self.assumed: Longs = np.zeros(0, np.int64)
        """The flat positions of sends and deliveries whose place in the line an import had to assume."""
        self.moved: Longs = np.zeros(0, np.int64)
        """Where the sends belong that stand alone behind all lines (:func:`antecede.pipeline.judge.certain`)."""
        self.begins: Longs | None = None
        """For each process the index with which its line begins, if it is not 0; ``indices`` count from there."""

    @property
    def processes(self) -> int:
        return len(self.offsets) - 1

    def process_at(self, flat: Longs) -> Longs:
        """The process of each flat position."""
        return np.searchsorted(self.offsets, flat, side="right").astype(np.int64) - 1

    def index_at(self, flat: Longs) -> Longs:
        """The index of the event at each flat position."""
        process = self.process_at(flat)
        counted: Longs = self.indices[flat] if len(self.indices) else flat - self.offsets[process]
        return counted if self.begins is None else counted + self.begins[process]

    def home(self, flat: Longs) -> Longs:
        """Flat positions with those of moved sends replaced by where the trace has them."""
        end = len(self.source) - len(self.moved)
        return np.where(flat < end, flat, self.moved[np.maximum(flat - end, 0)]) if len(self.moved) else flat

    def send_of(self, flat: Longs) -> Longs:
        """The flat position of the send of each delivery."""
        return self.offsets[self.source[flat]] + self.argument[flat]

    def flat(self, process: Ints, index: Longs) -> Longs:
        """The flat position of the events with these places, which must be in the lines."""
        if not len(self.indices):
            return self.offsets[process] + index
        return _search(self.offsets, self.indices, process, index)


def spans(offsets: Longs, events: int = REGION_EVENTS) -> Iterator[tuple[int, int]]:
    """All processes in groups, first and last + 1, of about so many events at most; one with more is a group alone."""
    first, processes = 0, len(offsets) - 1
    while first < processes:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + events, side="right")) - 1)
        yield first, last
        first = last


class Walk:
    """All events in causal order, as segments in reused arrays: ``for count in walk: …walk.process[:count]…``."""

    def __init__(self, lines: Lines, segments: int = _segments_at_once) -> None:
        self.lines = lines
        count = lines.processes
        weights = np.zeros(count, np.int64)
        for first, last in spans(lines.offsets):
            weigh(lines.offsets, lines.source, first, last, weights)
            lines.scratch.rest()
        self._leaders = np.argsort(-weights, kind="stable").astype(np.int32)
        self._state = np.zeros(2, np.int64)
        self.cursors = np.zeros(count, np.int64)
        self._waiting = np.zeros(count, np.uint8)
        self._stack = np.zeros(count + 1, np.int32), np.zeros(count + 1, np.int64)
        self.process = np.zeros(segments, np.int32)
        self.begin = np.zeros(segments, np.int64)
        self.end = np.zeros(segments, np.int64)
        self.stuck = False
        """Whether the walk ended at an event that would have to come before itself."""

    def __iter__(self) -> Iterator[int]:
        lines = self.lines
        status = MORE
        while status == MORE:
            count, status = step(
                lines.offsets,
                lines.source,
                lines.argument,
                self._leaders,
                self._state,
                self.cursors,
                self._waiting,
                *self._stack,
                self.process,
                self.begin,
                self.end,
            )
            self.stuck = status == STUCK
            if count:
                yield count
            lines.scratch.rest()
        assert self.stuck or status == DONE


def recounted(lines: Lines, segments: int = _segments_at_once) -> None:
    """Have every send say again how many deliveries it has, if a walk has left its slots there."""
    if lines.slotted:
        walk = Walk(lines, segments)
        for count in walk:
            recount(lines.offsets, lines.source, lines.argument, walk.process, walk.begin, walk.end, count)
        lines.slotted = False


def lend_slots(lines: Lines, segments: int = _segments_at_once) -> None:
    """Let a walk begin that reads at each send how many deliveries it has, and leaves slots there."""
    recounted(lines, segments)
    lines.slotted = True


Piece = dict[str, Any]
"""What a bucket says of its valid rows: arrays by name (see :func:`assemble`)."""


def assemble(lengths: Longs, sparse: Ints, pieces: Iterable[Piece], scratch: Scratch) -> tuple[Lines, list[Piece]]:
    """Put matched rows into their places; the lines, and the pieces' clocks with ``flat`` positions added.

    ``lengths`` are the largest index + 1 of each process, ``sparse`` the processes whose indices are too far apart to
    be positions. A piece has ``d_process``, ``d_index``, ``d_source``, ``d_sent`` (deliveries with their send's place),
    and may have ``s_process``, ``s_index`` (sends without a delivery), ``l_…`` and ``c_…`` (Lamport and vector clocks),
    ``a_process``, ``a_index`` (rows whose position is assumed).
    One of a ``region`` has in ``s_…`` all sends of that region, with ``s_count``, how many deliveries each has.
    """
    indices = np.zeros(0, np.int64)
    if len(sparse):
        held = list(pieces)
        pieces = held
        offsets, indices = _ranks(lengths, sparse, held)
    else:
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    if len(lengths) and int(np.diff(offsets).max()) > np.iinfo(np.int32).max:
        raise TraceError("a process has more than 2,147,483,647 events: more than one line can hold")
    events = int(offsets[-1])
    lines = Lines(
        offsets,
        scratch.array(events, np.int32, NOTHING),
        scratch.array(events, np.int32),
        indices,
        scratch,
    )
    clocks: list[Piece] = []
    assumed: list[Longs] = []
    region: Any = 0
    for piece in pieces:
        if "region" in piece:
            if piece["region"] != region:
                region = piece["region"]
                scratch.rest()
            _place_region(lines, piece)
            continue
        if "s_process" in piece:
            lines.source[lines.flat(piece["s_process"], piece["s_index"])] = SENT
        position, sent = piece["d_index"], piece["d_sent"]
        if len(sparse):
            position = lines.flat(piece["d_process"], position) - offsets[piece["d_process"]]
            sent = lines.flat(piece["d_source"], sent) - offsets[piece["d_source"]]
        place(offsets, lines.source, lines.argument, piece["d_process"], position, piece["d_source"], sent)
        if "a_process" in piece:
            assumed.append(lines.flat(piece["a_process"], piece["a_index"]))
        extra: Piece = {}
        for mark in ("l_", "c_"):
            if mark + "process" in piece:
                extra |= {name: array for name, array in piece.items() if name.startswith(mark)}
                extra[mark + "flat"] = lines.flat(piece[mark + "process"], piece[mark + "index"])
        if extra:
            clocks.append(extra)
        scratch.rest()
    scratch.rest()
    lines.assumed = np.concatenate(assumed) if assumed else lines.assumed
    return lines, clocks


def _place_region(lines: Lines, piece: Piece) -> None:
    """Put the rows of one region into their places, and touch no other."""
    at = lines.offsets[piece["s_process"]] + piece["s_index"]
    lines.source[at], lines.argument[at] = SENT, piece["s_count"]
    at = lines.offsets[piece["d_process"]] + piece["d_index"]
    lines.source[at], lines.argument[at] = piece["d_source"], piece["d_sent"]


class Regions(msgspec.Struct, frozen=True):
    """Where the regions of large lines are, for those who sort what they say by them."""

    offsets: bytes
    events: int = REGION_EVENTS

    @property
    def count(self) -> int:
        return max(1, -(-int(np.frombuffer(self.offsets, np.int64)[-1]) // self.events))

    def of(self, process: Ints, index: Longs) -> list[int]:
        """The regions of some places."""
        at = np.frombuffer(self.offsets, np.int64)[process] + index
        return [int(region) for region in np.unique(at // self.events)]

    def parted(self, piece: Piece, sends: Piece) -> Iterator[tuple[int, Piece]]:
        """The deliveries of a piece and these sends, by region. What is not told here is taken out of the piece: its
        clocks are left in it."""
        offsets = np.frombuffer(self.offsets, np.int64)
        for name in ("s_process", "s_index"):
            del piece[name]
        parts: list[list[Piece]] = [[] for _ in range(self.count)]
        for mark, said in (("s_", sends), ("d_", {name: piece[name] for name in DELIVERY})):
            region = (offsets[said[mark + "process"]] + said[mark + "index"]) // self.events
            order = np.argsort(region.astype(np.uint16), kind="stable")
            ends = np.searchsorted(region[order], np.arange(self.count + 1))
            for k, part in enumerate(parts):
                rows = order[ends[k] : ends[k + 1]]
                part.append({name: column[rows] for name, column in said.items()})
        for name in DELIVERY:
            piece[name] = piece[name][:0]
        for k, (sent, delivered) in enumerate(parts):
            if len(sent["s_process"]) or len(delivered["d_process"]):
                yield k, {"region": k, **sent, **delivered}


DELIVERY = ("d_process", "d_index", "d_source", "d_sent")
"""What a piece says of deliveries."""


def _ranks(lengths: Longs, sparse: Ints, pieces: list[Piece]) -> tuple[Longs, Longs]:
    """Offsets and indices of lines in which a sparse process holds only the events that matter."""
    is_sparse = np.zeros(len(lengths), bool)
    is_sparse[sparse] = True
    places = []
    for piece in pieces:
        pairs = [(mark + "process", mark + "index") for mark in ("s_", "d_", "l_", "c_")]
        for process_name, index_name in [*pairs, ("d_source", "d_sent")]:
            if process_name in piece:
                keep = is_sparse[piece[process_name]]
                places.append((piece[process_name][keep], piece[index_name][keep]))
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
