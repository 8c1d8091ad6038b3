"""Explanations for significant order on Spark. One task collects the events of all processes and finds the chains. Then
the message ids are looked up.

The search is the same as in :mod:`antecede.trace.significant`, but on arrays. In the task, a message is
identified by the place of its send. The driver replaces this place by the message id.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.explaining.chains import Sought
from antecede.pipeline.judge.operations import Operations, Settings, settings_for
from antecede.pipeline.judge.significant import RULES, Verdict, instances_of, judged_operations
from antecede.pipeline.judge.trace import Trace
from antecede.pipeline.kernels.merge import deliveries_of
from antecede.pipeline.kernels.moments import number_segments
from antecede.pipeline.kernels.significant import REQUEST, are_rivals, forbidden
from antecede.pipeline.kernels.walk import NOTHING, SENT
from antecede.pipeline.match.instances import matched_instances
from antecede.pipeline.match.lines import Walk
from antecede.trace.conflicts import Conflicts
from antecede.trace.significant import Acts, Named, chain_of, disagreement, nothing_to_judge, shortest

Longs = NDArray[np.int64]


def explained_significant(trace: Trace, conflicts: Conflicts, sought: Sought, deliveries: int) -> dict[str, Any]:
    """Return a dictionary. ``late`` is the number of late deliveries. ``judged`` is the number of deliveries that
    belong to an operation instance. ``explanations`` has the explanations of the late deliveries that ``sought``
    chooses. ``circular`` is the number of deliveries in ``sought.delivered`` that were set aside, because a cycle
    of events puts them before their own sends."""
    pieces = trace.from_buckets(partial(matched_instances, numbering=trace.numbering), 1)
    packed = pieces.gather(partial(explained, settings=settings_for(trace, conflicts), sought=sought), [0])[0]
    found: dict[str, Any] = msgspec.msgpack.decode(packed)
    if deliveries and not found["judged"]:
        raise nothing_to_judge()
    places = sorted({tuple(entry["message"]) for one in found["explanations"] for entry in (one, *one["chain"])})
    ids = dict(zip(places, trace.ids(*_columns(places)), strict=True))
    for one in found["explanations"]:
        for entry in (one, *one["chain"]):
            entry["message"] = ids[tuple(entry["message"])]
    return found


def _columns(places: list[Any]) -> tuple[list[int], list[int]]:
    return [place[0] for place in places], [place[1] for place in places]


def explained(packed: Iterable[bytes], settings: Settings, sought: Sought) -> bytes:
    """Judge significant order in a trace, in one task. Return the counts, and the explanations of the deliveries that
    ``sought`` chooses."""
    operations = Operations(packed, settings)
    lines = operations.lines
    verdict = judged_operations(operations, every_late=False, segments=settings.task.segments)
    chosen = np.arange(min(sought.first, len(verdict.late)))
    circular = 0
    if sought.message:
        sent = np.zeros(0, np.int64)
        if sought.sent is not None:
            sent = lines.flat(np.array([sought.sent[0]], np.int32), np.array([sought.sent[1]], np.int64))
        chosen = np.flatnonzero(np.isin(lines.send_of(verdict.late), sent))
        if sought.delivered:
            process, index = _columns(list(sought.delivered))
            at = lines.flat(np.array(process, np.int32), np.array(index, np.int64))
            circular = int((lines.source[at] == NOTHING).sum())
    explainer = _Explainer(operations, settings.names) if len(chosen) else None
    explanations = [explainer.explained(verdict, k) for k in chosen.tolist()] if explainer else []
    return msgspec.msgpack.encode(
        {"late": len(verdict.late), "judged": operations.judged, "circular": circular, "explanations": explanations}
    )


class _Explainer:
    """The search for explanations of late deliveries, in the event sequences of all processes."""

    def __init__(self, operations: Operations, names: list[str]) -> None:
        self._operations, self._names = operations, names
        self._instances = instances_of(operations)
        lines = operations.lines
        self._first, self._delivered = deliveries_of(lines.offsets, lines.source, lines.argument)
        moments = lines.scratch.array(len(lines.source), np.int64)
        walk, moment = Walk(lines), 0
        for count in walk:
            moment = number_segments(lines.offsets, *walk.segments, count, moment, moments)
        owner = np.where(operations.instance < operations.count, operations.instance, -1)
        sends = np.flatnonzero((lines.source == SENT) & (owner >= 0))
        order = np.argsort(owner[sends], kind="stable")
        begun = np.lexsort((operations.first, operations.cell))
        begun = begun[operations.cell[begun] >= 0]
        self._acts = Acts(
            owner,
            moments,
            operations.first,
            operations.last,
            operations.aborted,
            operations.cell,
            np.searchsorted(owner[sends][order], np.arange(operations.count + 1)),
            sends[order],
            np.searchsorted(operations.cell[begun], np.arange(len(operations.operation) + 1)),
            begun,
            operations.rival_from,
            operations.rivals,
            self._copies,
        )

    def _copies(self, send: int) -> Any:
        return np.sort(self._delivered[self._first[send] : self._first[send + 1]]).tolist()

    def explained(self, verdict: Verdict, number: int) -> dict[str, Any]:
        lines = self._operations.lines
        late = int(verdict.late[number])
        sent = int(lines.send_of(np.array([late]))[0])
        process = self._process(late)
        if RULES[verdict.rule[number]] == "agreement":
            return self._disagreement(late, sent, int(verdict.over[number]), process)
        receiver = range(int(lines.offsets[process]), int(lines.offsets[process + 1]))
        found = shortest(self._acts, late, sent, lambda early: self._rule(late, early) > 0, receiver)
        return chain_of(found, RULES[self._rule(late, found.early)], late, sent, self._named)

    def _rule(self, late: int, early: int) -> int:
        return int(forbidden(late, early, self._instances)) if self._operations.instance[early] >= 0 else 0

    def _disagreement(self, late: int, sent: int, early: int, process: int) -> dict[str, Any]:
        other = int(self._operations.lines.send_of(np.array([early]))[0])
        mine, its = ({self._process(copy): copy for copy in self._copies(one)} for one in (sent, other))
        for number in sorted(mine.keys() & its.keys()):
            if number >= process or mine[number] > its[number]:
                continue
            if self._compared(mine[number], its[number]) and self._compared(late, early):
                return disagreement(late, sent, early, other, mine[number], its[number], self._named)
        raise AssertionError("no two objects disagree")

    def _compared(self, *deliveries: int) -> bool:
        """Return true if both deliveries are deliveries of requests, and the operation instances that receive these
        requests conflict. The two deliveries must be at the same object."""
        operations = self._operations
        if any(operations.instance[at] < 0 or operations.received_as[at] != REQUEST for at in deliveries):
            return False
        one, other = (int(operations.cell[operations.instance[at]]) for at in deliveries)
        return bool(are_rivals(one, other, operations.rival_from, operations.rivals))

    def _process(self, flat: int) -> int:
        return int(np.searchsorted(self._operations.lines.offsets, flat, side="right")) - 1

    def _named(self, flat: int) -> Named:
        operations, lines = self._operations, self._operations.lines
        delivered = lines.source[flat] >= 0
        sent = lines.send_of(np.array([flat])) if delivered else np.array([flat])
        place = int(lines.process_at(sent)[0]), int(lines.index_at(sent)[0])
        own = int(self._acts.instance[flat])
        return Named(
            self._names[self._process(flat)],
            int(lines.index_at(np.array([flat]))[0]),
            "deliver" if delivered else "send",
            place,
            operations.instance_names[operations.name[own]] if own >= 0 else None,
        )
