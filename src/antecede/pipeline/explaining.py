"""``explain`` on Spark. One task finds the events that explain a violation. The task returns their places (process
number and index). Then the process names and message ids are looked up.

The report has the same keys as that of :mod:`antecede.trace.explain`.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from antecede import __version__
from antecede.pipeline.judge.files import Given, open_trace, spark_for
from antecede.pipeline.judge.orders import Circle, causal_late, certain, fifo_late
from antecede.pipeline.judge.significant import (
    RULES,
    Operations,
    Settings,
    Verdict,
    instances_of,
    judged_operations,
    settings_for,
)
from antecede.pipeline.judge.trace import Trace, verdict_on
from antecede.pipeline.kernels import Longs
from antecede.pipeline.kernels.match import DELIVER, LEFT_OUT, REASON_NAMES, SEND, VALID
from antecede.pipeline.kernels.significant import REQUEST, are_rivals, forbidden
from antecede.pipeline.kernels.walk import NOTHING, SENT, deliveries_of, number_segments
from antecede.pipeline.match import Lines, Numbering, Walk, bucket_of, matched_instances
from antecede.pipeline.pieces import pack, unpack
from antecede.pipeline.read.rows import as_texts, unpacked
from antecede.pipeline.sessions import Session
from antecede.trace.conflicts import Conflicts, needed
from antecede.trace.explain import ExplainRequest, Link, about, circle_of, overtaking, unknown
from antecede.trace.significant import Acts, Named, chain_of, disagreement, nothing_to_judge, shortest
from antecede.trace.verdicts import Late

# Chains of overtaking messages, and cycles of messages: the search of :mod:`antecede.trace.explain`, on arrays.
#
# That module defines T_h[r]: the first position at process r that a chain of at most h messages can reach. Both modules
# compute T_h[r] from T_(h−1)[r], examine each send once, and examine nothing after the late delivery. This module
# examines all sends of one round h in one step. A Spark task runs the search and returns the places (process and index)
# of only those events that are part of an explanation.


Place = tuple[int, int]
"""The place of an event: its process and its index."""


class Sought(msgspec.Struct, frozen=True):
    """The choice of the late deliveries to explain. If ``message`` is false, the late deliveries with the smallest
    indices are explained; ``first`` is the largest number of explanations. If ``message`` is true, all late deliveries
    of one message are explained. Then ``sent`` is the place of the send of this message, and ``delivered`` has the
    places of its deliveries."""

    order: str
    first: int
    message: bool = False
    sent: Place | None = None
    delivered: tuple[Place, ...] = ()


def chains_of(lines: Lines, sought: Sought) -> bytes:
    """Return the explanations that ``sought`` asks for. For FIFO and causal order, these are late deliveries with their
    chains. For the other orders, the explanation is a cycle of messages, or ``None`` if there is no cycle. Each event
    is given by its place."""
    if sought.order in ("fifo", "causal"):
        return _chains_overtakings(lines, certain(lines), sought)
    lines = certain(lines, sequences=True)
    circle = Circle(lines, with_sends=sought.order == "synchronous")
    if circle.merges:
        return pack({"circle": None})
    sends = np.array(circle.witness(), np.int64)
    first, delivered = deliveries_of(lines.offsets, lines.source, lines.argument)
    homes = []
    for send in sends.tolist():
        own = delivered[first[send] : first[send + 1]]
        homes.append([lines.process_at(own).tolist(), lines.index_at(own).tolist()])
    return pack({"circle": [*_places(lines, sends), homes]})


def _chains_overtakings(trace: Lines, lines: Lines, sought: Sought) -> bytes:
    """Return the late deliveries to explain, with their chains. ``trace`` has the event sequences of the processes.
    ``lines`` is the result of ``certain(trace)``: in it, nothing depends on positions that were guessed when the trace
    was imported. Only deliveries that are late in ``lines`` are explained."""
    total = 0
    kept = np.zeros(0, np.int64)
    wanted = trace.flat(*_as_arrays([sought.sent])) if sought.sent is not None else np.zeros(0, np.int64)
    for late in fifo_late(lines) if sought.order == "fifo" else causal_late(lines):
        total += len(late)
        if sought.message:
            kept = np.concatenate([kept, late[np.isin(lines.home(lines.send_of(late)), wanted)]])
        else:
            kept = np.concatenate([kept, late])
            kept = kept[_ranking(lines, kept)[: sought.first]]
    kept = kept[_ranking(lines, kept)]
    chains = Chains(lines) if len(kept) else None
    found = [chains.shortest(at) for at in kept.tolist()] if chains else []
    steps = np.array([step for chain in found for step in chain], np.int64).reshape(-1, 2)
    # A delivery on a cycle with its send was set aside, so its edge has been removed.
    circular = 0
    if sought.delivered:
        circular = int((trace.source[trace.flat(*_as_arrays(sought.delivered))] == NOTHING).sum())
    return pack({
        "late": total, "circular": circular, "lengths": [len(chain) for chain in found],
        "sent": _places(lines, lines.send_of(kept)), "delivered": _places(lines, kept),
        "chain_sent": _places(lines, steps[:, 0]), "chain_delivered": _places(lines, steps[:, 1]),
    })  # fmt: skip


def _as_arrays(places: Any) -> tuple[NDArray[np.int32], Longs]:
    return np.array([place[0] for place in places], np.int32), np.array([place[1] for place in places], np.int64)


def _ranking(lines: Lines, flat: Longs) -> Longs:
    """Return the permutation that sorts the deliveries at the positions ``flat`` by index. Deliveries with the same
    index are sorted by process."""
    return np.lexsort((lines.process_at(flat), lines.index_at(flat)))


def _places(lines: Lines, flat: Longs) -> list[list[int]]:
    at = lines.home(flat)
    return [lines.process_at(at).tolist(), lines.index_at(at).tolist()]


class Chains:
    """A search for chains of overtaking messages in one trace. An event is given by its flat position: its position in
    the joined event sequences of all processes."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._first, self._delivered = deliveries_of(lines.offsets, lines.source, lines.argument)
        self._moments = lines.scratch.array(len(lines.source), np.int64)
        walk = Walk(lines)
        moment = 0
        for count in walk:
            moment = number_segments(lines.offsets, *walk.segments, count, moment, self._moments)

    def shortest(self, late: int) -> list[tuple[int, int]]:
        """Return the shortest chain of messages that overtook a late delivery. The result has one pair per message,
        from the first message to the last: the positions of its send and its delivery in the joined event sequences of
        all processes."""
        return self._between(int(self._lines.send_of(np.array([late]))[0]), late)

    def _between(self, sent: int, until: int) -> list[tuple[int, int]]:
        """Return the shortest chain of messages from the event ``sent`` to the event ``until``. The first message is
        sent by the process of ``sent``, at ``sent`` or later. The last message is delivered by the process of
        ``until``, before ``until``. The result has one pair per message, from the first message to the last: the
        positions of its send and its delivery in the joined event sequences of all processes."""
        lines = self._lines
        source, target = lines.process_at(np.array([sent, until])).tolist()
        reach: dict[int, int] = {}
        levels: list[dict[int, tuple[int, int]]] = []
        frontier = [(sent, int(lines.offsets[source + 1]))]
        while True:
            reached = self._round(frontier, until, target, reach)
            if target in reached:
                steps = [reached[target]]
                for level in reversed(levels):
                    steps.append(level[int(lines.process_at(np.array([steps[-1][0]]))[0])])
                return steps[::-1]
            reached.pop(source, None)
            assert reached, "the second event does not follow from the first"
            levels.append(reached)
            frontier = []
            for process, (_, delivered) in reached.items():
                frontier.append((delivered + 1, reach.get(process, int(lines.offsets[process + 1]))))
                reach[process] = delivered

    def _round(
        self, frontier: list[tuple[int, int]], late: int, target: int, reach: dict[int, int]
    ) -> dict[int, tuple[int, int]]:
        """Examine the messages that were sent in some parts of the trace. ``frontier`` lists these parts, as pairs of
        positions (start, end) in the joined event sequences of all processes. For each process, return the first
        delivery of such a message, as a pair of positions (send, delivery). A process is left out if this delivery is
        too late. At the process ``target``, the delivery must come before ``late``. At any other process that has an
        entry in ``reach``, the delivery must come before this entry."""
        lines = self._lines
        horizon = self._moments[late]
        pieces = []
        for start, stop in frontier:
            stop = start + int(np.searchsorted(self._moments[start:stop], horizon))
            pieces.append(start + np.flatnonzero(lines.source[start:stop] == SENT))
        sends = np.concatenate(pieces)
        counts = self._first[sends + 1] - self._first[sends]
        begin = np.cumsum(counts) - counts
        picked = np.repeat(self._first[sends] - begin, counts) + np.arange(int(counts.sum()))
        delivered, sent = self._delivered[picked], np.repeat(sends, counts)
        receiver = lines.process_at(delivered)
        reached: dict[int, tuple[int, int]] = {}
        order = np.lexsort((delivered, receiver))
        earliest = order[np.append(True, receiver[order][1:] != receiver[order][:-1])] if len(order) else order
        for k in earliest.tolist():
            process, at = int(receiver[k]), int(delivered[k])
            limit = late if process == target else reach.get(process)
            if limit is None or at < limit:
                reached[process] = int(sent[k]), at
        return reached


