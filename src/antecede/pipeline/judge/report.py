"""Make the report of ``verify`` from the results of the stages. Process numbers are replaced by names, and places
(process and index) by message ids.

Reports for files and reports for DataFrames are both made here. So the two can differ only in the numbers that the
stages computed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from antecede.pipeline.pieces import Counted, Judged, LatePlaces, Places
from antecede.trace.quarantine import REASONS, SILENT_SHOWN, readable
from antecede.trace.schema import COLUMNS
from antecede.trace.verdicts import ORDERS

Ids = Callable[[Any, Any], list[str]]
"""A function that gets the places of sends, as an array of processes and an array of indices, and returns the ids of
their messages."""


def assemble_report(
    *,
    names: Sequence[str],
    orders: tuple[str, ...],
    judged: Judged,
    counted: Counted,
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
    lost: int,
    outside: int = 0,
) -> dict[str, Any]:
    """Return the report without version, engine and timings.

    ``unread`` counts the rows that are not events. ``nulled`` counts, per column, the values of a wrong type. ``aside``
    counts, per reason, the rows that were set aside because another row has the same place. ``rows`` counts the events
    in the part of the trace that was judged, and ``outside`` counts all other events. ``lost`` counts the deliveries
    that lie on a cycle and belong to a send with known destinations. Each of them adds one to ``undelivered``.
    """
    cycle = len(judged.circular.process)
    reasons = Counter(counted.reasons) + Counter(aside)
    reasons["cycle"] += cycle
    set_aside = sum(reasons.values())
    reasons += Counter(unread)
    complete = not reasons
    reasons["index_gap"] = missing
    quarantined = {reason: reasons[reason] for reason in REASONS if reasons[reason]}
    read = rows + outside + sum(unread.values())
    deliveries = counted.deliveries - cycle
    return {
        "processes": processes,
        "silent": len(silent),
        "silent_first": list(silent[:SILENT_SHOWN]),
        "rows": read,
        "events": rows - set_aside,
        "messages": counted.messages,
        "deliveries": deliveries,
        "undelivered": counted.undelivered + lost,
        "complete": complete,
        "quarantined": quarantined,
        "readable": readable(read, quarantined),
        "unread_first": {reason: unread_first[reason] for reason in REASONS if reason in unread_first},
        "nulled": {column: nulled[column] for column in COLUMNS if nulled.get(column)},
        "nulled_first": {column: nulled_first[column] for column in COLUMNS if column in nulled_first},
        "orders": _orders(orders, judged, deliveries, names, ids),
        "clocks": msgspec.structs.asdict(judged.clocks),
        "lamport": msgspec.structs.asdict(judged.lamport),
    }


def _orders(asked: tuple[str, ...], judged: Judged, deliveries: int, names: Sequence[str], ids: Ids) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for order in ORDERS:
        if order not in asked:
            continue
        if order == "fifo":
            report[order] = {
                "holds": not judged.fifo_late,
                "late": judged.fifo_late,
                "undecided": judged.fifo_undecided,
            }
        elif order == "causal":
            first = next(late_rows(judged.first, names, ids)) if judged.first is not None else None
            report[order] = {
                "holds": not judged.causal_late,
                "late": judged.causal_late,
                "undecided": judged.causal_undecided,
                "first": first,
            }
        elif order == "total":
            cycle = _circle(judged.cycle, ids)
            agree = judged.pairwise if deliveries else None
            report[order] = {"holds": cycle is None, "pairwise": agree, "cycle": cycle}
        else:
            crown = _circle(judged.crown, ids) if deliveries else None
            report[order] = {"holds": crown is None, "crown": crown}
        if not deliveries:
            report[order]["holds"] = None
    return report


def _circle(places: Places | None, ids: Ids) -> list[str] | None:
    """Return the ids of the messages on a cycle, in the order of the cycle, beginning with the smallest id."""
    if places is None:
        return None
    found = ids(places.process, places.index)
    least = found.index(min(found))
    return found[least:] + found[:least]


def late_rows(late: LatePlaces, names: Sequence[str], ids: Ids) -> Iterator[dict[str, Any]]:
    """Yield each late delivery as a dictionary with the same keys as ``first`` in the report. Processes are given by
    their names, and messages by their ids."""
    found = ids(np.concatenate([late.source, late.over_process]), np.concatenate([late.send_index, late.over_index]))
    count = len(late.process)
    for k in range(count):
        yield {
            "message": found[k],
            "from": names[late.source[k]],
            "to": names[late.process[k]],
            "send_index": int(late.send_index[k]),
            "deliver_index": int(late.index[k]),
            "overtaken_by": found[count + k],
        }
