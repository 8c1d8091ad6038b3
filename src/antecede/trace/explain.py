"""The command ``explain`` shows why a trace breaks an order.

* Causal and FIFO order are broken by late deliveries. The explanation of a late delivery is the shortest chain of
  messages that overtook it. :class:`Chains` finds this chain. For FIFO order, the chain is one later
  message of the same sender.
* Significant order is broken by late deliveries, too. :mod:`antecede.trace.significant` finds the reason.
* Total and synchronous order are broken by a cycle of messages. The verdict names one cycle. This module searches for a
  shortest cycle among the messages of that cycle. Each step of the cycle leads from one message to the next. The
  explanation of a step is a process with two of its events. These events show which of the two messages came first.

An explanation contains everything that is needed to draw it and to check it against the trace. So explanations from
another engine are drawn and checked in the same way.
"""

import os
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any, cast

import msgspec

from antecede import __version__
from antecede.errors import UsageError, similar
from antecede.trace.conflicts import Conflicts, needed
from antecede.trace.matched import Matched
from antecede.trace.oracle import certain
from antecede.trace.quarantine import REASONS, counts, sift
from antecede.trace.schema import ARRIVE, DELIVER, HOP, SEND, Event
from antecede.trace.significant import Explainer, judge_significant
from antecede.trace.sources import events_in, load, trace_files
from antecede.trace.streaming import judge_large
from antecede.trace.verdicts import ORDERS, Late, Verdict

_index = attrgetter("index")


class Link(msgspec.Struct, frozen=True, rename={"source": "from"}):
    """One message of a chain: where it was sent and where it was delivered."""

    message: str
    source: str
    send_index: int
    to: str
    deliver_index: int

    def as_json(self) -> dict[str, Any]:
        return cast("dict[str, Any]", msgspec.to_builtins(self))


class _Step(msgspec.Struct, frozen=True, gc=False):
    """A copy of a message. Process ``source`` sent it at position ``sent``, and process ``to`` delivered it at position
    ``delivered``."""

    source: int
    sent: int
    to: int
    delivered: int


class Chains:
    """Finds the shortest overtaking chain of each late delivery in one trace.

    Let m be a message from p to q. A chain of messages m1 … mk overtakes m if three conditions are true:

    * p sends m1 after m, or m1 is m itself (then the chain begins with a copy of m to another destination);
    * the receiver of each message, except the last, sends the next message after it has delivered this message;
    * q delivers mk before m.

    This is the definition of Garg (§12.1: "a single message not be overtaken by a sequence of messages"). Let T_h[r] be
    the first position at process r that a chain of at most h messages can reach from send(m). T_0 has only one entry,
    the position of send(m) at p. Round h examines the messages that each process s sent after T_(h−1)[s]. Round 1 also
    examines m itself. T_h[r] is the smallest of T_(h−1)[r] and the positions at which r delivered the examined
    messages. The first h with T_h[q] < deliver(m) is the length of a shortest chain.

    **Only new sends are examined.** If T became smaller at a process, only the sends between its new T and its old T
    are examined, because the sends after the old T were examined in an earlier round. So every send is examined once.
    Every message of round h was sent after a delivery that round h − 1 found, so a chain found in round h has exactly h
    messages.

    **Only a part of the trace is examined.** All events are put into one sequence that agrees with happened-before. In
    this sequence, every chain lies between send(m) and deliver(m). The sequence is computed once, for all explanations.
    The search along a process stops at the first event that comes after deliver(m) in this sequence.

    There may be several shortest chains. Then their last messages are compared, and the message that q delivers first
    is chosen. Its sender received the previous message of the chain. The previous message is chosen by the same rule,
    and so on, back to p. So the answer does not depend on the sequence in which sends are examined.
    """

    def __init__(self, trace: Matched) -> None:
        self._trace = trace
        self._numbers = {name: number for number, name in enumerate(trace.names)}
        self._moments = [array("q", bytes(8 * len(line))) for line in trace.lines]
        """The position of each event in one sequence of all events. The sequence agrees with happened-before."""
        self._copies: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """For each send, the deliveries of its message. Sends and deliveries are given by process and position."""
        for moment, (process, position, event) in enumerate(trace.in_causal_order()):
            self._moments[process][position] = moment
            if event.kind == DELIVER:
                sent = trace.sends[event.message or ""]
                self._copies.setdefault(sent, []).append((process, position))

    def shortest(self, late: Late) -> list[Link]:
        """Return the messages of the shortest chain that overtook a late delivery, from the first to the last."""
        source, sent = self._trace.sends[late.message]
        target = self._numbers[late.to]
        deadline = bisect_left(self._trace.lines[target], late.deliver_index, key=_index)
        levels: list[dict[int, _Step]] = []
        reach: dict[int, int] = {}
        # The message itself may begin the chain, by a copy to another destination: therefore its send is included.
        frontier = [(source, sent, len(self._trace.lines[source]))]
        while True:
            reached: dict[int, _Step] = {}
            for process, start, stop in frontier:
                for step in self._sent_in(process, start, stop, self._moments[target][deadline]):
                    limit = deadline if step.to == target else reach.get(step.to)
                    best = reached.get(step.to)
                    if (limit is None or step.delivered < limit) and (best is None or step.delivered < best.delivered):
                        reached[step.to] = step
            if target in reached:
                return self._walked_back(reached[target], levels)
            # A chain gains nothing by returning to its start.
            reached.pop(source, None)
            assert reached, "a late delivery has no overtaking chain"
            levels.append(reached)
            frontier = []
            for process, step in reached.items():
                stop = reach.get(process, len(self._trace.lines[process]))
                frontier.append((process, step.delivered + 1, stop))
                reach[process] = step.delivered

    def _sent_in(self, process: int, start: int, stop: int, horizon: int) -> list[_Step]:
        """Return the delivered copies that ``process`` sent at a position in ``range(start, stop)``. Sends that come at
        or after the moment ``horizon`` (see ``_moments``) are left out."""
        line, moments = self._trace.lines[process], self._moments[process]
        stop = bisect_left(moments, horizon, start, stop)
        return [
            _Step(process, position, to, delivered)
            for position in range(start, stop)
            if line[position].kind == SEND
            for to, delivered in self._copies.get((process, position), ())
        ]

    def _walked_back(self, last: _Step, levels: list[dict[int, _Step]]) -> list[Link]:
        steps = [last]
        for reached in reversed(levels):
            steps.append(reached[steps[-1].source])
        return [self._link(step) for step in reversed(steps)]

    def _link(self, step: _Step) -> Link:
        lines = self._trace.lines
        send, delivery = lines[step.source][step.sent], lines[step.to][step.delivered]
        return Link(send.message or "", send.process, send.index, delivery.process, delivery.index)


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


