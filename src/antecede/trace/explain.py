"""The command ``explain`` shows why a trace breaks an order.

* Causal and FIFO order are broken by late deliveries. The explanation of a late delivery is the shortest chain of
  messages that overtook it. :mod:`antecede.trace.chain` finds this chain. For FIFO order, the chain is one later
  message of the same sender.
* Significant order is broken by late deliveries, too. :mod:`antecede.trace.significant_explain` finds the reason.
* Total and synchronous order are broken by a cycle of messages. The verdict names one cycle. This module searches for a
  shortest cycle among the messages of that cycle. Each step of the cycle leads from one message to the next. The
  explanation of a step is a process with two of its events. These events show which of the two messages came first.

An explanation contains everything that is needed to draw it and to check it against the trace. So explanations from
another engine are drawn and checked in the same way.
"""

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antecede import __version__
from antecede.errors import UsageError, similar
from antecede.trace.assumed import certain
from antecede.trace.chain import Chains, Link
from antecede.trace.conflicts import Conflicts, needed
from antecede.trace.matched import Matched
from antecede.trace.quarantine import REASONS, counts, sift
from antecede.trace.schema import ARRIVE, DELIVER, SEND, Event
from antecede.trace.significant import judge_significant
from antecede.trace.significant_explain import Explainer
from antecede.trace.sources import load
from antecede.trace.streaming import judge_large
from antecede.trace.verdicts import ORDERS, Late, Verdict

Homes = Mapping[str, Sequence[tuple[int, str]]]
"""The events of one message: for each process, the index and the kind of each event, ascending by index."""

_of_messages = (SEND, ARRIVE, DELIVER)

_shortened_max = 256
"""A cycle with more messages than this is not shortened, because the search examines all pairs of messages."""


class ExplainRequest(msgspec.Struct, frozen=True):
    """The request: what is to be explained."""

    order: str = "causal"
    message: str | None = None
    """The id of a message. All late deliveries of this message are explained. If it is None, the first late deliveries
    of the trace are explained."""
    first: int = 10
    conflicts: Conflicts | None = None
    """The conflict table for significant order. If it is None, the table in the trace's metadata is used."""

    def check(self) -> None:
        """Refuse a request that makes no sense, before anything is read."""
        orders = (*ORDERS, "significant")
        if self.order not in orders:
            raise UsageError(f"--order: {self.order!r} is not one of {', '.join(orders)}{similar(self.order, orders)}")
        if self.message is not None and not self.by_delivery():
            wanted = "--message is only for fifo, causal and significant order"
            raise UsageError(f"{wanted}, not for {self.order}: a cycle of several messages breaks this order")
        if self.first < 0:
            raise UsageError(f"--first {self.first}: expected 0 or more")

    def by_delivery(self) -> bool:
        """Return whether the order of this request is broken by late deliveries. (Total and synchronous order are
        broken by cycles of messages instead.)"""
        return self.order in ("fifo", "causal", "significant")


def explain(paths: Sequence[str | os.PathLike[str]], request: ExplainRequest) -> dict[str, Any]:
    """Explain what broke an order in the given traces, and return the report. All traces are judged together, as one
    trace."""
    started = time.perf_counter()
    request.check()
    loaded = load(paths)
    sifted = sift(loaded.events, loaded.placed)
    about = _about(loaded.events, sifted.reasons, request.message) if request.message is not None else None
    verdict = judge_large(sifted.trace, (request.order,))
    sure = certain(sifted.trace)
    late = verdict.fifo if request.order == "fifo" else verdict.causal
    if request.order == "significant":
        table = needed(request.conflicts, loaded.metadata)
        late = verdict.significant = judge_significant(sifted.trace, table).late
        some = chosen(late, request)
        explanations = Explainer(sifted.trace, table).explain(some) if some else []
    elif request.by_delivery():
        explanations = _overtakings(sure, chosen(late, request))
    else:
        explanations = _circles(sifted.trace, verdict)
    return {
        "version": __version__,
        "engine": "plain",
        "order": request.order,
        "holds": verdict.holds(request.order),
        "events": sifted.events,
        "deliveries": verdict.deliveries,
        "late": len(late) if request.by_delivery() else None,
        "shown": len(explanations),
        "explanations": explanations,
        "message": about,
        "complete": not sifted.reasons and not loaded.reasons,
        "quarantined": counts(sifted, loaded.reasons),
        "session_seconds": 0.0,
        "seconds": round(time.perf_counter() - started, 3),
    }


def chosen(late: Sequence[Late], request: ExplainRequest) -> Sequence[Late]:
    """Return the late deliveries that the request selects. ``late`` contains all late deliveries, ascending."""
    if request.message is None:
        return late[: request.first]
    return [one for one in late if one.message == request.message]


def unknown(message: str) -> UsageError:
    """Return the error for a message id that is in no row of the trace."""
    return UsageError(f"message {message!r} is not in the trace")


def _about(events: list[Event], reasons: dict[int, str], message: str) -> dict[str, Any]:
    """Count the rows of one message, and return the value of the report's key ``message`` (see ``about``)."""
    rows = [number for number, event in enumerate(events) if event.message == message and event.kind in _of_messages]
    if not rows:
        raise unknown(message)
    valid = Counter(events[number].kind for number in rows if number not in reasons)
    aside = Counter(reasons[number] for number in rows if number in reasons)
    aside["duplicate_index"] += aside.pop("duplicate_row", 0)
    return about(message, valid[SEND], valid[DELIVER], aside)


