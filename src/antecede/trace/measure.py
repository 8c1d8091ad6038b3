"""``measure``: the cost of order in a recorded trace, as a report and as tables.

Each figure is defined where it is computed, in :mod:`antecede.trace.costs`. This module combines the figures into the
report that every engine returns. Sums stay whole numbers until the last division, so that two engines agree exactly.
"""

import os
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from antecede import __version__
from antecede.errors import TraceError, UsageError
from antecede.trace import costs
from antecede.trace.conflicts import Conflicts, conflicts_of
from antecede.trace.costs import Pair, Span, drawn
from antecede.trace.matched import Matched
from antecede.trace.quarantine import counts, sift
from antecede.trace.schema import DELIVER, HOP, INT64_MAX, INT64_MIN, SEND
from antecede.trace.significant import NO_CELL, REQUEST, Cells, Instances, Significance
from antecede.trace.sources import load


class Received(msgspec.Struct, frozen=True, gc=False):
    """A delivery of a message for which orderings are counted. ``number`` is the number of the message. The other
    fields are set if they are known: the instance that received the message, the cell of this instance, and the role
    of the delivery (request or response)."""

    number: int
    instance: str | None = None
    cell: int = NO_CELL
    received_as: str | None = None


def orderings(trace: Matched, conflicts: Conflicts) -> dict[str, Any] | None:
    """Return the value of the report's key ``significance``. If no delivery names the instance that received it, return
    ``None``.

    Count the orderings that causal order enforces, but significant order does not need.

    An *ordering* is a pair of messages m, m′ and a process that delivered both. Causal order enforces the ordering "m
    before m′" if the send of m happened before the send of m′, and in no other case. Significant order needs this
    ordering if m significantly precedes m′ and rule 1 of :mod:`antecede.trace.significant` requires m first. Rule 2 is
    ignored here, because it does not say which of the two messages must come first. Causal order also enforces every
    ordering that significant order needs (Enokido, Higaki, Takizawa §3.2, proposition). It enforces all other orderings
    without need.

    This module uses the same messages as :func:`antecede.trace.costs.concurrency`: all messages or, if there are too
    many, a sample. Sets of messages are bit masks. The deliveries at an object are grouped by instance (one execution
    of an operation) and by cell. A cell is a group of instances with the same conflicts
    (:mod:`antecede.trace.significant`). So the union of a few masks gives all messages that rule 1 compares with a
    given message.
    """
    instances = Instances(trace)
    if not instances.judged:
        return None
    cells = Cells(instances, conflicts)
    sends = sorted(trace.sends, key=trace.sends.__getitem__)
    compared = {sends[rank] for rank in drawn(len(sends))}
    numbers, causal, significant = _pasts(cells, compared)
    total = needed = 0
    for process, line in enumerate(trace.lines):
        received = []
        for position, event in enumerate(line):
            if event.kind == DELIVER and event.message in numbers:
                instance = instances.of(process, event)
                received.append(
                    Received(
                        numbers[event.message],
                        instance.name if instance else None,
                        cells.of(instance),
                        instances.received_as(process, position, event),
                    )
                )
        counted = counted_at(received, causal, significant, cells.rivals, cells.request_rivals)
        total, needed = total + counted[0], needed + counted[1]
    return figures(len(compared), total, needed)


def figures(messages: int, causal: int, significant: int) -> dict[str, Any]:
    """Return the value of the report's key ``significance``. ``messages``: the number of messages that were compared.
    ``causal``: the number of orderings that causal order enforces. ``significant``: the number of orderings that
    significant order needs."""
    return {"messages": messages, "causal": causal, "significant": significant, "spared": causal - significant}


def _pasts(cells: Cells, compared: Collection[str]) -> tuple[dict[str, int], list[int], list[int]]:
    """Give a number to each delivered message in ``compared``. Return a table with the number of each of these
    messages, and two lists. Both lists contain one set of messages for each numbered message m. The set in the
    first list contains the messages whose sends happened before the send of m. The set in the second list contains the
    messages that significantly precede m. All sets contain only numbered messages."""
    causal: dict[str, int] = {}
    significant: dict[str, int] = {}
    known = [0] * len(cells.trace.lines)
    carried: dict[str, int] = {}
    walk = Significance(cells, compared, squeeze=False)
    for process, position, event in cells.trace.in_causal_order():
        message = event.message or ""
        arrived = walk.take(process, position, event)
        if event.kind == SEND:
            if message in walk.bits:
                causal[message] = known[process]
                known[process] |= walk.bits[message]
            carried[message] = known[process]
        elif event.kind == DELIVER:
            known[process] |= carried[message]
            if arrived is not None and arrived.bit:
                significant[message] = arrived.carried & ~arrived.bit
    # The walk gives bits in the order in which it reaches the messages.
    numbers = {message: number for number, message in enumerate(walk.bits)}
    return numbers, [causal[message] for message in numbers], [significant.get(message, 0) for message in numbers]