# Explanations for significant order on Spark. One task collects the events of all processes and finds the chains. Then
# the message ids are looked up.
#
# The search is the same as in :mod:`antecede.trace.significant`, but on arrays. In the task, a message is
# identified by the place of its send. The driver replaces this place by the message id.


def explained_significant(trace: Trace, conflicts: Conflicts, sought: Sought, deliveries: int) -> dict[str, Any]:
    """Return a dictionary. ``late`` is the number of late deliveries. ``judged`` is the number of deliveries that
    belong to an operation instance. ``explanations`` has the explanations of the late deliveries that ``sought``
    chooses. ``circular`` is the number of deliveries in ``sought.delivered`` that were set aside, because a cycle
    of events puts them before their own sends."""
    pieces = trace.from_buckets(partial(matched_instances, numbering=trace.numbering), 1)
    packed = pieces.gather(partial(significant_chains_of, settings=settings_for(trace, conflicts), sought=sought), [0])[
        0
    ]
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


def significant_chains_of(packed: Iterable[bytes], settings: Settings, sought: Sought) -> bytes:
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


ReportStatus = Callable[[str], None]

_reasons = {code: name for code, name in enumerate(REASON_NAMES) if name} | {LEFT_OUT: "duplicate_index"}


def explain_files(
    paths: Sequence[str | os.PathLike[str]],
    request: ExplainRequest,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    report_status: ReportStatus = lambda _: None,
) -> dict[str, Any]:
    """Explain violations of an order in the traces at these paths, on a new Spark session. Return the report."""
    request.check()
    check = partial(needed, request.conflicts) if request.order == "significant" else None
    with spark_for(paths, master, conf, report_status, check) as (running, given):
        return explain_in(running, given, request, report_status)


