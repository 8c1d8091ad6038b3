"""``explain`` on Spark. One task finds the events that explain a violation. The task returns their places (process
number and index). Then the process names and message ids are looked up.

The report has the same keys as that of :mod:`antecede.trace.explain`.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from antecede import __version__
from antecede.pipeline.explaining.chains import Sought, explained
from antecede.pipeline.explaining.significant import explained_significant
from antecede.pipeline.judge.files import Given, open_trace, spark_for
from antecede.pipeline.judge.trace import Trace, verdict_on
from antecede.pipeline.kernels.match import DELIVER, LEFT_OUT, REASON_NAMES, SEND, VALID
from antecede.pipeline.match.buckets import Numbering, bucket_of
from antecede.pipeline.packing import pack, unpack
from antecede.pipeline.read.ids import as_texts
from antecede.pipeline.read.rows import unpacked
from antecede.pipeline.sessions import Session
from antecede.trace.conflicts import needed
from antecede.trace.explain import ExplainRequest, Link, about, circle_of, overtaking, unknown
from antecede.trace.verdicts import Late

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
        found = unpack(trace.on_lines(partial(explained, sought=sought)))
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