def counted_at(
    received: Sequence[Received],
    causal: Sequence[int],
    significant: Sequence[int],
    rivals: Sequence[Collection[int]],
    request_rivals: Sequence[Collection[int]],
) -> tuple[int, int]:
    """Count the orderings (pairs of deliveries in a fixed sequence) at one object. Return the number that causal order
    enforces, and the number that significant order needs. ``received``: the deliveries at the object, in sequence.
    ``causal`` and ``significant``: the two lists that ``_pasts`` returns. ``rivals`` and ``request_rivals``: see
    :class:`antecede.trace.significant.Cells`."""
    here = 0
    requests: dict[int, int] = {}
    responses: dict[int, int] = {}
    by_instance: dict[str, int] = {}
    for one in received:
        here |= 1 << one.number
        if one.instance is None or one.received_as is None:
            continue
        by_instance[one.instance] = by_instance.get(one.instance, 0) | 1 << one.number
        if one.cell != NO_CELL:
            kind = requests if one.received_as == REQUEST else responses
            kind[one.cell] = kind.get(one.cell, 0) | 1 << one.number
    total = needed = 0
    for one in received:
        total += (causal[one.number] & here & ~(1 << one.number)).bit_count()
        if one.instance is None or one.received_as is None:
            continue
        wanted = by_instance.get(one.instance, 0)
        if one.received_as == REQUEST and one.cell != NO_CELL:
            for rival in rivals[one.cell]:
                wanted |= responses.get(rival, 0)
            for rival in request_rivals[one.cell]:
                wanted |= requests.get(rival, 0)
        needed += (significant[one.number] & wanted & ~(1 << one.number)).bit_count()
    return total, needed


Tables = dict[str, list[dict[str, Any]]]

COLUMNS: dict[str, dict[str, str]] = {
    "traffic": {"from": "string", "to": "string", "messages": "int64", "bytes": "int64"},
    "delay": {
        "from": "string",
        "to": "string",
        "deliveries": "int64",
        "negative": "int64",
        "mean": "float64",
        "p50": "float64",
        "p99": "float64",
        "min": "float64",
        "max": "float64",
    },
    "rates": {"process": "string", "second": "int64", "messages": "int64"},
    "held": {"process": "string", "arrivals": "int64", "held": "int64"},
    "hops": {"router": "string", "domain": "string", "hop": "int64", "messages": "int64", "stamp_bytes": "int64"},
}
"""Every table's columns and their types."""


def write_tables(directory: str | os.PathLike[str], tables: Tables) -> None:
    """Write tables of measured values (traffic, delays, rates, …) into a directory: one file ``NAME.parquet`` per
    table.

    Each row is one observation. The columns of a table are always the same. For a table without data, a file without
    rows is written. Each file is written completely or not at all.
    """
    try:
        pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError("Parquet needs pyarrow: install antecede[spark]") from None
    target = Path(directory)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, rows in tables.items():
            schema = pa.schema([(column, getattr(pa, kind)()) for column, kind in COLUMNS[name].items()])
            temporary = target / f".{name}.parquet.{os.getpid()}.part"
            try:
                pq.write_table(pa.Table.from_pylist(list(map(_fitting, rows)), schema=schema), temporary)
                os.replace(temporary, target / f"{name}.parquet")
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise TraceError(f"{target}: cannot be written: {error.strerror or error}") from None


