"""``measure`` on Spark: each task computes sums over its rows, and this module combines the sums of all tasks.

The report and the tables have the same keys as those of :mod:`antecede.trace.measure`.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from antecede import __version__
from antecede.pipeline.judge.files import Given, flow_of, open_trace, spark_for
from antecede.pipeline.judge.trace import Trace, layout_for, verdict_on
from antecede.pipeline.measuring.costs import LINES, PARTS, SENDERS, SUMMARY, Excluded, contested_hops, measured
from antecede.pipeline.measuring.orderings import orderings_on
from antecede.pipeline.measuring.sums import by_sender, inside, interval, on_lines
from antecede.pipeline.packing import unpack
from antecede.pipeline.sessions import Session
from antecede.trace.conflicts import Conflicts, conflicts_of
from antecede.trace.costs import Pair, Span, Stamps
from antecede.trace.measure import (
    Tables,
    held_figures,
    held_rows,
    rate_rows,
    rates,
    seconds,
    stamp_figures,
    traffic_rows,
    write_tables,
)

ReportStatus = Callable[[str], None]


def measure_files(
    paths: Sequence[str | os.PathLike[str]],
    tables: str | os.PathLike[str] | None = None,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    conflicts: Conflicts | None = None,
    report_status: ReportStatus = lambda _: None,
) -> dict[str, Any]:
    """Measure the traces at these paths together, as one trace, on a new Spark session. Return the report."""
    with spark_for(paths, master, conf, report_status) as (running, given):
        return measure_in(running, given, tables, conflicts, report_status)


def measure_in(
    running: Session,
    given: Given,
    tables: str | os.PathLike[str] | None = None,
    conflicts: Conflicts | None = None,
    report_status: ReportStatus = lambda _: None,
) -> dict[str, Any]:
    """Measure a trace in a running session. Return the report."""
    started = time.perf_counter()
    trace = open_trace(running, given, report_status, figures=True, numbered=True)
    report_status(f"measuring {trace.rows:,} rows")
    table = conflicts if conflicts is not None else conflicts_of(trace.given.metadata)
    report, tidy = measured_on(trace)
    if table is not None:
        # The trace is read again with other columns; few traces have a table of conflicts.
        layout = layout_for(trace.given, instances=True)
        scratch = str(running.scratch) if running.local else None
        report["significance"] = orderings_on(Trace(flow_of(running), trace.given, layout, scratch), table)
    if tables is not None:
        report_status("writing tables")
        write_tables(tables, tidy)
    return {
        **report,
        "session_seconds": round(running.seconds, 3),
        "seconds": round(time.perf_counter() - started, 3),
    }


def measured_on(trace: Trace) -> tuple[dict[str, Any], Tables]:
    """Return the report and the tables. The report does not have its timings yet. The layout of the trace must have
    ``figures=True`` and ``numbered=True``."""
    verdict = verdict_on(trace, ())
    counted = verdict.report
    excluded = _excluded(trace, tuple(verdict.circular))
    parts = trace.from_buckets(partial(measured, numbering=trace.numbering, excluded=excluded), SENDERS + PARTS)
    summary = _summary([unpack(blob) for blob in msgspec.msgpack.decode(parts.gather(_joined, [SUMMARY])[0])])
    senders = range(SENDERS, SENDERS + PARTS)
    sums = [unpack(blob) for blob in parts.gather(partial(by_sender, first=summary["first"]), senders)]
    lines = unpack(parts.gather(partial(on_lines, task=trace.task(())), [LINES])[0])
    traffic = _traffic(trace.names, sums)
    delays = _delay_rows(trace.names, sums)
    bounds = _bounds(sums)
    found = [unpack(blob) for blob in parts.gather(partial(inside, bounds=bounds), senders)] if bounds else []
    delay = _delay_figures(sums, found)
    by_second = _by_second(trace.names, sums)
    held = {
        trace.names[process]: (int(count), int(count - summary["direct"][process] - lines["direct"][process]))
        for process, count in enumerate(summary["arrivals"])
        if count
    }
    pairs = lines["compared"] * (lines["compared"] - 1) // 2
    span = Span(summary["first"], summary["last"]) if summary["first"] is not None else None
    report = {
        "version": __version__,
        "engine": "spark",
        "processes": counted["processes"],
        "events": counted["events"],
        "messages": counted["messages"],
        "deliveries": counted["deliveries"],
        "traffic": traffic_rows(traffic),
        "stamp": stamp_figures(Stamps(summary["copies"], summary["bytes"], summary["most"])),
        "delay": delay,
        **held_figures(held),
        "hops": {
            "mean": summary["packets"] / summary["all_copies"] if summary["passed"] and summary["all_copies"] else None,
            "max": summary["behind"] + 1 if summary["behind"] is not None else None,
        },
        "concurrency": 1 - lines["ordered"] / pairs if pairs else None,
        "concurrency_messages": lines["compared"],
        "significance": None,
        "rates": rates(span, by_second),
        "complete": counted["complete"],
        "quarantined": counted["quarantined"],
    }
    tables = {
        "traffic": report["traffic"],
        "delay": delays,
        "rates": rate_rows(by_second),
        "held": held_rows(held),
        "hops": _hop_rows(trace.names, summary["hop_table"]),
    }
    return report, tables


def _joined(blobs: Any) -> bytes:
    return msgspec.msgpack.encode(list(blobs))


def _excluded(trace: Trace, circular: tuple[tuple[int, int], ...]) -> Excluded:
    """Return two kinds of valid rows that need special treatment. Deliveries that are part of a cycle are not measured.
    If several ``hop`` rows have the same process and index, only one of them is measured, or none if they differ.
    ``circular`` has the deliveries that are part of a cycle, each as (split, number of the row)."""
    numbers = {name: number for number, name in enumerate(trace.names)}
    runs = tuple(
        (numbers[place.name], first, end - 1)
        for place in trace.places
        if place.hop and place.name in numbers
        for first, end in place.contested
    )
    excluded = Excluded(circular, runs)
    if not runs:
        return excluded
    claims: dict[tuple[int, int], set[tuple[Any, ...]]] = {}
    for packed in trace.on_buckets(partial(contested_hops, numbering=trace.numbering, excluded=excluded)):
        for process, index, *values in msgspec.msgpack.decode(packed):
            claims.setdefault((process, index), set()).add(tuple(values))
    torn = tuple(sorted(place for place, claimed in claims.items() if len(claimed) > 1))
    return msgspec.structs.replace(excluded, torn=torn)


def _summary(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine the summaries of all buckets into one summary. Add up the counts, and join the tables of hops. ``first``
    is the smallest value of all buckets. ``last``, ``most`` and ``behind`` are the largest values."""
    found: dict[str, Any] = {
        name: sum(int(one[name]) for one in summaries)
        for name in ("copies", "bytes", "all_copies", "packets", "passed")
    }
    found |= {name: sum((one[name] for one in summaries), np.zeros(1, np.int64)) for name in ("arrivals", "direct")}
    found["most"] = max(one["most"] for one in summaries)
    for name, choose in (("first", min), ("last", max), ("behind", max)):
        known = [one[name] for one in summaries if one[name] is not None]
        found[name] = choose(known) if known else None
    found["hop_table"] = [row for one in summaries for row in one["hop_table"]]
    return found


