"""The report of ``verify`` from the results of the stages: numbers become names, places become message ids.

Files and DataFrames both end here, so that their reports can differ only in the numbers that the stages computed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from antecede.trace.quarantine import REASONS, SILENT_SHOWN, readable
from antecede.trace.schema import COLUMNS
from antecede.trace.verdicts import ORDERS

Ids = Callable[[Any, Any], list[str]]
"""Returns the ids of the messages sent at some places, which are given as processes and indices."""


def assemble_report(
    *,
    names: Sequence[str],
    orders: tuple[str, ...],
    said: dict[str, Any],
    unread: Mapping[str, int],
    unread_first: Mapping[str, str],
    nulled: Mapping[str, int],
    nulled_first: Mapping[str, str],
    aside: Mapping[str, int],
    rows: int,
    processes: int,
    silent: Sequence[str],
    missing: int,
    ids: Ids,
    known: Callable[[Any, Any], int],
    outside: int = 0,
) -> dict[str, Any]:
    """Return the report without version, engine and timings.

    ``unread`` counts the rows that are not events, ``nulled`` the values of a wrong type per column, ``aside`` the rows
    set aside because of their places, and ``rows`` all events except those ``outside`` the judged part. ``said`` is the
    summary of :func:`antecede.pipeline.judge.verdict.judged`. ``known`` returns how many of some deliveries have a send
    with known destinations: if such a delivery is on a cycle, its copy counts as undelivered.
    """
    cycle = len(said["cycle_process"])
    reasons = Counter(said["reasons"]) + Counter(aside)
    reasons["cycle"] += cycle
    set_aside = sum(reasons.values())
    reasons += Counter(unread)
    complete = not reasons
    reasons["index_gap"] = missing
    quarantined = {reason: reasons[reason] for reason in REASONS if reasons[reason]}
    read = rows + outside + sum(unread.values())
    deliveries = said["deliveries"] - cycle
    lost = known(said["cycle_process"], said["cycle_index"]) if cycle else 0
    return {
        "processes": processes,
        "silent": len(silent),
        "silent_first": list(silent[:SILENT_SHOWN]),
        "rows": read,
        "events": rows - set_aside,
        "messages": said["messages"],
        "deliveries": deliveries,
        "undelivered": said["undelivered"] + lost,
        "complete": complete,
        "quarantined": quarantined,
        "readable": readable(read, quarantined),
        "unread_first": {reason: unread_first[reason] for reason in REASONS if reason in unread_first},
        "nulled": {column: nulled[column] for column in COLUMNS if nulled.get(column)},
        "nulled_first": {column: nulled_first[column] for column in COLUMNS if column in nulled_first},
        "orders": _orders(orders, said, deliveries, names, ids),
        "clocks": said["clocks"],
        "lamport": said["lamport"],
    }


def _orders(
    asked: tuple[str, ...], said: dict[str, Any], deliveries: int, names: Sequence[str], ids: Ids
) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for order in ORDERS:
        if order not in asked:
            continue
        if order == "fifo":
            report[order] = {
                "holds": not said["fifo_late"],
                "late": said["fifo_late"],
                "undecided": said["fifo_undecided"],
            }
        elif order == "causal":
            first = next(late_rows(said["first"], names, ids)) if said["first"] else None
            report[order] = {
                "holds": not said["causal_late"],
                "late": said["causal_late"],
                "undecided": said["causal_undecided"],
                "first": first,
            }
        elif order == "total":
            cycle = _circle(said["cycle"], ids)
            agree = said["pairwise"] if deliveries else None
            report[order] = {"holds": cycle is None, "pairwise": agree, "cycle": cycle}
        else:
            crown = _circle(said["crown"], ids) if deliveries else None
            report[order] = {"holds": crown is None, "crown": crown}
        if not deliveries:
            report[order]["holds"] = None
    return report


def _circle(places: list[list[int]] | None, ids: Ids) -> list[str] | None:
    """Return the messages in a circle, beginning with the least id."""
    if places is None:
        return None
    found = ids(*places)
    least = found.index(min(found))
    return found[least:] + found[:least]


def late_rows(columns: dict[str, Any], names: Sequence[str], ids: Ids) -> Iterator[dict[str, Any]]:
    """Yield late deliveries with names and ids, in the form of the report's ``first``."""
    found = ids(
        np.concatenate([columns["source"], columns["over_process"]]),
        np.concatenate([columns["send_index"], columns["over_index"]]),
    )
    count = len(columns["process"])
    for k in range(count):
        yield {
            "message": found[k],
            "from": names[columns["source"][k]],
            "to": names[columns["process"][k]],
            "send_index": int(columns["send_index"][k]),
            "deliver_index": int(columns["index"][k]),
            "overtaken_by": found[count + k],
        }
