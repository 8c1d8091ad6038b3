"""Why a delivery is late by significant order: the chain with the fewest messages that should have waited for it.

A chain is x0 = m, x1, … xk, each significantly before the next by one of the four direct steps of §3.2 (Enokido,
Higaki, Takizawa): whoever sends x(i+1) sent or received x(i) before, in one instance or in an instance that conflicts
with the sending one and precedes it. xk was delivered at m's object before m, against the rule. The search goes forward
from m, a message a round:

* who sent or received a message of the last round offers what the same instance sent after that;
* its end offers what instances of conflicting operations sent that began later. Of each operation of an object only the
  earliest end so far matters, and of each instance only the earliest moment, so a send is offered few times.

Nothing behind the late delivery, in any causal order of all events, can be on a chain. The first chain in the order of
sends, then of deliveries, is kept: one answer, whatever engine looks for it.

Events are numbered flat, process by process in the order of names, so that both engines search the same arrays.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

NOBODY = -1


class Numbers(Protocol):
    """An array of whole numbers, of whatever make."""

    def __getitem__(self, at: Any, /) -> Any: ...


class Acts(msgspec.Struct):
    """Who did what, as arrays. Ranges are by offsets: those of instance i are from ``sends_from[i]`` on."""

    instance: Numbers
    """The instance of each event, -1 without."""
    moment: Numbers
    """The place of each event in one causal order."""
    first: Numbers
    last: Numbers
    aborted: Numbers
    cell: Numbers
    """Of each instance its operation at its object, -1 without."""
    sends_from: Numbers
    sends: Numbers
    """What each instance sent, ascending."""
    begun_from: Numbers
    begun: Numbers
    """The instances of each cell, by their first events."""
    rivals_from: Numbers
    rivals: Numbers
    """The cells that conflict with each."""
    copies: Callable[[int], Sequence[int]]
    """The deliveries of a send, ascending."""


class Step(msgspec.Struct, frozen=True):
    """A message of a chain: its send, and the event that it follows from, of the message before it."""

    send: int
    after: int
    conflict: bool


class Found(msgspec.Struct, frozen=True):
    """A chain, and the delivery at its end."""

    steps: list[Step]
    early: int


def shortest(acts: Acts, late: int, send: int, early: Callable[[int], bool], receiver: range) -> Found:
    """The shortest chain from a send to a delivery in ``receiver`` before ``late`` that ``early`` says is too early."""
    came: dict[int, Step] = {send: Step(send, NOBODY, False)}
    reached: dict[int, int] = {}
    ended: dict[int, int] = {}
    fresh = [send]
    horizon = acts.moment[late]
    while fresh:
        offered: list[Step] = []
        for message in fresh:
            for event in (message, *acts.copies(message)):
                if acts.instance[event] >= 0 and acts.moment[event] < horizon:
                    offered += _follow(acts, event, reached, ended)
        fresh = []
        best: tuple[int, int] | None = None
        for step in sorted(offered, key=lambda step: (step.send, step.after)):
            if step.send in came or acts.moment[step.send] >= horizon:
                continue
            came[step.send] = step
            fresh.append(step.send)
            for copy in acts.copies(step.send):
                if copy in receiver and copy < late and (best is None or copy < best[0]) and early(copy):
                    best = copy, step.send
        if best is not None:
            return Found(_back(acts, came, best[1]), best[0])
    raise AssertionError("a late delivery has no overtaking chain")


def _follow(acts: Acts, event: int, reached: dict[int, int], ended: dict[int, int]) -> list[Step]:
    """What follows directly from an event of a message, as far as it was not offered before."""
    instance = acts.instance[event]
    steps = []
    until = reached.get(instance)
    if until is None or event < until:
        reached[instance] = event
        own = acts.sends[acts.sends_from[instance] : acts.sends_from[instance + 1]]
        stop = len(own) if until is None else bisect_right(own, until)
        steps += [Step(int(send), event, False) for send in own[bisect_right(own, event) : stop]]
    cell, last = acts.cell[instance], acts.last[instance]
    if cell < 0 or acts.aborted[instance] or (cell in ended and ended[cell] <= last):
        return steps
    before = ended.get(cell)
    ended[cell] = last
    for rival in acts.rivals[acts.rivals_from[cell] : acts.rivals_from[cell + 1]]:
        for other in acts.begun[acts.begun_from[rival] : acts.begun_from[rival + 1]]:
            begun = acts.first[other]
            if begun > last and (before is None or begun <= before):
                own = acts.sends[acts.sends_from[other] : acts.sends_from[other + 1]]
                steps += [Step(int(send), event, True) for send in own]
    return steps


def _back(acts: Acts, came: dict[int, Step], send: int) -> list[Step]:
    """The steps to a send, first to last; an event names the send of its message."""
    sent_as = {copy: message for message in came for copy in acts.copies(message)}
    steps = []
    step = came[send]
    while step.after != NOBODY:
        steps.append(step)
        step = came[sent_as.get(step.after, step.after)]
    return steps[::-1]
