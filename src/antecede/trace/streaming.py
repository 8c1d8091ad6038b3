"""The oracle's verdicts on large traces: one pass in causal order, with a vector for each process.

Let V_q be process q's vector: for each sender p, how many of p's events are in q's past. A send increases the sender's
own entry and the message carries the vector; a delivery takes the maximum. **A delivery of m, sent by p, at q ≠ p is
late iff V_q already covers send(m)** just before it: q can know of p's events through deliveries only, so this is the
definition in :mod:`antecede.trace.oracle`. A message that q sent to itself is always covered by V_q; it is compared
with the largest own entry that deliveries brought back.

A late delivery adds nothing new, so its maximum is skipped. A carried vector is dropped with the message's last
delivery, a process's vector with its last event. The walk (:mod:`antecede.trace.matched`) determines how many exist at
once.

With many processes there are faster ways to the same answer: sets of pending messages, if these are few
(:mod:`antecede.trace.pending`), and arrays, if numpy is installed (:mod:`antecede.trace.arrays`).

**Overtakers** are searched afterwards, only for the messages that were late: a second pass carries sets of those
messages only, as the oracle does with all. The first delivery that brings a message's bit to q is the answer.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

from antecede.trace import arrays, pending
from antecede.trace.assumed import certain
from antecede.trace.lanes import Lanes
from antecede.trace.matched import Matched
from antecede.trace.oracle import judge_merges
from antecede.trace.schema import DELIVER, SEND, Event
from antecede.trace.verdicts import Late, Verdict

_asked_at_once = 8_192
"""Late messages whose overtakers are searched in one pass: one bit each, in every carried set."""


def judge_large(trace: Matched, orders: Sequence[str], every_overtaker: bool = False) -> Verdict:
    """Return the verdict of :func:`antecede.trace.oracle.judge`, with time and memory suitable for a large trace.

    ``overtaken_by`` of causal order is set for the first late delivery, or for all if requested.
    """
    verdict = Verdict(trace.deliveries, trace.undelivered(), tuple(orders))
    sure = certain(trace)
    if "fifo" in orders:
        verdict.fifo = _fifo(sure)
        verdict.fifo_undecided = 0 if sure is trace else len(_fifo(trace)) - len(verdict.fifo)
    if "causal" in orders:
        late = sorted(_late(sure, event) for event in _all_late(sure))
        verdict.causal_undecided = 0 if sure is trace else len(_all_late(trace)) - len(late)
        asked = late if every_overtaker else late[:1]
        for start in range(0, len(asked), _asked_at_once):
            found = _overtakers(sure, asked[start : start + _asked_at_once])
            late[start : start + len(found)] = found
        verdict.causal = late
    judge_merges(trace, verdict)
    return verdict


def _all_late(trace: Matched) -> list[Event]:
    """Return the late deliveries, by the fastest method for this trace."""
    found = pending.late_deliveries(trace)
    if found is not None:
        return found
    return arrays.late_deliveries(trace) if arrays.useful_for(trace) else late_deliveries(trace)


def late_deliveries(trace: Matched) -> list[Event]:
    """The deliveries that violate causal order, in the order of the walk."""
    sends = trace.sends
    awaited = Counter(event.message for line in trace.lines for event in line if event.kind == DELIVER)
    senders = sorted({sends[message or ""][0] for message in awaited})
    lane_of = {process: lane for lane, process in enumerate(senders)}
    lanes = Lanes(len(senders))
    ends = [len(line) - 1 for line in trace.lines]
    known = [0] * len(trace.lines)
    own = [0] * len(trace.lines)
    """The own entry of each process's vector."""
    returned = [0] * len(trace.lines)
    """The largest own entry that deliveries brought back."""
    carried: dict[str, int] = {}
    late: list[Event] = []
    for process, position, event in trace.in_causal_order():
        message = event.message or ""
        if event.kind == SEND:
            if awaited[message]:
                known[process] = lanes.raised(known[process], lane_of[process], position + 1 - own[process])
                own[process] = position + 1
                carried[message] = known[process]
        elif event.kind == DELIVER:
            source, sent = sends[message]
            reached = returned[process] if source == process else lanes.entry(known[process], lane_of[source])
            if reached > sent:
                late.append(event)
            elif source == process:
                returned[process] = sent + 1
            else:
                vector = carried[message]
                known[process] = lanes.maximum(known[process], vector)
                if process in lane_of:
                    returned[process] = max(returned[process], lanes.entry(vector, lane_of[process]))
            awaited[message] -= 1
            if not awaited[message]:
                del carried[message]
        if position == ends[process]:
            known[process] = 0
    return late


def _overtakers(trace: Matched, late: list[Late]) -> list[Late]:
    """The same late deliveries, each with the first message that overtook it."""
    bits: dict[str, int] = {}
    asked: dict[str, int] = {}
    for delivery in late:
        bit = bits.setdefault(delivery.message, 1 << len(bits))
        asked[delivery.to] = asked.get(delivery.to, 0) | bit
    waiting = [asked.get(name, 0) for name in trace.names]
    known = [0] * len(trace.lines)
    carried: dict[str, int] = {}
    answers: dict[tuple[str, int], str] = {}
    for process, _, event in trace.in_causal_order():
        message = event.message or ""
        if event.kind == SEND:
            known[process] |= bits.get(message, 0)
            if known[process]:
                carried[message] = known[process]
        elif event.kind == DELIVER:
            brought = carried.get(message, 0)
            known[process] |= brought
            # A delivery does not overtake its own message; the late one comes last and finds nothing waiting.
            overtaken = brought & waiting[process]
            waiting[process] &= ~brought
            while overtaken:
                lowest = overtaken & -overtaken
                answers[trace.names[process], lowest] = message
                overtaken ^= lowest
            if len(answers) == len(late):
                break
    return [
        Late(
            delivery.deliver_index,
            delivery.to,
            delivery.message,
            delivery.source,
            delivery.send_index,
            answers[delivery.to, bits[delivery.message]],
        )
        for delivery in late
    ]


def _fifo(trace: Matched) -> list[Late]:
    late: list[Late] = []
    for line, origins in zip(trace.lines, trace.origins, strict=True):
        newest: dict[int, int] = {}
        overtaken = []
        for position, origin in enumerate(origins):
            if origin is not None:
                source, sent = origin
                if newest.get(source, -1) > sent:
                    overtaken.append(position)
                else:
                    newest[source] = sent
        if overtaken:
            late += _fifo_overtakers(trace, line, origins, overtaken)
    return sorted(late)


def _fifo_overtakers(
    trace: Matched, line: list[Event], origins: list[tuple[int, int] | None], overtaken: list[int]
) -> Iterator[Late]:
    """The late deliveries of one line, each with the first message that overtook it."""
    # Keep, for each sender, the deliveries that were newer than all before them. The first of these with a later
    # message than m overtook m.
    newest: dict[int, tuple[list[int], list[int]]] = {}
    late = set(overtaken)
    for position, origin in enumerate(origins):
        if origin is None:
            continue
        source, sent = origin
        sends, places = newest.setdefault(source, ([], []))
        if position in late:
            yield _late(trace, line[position], line[places[bisect_right(sends, sent)]].message or "")
        else:
            sends.append(sent)
            places.append(position)


def _late(trace: Matched, event: Event, overtaken_by: str = "") -> Late:
    assert event.message is not None
    send = trace.sent(event.message)
    return Late(event.index, event.process, event.message, send.process, send.index, overtaken_by)
