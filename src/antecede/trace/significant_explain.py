"""Explain late deliveries, for ``explain --order significant``.

An explanation contains a chain of messages: the last of them overtook the late message. A link of a chain describes a
message and its send. Some of its keys are:

* **after**: an earlier event at the process that sends this message. With this event, the process sent or received
  the previous message of the chain. ``kind``, ``index`` and ``instance`` describe the event. ``sender`` is the
  instance that sends this message. ``by`` compares the instance of the event with ``sender``: it is ``instance`` if
  the two are the same, and ``conflict`` if they conflict.
* **to** and **deliver_index**: a delivery of this message. The next message of the chain was sent after this
  delivery. Both keys are null if the chain continues from the send of this message. In the last link, they describe
  the early delivery.

A delivery that breaks the rule *agreement* is late because two objects received two requests in different orders. Its
explanation has only one link, the other request. The key ``elsewhere`` describes an object that received the late
request before the other request.

Both engines use this module: they provide the numbers of a chain's events, and a function that returns an event by its
number.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any, TypeVar

import msgspec

from antecede.trace.cells import Cells
from antecede.trace.conflicts import Conflicts
from antecede.trace.instances import REQUEST, Instances
from antecede.trace.matched import Matched
from antecede.trace.schema import DELIVER, SEND, Event
from antecede.trace.significant import broken_rule
from antecede.trace.significant_chain import NO_EVENT, Acts, Found, shortest
from antecede.trace.verdicts import Late

Value = TypeVar("Value")


class Named(msgspec.Struct, frozen=True):
    """An event of an explanation, with some of the fields of :class:`Event`."""

    process: str
    index: int
    kind: str
    message: str | tuple[int, int]
    """The id of the event's message, or a placeholder until the id is looked up."""
    instance: str | None


Names = Callable[[int], Named | Event]


def chain_of(found: Found, rule: str, late: int, sent: int, name: Names) -> dict[str, Any]:
    """Return the explanation of a delivery that is late because of a chain of messages."""
    links = []
    for number, step in enumerate(found.steps):
        send, after = name(step.send), name(step.after)
        last = number + 1 == len(found.steps)
        onward = found.early if last else found.steps[number + 1].after
        to = name(onward) if last or onward != step.send else None
        links.append(
            _link(send, to)
            | {
                "after": {
                    "kind": after.kind,
                    "index": after.index,
                    "instance": after.instance,
                    "by": "conflict" if step.conflict else "instance",
                    "sender": send.instance,
                }
            }
        )
    return _explanation(name(late), name(sent), rule, links)


def disagreement(
    late: int, sent: int, early: int, early_sent: int, here: int, there: int, name: Names
) -> dict[str, Any]:
    """Return the explanation of a delivery that breaks the rule *agreement*. At this object, another request was
    delivered before the late request. At another object, the late request was delivered first."""
    links = [_link(name(early_sent), name(early)) | {"after": None}]
    first, then = name(here), name(there)
    elsewhere = {"process": first.process, "index": first.index, "overtaken_by_index": then.index}
    return _explanation(name(late), name(sent), "agreement", links) | {"elsewhere": elsewhere}


def _link(send: Named | Event, to: Named | Event | None) -> dict[str, Any]:
    return {
        "message": send.message,
        "from": send.process,
        "send_index": send.index,
        "to": to.process if to else None,
        "deliver_index": to.index if to else None,
    }


def _explanation(late: Named | Event, sent: Named | Event, rule: str, links: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "message": late.message,
        "from": sent.process,
        "to": late.process,
        "send_index": sent.index,
        "deliver_index": late.index,
        "rule": rule,
        "length": len(links),
        "chain": links,
    }