def about(message: str, sends: int, deliveries: int, aside: Mapping[str, int]) -> dict[str, Any]:
    """Return the value of the report's key ``message``. It contains the number of valid sends and the number of valid
    deliveries of a message. It also contains, for each reason, how many rows of the message were set aside.

    The reason ``duplicate_row`` (the same row came again) is not used here. Such rows are counted under the reason
    ``duplicate_index``, like different rows with the same process and index.
    """
    reasons = {reason: aside[reason] for reason in REASONS if aside.get(reason)}
    return {
        "id": message,
        "sends": sends,
        "deliveries": deliveries,
        "set_aside": sum(reasons.values()),
        "reasons": reasons,
    }


def _overtakings(trace: Matched, late: Sequence[Late]) -> list[dict[str, Any]]:
    if not late:
        return []
    chains = Chains(trace)
    return [overtaking(one, chains.shortest(one)) for one in late]


def overtaking(late: Late, chain: Sequence[Link]) -> dict[str, Any]:
    """Return the explanation of one late delivery, with the chain of messages that overtook the late message."""
    return {
        "message": late.message,
        "from": late.source,
        "to": late.to,
        "send_index": late.send_index,
        "deliver_index": late.deliver_index,
        "length": len(chain),
        "chain": [link.as_json() for link in chain],
    }


def _circles(trace: Matched, verdict: Verdict) -> list[dict[str, Any]]:
    circle = verdict.cycle or verdict.crown
    if circle is None:
        return []
    kinds = (DELIVER,) if verdict.cycle else (SEND, DELIVER)
    homes: dict[str, dict[str, list[tuple[int, str]]]] = {message: {} for message in circle}
    for name, line in zip(trace.names, trace.lines, strict=True):
        for event in line:
            if event.kind in kinds and event.message in homes and not event.assumed:
                homes[event.message].setdefault(name, []).append((event.index, event.kind))
    sends = [trace.sent(message) for message in circle]
    return [circle_of(circle, homes, {send.message or "": (send.process, send.index) for send in sends})]


def circle_of(circle: list[str], homes: Mapping[str, Homes], sends: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    """Return the explanation of a cycle: its messages in sequence, and for each message two events of one process. The
    two events show that the message comes before the next message of the cycle."""
    circle = _shortened(circle, homes)
    steps = []
    for message, following in zip(circle, [*circle[1:], circle[0]], strict=True):
        found = _witness(homes[message], homes[following])
        assert found is not None, "a message of a cycle does not come before the next"
        process, (index, kind), (next_index, next_kind) = found
        steps.append(
            {
                "process": process,
                "message": message,
                "kind": kind,
                "index": index,
                "before": following,
                "before_kind": next_kind,
                "before_index": next_index,
            }
        )
    sent = [{"message": message, "from": sends[message][0], "send_index": sends[message][1]} for message in circle]
    return {"length": len(circle), "messages": sent, "circle": steps}


def _witness(first: Homes, second: Homes) -> tuple[str, tuple[int, str], tuple[int, str]] | None:
    """Find a process in which an event of the first message comes before an event of the second message. Return the
    process and these two events, or ``None``. If there are several such processes, take the first by name."""
    for process in sorted(first.keys() & second.keys()):
        earliest = first[process][0]
        for event in second[process]:
            if event > earliest:
                return process, earliest, event
    return None


def _shortened(circle: list[str], homes: Mapping[str, Homes]) -> list[str]:
    """Return a shortest cycle among the messages of the given cycle, beginning with the smallest message id. If the
    given cycle has only two messages, or has more than ``_shortened_max`` messages, return it unchanged."""
    if not 2 < len(circle) <= _shortened_max:
        return circle
    after = {a: [b for b in circle if b != a and _witness(homes[a], homes[b])] for a in circle}
    best = circle
    for start in circle:
        way = _way_back(start, after, len(best))
        best = way if way is not None else best
    least = best.index(min(best))
    return best[least:] + best[:least]


def _way_back(start: str, after: Mapping[str, list[str]], shorter_than: int) -> list[str] | None:
    """Return the shortest path from the message ``start`` back to itself. Return ``None`` if no such path has fewer
    messages than ``shorter_than``. ``after`` contains, for each message, the messages that come after it."""
    previous = {start: start}
    edge = [start]
    for _ in range(shorter_than - 1):
        further = []
        for message in edge:
            if start in after[message]:
                way = [message]
                while way[-1] != start:
                    way.append(previous[way[-1]])
                return way[::-1]
            for following in after[message]:
                if following not in previous:
                    previous[following] = message
                    further.append(following)
        edge = further
    return None


def rows_of(explanation: Mapping[str, Any]) -> list[Event]:
    """Return the events that an explanation names, and no others, sorted by process and index."""
    links = [*explanation.get("chain", ())]
    if links:
        links = [explanation, *links]
    rows: set[tuple[str, int, str, str]] = {(link["from"], link["send_index"], SEND, link["message"]) for link in links}
    rows |= {(link["to"], link["deliver_index"], DELIVER, link["message"]) for link in links if link["to"] is not None}
    before = explanation.get("message", "")
    for link in explanation.get("chain", ()):
        after = link.get("after")
        if after:
            rows.add((link["from"], after["index"], after["kind"], before))
        before = link["message"]
    rows |= {(sent["from"], sent["send_index"], SEND, sent["message"]) for sent in explanation.get("messages", ())}
    for step in explanation.get("circle", ()):
        rows.add((step["process"], step["index"], step["kind"], step["message"]))
        rows.add((step["process"], step["before_index"], step["before_kind"], step["before"]))
    return [Event(process, index, kind, message) for process, index, kind, message in sorted(rows)]
