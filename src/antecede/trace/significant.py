"""Significant order: were messages delivered in the order that significant precedence requires?

Here m → m′ means that m significantly precedes m′ (:mod:`antecede.trace.significance`). The rule of *significantly
ordered delivery* (Enokido, Higaki, Takizawa §3.3, SO) is judged as follows. A delivery of m at an object q is **late**
iff q delivered a message m′ before m, and one of these conditions holds:

* **instance** (SO 1-1): m → m′, and one instance receives both; or
* **conflict** (SO 1-2): m → m′, m′ is a request, and the instances that receive the two messages conflict (if both
  messages are requests, it is enough that the operations of these instances conflict); or
* **agreement** (SO 2, C1): neither *instance* nor *conflict* holds; both messages are requests; their instances
  conflict at q and also at another object; the other object delivered m before m′; and not m′ → m.

Where the printed rule cannot be right, or is not precise, we interpret it as follows:

* In the paper, the condition of (1-2) is "m1 or m2 is a request". A *response* m′ would then wait for a request m. But
  the request m cannot be executed while the instance that waits for m′ is running. This is a deadlock. The paper proves
  that the rule has no deadlock, so we decided that a response never waits for a request. We also decided that an
  instance does not conflict with its ancestors (its direct and indirect callers), because they wait for it. This second
  decision does not apply if both messages are requests: a request gets its position in the order before it starts its
  instance, and the ancestors of this instance are not known yet.
* Rule (2), *agreement*, requires the same order of two unrelated requests at all objects, but does not say which
  order is right. If two objects disagree, we call a delivery late at the object whose name comes later. In the
  paper, rule (2) applies "otherwise": if rule (1) does not put the two requests in order. The operation of a
  request is determined at each object, because an operation may have different names at different objects.
* The rule is about requests and responses (C1–C3). Commits and aborts wait for nothing. The messages that an
  aborted instance received have changed nothing (§2). So these messages are never late, and no other message is
  late because of them.

Responses to different instances may come in any order (§3.3, T2). Compatible messages may also come in any order. A
delivery that no instance receives is not judged. :mod:`antecede.trace.cells` defines which instances conflict.

Deliveries that are late under (1) are found in one walk. A delivery of m is late iff m is in one of two sets: the
messages known from earlier deliveries to the same instance, and the messages known from earlier requests to conflicting
instances of the same object. If the caller also wants the overtaking messages, a second walk compares each late message
with the messages that were delivered before it. Both walks store sets of messages as bit masks. In the second walk,
only the late messages have a bit in these masks.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from antecede.errors import UsageError
from antecede.trace.cells import NO_CELL, Cells
from antecede.trace.conflicts import Conflicts
from antecede.trace.instances import REQUEST, Instances
from antecede.trace.matched import Matched
from antecede.trace.schema import DELIVER, SEND
from antecede.trace.significance import Significance
from antecede.trace.verdicts import Late

_asked_at_once = 8_192

Place = tuple[int, int]
"""The place of a delivery: the number of a process, and a position in the list of this process's rows."""


class Significant(msgspec.Struct):
    """The verdict on significant order."""

    late: list[Late]
    """The late deliveries, sorted. If ``overtaken_by`` of a delivery is set, its ``rule`` is set, too."""
    unlisted: list[str]
    """Operations of the trace that the conflict table does not name, sorted by name."""


def judge_significant(trace: Matched, conflicts: Conflicts, every_overtaker: bool = False) -> Significant:
    """Judge a trace by significant order. ``overtaken_by`` is set for the first late delivery and for the deliveries
    that break the rule *agreement*. If ``every_overtaker`` is true, ``overtaken_by`` is set for all late deliveries."""
    instances = Instances(trace)
    if trace.deliveries and not instances.judged:
        raise nothing_to_judge()
    cells = Cells(instances, conflicts)
    late = _late_places(cells)
    crossed = _crossed(cells, late)
    found = sorted(
        [(_late(trace, place), place) for place in late]
        + [(_late(trace, place, other, "agreement"), place) for place, other in crossed.items()]
    )
    asked = [place for one, place in (found if every_overtaker else found[:1]) if not one.rule]
    answers = _overtakers(cells, asked)
    every = [_late(trace, place, *answers[place]) if place in answers else one for one, place in found]
    return Significant(every, unlisted(instances.operations(), cells.conflicts))


