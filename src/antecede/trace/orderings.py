"""Count the orderings that causal order enforces, but significant order does not need.

An *ordering* is a pair of messages m, m′ and a process that delivered both. Causal order enforces the ordering "m
before m′" if the send of m happened before the send of m′, and in no other case. Significant order needs this ordering
if m significantly precedes m′ and rule 1 of :mod:`antecede.trace.significant` requires m first. Rule 2 is ignored here,
because it does not say which of the two messages must come first. Causal order also enforces every ordering that
significant order needs (Enokido, Higaki, Takizawa §3.2, proposition). It enforces all other orderings without need.

This module uses the same messages as :func:`antecede.trace.costs.concurrency`: all messages or, if there are too many,
a sample. Sets of messages are bit masks. The deliveries at an object are grouped by instance (one execution of an
operation) and by cell. A cell is a group of instances with the same conflicts (:mod:`antecede.trace.cells`). So the
union of a few masks gives all messages that rule 1 compares with a given message.
"""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from antecede.trace.cells import NO_CELL, Cells
from antecede.trace.conflicts import Conflicts
from antecede.trace.costs import drawn
from antecede.trace.instances import REQUEST, Instances
from antecede.trace.matched import Matched
from antecede.trace.schema import DELIVER, SEND
from antecede.trace.significance import Significance


class Received(msgspec.Struct, frozen=True, gc=False):
    """A delivery of a message for which orderings are counted. ``number`` is the number of the message. The other
    fields are set if they are known: the instance that received the message, the cell of this instance, and the role
    of the delivery (request or response)."""

    number: int
    instance: str | None = None
    cell: int = NO_CELL
    received_as: str | None = None


def orderings(trace: Matched, conflicts: Conflicts) -> dict[str, Any] | None:
    """Return the value of the report's key ``significance``. If no delivery names the instance that received it, return
    ``None``."""
    instances = Instances(trace)
    if not instances.judged:
        return None
    cells = Cells(instances, conflicts)
    sends = sorted(trace.sends, key=trace.sends.__getitem__)
    compared = {sends[rank] for rank in drawn(len(sends))}
    numbers, causal, significant = _pasts(cells, compared)
    total = needed = 0
    for process, line in enumerate(trace.lines):
        received = []
        for position, event in enumerate(line):
            if event.kind == DELIVER and event.message in numbers:
                instance = instances.of(process, event)
                received.append(
                    Received(
                        numbers[event.message],
                        instance.name if instance else None,
                        cells.of(instance),
                        instances.received_as(process, position, event),
                    )
                )
        counted = counted_at(received, causal, significant, cells.rivals, cells.request_rivals)
        total, needed = total + counted[0], needed + counted[1]
    return figures(len(compared), total, needed)


def figures(messages: int, causal: int, significant: int) -> dict[str, Any]:
    """Return the value of the report's key ``significance``. ``messages``: the number of messages that were compared.
    ``causal``: the number of orderings that causal order enforces. ``significant``: the number of orderings that
    significant order needs."""
    return {"messages": messages, "causal": causal, "significant": significant, "spared": causal - significant}


def _pasts(cells: Cells, compared: Collection[str]) -> tuple[dict[str, int], list[int], list[int]]:
    """Give a number to each delivered message in ``compared``. Return a table with the number of each of these
    messages, and two lists. Both lists contain one set of messages for each numbered message m. The set in the
    first list contains the messages whose sends happened before the send of m. The set in the second list contains the
    messages that significantly precede m. All sets contain only numbered messages."""
    causal: dict[str, int] = {}
    significant: dict[str, int] = {}
    known = [0] * len(cells.trace.lines)
    carried: dict[str, int] = {}
    walk = Significance(cells, compared, squeeze=False)
    for process, position, event in cells.trace.in_causal_order():
        message = event.message or ""
        arrived = walk.take(process, position, event)
        if event.kind == SEND:
            if message in walk.bits:
                causal[message] = known[process]
                known[process] |= walk.bits[message]
            carried[message] = known[process]
        elif event.kind == DELIVER:
            known[process] |= carried[message]
            if arrived is not None and arrived.bit:
                significant[message] = arrived.carried & ~arrived.bit
    # The walk gives bits in the order in which it reaches the messages.
    numbers = {message: number for number, message in enumerate(walk.bits)}
    return numbers, [causal[message] for message in numbers], [significant.get(message, 0) for message in numbers]


def counted_at(
    received: Sequence[Received],
    causal: Sequence[int],
    significant: Sequence[int],
    rivals: Sequence[Collection[int]],
    request_rivals: Sequence[Collection[int]],
) -> tuple[int, int]:
    """Count the orderings (pairs of deliveries in a fixed sequence) at one object. Return the number that causal order
    enforces, and the number that significant order needs. ``received``: the deliveries at the object, in sequence.
    ``causal`` and ``significant``: the two lists that ``_pasts`` returns. ``rivals`` and ``request_rivals``: see
    :class:`antecede.trace.cells.Cells`."""
    here = 0
    requests: dict[int, int] = {}
    responses: dict[int, int] = {}
    by_instance: dict[str, int] = {}
    for one in received:
        here |= 1 << one.number
        if one.instance is None or one.received_as is None:
            continue
        by_instance[one.instance] = by_instance.get(one.instance, 0) | 1 << one.number
        if one.cell != NO_CELL:
            kind = requests if one.received_as == REQUEST else responses
            kind[one.cell] = kind.get(one.cell, 0) | 1 << one.number
    total = needed = 0
    for one in received:
        total += (causal[one.number] & here & ~(1 << one.number)).bit_count()
        if one.instance is None or one.received_as is None:
            continue
        wanted = by_instance.get(one.instance, 0)
        if one.received_as == REQUEST and one.cell != NO_CELL:
            for rival in rivals[one.cell]:
                wanted |= responses.get(rival, 0)
            for rival in request_rivals[one.cell]:
                wanted |= requests.get(rival, 0)
        needed += (significant[one.number] & wanted & ~(1 << one.number)).bit_count()
    return total, needed