def explain_in(
    running: Session, given: Given, request: ExplainRequest, report_status: ReportStatus = lambda _: None
) -> dict[str, Any]:
    """Explain violations of an order in a trace, in a running session. Return the report."""
    started = time.perf_counter()
    trace = open_trace(running, given, report_status, instances=request.order == "significant")
    report_status(f"looking for chains among {trace.rows:,} rows")
    report = explained_on(trace, request)
    return {
        **report,
        "session_seconds": round(running.seconds, 3),
        "seconds": round(time.perf_counter() - started, 3),
    }


def explained_on(trace: Trace, request: ExplainRequest) -> dict[str, Any]:
    """Return the report that explains violations of an order in a trace, without timings."""
    sought = Sought(request.order, request.first)
    rows: dict[str, Any] = {}
    if request.message is not None:
        rows = _rows_of(trace, request.message)
        sent = list(zip(rows["sent_process"].tolist(), rows["sent_index"].tolist(), strict=True))
        delivered = zip(rows["delivered_process"].tolist(), rows["delivered_index"].tolist(), strict=True)
        sought = Sought(request.order, 0, True, sent[0] if sent else None, tuple(delivered))
    counted = verdict_on(trace, ()).report
    if request.order == "significant":
        found = explained_significant(
            trace, needed(request.conflicts, trace.given.metadata), sought, counted["deliveries"]
        )
    else:
        found = unpack(trace.on_lines(partial(chains_of, sought=sought)))
    if request.order == "significant":
        explanations, broken = found["explanations"], bool(found["late"])
    elif request.by_delivery():
        explanations, broken = _overtakings(trace, found), bool(found["late"])
    else:
        explanations = _circle(trace, found["circle"], request.order)
        broken = bool(explanations)
    message = None
    if request.message is not None:
        message = about(
            request.message,
            len(rows["sent_index"]),
            len(rows["delivered_index"]) - found["circular"],
            rows["set_aside"] | {"cycle": found["circular"]},
        )
    return {
        "version": __version__,
        "engine": "spark",
        "order": request.order,
        "holds": not broken if counted["deliveries"] else None,
        "events": counted["events"],
        "deliveries": counted["deliveries"],
        "late": found["late"] if request.by_delivery() else None,
        "shown": len(explanations),
        "explanations": explanations,
        "message": message,
        "complete": counted["complete"],
        "quarantined": counted["quarantined"],
    }


