"""The report of ``verify`` from what the stages said: numbers become names, places become message ids.

Both paths on Spark end here, so that they differ in how they came to their numbers and in nothing else.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from antecede.trace.quarantine import REASONS, SILENT_SHOWN, readable
from antecede.trace.schema import COLUMNS
from antecede.trace.verdicts import ORDERS

Ids = Callable[[Any, Any], list[str]]
"""The ids of the messages sent at places, given as processes and indices."""


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
    """Everything but version, engine and timings.

    ``unread`` counts rows that are no events, ``nulled`` values of a wrong type by column, ``aside`` those set aside
    for their places, ``rows`` all events but those ``outside`` of what is judged; ``said`` is the summary of
    :func:`antecede.pipeline.judge.verdict.judged`. ``known`` tells how many of some deliveries have sends that name
    their destinations: one on a cycle leaves its copy undelivered then.
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
    """The messages in a circle, beginning with the least id."""
    if places is None:
        return None
    found = ids(*places)
    least = found.index(min(found))
    return found[least:] + found[:least]


def late_rows(columns: dict[str, Any], names: Sequence[str], ids: Ids) -> Iterator[dict[str, Any]]:
    """Late deliveries with names and ids, as ``first`` has them."""
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
