"""The reason why a delivery of m is late under significant order: the shortest chain of messages that overtook m.

A chain is a list of messages x0 = m, x1, … xk. Each message x(i) directly precedes the next message x(i+1), by one of
the four cases (1-1), (1-2), (2-1) and (2-2) in :mod:`antecede.trace.significance`. That is, the object that sent x(i+1)
had sent or received x(i) before. Let j be the instance that sent x(i+1). There are two cases: j itself had sent or
received x(i), or an instance that conflicts with j had done so and had ended before j began. The last message xk was
delivered at m's object before m, against the rule. The search starts at m. Each round makes the chains one message
longer:

* Let i be an instance that sent or received a message of the previous round. The later sends of i are examined.
* Some instances conflict with i and began after i ended. All sends of these instances are also examined.

The search stores, for each instance, the earliest of the instance's events on a chain. A cell is a group of instances
with the same conflicts (:mod:`antecede.trace.cells`). For each cell, the search looks at the instances with an event
on a chain, and stores the smallest position at which one of them ended. Later events and later ends lead to no
additional sends, so a send is examined only a few times.

Events are numbered process by process, in the order of the processes' names, so both engines search the same arrays.
The search also needs the *moment* of each event: its position in one sequence of all events. (This sequence agrees with
happened-before.) Events with a later moment than the late delivery cannot be on a chain. If there are several shortest
chains, the search keeps the one whose last message was delivered first, so both engines give the same answer.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

NO_EVENT = -1


class Numbers(Protocol):
    """An array of whole numbers, of any type."""

    def __getitem__(self, at: Any, /) -> Any: ...


class Acts(msgspec.Struct):
    """The sends, cells and conflicts of instances, as arrays. The sends of instance i are
    ``sends[sends_from[i] : sends_from[i + 1]]``. In the same way, ``begun_from`` and ``rivals_from`` divide ``begun``
    and ``rivals`` into one range for each cell."""

    instance: Numbers
    """For each event, the number of its instance; -1 if the event belongs to no instance."""
    moment: Numbers
    """The position of each event in one sequence of all events. The sequence agrees with happened-before."""
    first: Numbers
    last: Numbers
    aborted: Numbers
    cell: Numbers
    """For each instance, the number of its cell (:mod:`antecede.trace.cells`); -1 if it has no cell."""
    sends_from: Numbers
    sends: Numbers
    """The sends of all instances, one instance after the other; the sends of one instance are ascending."""
    begun_from: Numbers
    begun: Numbers
    """The instances of all cells, one cell after the other; the instances of one cell are sorted by their first
    events."""
    rivals_from: Numbers
    rivals: Numbers
    """For each cell, the cells that conflict with it. A cell is a group of instances with the same conflicts
    (:mod:`antecede.trace.cells`)."""
    copies: Callable[[int], Sequence[int]]
    """A function that is called with a send. It returns the deliveries of the message, ascending."""


class Step(msgspec.Struct, frozen=True):
    """A message of a chain. ``send`` is the event that sent the message. ``after`` is the earlier event by which the
    same process sent or received the previous message of the chain."""

    send: int
    after: int
    conflict: bool


class Found(msgspec.Struct, frozen=True):
    """A chain, and the delivery at its end."""

    steps: list[Step]
    early: int


def shortest(acts: Acts, late: int, send: int, early: Callable[[int], bool], receiver: range) -> Found:
    """Return the shortest chain that begins with ``send`` and ends with an early delivery at the receiver. A delivery
    is early if it comes before ``late`` and the function ``early`` returns true for it. ``receiver`` is the range of
    the receiver's events."""
    steps_by_send: dict[int, Step] = {send: Step(send, NO_EVENT, False)}
    reached: dict[int, int] = {}
    ended: dict[int, int] = {}
    frontier = [send]
    horizon = acts.moment[late]
    while frontier:
        offered: list[Step] = []
        for message in frontier:
            for event in (message, *acts.copies(message)):
                if acts.instance[event] >= 0 and acts.moment[event] < horizon:
                    offered += _follow(acts, event, reached, ended)
        frontier = []
        best: tuple[int, int] | None = None
        for step in sorted(offered, key=lambda step: (step.send, step.after)):
            if step.send in steps_by_send or acts.moment[step.send] >= horizon:
                continue
            steps_by_send[step.send] = step
            frontier.append(step.send)
            for copy in acts.copies(step.send):
                if copy in receiver and copy < late and (best is None or copy < best[0]) and early(copy):
                    best = copy, step.send
        if best is not None:
            return Found(_back(acts, steps_by_send, best[1]), best[0])
    raise AssertionError("a late delivery has no overtaking chain")


def _follow(acts: Acts, event: int, reached: dict[int, int], ended: dict[int, int]) -> list[Step]:
    """Return the next steps of a chain that has reached this event. These are the later sends of the event's instance,
    and all sends of some other instances: those that conflict with this instance and began after its end. Leave out
    steps that an earlier call returned."""
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


def _back(acts: Acts, steps_by_send: dict[int, Step], send: int) -> list[Step]:
    """Return the steps of the chain that ends with this send, first to last."""
    sent_as = {copy: message for message in steps_by_send for copy in acts.copies(message)}
    steps = []
    step = steps_by_send[send]
    while step.after != NO_EVENT:
        steps.append(step)
        step = steps_by_send[sent_as.get(step.after, step.after)]
    return steps[::-1]
