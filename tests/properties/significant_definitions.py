"""Significant order word for word, by pairs and closure; the traces to try it on are in ``significant_traces.py``.

Nothing here shares code with the checker: instances are found again, the relation is closed as a relation.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import msgspec

from antecede.trace import Event


class Trace(msgspec.Struct):
    """Rows of a run of objects and their conflict table, as metadata have it."""

    rows: list[Event]
    conflicts: Any


def significantly_precedes(trace: Trace) -> set[tuple[str, str]]:
    """Every pair with m1 → m2 (§3.2), by closing the direct pairs."""
    about = _about(trace.rows)
    after: dict[str, set[str]] = {}
    for own in _lines(trace.rows).values():
        for i, one in enumerate(own):
            for two in own[i + 1 :]:
                if one.kind in ("send", "deliver") and two.kind == "send" and one.message != two.message:
                    a, b = one.instance, two.instance
                    if a is None or b is None:
                        continue
                    here, there = about[one.process, a], about[two.process, b]
                    precedes = here["last"] < there["first"] and not here["aborted"]
                    clash = conflict(trace, one.process, here["operation"], there["operation"])
                    if a == b or (precedes and clash and not kin(trace, a, b)):
                        after.setdefault(one.message or "", set()).add(two.message or "")
    pairs = set()
    for start in after:
        reached: set[str] = set()
        edge = set(after[start])
        while edge:
            reached |= edge
            edge = {far for near in edge for far in after.get(near, ())} - reached
        pairs |= {(start, far) for far in reached}
    return pairs


def late_deliveries(trace: Trace) -> dict[tuple[str, int], tuple[str, str]]:
    """By process and index, what breaks §3.3: the first message that should have waited, and the rule."""
    precedes, about, lines = significantly_precedes(trace), _about(trace.rows), _lines(trace.rows)
    late: dict[tuple[str, int], tuple[str, str]] = {}
    for process, own in lines.items():
        delivered = [row for row in own if row.kind == "deliver" and row.instance is not None]
        for i, one in enumerate(delivered):
            for other in delivered[:i]:
                if (one.message, other.message) not in precedes:
                    continue
                rule = _forbidden(trace, about, one, other)
                if rule:
                    late.setdefault((process, one.index), (other.message or "", rule))
    crossed: dict[tuple[str, int], Event] = {}
    requests = {
        process: [row for row in own if row.kind == "deliver" and received_as(trace, row) == "request"]
        for process, own in lines.items()
    }
    operation: Callable[[Event], str | None] = lambda row: about[row.process, row.instance]["operation"]  # noqa: E731
    for here, there in combinations(sorted(lines), 2):
        for m in requests[here]:
            for n in requests[here]:
                twins = [[row for row in requests[there] if row.message == one.message] for one in (m, n)]
                if m.index >= n.index or not all(twins):
                    continue
                (m2,), (n2,) = twins
                clash = all(
                    conflict(trace, one.process, operation(one), operation(two))
                    and not kin(trace, one.instance or "", two.instance or "")
                    for one, two in ((m, n), (m2, n2))
                )
                waived = (n.message, m.message) in precedes or (there, m2.index) in late
                if clash and not waived and n2.index < m2.index:
                    known = crossed.get((there, m2.index))
                    if known is None or n2.index < known.index:
                        crossed[there, m2.index] = n2
    return late | {place: (row.message or "", "agreement") for place, row in crossed.items()}


def conflict(trace: Trace, process: str, one: str | None, other: str | None) -> bool:
    pairs = trace.conflicts.get(process, trace.conflicts.get("*", []))
    return one is not None and other is not None and ([one, other] in pairs or [other, one] in pairs)


def received_as(trace: Trace, row: Event) -> str | None:
    own = [one for one in _lines(trace.rows)[row.process] if one.instance == row.instance]
    if row.instance is None or any(one.kind == "local" and one.type == "abort" for one in own):
        return None
    received = [one for one in own if one.kind == "deliver"]
    types = [
        one.type or next(sent.type for sent in trace.rows if sent.kind == "send" and sent.message == one.message)
        for one in received
    ]
    if next(one for one in own if one.kind in ("send", "deliver")) is received[0]:
        types[0] = types[0] or "request"
    at = received.index(row)
    if types[at] in ("commit", "abort") or (types[at] == "request" and "request" in types[:at]):
        return None
    return "request" if types[at] == "request" else "response"


def _forbidden(trace: Trace, about: dict[Any, Any], late: Event, earlier: Event) -> str | None:
    what, before = received_as(trace, late), received_as(trace, earlier)
    if what is None or before is None:
        return None
    if late.instance == earlier.instance:
        return "instance"
    one, other = about[late.process, late.instance], about[late.process, earlier.instance]
    if not conflict(trace, late.process, one["operation"], other["operation"]) or before != "request":
        return None
    related = kin(trace, late.instance or "", earlier.instance or "")
    return None if related and what != "request" else "conflict"


def kin(trace: Trace, one: str, other: str) -> bool:
    return other in ancestors(trace, one) or one in ancestors(trace, other)


def ancestors(trace: Trace, name: str) -> set[str]:
    found: set[str] = set()
    climbing: str | None = name
    while climbing is not None:
        rows = [row for row in trace.rows if row.instance == climbing and row.parent]
        first = min(rows, key=lambda row: (row.process, row.index), default=None)
        climbing = first.parent if first is not None and first.parent not in found else None
        if climbing is not None:
            found.add(climbing)
    return found


def _lines(rows: list[Event]) -> dict[str, list[Event]]:
    lines: dict[str, list[Event]] = {}
    for row in sorted(rows, key=lambda row: row.index):
        lines.setdefault(row.process, []).append(row)
    return lines


def _about(rows: list[Event]) -> dict[tuple[str, str | None], dict[str, Any]]:
    found: dict[tuple[str, str | None], dict[str, Any]] = {}
    for process, own in _lines(rows).items():
        for name in {row.instance for row in own if row.instance is not None and row.kind != "arrive"}:
            mine = [row for row in own if row.instance == name and row.kind != "arrive"]
            found[process, name] = {
                "first": mine[0].index,
                "last": mine[-1].index,
                "operation": next((row.operation for row in mine if row.operation is not None), None),
                "aborted": any(row.kind == "local" and row.type == "abort" for row in mine),
            }
    return found


def _direct(trace: Trace, about: dict[Any, Any], one: Event, two: Event) -> str | None:
    """By what the message of a send or delivery directly precedes that of a later send at the same object."""
    if one.index >= two.index or one.message == two.message or one.instance is None or two.instance is None:
        return None
    if one.instance == two.instance:
        return "instance"
    here, there = about[one.process, one.instance], about[two.process, two.instance]
    if here["last"] >= there["first"] or here["aborted"] or kin(trace, one.instance, two.instance):
        return None
    return "conflict" if conflict(trace, one.process, here["operation"], there["operation"]) else None


def distances(trace: Trace) -> dict[tuple[str, str], int]:
    """For every pair m1 → m2, how many direct steps lie between them at least."""
    about = _about(trace.rows)
    after: dict[str, set[str]] = {}
    for own in _lines(trace.rows).values():
        acts = [row for row in own if row.kind in ("send", "deliver")]
        for one in acts:
            for two in acts:
                if two.kind == "send" and _direct(trace, about, one, two):
                    after.setdefault(one.message or "", set()).add(two.message or "")
    found: dict[tuple[str, str], int] = {}
    for start in after:
        edge, steps = {start}, 0
        while edge:
            steps += 1
            edge = {far for near in edge for far in after.get(near, ()) if (start, far) not in found}
            found |= {(start, far): steps for far in edge}
    return found


def explained(trace: Trace, said: Any, steps: dict[tuple[str, str], int]) -> str | None:
    """What is wrong with an explanation, if anything is."""
    rows = {(row.process, row.index): row for row in trace.rows}
    about = _about(trace.rows)
    late = rows.get((said["to"], said["deliver_index"]))
    sent = rows.get((said["from"], said["send_index"]))
    if not late or not sent or (late.kind, sent.kind) != ("deliver", "send"):
        return "not a delivery and its send"
    if not late.message == sent.message == said["message"] or not said["chain"] or len(said["chain"]) != said["length"]:
        return "not one message, or no chain"
    last = said["chain"][-1]
    early = rows.get((last["to"], last["deliver_index"]))
    if not early or early.kind != "deliver" or early.process != late.process or early.index >= late.index:
        return "nothing came first"
    if early.message != last["message"]:
        return "another message came first"
    if said["rule"] == "agreement":
        there = said["elsewhere"]
        first, then = (rows[there["process"], there[key]] for key in ("index", "overtaken_by_index"))
        if (first.message, then.message) != (late.message, early.message) or first.index >= then.index:
            return "nobody disagrees"
        four = (late, early, first, then)
        if any(received_as(trace, row) != "request" for row in four) or first.process >= late.process:
            return "not requests, or the wrong one is late"
        clash = all(
            conflict(trace, one.process, *(about[row.process, row.instance]["operation"] for row in (one, other)))
            for one, other in ((late, early), (first, then))
        )
        return None if clash else "no conflict"
    if _forbidden(trace, about, late, early) != said["rule"]:
        return "not against the rule"
    return _chain_is_wrong(trace, said, steps, rows, about, late)


def _chain_is_wrong(trace: Trace, said: Any, steps: Any, rows: Any, about: Any, late: Event) -> str | None:
    before, place = said["message"], None
    for link in said["chain"]:
        send = rows.get((link["from"], link["send_index"]))
        after = rows.get((link["from"], link["after"]["index"]))
        if not send or not after or send.kind != "send" or send.message != link["message"] or after.message != before:
            return "a link that is none"
        if place is not None and place != (after.process, after.index):
            return "a link that does not go on where the last one ended"
        if _direct(trace, about, after, send) != link["after"]["by"]:
            return "a step that is none"
        if (after.instance, send.instance) != (link["after"]["instance"], link["after"]["sender"]):
            return "another instance"
        before = send.message
        place = (link["to"], link["deliver_index"]) if link["to"] is not None else (send.process, send.index)
    own = [row for row in rows.values() if row.kind == "deliver" and row.process == late.process]
    wrong = [row for row in own if row.index < late.index and _forbidden(trace, about, late, row)]
    least = min(steps[late.message, row.message] for row in wrong if (late.message, row.message) in steps)
    return None if said["length"] == least else f"{least} messages are enough"


def orderings(trace: Trace) -> int:
    """How many pairs of deliveries at an object the rule about m → m′ orders."""
    precedes, about = significantly_precedes(trace), _about(trace.rows)
    count = 0
    for own in _lines(trace.rows).values():
        received = [row for row in own if row.kind == "deliver" and row.instance is not None]
        for one in received:
            for other in received:
                related = (one.message, other.message) in precedes
                count += bool(related and one is not other and _forbidden(trace, about, one, other))
    return count
