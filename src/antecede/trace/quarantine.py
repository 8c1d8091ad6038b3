"""Find the rows of a trace that are certainly wrong, with the reason.

Wrong rows are *set aside*: no verdict uses them. The connections between a wrong send or delivery and the other rows of
its message are removed. So happened-before has fewer pairs of events. Therefore every violation that is still found is
real. Other violations may be missed, so ``holds`` may be true by mistake. Significant order is different: if a row that
was set aside has the only information about an instance, a violation of significant order may be false.

The reasons are tested one after the other. Each test examines only the rows that no earlier test has set aside, so a
row has only one reason. The first four (``unreadable_line``, ``missing_field``, ``wrong_type``, ``unknown_kind``) are
found while reading, row by row. Then:

====================== ==============================================================================================
``duplicate_row``      the same row again: all but the first one. Texts for people and unknown columns are not
                       compared.
``duplicate_index``    different rows with the same process and index: all of them. Each of them may be the true one.
``duplicate_send``     an id that is sent more than once: all its sends and all its deliveries. Its arrivals then have
                       no send, and get the reason ``orphan_arrival``.
``duplicate_delivery`` an id that is delivered more than once in one process: all these deliveries, except the
                       delivery with the smallest index.
``orphan_delivery``    a delivery for which no valid send of the same id exists (it is missing or set aside).
``orphan_arrival``     an ``arrive`` row for which no valid send of the same id exists.
``not_addressed``      a delivery in a process that its send does not name. (An *arrival* there is allowed: messages
                       may pass through coordinators and routers on their way.)
``before_send``        a delivery of a message from a process to itself, at a smaller index than its send.
``cycle``              a delivery that, according to the trace, happened before its own send
                       (:func:`circular_deliveries`).
====================== ==============================================================================================

The last reason, ``index_gap``, is different: it sets no row aside, but counts the missing indices of all processes. An
index is missing if it is smaller than the largest index of its process, and no row has this index. If the process and
the index of a row are known, this index is not missing, even if the row was set aside.

Rows of kind ``hop`` belong to a server. A process may have the same name as the server, but its indices are separate.
Only these reasons apply to ``hop`` rows: the first four, and ``duplicate_row``, ``duplicate_index`` and ``index_gap``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from antecede import limits
from antecede.errors import TraceError
from antecede.trace.files import content
from antecede.trace.matched import Matched, match
from antecede.trace.schema import ARRIVE, DELIVER, HOP, SEND, Event, Fault


def circular_deliveries(trace: Matched) -> list[Event]:
    """Return the deliveries that, according to the trace, happened before the send of their own message. The events of
    such a trace cannot have happened as they were recorded.

    An example: p delivers message b before it sends a, and q delivers a before it sends b. According to this trace,
    each of these four events happened before itself.

    The events form a graph with two kinds of edges: from each event to the next event of its process, and from each
    send to its deliveries. A delivery is *on a cycle with its send* if a path leads from the delivery back to the send.
    In other words: the delivery and the send are in one strongly connected component. For all such deliveries, the edge
    from the send to the delivery is removed. The rest of the graph has no cycle. The reason: a cycle would lie inside
    one component, but only the edges along processes remain there, and these form no cycle. So the rest is a partial
    order.

    A process may send a message to itself between two events of a larger cycle. The edge of this message is removed,
    too, because according to the trace its delivery also happened before its send.

    The components are found by Tarjan's algorithm. It is written as a loop, because a recursion would be too deep for a
    long path in a trace.
    """
    events: list[Event] = []
    following: list[list[int]] = []
    node_of_send: dict[str, int] = {}
    for line in trace.lines:
        first = len(events)
        for event in line:
            if event.kind in (SEND, DELIVER):
                if event.kind == SEND:
                    node_of_send[event.message or ""] = len(events)
                following.append([])
                if len(events) > first:
                    following[len(events) - 1].append(len(events))
                events.append(event)
    for node, event in enumerate(events):
        if event.kind == DELIVER:
            following[node_of_send[event.message or ""]].append(node)
    component = _components(following)
    return [
        event
        for node, event in enumerate(events)
        if event.kind == DELIVER and component[node] == component[node_of_send[event.message or ""]]
    ]


def _components(following: list[list[int]]) -> list[int]:
    """Return a number for each node. Two nodes have the same number iff each can be reached from the other.
    ``following`` contains, for each node, the nodes to which its edges lead."""
    unseen = -1
    number = [unseen] * len(following)
    lowest = [0] * len(following)
    component = [unseen] * len(following)
    open_nodes: list[int] = []
    count = 0
    for root in range(len(following)):
        if number[root] != unseen:
            continue
        path = [(root, 0)]
        while path:
            node, edge = path.pop()
            if edge == 0:
                number[node] = lowest[node] = count
                count += 1
                open_nodes.append(node)
            else:
                lowest[node] = min(lowest[node], lowest[following[node][edge - 1]])
            while edge < len(following[node]):
                target = following[node][edge]
                edge += 1
                if number[target] == unseen:
                    path.append((node, edge))
                    path.append((target, 0))
                    break
                if component[target] == unseen:
                    lowest[node] = min(lowest[node], number[target])
            else:
                if lowest[node] == number[node]:
                    while True:
                        member = open_nodes.pop()
                        component[member] = node
                        if member == node:
                            break
    return component


REASONS = (
    "unreadable_line",
    "missing_field",
    "wrong_type",
    "unknown_kind",
    "duplicate_row",
    "duplicate_index",
    "duplicate_send",
    "duplicate_delivery",
    "orphan_delivery",
    "orphan_arrival",
    "not_addressed",
    "before_send",
    "cycle",
    "index_gap",
)
"""The reasons, in the order in which they are tested and reported."""

DELIVERIES = ("duplicate_delivery", "orphan_delivery", "not_addressed", "before_send", "cycle")
"""The reasons that only deliveries can have."""

SILENT_SHOWN = 5
"""The largest number of silent names (names that occur only as a destination) that a report lists."""

UNREAD = REASONS[:4]
"""The reasons why a row cannot be read as an event. To find them, only the row itself is examined."""


class Sifted(msgspec.Struct):
    """The result of :func:`sift`: the rows that were not set aside, the reasons for the other rows, and some counts."""

    reasons: dict[int, str]
    """The reason for each event that was set aside. The key is the position of the event in the list given to
    :func:`sift`."""
    trace: Matched
    """The remaining events."""
    events: int
    """The number of valid rows of any kind."""
    processes: int
    """The number of processes. A name is a process if it has at least one row, valid or not, of a kind other than
    ``hop``."""
    silent: int
    """The number of names that occur only as a destination."""
    missing: int
    """The number of missing indices of all processes, reported as ``index_gap``."""
    silent_first: list[str]
    """The names that occur only as a destination, in alphabetical order, but at most ``SILENT_SHOWN`` names."""


def sift(events: list[Event], placed: Iterable[Fault] = ()) -> Sifted:
    """Set aside rows that are certainly wrong. ``placed``: rows that cannot be read as events, although their process
    and index are known. The indices of these rows are not counted as missing."""
    reasons: dict[int, str] = {}
    places = _places(events, reasons)
    for fault in placed:
        assert fault.process is not None
        assert fault.index is not None
        places.setdefault((fault.hop, fault.process), {}).setdefault(fault.index, -1)
    _test_messages(events, reasons)
    trace = _without_cycles(events, reasons)
    names = {name for hop, name in places if not hop}
    silent = {name for line in trace.lines for event in line if event.kind == SEND for name in event.to or ()} - names
    missing = sum(max(indices) + 1 - len(indices) for indices in places.values())
    return Sifted(
        reasons, trace, len(events) - len(reasons), len(names), len(silent), missing, sorted(silent)[:SILENT_SHOWN]
    )


def _places(events: list[Event], reasons: dict[int, str]) -> dict[tuple[bool, str], dict[int, int]]:
    """Set aside rows with the same process and index as another row. (If all rows with this process and index are
    equal, the first one is kept.) Return a table of all indices. The keys are pairs: a flag, and the name of a process
    or server. The flag is true for rows of kind ``hop``, which have separate indices. Each value is a table
    from an index to the position (in ``events``) of the first event with this index."""
    places: dict[tuple[bool, str], dict[int, int]] = {}
    contested: dict[int, list[int]] = {}
    for number, event in enumerate(events):
        indices = places.setdefault((event.kind == HOP, event.process), {})
        first = indices.setdefault(event.index, number)
        if first != number:
            contested.setdefault(first, [first]).append(number)
    for numbers in contested.values():
        different: dict[bytes, int] = {}
        for number in numbers:
            same = content(events[number])
            if different.setdefault(same, number) != number:
                reasons[number] = "duplicate_row"
        if len(different) > 1:
            reasons.update(dict.fromkeys(different.values(), "duplicate_index"))
    return places


def _test_messages(events: list[Event], reasons: dict[int, str]) -> None:
    sends: dict[str, Event] = {}
    sent_twice: set[str] = set()
    for number, event in enumerate(events):
        if event.kind == SEND and number not in reasons:
            assert event.message is not None
            if sends.setdefault(event.message, event) is not event:
                sent_twice.add(event.message)
    if sent_twice:
        for number, event in enumerate(events):
            if event.kind in (SEND, DELIVER) and number not in reasons and event.message in sent_twice:
                reasons[number] = "duplicate_send"
        for message in sent_twice:
            del sends[message]
    delivered: dict[tuple[str, str], int] = {}
    for number, event in enumerate(events):
        if event.kind == DELIVER and number not in reasons:
            assert event.message is not None
            kept = delivered.setdefault((event.message, event.process), number)
            if kept != number:
                smaller, larger = (kept, number) if events[kept].index < event.index else (number, kept)
                delivered[event.message, event.process] = smaller
                reasons[larger] = "duplicate_delivery"
    for number, event in enumerate(events):
        if event.kind in (DELIVER, ARRIVE) and number not in reasons:
            reason = _against_send(event, sends.get(event.message or ""))
            if reason is not None:
                reasons[number] = reason


def _against_send(event: Event, send: Event | None) -> str | None:
    if send is None:
        return "orphan_delivery" if event.kind == DELIVER else "orphan_arrival"
    if event.kind == ARRIVE:
        return None
    if send.to is not None and event.process not in send.to:
        return "not_addressed"
    if send.process == event.process and event.index < send.index:
        return "before_send"
    return None


def _without_cycles(events: list[Event], reasons: dict[int, str]) -> Matched:
    trace = match(_left(events, reasons))
    try:
        for _ in trace.in_causal_order():
            pass
    except TraceError:
        # Among the remaining rows, process and index identify one event.
        circular = {(event.process, event.index) for event in circular_deliveries(trace)}
        for number, event in enumerate(events):
            if event.kind == DELIVER and number not in reasons and (event.process, event.index) in circular:
                reasons[number] = "cycle"
        trace = match(_left(events, reasons))
    return trace


def _left(events: list[Event], reasons: Mapping[int, str]) -> list[Event]:
    if not reasons:
        return events
    return [event for number, event in enumerate(events) if number not in reasons]


def counts(sifted: Sifted, unread: Counter[str]) -> dict[str, int]:
    """Return how many rows were set aside for each reason that occurred, and the number of missing indices."""
    total = unread + Counter(sifted.reasons.values())
    total["index_gap"] = sifted.missing
    return {reason: total[reason] for reason in REASONS if total[reason]}


def readable(rows: int, quarantined: Mapping[str, int]) -> bool:
    """Return whether at least nine rows in ten can be read as events. If fewer rows can be read, a verdict on them is
    not meaningful."""
    return _unread(quarantined) <= limits.unread_share_max * rows


def unreadable_rows(report: Mapping[str, Any]) -> str | None:
    """Return a sentence about the unreadable rows in a report. If at most one row in ten is unreadable, return
    ``None``."""
    quarantined = report["quarantined"]
    rows = report.get("rows")
    if rows is None:
        rows = report["events"] + sum(quarantined.values()) - quarantined.get("index_gap", 0)
    if readable(rows, quarantined):
        return None
    reasons = ", ".join(f"{quarantined[reason]:,} {reason}" for reason in UNREAD if reason in quarantined)
    return f"{_unread(quarantined):,} of {rows:,} rows cannot be read ({reasons}), more than one in ten"


def _unread(quarantined: Mapping[str, int]) -> int:
    return sum(quarantined.get(reason, 0) for reason in UNREAD)
