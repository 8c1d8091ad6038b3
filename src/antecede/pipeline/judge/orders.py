"""All verdicts on the lines (the event sequences of the processes) of a trace: late deliveries, cycles of messages
(which show that total or synchronous order is violated), and recorded clocks that contradict the events.

One task does this for a whole matched trace. An event is given by its flat position, that is, its position in the
joined lines of all processes. Names and message ids are looked up afterwards, and only for events in the report. The
definitions are those of :mod:`antecede.trace`, and the verdicts must equal the verdicts of that package in every
detail.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import Ints, Longs
from antecede.pipeline.kernels.causal import (
    Core,
    Late,
    Questions,
    Recorded,
    causal,
    clocks,
    fifo,
    fifo_overtakers,
    lamport,
    no_questions,
    overtaker_of,
)
from antecede.pipeline.kernels.walk import (
    FIRST_SLOTS,
    NOTHING,
    SENT,
    Vectors,
    agree_pairwise,
    circular,
    deliveries_of,
    following,
    grown,
    mark_senders,
    merge,
    message_at,
    owners,
    slots_of,
)
from antecede.pipeline.match import ClockRows, Lines, Walk, lend_slots, spans
from antecede.pipeline.pieces import REGION_EVENTS, Clocked, Clocks, Lamported, Lamports

_block_bytes = 256 * 1024 * 1024
"""The memory, in bytes, for the vectors of all processes. If the vectors would need more, their entries (lanes) are
processed in blocks, one block after the other."""

_late_at_once = 1 << 20


def is_circular(lines: Lines) -> bool:
    """Return whether the trace contains a cycle of events: some event would have to happen before itself."""
    return _walked(lines).stuck


def _walked(lines: Lines) -> Walk:
    walk = Walk(lines)
    for _ in walk:
        pass
    return walk


def cut_cycles(lines: Lines) -> Longs:
    """Find the deliveries that would have to happen before their own sends, because of a cycle of messages. Remove them
    from ``lines``. Return their positions in the joined event sequences of all processes."""
    walk = _walked(lines)
    if not walk.stuck:
        return np.zeros(0, np.int64)
    found = circular(lines.offsets, lines.source, lines.argument, walk.cursors)
    if not lines.slotted:
        np.subtract.at(lines.argument, lines.send_of(found), 1)
    lines.source[found] = NOTHING
    return found


def certain(lines: Lines, sequences: bool = False) -> Lines:
    """Return lines (event sequences) in which nothing depends on assumed positions. The position of an event in its
    process is *assumed* if the import of the trace had to guess it (see :func:`antecede.trace.oracle.certain`). If no
    position is assumed, return ``lines`` itself.

    An edge leads from a send to each of its deliveries. All events keep their flat positions, but some edges change:

    * A delivery with an assumed position loses its edge.
    * A send with an assumed position loses its edges. A copy of the send is added, as a separate line after all other
      lines. New edges lead from the copy to those deliveries of the send that have certain positions.
    * Exception: if only one delivery of such a send has a certain position, no copy is made, and this delivery also
      loses its edge. (The copy would depend on nothing, and only one process would receive its message. So the delivery
      could neither be late nor make another delivery late.) With ``sequences``, this exception is not made.
    """
    if not len(lines.assumed):
        return lines
    events = len(lines.source)
    source, argument = lines.source.copy(), lines.argument.copy()
    assumed = np.zeros(events, bool)
    assumed[lines.assumed] = True
    delivered = np.flatnonzero(source >= 0)
    source[delivered[assumed[delivered]]] = NOTHING
    delivered = delivered[~assumed[delivered]]
    sends = lines.send_of(delivered)
    left = np.bincount(sends, minlength=events)
    dropped = assumed[sends] & (left[sends] < (1 if sequences else 2))
    source[delivered[dropped]] = NOTHING
    delivered, sends = delivered[~dropped], sends[~dropped]
    moving = assumed[sends]
    moved = np.unique(sends[moving])
    source[assumed & (source == SENT)] = NOTHING
    sent = source == SENT
    argument[sent] = left[sent]
    source[delivered[moving]] = lines.processes + np.searchsorted(moved, sends[moving])
    argument[delivered[moving]] = 0
    alone = np.arange(1, len(moved) + 1)
    indices = np.concatenate([lines.indices, np.zeros(len(moved), np.int64)]) if len(lines.indices) else lines.indices
    found = Lines(
        np.concatenate([lines.offsets, events + alone]),
        np.concatenate([source, np.full(len(moved), SENT, np.int32)]),
        np.concatenate([argument, left[moved].astype(np.int32)]),
        indices,
        lines.scratch,
    )
    found.moved = moved
    return found


class Circular(Exception):
    """Raised by :func:`causal_late` if the lines contain cycles of messages, so that some deliveries would have to
    happen before their own sends. Remove these cycles first (:func:`cut_cycles`)."""


def causal_late(
    lines: Lines, lanes_max: int | None = None, segments: int = 1 << 18, slots: int = FIRST_SLOTS
) -> Iterator[Longs]:
    """Yield the deliveries that are late under causal order, in several arrays."""
    for lane_of, lanes in blocks(lines, _senders(lines), lanes_max):
        walk = Walk(lines, segments)
        yield from causal_walk(walk, lane_of, lanes, slots=slots)
        if walk.stuck:
            raise Circular


def causal_overtakers(lines: Lines, late: Longs, lanes_max: int | None = None, segments: int = 1 << 18) -> Longs:
    """Return, for each of these late deliveries, the delivery that overtook it. It is the first delivery, at the same
    process, of a message that was sent causally after the late message."""
    if len(late) == 1:
        return np.array([_causal_overtaker(lines, int(late[0]), segments)], np.int64)
    answers = np.full(len(late), -1, np.int64)
    receiver = lines.process_at(late)
    sender = lines.source[late]
    sent = lines.argument[late]
    askers = np.unique(receiver)
    asker = np.full(lines.processes, -1, np.int32)
    asker[askers] = np.arange(len(askers))
    for lane_of, lanes in blocks(lines, np.unique(sender), lanes_max):
        mine = np.flatnonzero(lane_of[sender] >= 0)
        row, lane = asker[receiver[mine]].astype(np.int64), lane_of[sender[mine]].astype(np.int64)
        order = np.lexsort((sent[mine], lane, row))
        mine, key = mine[order], (row * lanes + lane)[order]
        cells = np.arange(len(askers) * lanes)
        shape = len(askers), lanes
        questions = Questions(
            asker,
            np.searchsorted(key, cells).astype(np.int64).reshape(shape),
            np.searchsorted(key, cells, side="right").astype(np.int64).reshape(shape),
            sent[mine].astype(np.int32),
            np.full(len(mine), -1, np.int64),
        )
        for _ in causal_walk(Walk(lines, segments), lane_of, lanes, questions=questions):
            pass
        answers[mine] = questions.answer
    return answers


def _causal_overtaker(lines: Lines, late: int, segments: int) -> int:
    """Return the delivery that overtook one late delivery. For a single late delivery, no vector clocks are needed, and
    the walk over the events stops as soon as the answer is found."""
    asker = int(lines.process_at(np.array([late]))[0])
    reached = np.full(lines.processes, np.iinfo(np.int64).max, np.int64)
    reached[lines.source[late]] = lines.argument[late]
    walk = Walk(lines, segments)
    for count in walk:
        found = overtaker_of(lines.arrays, walk.segments, count, asker, reached)
        if found >= 0:
            return int(found)
    raise AssertionError("a delivery is late, but no delivery was found that overtook it")


def causal_walk(
    walk: Walk,
    lane_of: Ints,
    lanes: int,
    *,
    core: Core | None = None,
    counter: Any = np.int32,
    questions: Questions | None = None,
    slots: int = FIRST_SLOTS,
) -> Iterator[Longs]:
    """Judge causal order in one walk over the lines (the event sequences of the processes). Yield the late deliveries,
    in several arrays. If ``core`` is given, only the messages that ``core`` selects are judged, otherwise all messages.
    ``lane_of`` has the lane (vector entry) of each process, or -1 if the process has none. ``questions`` has late
    deliveries. For each of them, the walk also finds the delivery that overtook it."""
    lines = walk.lines
    make = lines.scratch.array
    vectors = Vectors(lane_of, make((lines.processes, lanes), counter), np.full(lines.processes, -1, np.int32))
    carried = slots_of(lanes, counter, slots, make)
    late = Late(np.zeros(_late_at_once, np.int64), np.zeros(1, np.int64))
    judged = core or Core(np.diff(lines.offsets), np.zeros(0, np.uint8))
    asked = questions or no_questions(lines.processes)
    lend_slots(lines)

    def judge(begin: int, end: int) -> int:
        return causal(lines.arrays, walk.segments, begin, end, vectors, carried, judged, late, asked)

    for stopped in walk.through(judge):
        if late.found[0]:
            yield late.at[: late.found[0]].copy()
            late.found[0] = 0
        if stopped:
            carried = grown(carried, make)


def _senders(lines: Lines) -> NDArray[Any]:
    """Return the processes that sent at least one message that was delivered."""
    sending = np.zeros(lines.processes, bool)
    for start in range(0, len(lines.source), REGION_EVENTS):
        mark_senders(lines.source[start : start + REGION_EVENTS], sending)
        lines.scratch.rest()
    return np.flatnonzero(sending)


def blocks(lines: Lines, senders: NDArray[Any], lanes_max: int | None) -> Iterator[tuple[Ints, int]]:
    """Yield the senders in blocks that fit into memory. Each block is a pair. The first element is an array with the
    lane (vector entry) of each process, or -1 if the process is not in the block. The second element is the number of
    lanes."""
    size = lanes_max or max(64, _block_bytes // (4 * max(1, lines.processes)))
    for start in range(0, len(senders), size):
        block = senders[start : start + size]
        lane_of = np.full(lines.processes, -1, np.int32)
        lane_of[block] = np.arange(len(block))
        yield lane_of, len(block)


def fifo_late(lines: Lines) -> Iterator[Longs]:
    """Yield the deliveries that are late under FIFO order, in several arrays, process by process."""
    longest = int(np.diff(lines.offsets).max()) if lines.processes else 0
    late = lines.scratch.array(max(_late_at_once, longest), np.int64)
    newest = np.zeros(lines.processes, np.int64)
    seen_by = np.full(lines.processes, -1, np.int32)
    counts = np.zeros(1, np.int64)
    for first, last in spans(lines.offsets):
        while first < last:
            first = fifo(lines.offsets, lines.source, lines.argument, first, last, newest, seen_by, late, counts)
            if counts[0]:
                yield late[: counts[0]].copy()
                counts[0] = 0
            lines.scratch.rest()


def fifo_overtaking(lines: Lines, late: Longs) -> Longs:
    """Return, for each of these late deliveries, the delivery that overtook it. It is the first delivery, at the same
    process, of a later message from the same sender. ``late`` must be in ascending order."""
    answers = np.full(len(late), -1, np.int64)
    receiver = lines.process_at(late)
    for process in np.unique(receiver):
        a, b = np.searchsorted(receiver, process), np.searchsorted(receiver, process, "right")
        start, end = lines.offsets[process], lines.offsets[process + 1]
        fifo_overtakers(start, end, lines.source, lines.argument, lines.processes, late[a:b], answers[a:b])
    return answers


class Circle:
    """A search for a cycle of messages. It tries to merge the message sequences of all processes into one sequence.
    ``merges`` is true if this succeeds. Otherwise :meth:`witness` returns a cycle of messages that prevents it (as in
    :mod:`antecede.trace.oracle`)."""

    def __init__(self, lines: Lines, with_sends: bool) -> None:
        self._lines = lines
        self._arrays = lines.offsets, lines.source, lines.argument, with_sends
        self._with_sends = with_sends
        self._cursors = np.zeros(lines.processes, np.int64)
        events = len(lines.source)
        occurs = lines.scratch.array(events, np.int32)
        at_head = lines.scratch.array(events, np.int32, -1)
        self.merges: bool = merge(*self._arrays, occurs, at_head, self._cursors)

    def witness(self) -> list[int]:
        """Return a cycle of messages, as the positions of their sends in the joined event sequences of all processes.
        Each message comes before the next one at some process, and the last message comes before the first."""
        lines = self._lines
        self._first, self._delivered = deliveries_of(lines.offsets, lines.source, lines.argument)
        lengths = np.diff(lines.offsets)
        start = int(np.flatnonzero(self._cursors < lengths)[0])
        message = self._message(start, int(self._cursors[start]))
        path: list[int] = []
        seen: dict[int, int] = {}
        while message not in seen:
            seen[message] = len(path)
            path.append(message)
            message = self._blocker(message)
        return path[seen[message] :][::-1]

    def _message(self, process: int, position: int) -> int:
        return int(message_at(*self._arrays, int(self._lines.offsets[process]) + position))

    def _blocker(self, message: int) -> int:
        flat = self._delivered[self._first[message] : self._first[message + 1]]
        if self._with_sends:
            flat = np.append(flat, message)
        flat = np.sort(flat)
        owner = self._lines.process_at(flat)
        # Keep the last event of the message in each process, so that each process occurs once.
        last = np.append(owner[1:] != owner[:-1], True)
        for process, at in zip(owner[last].tolist(), flat[last].tolist(), strict=True):
            head = int(self._cursors[process])
            position = at - int(self._lines.offsets[process])
            if position < head:
                continue
            first = self._message(process, head)
            if first != message:
                return first
            second = int(following(*self._arrays, process, head, message))
            if second <= position:
                return self._message(process, second)
        raise AssertionError("a message cannot be merged, but no message was found that blocks it")


def pairwise(lines: Lines) -> bool:
    """Return whether every two processes agree on the order of the messages that both of them deliver."""
    first, delivered = deliveries_of(lines.offsets, lines.source, lines.argument)
    owner = owners(lines.offsets)
    return bool(agree_pairwise(lines.offsets, lines.source, lines.argument, owner, first, delivered))


def check_lamport(lines: Lines, pieces: Sequence[ClockRows]) -> Lamported:
    """Check the recorded Lamport clocks. Return the ``lamport`` object of the report."""
    flat = _together(piece.lamport_flat for piece in pieces)
    value = _together(piece.lamport.value for piece in pieces if piece.lamport is not None)
    order = np.argsort(flat)
    disagree = int(lamport(lines.arrays, flat[order], value[order]))
    return Lamported(len(flat), disagree, len(flat) > 0 and not disagree)


def check_clocks(
    lines: Lines, pieces: Sequence[ClockRows], names: int, names_max: int | None = None, segments: int = 1 << 18
) -> Clocked:
    """Check the recorded vector clocks. Return the ``clocks`` object of the report. ``names`` is the number of all
    names: the names of processes, and other names that occur in clocks."""
    flat = _together(piece.clocks_flat for piece in pieces)
    if not len(flat):
        return Clocked()
    recorded_by = [piece.clocks for piece in pieces if piece.clocks is not None]
    sizes = _together(rows.size for rows in recorded_by)
    name = _together(rows.name for rows in recorded_by).astype(np.int32)
    entry = _together(rows.entry for rows in recorded_by)
    order = np.argsort(flat)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[order])])
    pick = np.repeat(starts[:-1][order] - first[:-1], sizes[order]) + np.arange(len(name))
    flat, name, entry = flat[order], name[pick], entry[pick]
    process = lines.process_at(flat)
    row = np.repeat(np.arange(len(flat)), np.diff(first))
    own = np.zeros(len(flat), np.int64)
    mine = name == process[row]
    own[row[mine]] = entry[mine]
    exact = 2 * int((own == lines.index_at(flat) + 1).sum()) > len(flat)
    recorded = Recorded(flat, first, name, entry, own[np.lexsort((own, process))], lines.indices)
    disagrees = np.zeros(len(flat), np.uint8)
    width = names_max or max(16, _block_bytes // (16 * max(1, lines.processes)))
    for low in range(0, names, width):
        lanes = min(width, names - low)
        _check_block(Walk(lines, segments), low, lanes, exact, recorded, disagrees)
    return Clocked(len(flat), int(disagrees.sum()), "exact" if exact else "order")


def _check_block(
    walk: Walk, low: int, lanes: int, exact: bool, recorded: Recorded, disagrees: NDArray[np.uint8]
) -> None:
    lines = walk.lines
    known, floor = (np.zeros((lines.processes, lanes), np.int64) for _ in range(2))
    slots = slots_of(2 * lanes, np.int64)
    lend_slots(lines)

    def check(begin: int, end: int) -> int:
        return clocks(
            lines.arrays, walk.segments, begin, end, low, exact, recorded, known, floor, slots, disagrees
        )  # fmt: skip

    for stopped in walk.through(check):
        if stopped:
            slots = grown(slots)


def without(piece: ClockRows, flat: Longs) -> ClockRows:
    """Return the clocks of ``piece`` without the clocks of the rows at ``flat``. These rows were set aside. ``flat``
    has positions in the joined event sequences of all processes."""
    left = ClockRows()
    if piece.lamport is not None and piece.lamport_flat is not None:
        keep = ~np.isin(piece.lamport_flat, flat)
        rows = piece.lamport
        left.lamport = Lamports(rows.process[keep], rows.index[keep], rows.value[keep])
        left.lamport_flat = piece.lamport_flat[keep]
    if piece.clocks is not None and piece.clocks_flat is not None:
        keep = ~np.isin(piece.clocks_flat, flat)
        clocked = piece.clocks
        entries = np.repeat(keep, clocked.size)
        left.clocks = Clocks(
            *(clocked.process[keep], clocked.index[keep], clocked.size[keep]),
            *(clocked.name[entries], clocked.entry[entries]),
        )
        left.clocks_flat = piece.clocks_flat[keep]
    return left


def _together(arrays: Iterable[NDArray[Any] | None]) -> Longs:
    found = [array for array in arrays if array is not None]
    return np.concatenate(found).astype(np.int64) if found else np.zeros(0, np.int64)
