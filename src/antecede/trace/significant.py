"""Significant order: were the messages that significance orders delivered in that order?

With m → m′ as in :mod:`antecede.trace.significance`, the rule of *significantly ordered delivery* (Enokido, Higaki,
Takizawa §3.3, SO) is judged as follows. A delivery of m at an object q is **late** iff q earlier delivered m′ and

* **instance** (SO 1-1): m → m′, and one instance receives both, but m not as its request; or
* **conflict** (SO 1-2): m → m′, m′ is a request, and the instances that receive them conflict in q; or
* **agreement** (SO 2, C1): both are requests of operations that conflict in q and in another object of theirs, which
  delivered m before m′.

Readings where the printed rule cannot be meant, or says nothing:

* (1-2) is printed for "m1 or m2 is a request". A *response* m′ would then wait for a request m that cannot be computed
  while the instance that waits for m′ is running: a deadlock, which the rule is proven not to have. So a response waits
  for no request. Nor does an instance conflict with its ancestors, which wait for it, unless both messages are requests
  (a request is ordered before anyone knows whose descendant its instance is).
* (2) orders unrelated requests the same way everywhere, but says nothing of which way is right. Of two objects that
  disagree we call the delivery late at the one whose name comes later. It is asked among the deliveries that (1) lets
  pass; so two requests with m → m′ are never counted again. A request that is named as one operation here and as
  another there is not compared between the two.

* The rule is about requests and responses (C1–C3). What commits or aborts an instance waits for nothing; and what an
  instance received that aborted has changed nothing (§2), so it neither is late nor makes anything late.

Responses to different instances may come in any order (§3.3, T2), and so may all that is compatible. A delivery that no
instance receives is not judged.

Late by (1) are found in one walk: a delivery of m is late iff m is among what earlier deliveries brought to its
instance, or among what requests of conflicting operations brought to its object. Where ancestors may be among those,
and wherever the overtaking message is asked for, a second walk looks at the pairs, with the bits of those messages
alone.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from antecede.errors import UsageError
from antecede.trace.conflicts import Conflicts
from antecede.trace.instances import REQUEST, Instance, Instances
from antecede.trace.matched import Matched
from antecede.trace.schema import DELIVER, Event
from antecede.trace.significance import Significance
from antecede.trace.verdicts import Late

_asked_at_once = 8_192

Place = tuple[int, int]
"""A process and a position in its line."""

RULES = ("instance", "conflict", "agreement")


class Significant(msgspec.Struct):
    """The verdict on significant order."""

    late: list[Late]
    """Ascending, each with the rule that it breaks."""
    unlisted: list[str]
    """Operations of the trace that the conflict table does not name, by name."""

    @property
    def crossed(self) -> int:
        """How many are late because two objects disagree."""
        return sum(one.rule == "agreement" for one in self.late)


def judge_significant(trace: Matched, conflicts: Conflicts, every_overtaker: bool = False) -> Significant:
    """Judge a trace; ``overtaken_by`` is filled in for the first late delivery, or for all if asked."""
    instances = Instances(trace)
    if trace.deliveries and not instances.judged:
        raise nothing_to_judge()
    conflicts = conflicts.over(instances.operations())
    late, doubtful = _late_places(trace, instances, conflicts)
    confirmed = overtakers(trace, instances, conflicts, doubtful)
    late |= confirmed.keys()
    crossed = _crossed(trace, instances, conflicts, late)
    found = sorted(
        [(_late(trace, place, *confirmed.get(place, ("", ""))), place) for place in late]
        + [(_late(trace, place, other, "agreement"), place) for place, other in crossed.items()]
    )
    asked = [place for one, place in (found if every_overtaker else found[:1]) if not one.rule]
    answers = overtakers(trace, instances, conflicts, asked)
    every = [_late(trace, place, *answers[place]) if place in answers else one for one, place in found]
    return Significant(every, unlisted(instances.operations(), conflicts))


def nothing_to_judge() -> UsageError:
    """The trace has deliveries, and none of them names its instance."""
    return UsageError("the significant order cannot be judged: no delivery of the trace names its instance")


def unlisted(used: Iterable[str], conflicts: Conflicts) -> list[str]:
    """The operations that no table names: they are taken as compatible with all."""
    return sorted(set(used) - conflicts.operations())


def _late_places(trace: Matched, instances: Instances, conflicts: Conflicts) -> tuple[set[Place], list[Place]]:
    """The deliveries that break rule (1), and those that may: a look at the pairs has to tell."""
    late: set[Place] = set()
    doubtful: list[Place] = []
    walk = Significance(trace, instances, conflicts)
    for process, position, event in trace.in_causal_order():
        met = walk.take(process, position, event)
        if met is None:
            continue
        by_instance, by_conflict = met.received & met.bit, met.requests & met.bit
        received_as = instances.received_as(process, position, event)
        if received_as is not None and (by_instance or by_conflict):
            # A request is not late for a response to its own instance, nor a response for a descendant's request.
            if by_conflict if received_as == REQUEST else by_instance:
                late.add((process, position))
            else:
                doubtful.append((process, position))
    return late, doubtful


def broken_rule(
    trace: Matched, instances: Instances, conflicts: Conflicts, process: int, late: int, earlier: int
) -> str | None:
    """Which part of (1) forbids these two deliveries at an object in this order, given that m → m′."""
    line = trace.lines[process]
    one, other = instances.of(process, line[late]), instances.of(process, line[earlier])
    late_as = instances.received_as(process, late, line[late])
    earlier_as = instances.received_as(process, earlier, line[earlier])
    if one is None or other is None or late_as is None or earlier_as is None:
        return None
    if one is other:
        return "instance" if late_as != REQUEST else None
    if earlier_as != REQUEST or not conflicting(conflicts, trace.names[process], one, other):
        return None
    return "conflict" if late_as == REQUEST or not instances.related(one.name, other.name) else None


def conflicting(conflicts: Conflicts, object_: str, one: Instance, other: Instance) -> bool:
    """Whether the operations of two instances conflict in an object."""
    if one.operation is None or other.operation is None:
        return False
    return other.operation in conflicts.at(object_).get(one.operation, ())


def overtakers(
    trace: Matched, instances: Instances, conflicts: Conflicts, places: Sequence[Place]
) -> dict[Place, tuple[str, str]]:
    """For each delivery that breaks rule (1), the first message that it should have come before, and the rule."""
    found: dict[Place, tuple[str, str]] = {}
    for start in range(0, len(places), _asked_at_once):
        found |= _overtakers(trace, instances, conflicts, places[start : start + _asked_at_once])
    return found


def _overtakers(
    trace: Matched, instances: Instances, conflicts: Conflicts, places: Sequence[Place]
) -> dict[Place, tuple[str, str]]:
    waiting: dict[int, dict[str, int]] = {}
    for process, position in places:
        waiting.setdefault(process, {})[trace.lines[process][position].message or ""] = position
    asked = {message for own in waiting.values() for message in own}
    walk = Significance(trace, instances, conflicts, asked, squeeze=False)
    found: dict[Place, tuple[str, str]] = {}
    for process, position, event in trace.in_causal_order():
        met = walk.take(process, position, event)
        own = waiting.get(process)
        if met is None or not own:
            continue
        own.pop(event.message or "", None)
        if not met.carried:
            continue
        for message, late in list(own.items()):
            # A message whose send is still ahead has no bit yet, and precedes nothing so far.
            if walk.bits.get(message, 0) & met.carried:
                rule = broken_rule(trace, instances, conflicts, process, late, position)
                if rule is not None:
                    found[process, late] = event.message or "", rule
                    del own[message]
    return found


def _crossed(trace: Matched, instances: Instances, conflicts: Conflicts, late: set[Place]) -> dict[Place, str]:
    """The deliveries that break rule (2), each with the first message that it should have come before.

    Each object is compared with those of a later name. It is walked backwards, with, for every other object and
    operation, the earliest delivery there of a request that was met; a request of a conflicting operation that
    the other object delivered after that one is late there.
    """
    copies: dict[str, list[tuple[int, int, str]]] = {}
    for process, position, event, operation in _requests(trace, instances):
        if (process, position) not in late:
            copies.setdefault(event.message or "", []).append((process, position, operation))
    crossed: dict[Place, int] = {}
    for process, line in enumerate(trace.lines):
        pairs = conflicts.at(trace.names[process])
        earliest: dict[tuple[int, str], int] = {}
        for position in range(len(line) - 1, -1, -1):
            message = line[position].message or ""
            if line[position].kind != DELIVER or len(copies.get(message, ())) < 2:
                continue
            here = next((one for one in copies[message] if one[0] == process), None)
            if here is None:
                continue
            operation = here[2]
            shared = [one for one in copies[message] if one[0] > process and one[2] == operation]
            for other, there, _ in shared:
                elsewhere = conflicts.at(trace.names[other]).get(operation, frozenset())
                for rival in pairs.get(operation, frozenset()) & elsewhere:
                    before = earliest.get((other, rival), there)
                    if before < there:
                        crossed[other, there] = min(crossed.get((other, there), before), before)
            for other, there, _ in shared:
                key = other, operation
                earliest[key] = min(earliest.get(key, there), there)
    return {place: trace.lines[place[0]][before].message or "" for place, before in crossed.items()}


def _requests(trace: Matched, instances: Instances) -> Iterator[tuple[int, int, Event, str]]:
    for process, line in enumerate(trace.lines):
        for position, event in enumerate(line):
            if event.kind == DELIVER and instances.received_as(process, position, event) == REQUEST:
                instance = instances.of(process, event)
                if instance is not None and instance.operation is not None:
                    yield process, position, event, instance.operation


def _late(trace: Matched, place: Place, overtaken_by: str, rule: str) -> Late:
    event = trace.lines[place[0]][place[1]]
    send = trace.sent(event.message or "")
    return Late(event.index, event.process, event.message or "", send.process, send.index, overtaken_by, rule)
