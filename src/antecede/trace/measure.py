"""``measure``: the cost of order in a recorded trace, as a report and as tables.

Each figure is defined where it is computed, in :mod:`antecede.trace.costs`. This module combines the figures into the
report that every engine returns. Sums stay whole numbers until the last division, so that two engines agree exactly.
"""

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from antecede import __version__
from antecede.trace import costs
from antecede.trace.conflicts import Conflicts, conflicts_of
from antecede.trace.costs import Pair, Span
from antecede.trace.orderings import orderings
from antecede.trace.quarantine import counts, sift
from antecede.trace.schema import HOP
from antecede.trace.sources import load
from antecede.trace.tables import Tables, write_tables


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