def nothing_to_judge() -> UsageError:
    """Return the error for a trace in which no delivery names its instance."""
    return UsageError("significant order cannot be judged: no delivery in the trace has an instance")


def unlisted(used: Iterable[str], conflicts: Conflicts) -> list[str]:
    """Return the operations in ``used`` that the conflict table does not name. Such operations are treated as
    compatible with all operations."""
    return sorted(set(used) - conflicts.operations())


def _late_places(cells: Cells) -> set[Place]:
    """Return the deliveries that break rule (1), that is, *instance* or *conflict*."""
    late: set[Place] = set()
    walk = Significance(cells)
    for process, position, event in cells.trace.in_causal_order():
        arrived = walk.take(process, position, event)
        if arrived is None or not (arrived.received | arrived.requests) & arrived.bit:
            continue
        if cells.instances.received_as(process, position, event) is not None:
            late.add((process, position))
    return late


def broken_rule(cells: Cells, process: int, late: int, earlier: int) -> str | None:
    """Return the part of rule (1) that two deliveries break (``instance`` or ``conflict``), or ``None`` if they break
    neither. The process delivered m′ at position ``earlier``, and m at position ``late``. The caller must know that m
    significantly precedes m′."""
    line, instances = cells.trace.lines[process], cells.instances
    one, other = instances.of(process, line[late]), instances.of(process, line[earlier])
    late_as = instances.received_as(process, late, line[late])
    earlier_as = instances.received_as(process, earlier, line[earlier])
    if one is None or other is None or late_as is None or earlier_as is None:
        return None
    if one is other:
        return "instance"
    conflicting = cells.conflict(one, other, requests=late_as == REQUEST)
    return "conflict" if earlier_as == REQUEST and conflicting else None


def _overtakers(cells: Cells, places: Sequence[Place]) -> dict[Place, tuple[str, str]]:
    """Return two values for each delivery in ``places``: the first message that overtook the delivered message, and the
    part of rule (1) that the delivery breaks (``instance`` or ``conflict``). All deliveries in ``places`` break rule
    (1)."""
    if len(places) > _asked_at_once:
        half = len(places) // 2
        return _overtakers(cells, places[:half]) | _overtakers(cells, places[half:])
    trace = cells.trace
    waiting: dict[int, dict[str, int]] = {}
    for process, position in places:
        waiting.setdefault(process, {})[trace.lines[process][position].message or ""] = position
    asked = {message for own in waiting.values() for message in own}
    walk = Significance(cells, asked, squeeze=False)
    found: dict[Place, tuple[str, str]] = {}
    for process, position, event in trace.in_causal_order():
        arrived = walk.take(process, position, event)
        own = waiting.get(process)
        if arrived is None or not own:
            continue
        own.pop(event.message or "", None)
        if not arrived.carried:
            continue
        for message, late in list(own.items()):
            # A message whose send comes later in the walk has no bit yet, and precedes nothing so far.
            if walk.bits.get(message, 0) & arrived.carried:
                rule = broken_rule(cells, process, late, position)
                if rule is not None:
                    found[process, late] = event.message or "", rule
                    del own[message]
    return found


class _Request(msgspec.Struct, frozen=True, gc=False):
    """A delivery of a request."""

    process: int
    position: int
    cell: int
    message: str


