"""The work of ``verify``: it makes the whole report from a trace.

Other modules read a trace, set wrong rows aside and judge the rest. This module calls them and measures the time. On
request, it also writes two kinds of rows to files: the wrong rows and the late deliveries. The report has the same keys
in every engine.
"""

import gc
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from antecede import __version__
from antecede.errors import TraceError
from antecede.trace.clocks import check_clocks, check_lamport
from antecede.trace.conflicts import Conflicts, needed
from antecede.trace.epochs import Epochs, Tally, epochs_of
from antecede.trace.matched import Matched
from antecede.trace.quarantine import REASONS, counts, readable, sift
from antecede.trace.schema import COLUMNS, NEEDED_BY_INSTANCES, Event, Metadata
from antecede.trace.significant import judge_significant
from antecede.trace.sources import load
from antecede.trace.streaming import judge_large
from antecede.trace.verdicts import ORDERS, Late, Verdict, known_orders

Path_ = str | os.PathLike[str]


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pause Python's garbage collector. The code that runs during the pause makes millions of tuples, and none of them
    is in a cycle. Without the pause, the collector would examine all of them."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


@_without_collector()
def verify(
    paths: Sequence[Path_],
    orders: Sequence[str] = ("fifo", "causal"),
    quarantine: Path_ | None = None,
    late: Path_ | None = None,
    keep: Callable[[Event], bool] | None = None,
    conflicts: Conflicts | None = None,
    everywhere: bool = False,
) -> dict[str, Any]:
    """Judge the given traces, as one trace; return the report.

    ``quarantine`` and ``late`` are directories. If ``quarantine`` is given, all rows that were set aside are written to
    ``quarantine.jsonl`` in this directory. If ``late`` is given, all late deliveries are written to ``late.jsonl`` in
    this directory. ``keep``: a function that returns False for events to leave out. ``conflicts``: the table of
    conflicting operations, for significant order. If it is None, the table in the trace's metadata is used.

    The metadata may list epochs (periods with different topologies, see :mod:`antecede.trace.epochs`). Then a late
    delivery counts as a violation of FIFO or causal order only where the topology guaranteed this order. An order that
    no epoch guarantees is judged in the whole trace. If ``everywhere`` is true, epochs are ignored.
    """
    asked = known_orders(orders)
    started = time.perf_counter()
    orders = tuple(order for order in (*ORDERS, "significant") if order in asked)
    used = NEEDED_BY_INSTANCES if "significant" in orders else ()
    loaded = load(paths, quarantine is not None, keep, used)
    if "significant" in orders:
        conflicts = needed(conflicts, loaded.metadata)
    epochs = None if everywhere else epochs_of(loaded.metadata)
    sifted = sift(loaded.events, loaded.placed)
    verdict = judge_large(sifted.trace, orders, every_overtaker=late is not None or epochs is not None)
    if "significant" in orders and conflicts is not None:
        judged = judge_significant(sifted.trace, conflicts, every_overtaker=late is not None)
        verdict.significant, verdict.unlisted = judged.late, judged.unlisted
    if quarantine is not None:
        aside = (loaded.describe(number, reason) for number, reason in sorted(sifted.reasons.items()))
        _write_lines(quarantine, "quarantine.jsonl", map(msgspec.structs.asdict, chain(loaded.set_aside, aside)))
    if late is not None:
        _write_lines(late, "late.jsonl", _late_rows(verdict))
    tally = None if epochs is None else _by_epoch(verdict, sifted.trace, epochs)
    quarantined = counts(sifted, loaded.reasons)
    report = {
        "version": __version__,
        "engine": "plain",
        "processes": sifted.processes,
        "silent": sifted.silent,
        "silent_first": sifted.silent_first,
        "rows": loaded.rows,
        "events": sifted.events,
        "messages": len(sifted.trace.sends),
        "deliveries": verdict.deliveries,
        "undelivered": verdict.undelivered,
        "complete": not sifted.reasons and not loaded.reasons,
        "quarantined": quarantined,
        "readable": readable(loaded.rows, quarantined),
        "unread_first": {reason: loaded.unread_first[reason] for reason in REASONS if reason in loaded.unread_first},
        "nulled": {column: loaded.nulled.counts[column] for column in COLUMNS if loaded.nulled.counts[column]},
        "nulled_first": {column: loaded.nulled_first[column] for column in COLUMNS if column in loaded.nulled_first},
        "orders": verdict.as_json(),
        "clocks": check_clocks(sifted.trace),
        "lamport": check_lamport(sifted.trace),
    }
    if tally is not None:
        tally.complete(report)
    seconds = time.perf_counter() - started
    return report | {
        "session_seconds": 0.0,
        "seconds": round(seconds, 3),
        "events_per_second": round(sifted.events / seconds),
    }


def _by_epoch(verdict: Verdict, trace: Matched, epochs: Epochs) -> Tally:
    """Remove from the verdict those late deliveries for which the topology did not guarantee the order (FIFO or
    causal). If no epoch guarantees an order, keep all its late deliveries. Return the counts of all late deliveries, by
    epoch."""
    tally = Tally(epochs, verdict.orders)

    def broken(order: str, found: list[Late]) -> list[Late]:
        kept = []
        for one in found:
            over = trace.sent(one.overtaken_by)
            if tally.add(order, one.source, one.send_index, one.to, over.process, over.index):
                kept.append(one)
        return kept

    verdict.fifo, verdict.causal = broken("fifo", verdict.fifo), broken("causal", verdict.causal)
    return tally


def read_events(paths: Sequence[Path_]) -> tuple[list[Event], list[Metadata]]:
    """Return the rows of a trace that are events, in reading order, and its metadata.

    Rows that cannot be read as events are left out; :func:`verify` counts them.
    """
    loaded = load(paths)
    return loaded.events, loaded.metadata


def _late_rows(verdict: Verdict) -> Iterable[dict[str, Any]]:
    for order, deliveries in (("fifo", verdict.fifo), ("causal", verdict.causal), ("significant", verdict.significant)):
        for delivery in deliveries:
            yield {"order": order} | delivery.as_json()


def _write_lines(directory: Path_, name: str, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows to a file of JSON Lines. If an error occurs, the file is not created or changed."""
    target = Path(directory) / name
    temporary = target.with_name(f".{name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "w", encoding="utf-8") as out:
                for row in rows:
                    out.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise TraceError(f"{target}: cannot be written: {error.strerror}") from None