class Explainer:
    """Explains late deliveries of a trace in memory."""

    def __init__(self, trace: Matched, conflicts: Conflicts) -> None:
        self._trace = trace
        self._instances = Instances(trace)
        self._cells = Cells(self._instances, conflicts)
        self._offsets, self._events = _ranges(trace.lines)
        self._copies: dict[int, list[int]] = {}
        for flat, event in enumerate(self._events):
            if event.kind == DELIVER:
                self._copies.setdefault(self._sent(event.message or ""), []).append(flat)
        self._acts = self._build()

    def explain(self, late: Sequence[Late]) -> list[dict[str, Any]]:
        """Return one explanation for each late delivery."""
        numbers = {name: number for number, name in enumerate(self._trace.names)}
        return [self._explained(one, numbers[one.to]) for one in late]

    def _explained(self, late: Late, process: int) -> dict[str, Any]:
        sent = self._sent(late.message)
        begin, end = self._offsets[process], self._offsets[process + 1]
        at = next(flat for flat in self._copies[sent] if begin <= flat < end)
        if late.rule == "agreement":
            return self._disagreement(late, process, at, sent)

        def rule(early: int) -> str | None:
            return broken_rule(self._cells, process, at - begin, early - begin)

        found = shortest(self._acts, at, sent, lambda early: rule(early) is not None, range(begin, end))
        return chain_of(found, rule(found.early) or "", at, sent, self._events.__getitem__)

    def _disagreement(self, late: Late, process: int, at: int, sent: int) -> dict[str, Any]:
        other = self._sent(late.overtaken_by)
        mine, its = ({self._process(flat): flat for flat in self._copies[one]} for one in (sent, other))
        for number in sorted(mine.keys() & its.keys()):
            if number >= process or mine[number] > its[number]:
                continue
            if self._compared(mine[number], its[number]) and self._compared(at, its[process]):
                return disagreement(at, sent, its[process], other, mine[number], its[number], self._events.__getitem__)
        raise AssertionError("no object received the late request before the other request")

    def _compared(self, *deliveries: int) -> bool:
        """Return whether two deliveries at an object are requests whose instances conflict."""
        process = self._process(deliveries[0])
        owners = []
        for flat in deliveries:
            event, position = self._events[flat], flat - self._offsets[process]
            owner = self._instances.of(process, event)
            if owner is None or self._instances.received_as(process, position, event) != REQUEST:
                return False
            owners.append(owner)
        return self._cells.conflict(owners[0], owners[1])

    def _sent(self, message: str) -> int:
        process, position = self._trace.sends[message]
        return self._offsets[process] + position

    def _process(self, flat: int) -> int:
        return bisect_right(self._offsets, flat) - 1

    def _build(self) -> Acts:
        all_instances = [one for own in self._instances.by_name for one in own.values()]
        numbers = {(one.process, one.name): number for number, one in enumerate(all_instances)}
        instance = [NO_EVENT] * len(self._events)
        moment = [0] * len(self._events)
        for count, (process, position, event) in enumerate(self._trace.in_causal_order()):
            flat = self._offsets[process] + position
            moment[flat] = count
            owner = self._instances.of(process, event)
            if owner is not None:
                instance[flat] = numbers[process, owner.name]
        sends: list[list[int]] = [[] for _ in all_instances]
        for flat, event in enumerate(self._events):
            if event.kind == SEND and instance[flat] >= 0:
                sends[instance[flat]].append(flat)
        begun: list[list[int]] = [[] for _ in self._cells.rivals]
        cell = [self._cells.of(one) for one in all_instances]
        first = [self._offsets[one.process] + one.first for one in all_instances]
        for number in sorted(range(len(all_instances)), key=first.__getitem__):
            if cell[number] >= 0:
                begun[cell[number]].append(number)
        rivals = [sorted(own) for own in self._cells.rivals]
        return Acts(
            instance,
            moment,
            first,
            [self._offsets[one.process] + one.last for one in all_instances],
            [one.aborted for one in all_instances],
            cell,
            *_ranges(sends),
            *_ranges(begun),
            *_ranges(rivals),
            lambda send: self._copies.get(send, []),
        )


def _ranges(lists: list[list[Value]]) -> tuple[list[int], list[Value]]:
    """Join lists into one. Return two lists. The first contains the position at which each given list starts in the
    joined list, and then the length of the joined list. The second is the joined list. For example,
    ``[[a, b], [c]]`` gives ``[0, 2, 3]`` and ``[a, b, c]``."""
    return list(accumulate(map(len, lists), initial=0)), list(chain.from_iterable(lists))