def _traffic(names: Sequence[str], sums: list[dict[str, Any]]) -> dict[Pair, tuple[int, int | None]]:
    traffic = {}
    for one in sums:
        for source, to, messages, weighed, size in zip(
            one["from"].tolist(),
            one["to"].tolist(),
            one["messages"].tolist(),
            one["weighed"],
            one["bytes"],
            strict=True,
        ):
            traffic[names[source], names[to]] = messages, int(size) if weighed == messages else None
    return traffic


def _by_second(names: Sequence[str], sums: list[dict[str, Any]]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for one in sums:
        for process, second, sent in zip(
            one["process"].tolist(), one["second"].tolist(), one["sent"].tolist(), strict=True
        ):
            found.setdefault(names[process], {})[second] = sent
    return found


def _delay_rows(names: Sequence[str], sums: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for one in sums:
        columns = [
            one[f"d_{name}"].tolist() for name in ("from", "to", "count", "negative", "p50", "p99", "min", "max")
        ]
        for total, source, to, count, negative, p50, p99, least, most in zip(one["d_sum"], *columns, strict=True):
            rows.append(
                {
                    "from": names[source],
                    "to": names[to],
                    "mean": seconds(int(total) / count),
                    "p50": seconds(p50),
                    "p99": seconds(p99),
                    "min": seconds(least),
                    "max": seconds(most),
                    "deliveries": count,
                    "negative": negative,
                }
            )
    return sorted(rows, key=lambda row: (row["from"], row["to"]))


def _ranks(sums: list[dict[str, Any]]) -> tuple[int, list[int]]:
    """Return the number of delays, and the ranks (from 0) of the median and of the 99 % quantile of the delays."""
    count = sum(int(one["d_count"].sum()) for one in sums)
    return count, [max(0, -(-count * percent // 100) - 1) for percent in (50, 99)]


def _bounds(sums: list[dict[str, Any]]) -> list[tuple[int, int]]:
    count, ranks = _ranks(sums)
    samples = [(int(one["d_count"].sum()), one["ranks"], one["values"]) for one in sums]
    return [interval(samples, rank) for rank in ranks] if count else []


def _delay_figures(sums: list[dict[str, Any]], found: list[dict[str, Any]]) -> dict[str, Any]:
    count, ranks = _ranks(sums)
    if not count:
        return dict.fromkeys(("unit", "mean", "p50", "p99", "min", "max", "deliveries", "negative"))
    quantiles = []
    for number, rank in enumerate(ranks):
        below = sum(one[f"below{number}"] for one in found)
        values = np.sort(np.concatenate([one[f"values{number}"] for one in found]))
        quantiles.append(int(values[rank - below]))
    return {
        "unit": "s",
        "mean": seconds(sum(int(one) for part in sums for one in part["d_sum"]) / count),
        "p50": seconds(quantiles[0]),
        "p99": seconds(quantiles[1]),
        "min": seconds(min(int(one["d_min"].min()) for one in sums if len(one["d_min"]))),
        "max": seconds(max(int(one["d_max"].max()) for one in sums if len(one["d_max"]))),
        "deliveries": count,
        "negative": sum(int(one["d_negative"].sum()) for one in sums),
    }


def _hop_rows(names: Sequence[str], table: list[list[Any]]) -> list[dict[str, Any]]:
    merged: dict[tuple[str, str | None, int | None], list[int]] = {}
    for router, domain, hop, *counts in table:
        sums = merged.setdefault((names[router], domain, hop), [0, 0, 0])
        for k, count in enumerate(counts):
            sums[k] += int(count)
    return [
        {
            "router": router,
            "domain": domain,
            "hop": hop,
            "messages": messages,
            "stamp_bytes": size if stamped == messages else None,
        }
        for (router, domain, hop), (messages, stamped, size) in sorted(merged.items(), key=lambda item: str(item[0]))
    ]