def _fitting(row: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a row, in which each integer that needs more than 64 bits is replaced by ``None``. Such an
    integer is a sum of sizes. It can be so large only if the trace contains wrong sizes."""
    return {
        name: None if type(value) is int and not INT64_MIN <= value <= INT64_MAX else value
        for name, value in row.items()
    }


def measure(
    paths: Sequence[str | os.PathLike[str]],
    tables: str | os.PathLike[str] | None = None,
    conflicts: Conflicts | None = None,
) -> dict[str, Any]:
    """Measure the cost of order in the given traces, which are read as one trace. Return the report.

    If ``tables`` is given, tables in Parquet are written to this directory. ``conflicts`` replaces the table of
    conflicting operations in the trace's metadata.
    """
    started = time.perf_counter()
    loaded = load(paths)
    sifted = sift(loaded.events, loaded.placed)
    trace = sifted.trace
    hops = [event for number, event in enumerate(loaded.events) if event.kind == HOP and number not in sifted.reasons]
    implied = costs.destinations(trace)
    traffic = costs.traffic(trace, implied)
    stamps = costs.stamps(trace, hops, implied)
    delays = costs.delays(trace)
    held = costs.held(trace, hops)
    hops_mean, hops_max = costs.hop_figures(trace, hops, implied)
    concurrency, compared = costs.concurrency(trace)
    span = costs.span(trace)
    table = conflicts if conflicts is not None else conflicts_of(loaded.metadata)
    by_second = costs.sends_by_second(trace, span.first) if span else {}
    if tables is not None:
        write_tables(tables, tidy(traffic, delays, by_second, held, costs.hop_table(hops)))
    return {
        "version": __version__,
        "engine": "plain",
        "processes": sifted.processes,
        "events": sifted.events,
        "messages": len(trace.sends),
        "deliveries": trace.deliveries,
        "traffic": traffic_rows(traffic),
        "stamp": stamp_figures(stamps),
        "delay": delay_summary(sorted(chain.from_iterable(delays.values()))),
        **held_figures(held),
        "hops": {"mean": hops_mean, "max": hops_max},
        "concurrency": concurrency,
        "concurrency_messages": compared,
        "significance": orderings(trace, table) if table is not None else None,
        "rates": rates(span, by_second),
        "complete": not sifted.reasons and not loaded.reasons,
        "quarantined": counts(sifted, loaded.reasons),
        "session_seconds": 0.0,
        "seconds": round(time.perf_counter() - started, 3),
    }


def traffic_rows(traffic: Mapping[Pair, tuple[int, int | None]]) -> list[dict[str, Any]]:
    """Return the value of the report's key ``traffic``, sorted by sender and receiver."""
    return [
        {"from": pair[0], "to": pair[1], "messages": messages, "bytes": size}
        for pair, (messages, size) in sorted(traffic.items())
    ]


def stamp_figures(stamps: costs.Stamps) -> dict[str, Any]:
    """Return the value of the report's key ``stamp``."""
    if not stamps.copies:
        return {"bytes_mean": None, "bytes_max": None, "copies": None}
    return {"bytes_mean": stamps.bytes / stamps.copies, "bytes_max": stamps.most, "copies": stamps.copies}


def delay_summary(ascending: Sequence[int]) -> dict[str, Any]:
    """Return a summary of delays. The given delays are sorted and in nanoseconds; the summary is in seconds."""
    if not ascending:
        return dict.fromkeys(("unit", "mean", "p50", "p99", "min", "max", "deliveries", "negative"))
    return {
        "unit": "s",
        "mean": seconds(sum(ascending) / len(ascending)),
        "p50": seconds(costs.quantile(ascending, 50)),
        "p99": seconds(costs.quantile(ascending, 99)),
        "min": seconds(ascending[0]),
        "max": seconds(ascending[-1]),
        "deliveries": len(ascending),
        "negative": sum(delay < 0 for delay in ascending),
    }


def seconds(nanoseconds: float) -> float:
    """Convert nanoseconds to seconds, the unit of the report."""
    return nanoseconds / 1e9


def held_figures(held: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """Return the report's keys ``held`` and ``arrivals``: the share of the arrivals that were held (not delivered at
    once), and the number of arrivals."""
    arrivals = sum(one[0] for one in held.values())
    if not arrivals:
        return {"held": None, "arrivals": None}
    return {"held": sum(one[1] for one in held.values()) / arrivals, "arrivals": arrivals}


def rates(span: Span | None, by_second: Mapping[str, Mapping[int, int]]) -> dict[str, Any] | None:
    """Return the value of the report's key ``rates``: the number of messages sent, the mean number per second, and the
    number in the busiest second. These numbers are given for all processes together and for each process. Only sends
    with a time are counted. If no send has a time, return None."""
    if span is None or not by_second:
        return None
    length = seconds(span.last - span.first)
    together: Counter[int] = Counter()
    processes = []
    for process, own in sorted(by_second.items()):
        together.update(own)
        processes.append({"process": process, **_rate(own, length)})
    return {"seconds": length, **_rate(together, length), "processes": processes}


def _rate(by_second: Mapping[int, int], length: float) -> dict[str, Any]:
    messages = sum(by_second.values())
    return {"messages": messages, "mean": messages / length if length else None, "peak": max(by_second.values())}


def tidy(
    traffic: Mapping[Pair, tuple[int, int | None]],
    delays: Mapping[Pair, Sequence[int]],
    by_second: Mapping[str, Mapping[int, int]],
    held: Mapping[str, tuple[int, int]],
    hops: list[dict[str, Any]],
) -> Tables:
    """Return all tables by name. Each row of a table is one observation."""
    delay_rows = []
    for (source, to), values in sorted(delays.items()):
        summary = delay_summary(sorted(values))
        del summary["unit"]
        delay_rows.append({"from": source, "to": to, **summary})
    return {
        "traffic": traffic_rows(traffic),
        "delay": delay_rows,
        "rates": rate_rows(by_second),
        "held": held_rows(held),
        "hops": hops,
    }


def rate_rows(by_second: Mapping[str, Mapping[int, int]]) -> list[dict[str, Any]]:
    """Return the table ``rates``: how many messages each process sent in each second."""
    return [
        {"process": process, "second": second, "messages": count}
        for process, own in sorted(by_second.items())
        for second, count in sorted(own.items())
    ]


def held_rows(held: Mapping[str, tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the table ``held``: for each process, the number of arrivals, and how many of them were held (not
    delivered at once)."""
    return [
        {"process": process, "arrivals": arrivals, "held": kept} for process, (arrivals, kept) in sorted(held.items())
    ]