Name = Callable[[str], str]
"""A function that returns a readable name of a message or a process."""
NamePlace = Callable[[str, int], str]
"""A function that returns the location of a row in the trace as a text, for example ``index 7``. Its arguments are the
process and the index of the row."""


def clauses(explanation: Mapping[str, Any], title: Name, name: Name = str, at: NamePlace | None = None) -> list[str]:
    """Return the steps by which a message was overtaken, as one clause per step, first to last. If ``at`` is given, the
    clauses also say where each event is recorded.

    An example: ``ann sent X to bob and cy; bob delivered it and sent Y to cy; cy delivered Y before X``.

    The same sentences are printed by ``explain``, drawn below a diagram and written into reports.
    """

    def where(process: str, index: int) -> str:
        return "" if at is None else f" ({at(process, index)})"

    chain = explanation["chain"]
    late, source, target = title(explanation["message"]), name(explanation["from"]), name(explanation["to"])
    first = chain[0]
    sent = f"{source} sent {late}{where(explanation['from'], explanation['send_index'])}"
    if first["message"] == explanation["message"]:
        steps = [f"{sent} to {name(first['to'])} and {target}"]
        delivered = "it"
    else:
        delivered = title(first["message"])
        then = f"{delivered}{where(first['from'], first['send_index'])}"
        steps = [f"{sent} to {target}, then {then} to {name(first['to'])}"]
    for before, link in pairwise(chain):
        there = where(before["to"], before["deliver_index"])
        this = title(link["message"])
        onward = where(link["from"], link["send_index"])
        steps.append(f"{name(link['from'])} delivered {delivered}{there} and sent {this}{onward} to {name(link['to'])}")
        delivered = this
    early = where(explanation["to"], chain[-1]["deliver_index"])
    at_last = where(explanation["to"], explanation["deliver_index"])
    steps.append(f"{target} delivered {delivered}{early} before {late}{at_last}")
    return steps


def sentence(explanation: Mapping[str, Any], title: Name, name: Name = str) -> str:
    """Return the steps by which a message was overtaken, as one sentence."""
    return "; ".join(clauses(explanation, title, name))


def is_causal_chain(explanation: Mapping[str, Any]) -> bool:
    """Return whether :func:`clauses` can describe an explanation. This is possible if the explanation contains a chain
    of messages as in causal order: the sender of each message first delivered the previous message of the chain.
    Explanations of significant order contain another kind of chain."""
    return bool(explanation.get("chain")) and not any("after" in link for link in explanation["chain"])


RowPlace = tuple[str, int]
"""A row of a trace, given by its process and its index."""


def with_origins(report: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Return the report of ``explain`` with an additional key ``sources``: for each row that an explanation names, the
    file and the line of the imported log. A row is left out if its file and line are not known.

    ``antecede import --map`` writes the file and the line into the extra column ``source``. No verdict needs this
    column, so the engines do not keep it. The column is looked up afterwards, for a few rows, in the files of
    the trace that have the column.
    """
    places = {(row.process, row.index) for explanation in report["explanations"] for row in rows_of(explanation)}
    found = _origins([path for path in paths if os.path.exists(path)], places) if places else {}
    sources = [
        {"process": process, "index": index, "source": found[process, index]} for process, index in sorted(found)
    ]
    return {**report, "sources": sources}


def _origins(paths: Sequence[str], places: Iterable[RowPlace]) -> dict[RowPlace, str]:
    left = set(places)
    found: dict[RowPlace, str] = {}
    for path in trace_files(paths)[0] if paths else ():
        for number, event in enumerate(events_in(path)):
            source = (event.extra or {}).get("source")
            if type(source) is not str and number == 0:
                # Not a trace of an import by a mapping: every row of such a trace has the column.
                break
            place = event.process, event.index
            if place in left and type(source) is str and event.kind != HOP:
                left.remove(place)
                found[place] = source
            if not left:
                return found
    return found
