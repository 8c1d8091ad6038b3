"""Assembled lines (the event sequences of the processes) with their operation instances. They are the input for
judging, explaining and measuring significant order.

:mod:`antecede.trace.significant` defines which event belongs to which instance, and the *cells*: groups of instances
with the same conflicts. This module computes the same on arrays.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.judge.orders import cut_cycles
from antecede.pipeline.judge.trace import Trace
from antecede.pipeline.judge.verdict import LinesTask
from antecede.pipeline.kernels.match import DELIVER, LOCAL
from antecede.pipeline.kernels.significant import REQUEST, RESPONSE
from antecede.pipeline.kernels.walk import NOTHING, SENT
from antecede.pipeline.match.instances import ABORTED, COMMITTED, REQUESTED, UNTYPED
from antecede.pipeline.match.lines import ClockRows, Scratch, assemble
from antecede.pipeline.pieces import Ints, Piece, read_piece
from antecede.trace.conflicts import Conflicts
from antecede.trace.significant import check_relatives

Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]


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