def _rows_of(trace: Trace, message: str) -> dict[str, Any]:
    """Return where a message was sent and delivered, and how many of its rows were set aside for each reason. Raise an
    error if the trace has no row of the message."""
    stage = partial(rows_of, numbering=trace.numbering, message=message)
    for packed in trace.on_buckets(stage):
        found = unpack(packed)
        if found:
            return found
    raise unknown(message)


def rows_of(packed: Iterable[bytes], numbering: Numbering, message: str) -> bytes:
    """Return the places of the send and the deliveries of one message, and how many of its rows were set aside for each
    reason. ``packed`` is one bucket (all rows of some of the messages). If it does not contain the message, return an
    empty result."""
    blobs = list(packed)
    sought = pa.scalar(message, pa.string())
    if not any(pc.any(pc.equal(as_texts(unpacked(blob).batch().column("message")), sought)).as_py() for blob in blobs):
        return pack({})
    bucket = bucket_of(blobs, numbering)
    mine = pc.fill_null(pc.equal(bucket.message, sought), False).to_numpy(zero_copy_only=False)
    valid = mine & (bucket.reason == VALID)
    sends, delivers = np.flatnonzero(valid & (bucket.kind == SEND)), np.flatnonzero(valid & (bucket.kind == DELIVER))
    return pack({
        "sent_process": bucket.process[sends], "sent_index": bucket.index[sends],
        "delivered_process": bucket.process[delivers], "delivered_index": bucket.index[delivers],
        "set_aside": {name: int((mine & (bucket.reason == code)).sum()) for code, name in _reasons.items()},
    })  # fmt: skip


def _overtakings(trace: Trace, found: dict[str, Any]) -> list[dict[str, Any]]:
    sent, delivered = found["sent"], found["delivered"]
    chain_sent, chain_delivered = found["chain_sent"], found["chain_delivered"]
    ids = trace.ids(sent[0] + chain_sent[0], sent[1] + chain_sent[1])
    names = trace.names
    links = [
        Link(message, names[source], send_index, names[to], deliver_index)
        for message, source, send_index, to, deliver_index in zip(
            ids[len(sent[0]) :], *chain_sent, *chain_delivered, strict=True
        )
    ]
    explanations = []
    begin = 0
    for k, length in enumerate(found["lengths"]):
        late = Late(delivered[1][k], names[delivered[0][k]], ids[k], names[sent[0][k]], sent[1][k])
        explanations.append(overtaking(late, links[begin : begin + length]))
        begin += length
    return explanations


def _circle(trace: Trace, circle: list[Any] | None, order: str) -> list[dict[str, Any]]:
    if circle is None:
        return []
    processes, indices, delivered = circle
    ids = trace.ids(processes, indices)
    homes: dict[str, dict[str, list[tuple[int, str]]]] = {}
    for message, process, index, (receivers, at) in zip(ids, processes, indices, delivered, strict=True):
        own = homes[message] = {}
        events = [
            (trace.names[receiver], position, "deliver") for receiver, position in zip(receivers, at, strict=True)
        ]
        if order == "synchronous":
            events.append((trace.names[process], index, "send"))
        for name, position, kind in sorted(events):
            own.setdefault(name, []).append((position, kind))
    least = ids.index(min(ids))
    sends = {
        message: (trace.names[process], index) for message, process, index in zip(ids, processes, indices, strict=True)
    }
    return [circle_of(ids[least:] + ids[:least], homes, sends)]