def _crossed(cells: Cells, late: set[Place]) -> dict[Place, str]:
    """Return the deliveries that break rule (2), *agreement*. For each of them, also return the first message that
    overtook the delivered message.

    Each object (*here*) is compared with each object that has a later name (*there*). A walk visits the deliveries here
    from the last to the first. Let m be the request that the walk visits now. Let m′ be a request that the walk visited
    before, so here m′ was delivered after m. The delivery of m there is late if two conditions hold: there, m′ was
    delivered before m; and at both objects, the instances of m and m′ conflict. To test this, the walk stores the
    requests m′. A *cell* is a group of instances with the same conflicts. For each pair of cells (one cell here, one
    there), the walk stores only one request: the one that was delivered first there.

    There is one exception. If m′ significantly precedes m, it was right to deliver m′ before m there, and m′ is late
    *here* by rule (1). So the requests m′ that are late here by rule (1) are stored separately, and m is compared with
    each of them.
    """
    trace = cells.trace
    copies: dict[str, list[_Request]] = {}
    for request in _requests(cells):
        copies.setdefault(request.message, []).append(request)
    crossed: dict[Place, int] = {}
    unsettled: list[tuple[_Request, _Request, _Request]] = []
    for process, line in enumerate(trace.lines):
        earliest: dict[int, dict[tuple[int, int], int]] = {}
        waiting: list[_Request] = []
        """The requests that the walk has already visited, if they are late at this process by rule (1)."""
        for position in range(len(line) - 1, -1, -1):
            own = copies.get(line[position].message or "", ()) if line[position].kind == DELIVER else ()
            here = next((one for one in own if one.process == process), None)
            if here is None or len(own) < 2:
                continue
            for there in own:
                if there.process <= process or (there.process, there.position) in late:
                    continue
                for (mine, its), before in earliest.get(there.process, {}).items():
                    if before < there.position and mine in cells.rivals[here.cell] and its in cells.rivals[there.cell]:
                        _keep_earlier(crossed, there, before)
                for other in waiting:
                    other_there = next((one for one in copies[other.message] if one.process == there.process), None)
                    if other_there is None or other_there.position > there.position:
                        continue
                    if other.cell in cells.rivals[here.cell] and other_there.cell in cells.rivals[there.cell]:
                        unsettled.append((other, there, other_there))
            if (process, position) in late:
                waiting.append(here)
                continue
            for there in own:
                if there.process > process:
                    arrived = earliest.setdefault(there.process, {})
                    key = here.cell, there.cell
                    arrived[key] = min(arrived.get(key, there.position), there.position)
    precedes = _precedes(cells, [(one.message, two.message) for one, two, _ in unsettled])
    for other, there, other_there in unsettled:
        if (other.message, there.message) not in precedes:
            _keep_earlier(crossed, there, other_there.position)
    return {place: trace.lines[place[0]][before].message or "" for place, before in crossed.items()}


def _keep_earlier(crossed: dict[Place, int], late: _Request, before: int) -> None:
    place = late.process, late.position
    crossed[place] = min(crossed.get(place, before), before)


def _precedes(cells: Cells, pairs: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return some of ``pairs``: those in which the first message significantly precedes the second."""
    found: set[tuple[str, str]] = set()
    firsts = sorted({first for first, _ in pairs})
    for start in range(0, len(firsts), _asked_at_once):
        asked = set(firsts[start : start + _asked_at_once])
        wanted: dict[str, list[str]] = {}
        for first, second in pairs:
            if first in asked:
                wanted.setdefault(second, []).append(first)
        walk = Significance(cells, asked, squeeze=False)
        for process, position, event in cells.trace.in_causal_order():
            walk.take(process, position, event)
            if event.kind == SEND and event.message in wanted:
                carried = walk.carried(event.message)
                found |= {(one, event.message) for one in wanted[event.message] if carried & walk.bits.get(one, 0)}
    return found


def _requests(cells: Cells) -> Iterator[_Request]:
    instances = cells.instances
    for process, line in enumerate(cells.trace.lines):
        for position, event in enumerate(line):
            if event.kind == DELIVER and instances.received_as(process, position, event) == REQUEST:
                cell = cells.of(instances.of(process, event))
                if cell != NO_CELL:
                    yield _Request(process, position, cell, event.message or "")


def _late(trace: Matched, place: Place, overtaken_by: str = "", rule: str = "") -> Late:
    process, position = place
    return trace.late(trace.lines[process][position], overtaken_by, rule)
