"""Judge significant order on Spark. One task judges the assembled lines, which contain only numbers. Names and message
ids are looked up later, and only for the report.

The verdict is equal to that of :mod:`antecede.trace.significant` in every detail. The task needs memory for the lines
and for the vectors of :mod:`antecede.pipeline.kernels.significant`. In addition, it needs six bytes per event (four of
them for the number of its instance) and about twenty bytes per instance.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np

from antecede.pipeline.judge.orders import cut_cycles
from antecede.pipeline.judge.trace import Trace
from antecede.pipeline.judge.verdict import LinesTask, late_places, late_rows
from antecede.pipeline.kernels import Bytes, Ints, Longs
from antecede.pipeline.kernels.match import DELIVER, LOCAL
from antecede.pipeline.kernels.significant import (
    LANES,
    LATE,
    PUT_OFF,
    REQUEST,
    RESPONSE,
    RUNS,
    Before,
    Cells,
    Copies,
    Instances,
    InstanceSpans,
    Lanes,
    QuestionLists,
    Running,
    RunningSets,
    crossed,
    precedences,
    significant,
    unsettled,
)
from antecede.pipeline.kernels.walk import (
    FIRST_SLOTS,
    NOTHING,
    SENT,
    deliveries_of,
    doubled,
    free_of,
    grown,
    more_free,
    slots_of,
)
from antecede.pipeline.match import (
    ABORTED,
    COMMITTED,
    REQUESTED,
    UNTYPED,
    ClockRows,
    Lines,
    Scratch,
    Walk,
    assemble,
    lend_slots,
    matched_instances,
)
from antecede.pipeline.pieces import LatePlaces, Piece, decoder, pack_struct, read_late, read_piece
from antecede.trace.conflicts import Conflicts
from antecede.trace.significant import check_relatives, nothing_to_judge, unlisted

# Assembled lines (the event sequences of the processes) with their operation instances. They are the input for judging,
# explaining and measuring significant order.
#
# :mod:`antecede.trace.significant` defines which event belongs to which instance. This module computes the same on
# arrays. A *cell* is a group of instances with the same conflicts (:mod:`antecede.trace.significant`).


_generations = 64
"""The largest number of steps in the search for the ancestors of all instances. The first step finds the parents of all
instances, the second step finds the parents of these parents, and so on. If some instances have more ancestors than
this, a separate search for each of these instances finds them. The value is twice the largest nesting depth of calls in
our own servers."""


class Settings(msgspec.Struct, frozen=True):
    """The settings of the task that judges significant order. ``task`` says how to assemble the event sequences of the
    processes, and whether to list every late delivery. ``names`` has the names of the processes. ``tables`` and
    ``everything`` are the fields of the :class:`Conflicts`, with sorted lists instead of sets."""

    task: LinesTask
    names: list[str]
    tables: dict[str, dict[str, list[str]]]
    everything: list[str]
    lanes_max: int | None = None

    def conflicts(self) -> Conflicts:
        tables = {
            name: {operation: frozenset(others) for operation, others in table.items()}
            for name, table in self.tables.items()
        }
        return Conflicts(tables, frozenset(self.everything))


def settings_for(
    trace: Trace, conflicts: Conflicts, every_late: bool = False, lanes_max: int | None = None
) -> Settings:
    """Return the settings of the task that judges significant order in this trace."""
    tables = {name: {one: sorted(others) for one, others in own.items()} for name, own in conflicts.tables.items()}
    task = trace.task((), every_late=every_late)
    return Settings(task, trace.names, tables, sorted(conflicts.everything), lanes_max)


class Operations:
    """The event sequences (``lines``) of a trace with their operation instances, as arrays.

    ``instance`` has the number of the instance of each event. A send without an instance gets an artificial instance.
    The numbers of artificial instances are larger than the numbers of all real instances. Other events without an
    instance have -1. The following arrays have one value per real instance: ``place`` (the process of the instance),
    ``first`` and ``last`` (its first and its last event), ``cell`` (its cell, or -1) and ``name`` (the number of its
    name). ``parent`` has one value per instance name: the number of the parent's name.

    A *cell* is a group of instances with the same conflicts. Each cell has its ``operation`` and two lists of cells.
    The first list has the *rivals* of the cell: the cells that conflict with it, except the cells of ancestors and
    descendants (:meth:`_relatives`). The second list has the cells whose requests conflict with the requests of this
    cell, including the cells of conflicting ancestors and descendants.
    """

    def __init__(self, packed: Iterable[bytes], settings: Settings) -> None:
        task = settings.task
        texts: dict[str, dict[str, int]] = {"instance": {}, "operation": {}, "parent": {}}
        lengths, sparse = np.frombuffer(task.lengths, np.int64), np.frombuffer(task.sparse, np.int32)
        scratch = Scratch(task.scratch)
        self.lines, clock_rows = assemble(
            lengths, sparse, map(partial(_renumbered, texts=texts), map(read_piece, packed)), scratch
        )
        cut_cycles(self.lines)
        self.operation_names = list(texts["operation"])
        self.instance_names = list(texts["instance"])
        self._take(clock_rows, texts)
        self._cells(settings)

    def _take(self, clock_rows: list[ClockRows], texts: dict[str, dict[str, int]]) -> None:
        lines = self.lines
        given = [piece.instances for piece in clock_rows if piece.instances is not None]
        columns = [[piece.instances_flat for piece in clock_rows if piece.instances_flat is not None]]
        columns += [
            [getattr(rows, field) for rows in given]
            for field in ("kind", "type", "instance", "operation", "parent", "process")
        ]
        flat, kind, *rest = (np.concatenate(column) if column else np.zeros(0, np.int64) for column in columns)
        # Deliveries on a cycle were set aside and have no instance.
        keep = (kind != DELIVER) | (lines.source[flat] != NOTHING)
        order = np.argsort(flat[keep], kind="stable")
        flat, kind, type_, name, operation, parent, process = (column[keep][order] for column in (flat, kind, *rest))
        events = len(lines.source)
        types = lines.scratch.array(events, np.uint8)
        types[flat] = type_
        mine = np.flatnonzero(name >= 0)
        keys = process[mine].astype(np.int64) * max(1, len(texts["instance"])) + name[mine]
        unique, start, number = np.unique(keys, return_index=True, return_inverse=True)
        count = len(unique)
        self.count = count
        self.instance = lines.scratch.array(events, np.int32, -1)
        self.instance[flat[mine]] = number
        self.place = process[mine][start].astype(np.int32)
        self.name = name[mine][start].astype(np.int32)
        self.first = flat[mine][start].astype(np.int64)
        self.last = np.zeros(count, np.int64)
        # Rows are ascending, so the value of the last row remains.
        self.last[number] = flat[mine]
        self.aborted = np.zeros(count, np.uint8)
        self.aborted[number[(kind[mine] == LOCAL) & (type_[mine] == ABORTED)]] = 1
        self.operation_of = _firsts(number, operation[mine], count)
        self.opening = _firsts(number, np.where(kind[mine] <= DELIVER, flat[mine], -1), count)
        self.parent = _firsts(name[mine], parent[mine], len(texts["instance"])).astype(np.int32)
        self._requests(types)
        alone = np.flatnonzero((lines.source == SENT) & (self.instance < 0))
        self.instance[alone] = count + np.arange(len(alone))

    def _requests(self, types: Bytes) -> None:
        """Decide whether each delivery is a request, a response or neither. The type of the delivery decides. If the
        delivery has no type, the type of its send decides. If both have no type, the first message of an instance is a
        request, and each other delivery is a response. The following deliveries are neither: deliveries without an
        instance, all deliveries to an aborted instance, and deliveries of commits, aborts and repeated requests."""
        lines = self.lines
        self.received_as = lines.scratch.array(len(lines.source), np.uint8)
        delivered = np.flatnonzero(lines.source >= 0)
        type_ = types[delivered]
        type_ = np.where(type_ == UNTYPED, types[lines.send_of(delivered)], type_)
        own = self.instance[delivered]
        opens = (own >= 0) & (self.opening[np.maximum(own, 0)] == delivered) if self.count else own >= 0
        request = (type_ == REQUESTED) | ((type_ == UNTYPED) & opens)
        passed = (own < 0) | (type_ == COMMITTED) | (type_ == ABORTED)
        if self.count:
            mine = np.maximum(own, 0)
            begun_by = _firsts(mine, np.where(request & (own >= 0), delivered, -1), self.count)
            # Only the first request to an instance counts; later ones repeat it.
            passed |= (self.aborted[mine] > 0) | (request & (begun_by[mine] != delivered))
        self.received_as[delivered] = np.where(passed, 0, np.where(request, REQUEST, RESPONSE))
        self.judged = int((own >= 0).sum())

    def _cells(self, settings: Settings) -> None:
        width = max(1, len(self.operation_names))
        has = self.operation_of >= 0
        self.used = sorted({self.operation_names[k] for k in np.unique(self.operation_of[has]).tolist()})
        conflicts = settings.conflicts().over(self.used)
        relatives = self._relatives(conflicts, settings.names)
        alone = np.zeros(self.count, bool)
        alone[list(relatives)] = True
        shared = has & ~alone
        unique, numbers = np.unique(
            self.place[shared].astype(np.int64) * width + self.operation_of[shared], return_inverse=True
        )
        self.cell = np.full(self.count, -1, np.int32)
        self.cell[shared] = numbers
        private = np.flatnonzero(alone)
        self.cell[private] = len(unique) + np.arange(len(private))
        self.operation = np.concatenate([unique % width, self.operation_of[private]]).astype(np.int32)
        place = np.concatenate([unique // width, self.place[private]])
        by_operation: dict[tuple[int, int], list[int]] = {}
        for cell, key in enumerate(zip(place.tolist(), self.operation.tolist(), strict=True)):
            by_operation.setdefault(key, []).append(cell)
        codes = {text: code for code, text in enumerate(self.operation_names)}
        excluded = {int(self.cell[one]): {int(self.cell[k]) for k in others} for one, others in relatives.items()}
        starts, rivals = [0], list[int]()
        request_starts, request_rivals = [0], list[int]()
        for cell, (process, operation) in enumerate(zip(place.tolist(), self.operation.tolist(), strict=True)):
            mine = excluded.get(cell, set())
            own = cell if cell >= len(unique) else -1
            for other in sorted(conflicts.at(settings.names[process]).get(self.operation_names[operation], ())):
                found = by_operation.get((process, codes[other]), ()) if other in codes else ()
                rivals += [rival for rival in found if rival not in mine and rival != own]
                request_rivals += [rival for rival in found if rival != own]
            starts.append(len(rivals))
            request_starts.append(len(request_rivals))
        self.rival_from, self.rivals = np.array(starts, np.int64), np.array(rivals, np.int32)
        self.request_rival_from = np.array(request_starts, np.int64)
        self.request_rivals = np.array(request_rivals, np.int32)

    def _relatives(self, conflicts: Conflicts, names: list[str]) -> dict[int, set[int]]:
        """Return the relatives of each instance. The relatives of an instance are its ancestors and descendants at the
        same object. A relative is left out if its operation does not conflict with the operation of the instance.
        Instances that then have no relatives are left out too. Raise an error if an object has too many instances with
        relatives."""
        relatives: dict[int, set[int]] = {}
        for one, other in self._at_one_object():
            process, mine, its = int(self.place[one]), self.operation_of[one], self.operation_of[other]
            pairs = conflicts.at(names[process]).get(self.operation_names[mine], ()) if mine >= 0 else ()
            if its >= 0 and self.operation_names[its] in pairs:
                relatives.setdefault(one, set()).add(other)
                relatives.setdefault(other, set()).add(one)
        for process, count in Counter(int(self.place[one]) for one in relatives).items():
            check_relatives(count, names[process])
        return relatives

    def _at_one_object(self) -> Iterator[tuple[int, int]]:
        """Yield each pair of an instance and one of its ancestors, if both are at the same object."""
        width = max(1, len(self.parent))
        keys = self.place.astype(np.int64) * width + self.name
        order = np.argsort(keys)
        below = np.arange(self.count)
        above = self.parent[self.name]
        for _ in range(_generations):
            going = (above >= 0) & (above != self.name[below])
            below, above = below[going], above[going]
            if not len(below):
                return
            sought = self.place[below].astype(np.int64) * width + above
            found = order[np.minimum(np.searchsorted(keys, sought, sorter=order), len(order) - 1)]
            hit = keys[found] == sought
            yield from zip(below[hit].tolist(), found[hit].tolist(), strict=True)
            above = self.parent[above]
        # These calls are nested unusually deep, or their parents form a cycle: follow the parents of each one
        # separately.
        at = {int(key): one for one, key in enumerate(keys.tolist())}
        for one in below.tolist():
            seen, current = {int(self.name[one])}, int(self.parent[self.name[one]])
            while current >= 0 and current not in seen:
                seen.add(current)
                other = at.get(int(self.place[one]) * width + current)
                if other is not None:
                    yield one, other
                current = int(self.parent[current])


def _renumbered(piece: Piece, texts: dict[str, dict[str, int]]) -> Piece:
    """Renumber the names in the piece of one bucket, and return this piece. The names are those of instances,
    operations and parents. The old numbers are valid only in this bucket, and the new numbers are the same in all
    buckets. A parent is an instance too, so the name of a parent gets the number that this name has as an instance."""
    rows = piece.instances
    assert rows is not None
    rows.instance = _shared(rows.instance, rows.instances, texts["instance"])
    rows.operation = _shared(rows.operation, rows.operations, texts["operation"])
    rows.parent = _shared(rows.parent, rows.parents, texts["instance"])
    return piece


def _shared(own: Ints, given: list[str], table: dict[str, int]) -> Ints:
    codes = np.fromiter((table.setdefault(text, len(table)) for text in given), np.int32, len(given))
    return np.where(own >= 0, codes[own], np.int32(-1)) if len(codes) else own


def _firsts(group: Longs, value: Longs, groups: int) -> Longs:
    """Return, for each group, the first of its values that is not -1. If a group has no such value, its result is
    -1."""
    found = np.full(groups, -1, np.int64)
    some = np.flatnonzero(value >= 0)[::-1]
    # Values are written in reverse order, so that the first one remains.
    found[group[some]] = value[some]
    return found


# Compare pairs of messages in one walk over the trace. Did the send of one message happen before the send of the other?
# Does one message significantly precede the other?


def precedences_among(operations: Operations, picked: Any) -> tuple[list[int], list[int]]:
    """Compare the messages that were sent at the positions ``picked`` in the joined event sequences of all processes.
    Return two lists with one bit mask per message, in the order of ``picked``. Let m be one of these messages, and let
    n be the message that was sent at ``picked[k]``. In the first list, bit k in the mask of m is set if the send of n
    happened before the send of m. In the second list, this bit is set if n significantly precedes m."""
    lines = operations.lines
    lend_slots(lines)
    words = max(1, -(-len(picked) // 64))
    past = np.zeros((lines.processes, words), np.uint64)
    done = np.zeros((len(operations.operation), words), np.uint64)
    instances = InstanceSpans(
        np.where(operations.instance < operations.count, operations.instance, -1),
        *(
            operations.first,
            operations.last,
            operations.cell,
            operations.aborted,
            operations.rival_from,
            operations.rivals,
        ),
    )
    slots = slots_of(2 * words, np.uint64)
    running = RunningSets(
        np.full(operations.count, -1, np.int32),
        np.zeros((FIRST_SLOTS, words), np.uint64),
        np.zeros((FIRST_SLOTS, words), np.uint64),
        free_of(FIRST_SLOTS),
        np.array([FIRST_SLOTS], np.int64),
    )
    before = Before(*(np.zeros((len(picked), words), np.uint64) for _ in range(2)))
    walk = Walk(lines)

    def follow(begin: int, end: int) -> int:
        return precedences(
            lines.arrays, walk.segments, begin, end, picked, instances, past, done, running, slots, before
        )

    for stopped in walk.through(follow):
        if stopped:
            slots, running = grown(slots), _enlarged(running)
    return _masks(before.causal), _masks(before.significant)


def _enlarged(running: RunningSets) -> RunningSets:
    """Return ``running`` unchanged if it has a free row for the next instance, otherwise with twice as many rows."""
    if running.left[0]:
        return running
    left = np.array([len(running.free)], np.int64)
    return RunningSets(running.of, doubled(running.base), doubled(running.known), more_free(running.free), left)


def _masks(sets: Any) -> list[int]:
    return [int.from_bytes(row.astype("<u8").tobytes(), "little") for row in sets]


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
