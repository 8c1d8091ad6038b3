"""Significant order: were messages delivered in the order that significant precedence requires?

Here m → m′ means that m significantly precedes m′ (:class:`Significance`). The rule of *significantly
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
delivery that no instance receives is not judged. :class:`Cells` defines which instances conflict.

Deliveries that are late under (1) are found in one walk. A delivery of m is late iff m is in one of two sets: the
messages known from earlier deliveries to the same instance, and the messages known from earlier requests to conflicting
instances of the same object. If the caller also wants the overtaking messages, a second walk compares each late message
with the messages that were delivered before it. Both walks store sets of messages as bit masks. In the second walk,
only the late messages have a bit in these masks.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, Final, Protocol, TypeVar

import msgspec

from antecede import limits
from antecede.errors import UsageError
from antecede.trace.conflicts import Conflicts
from antecede.trace.matched import Matched
from antecede.trace.schema import DELIVER, LOCAL, SEND, Event
from antecede.trace.verdicts import Late

REQUEST: Final = "request"
RESPONSE: Final = "response"
COMMIT: Final = "commit"
ABORT: Final = "abort"


class Instance(msgspec.Struct, gc=False):
    """One execution of an operation at one object. ``process`` is the number of the object's process. ``first``,
    ``last``, ``opening`` and ``request`` are positions in the list of this process's rows."""

    name: str
    process: int
    first: int
    last: int
    operation: str | None = None
    aborted: bool = False
    opening: int = -1
    """The position at which the instance sent or received its first message; -1 if it has no messages."""
    request: int = -1
    """The position at which the instance received its request; -1 if it received none."""


class Instances:
    """The operation instances of a trace: their rows, their duration, their parents.

    An instance is one execution of an operation at one object. A row names its instance in ``instance``, and its object
    in ``process``. A row with the same instance name at another object belongs to another instance, for example to the
    instance of the same call at another replica. Only ``send``, ``deliver`` and ``local`` rows belong to an instance.
    These rules fill in missing information, so that a minimal trace can be judged too:

    * An instance **runs from its first row to its last**. Its rows ``begin``, ``commit`` and ``abort`` are treated like
      its other rows. So if they are recorded, they mark its start and end. Let A and B be instances at one object. A
      *precedes* B if the last row of A comes before the first row of B (Enokido, Higaki, Takizawa §3.1). If neither
      precedes the other, they are interleaved.
    * Its **operation** is the first operation that its rows name. Without an operation, it conflicts with no instance.
    * It **aborted** if it has a ``local`` row of type ``abort``. Then all its effects are undone, and no later instance
      depends on it by a conflict. (By §4.1 of the paper, an object's vector includes only instances that commit.)
    * Its **parent** is the first parent in the rows with the same instance name, in the order of processes and indices.
    * The type of a delivery is its own ``type`` or, if it has none, the type of its send. ``commit`` and ``abort`` end
      an instance. All other types except ``request`` are treated as a **response**. An instance begins with its request
      (§3.2 of the paper, R1). So there are two cases if the delivery and its send have no type. If the delivery is the
      first message that its instance received or sent, it is a request. Otherwise it is a response.
    * An instance has **one request**, the first. If several replicas make the same nested call, the request of this
      call comes more than once. The later requests are ignored.
    """

    def __init__(self, trace: Matched) -> None:
        self.trace = trace
        self.by_name: list[dict[str, Instance]] = [{} for _ in trace.lines]
        self._parents: dict[str, str] = {}
        self.judged = 0
        """The number of deliveries for which the trace names the instance that received the message."""
        for process, line in enumerate(trace.lines):
            for position, event in enumerate(line):
                if event.instance is not None and event.kind in (SEND, DELIVER, LOCAL):
                    self._take(process, position, event, event.instance)

    def _take(self, process: int, position: int, event: Event, name: str) -> None:
        found = self.by_name[process].get(name)
        if found is None:
            found = self.by_name[process][name] = Instance(name, process, position, position)
        found.last = position
        if found.operation is None:
            found.operation = event.operation
        if event.kind != LOCAL and found.opening < 0:
            found.opening = position
        if event.kind == DELIVER:
            self.judged += 1
            if found.request < 0 and self._type(event) in (
                (REQUEST, None) if found.opening == position else (REQUEST,)
            ):
                found.request = position
        elif event.kind == LOCAL and event.type == ABORT:
            found.aborted = True
        if event.parent is not None:
            self._parents.setdefault(name, event.parent)

    def operations(self) -> set[str]:
        """Return the operations of all instances."""
        return {one.operation for own in self.by_name for one in own.values() if one.operation is not None}

    def of(self, process: int, event: Event) -> Instance | None:
        """Return the instance to which a row belongs; ``None`` if it belongs to no instance."""
        if event.instance is None or event.kind not in (SEND, DELIVER, LOCAL):
            return None
        return self.by_name[process][event.instance]

    def received_as(self, process: int, position: int, event: Event) -> str | None:
        """Return the role that a delivery has for the rule "significant order": request or response. If this order
        ignores the delivery, return ``None``.

        The order ignores a delivery if no instance received it, or if its instance aborted. It also ignores a delivery
        that only ended its instance or repeats the instance's request.
        """
        instance = self.of(process, event)
        if instance is None or instance.aborted:
            return None
        if position == instance.request:
            return REQUEST
        return None if self._type(event) in (REQUEST, COMMIT, ABORT) else RESPONSE

    def _type(self, event: Event) -> str | None:
        return event.type if event.type is not None else self.trace.sent(event.message or "").type

    def ancestors_among(self, name: str, names: Collection[str]) -> list[str]:
        """Return the ancestors of one instance, beginning with the nearest, but only ancestors whose name is in
        ``names``. ``name`` is the name of the instance. If the parents form a cycle, the search stops when it reaches
        an instance for the second time."""
        found: list[str] = []
        seen = {name}
        current = self._parents.get(name)
        while current is not None and current not in seen:
            seen.add(current)
            if current in names:
                found.append(current)
            current = self._parents.get(current)
        return found


NO_CELL = -1


class Cells:
    """The conflicts between the instances of an object. Instances with the same conflicts are grouped into cells. Every
    cell has a number.

    An *instance* is one execution of an operation at an object. Two instances of an object conflict iff their
    operations conflict at that object and neither instance is an ancestor of the other. (A caller waits for the
    operation that it called. So the two operations are open at the same time, and neither can exclude the other. See
    Enokido, Higaki, Takizawa §2 on nested operations.) A *request* is the message that begins an instance. Two requests
    conflict iff their operations conflict, even if one instance is an ancestor of the other. The reason is that a
    request gets its position in the order before its instance begins. At that time, the ancestors of the instance are
    not known.

    Instances of one operation at one object share a **cell**, so that data about all of them can be stored together. An
    instance has a separate cell if its operation conflicts with the operation of one of its ancestors or descendants at
    the same object. Instances without an operation have no cell, and conflict with nothing.
    """

    def __init__(self, instances: Instances, conflicts: Conflicts) -> None:
        self.instances, self.trace = instances, instances.trace
        self.conflicts = conflicts.over(instances.operations())
        self._numbers: dict[tuple[int, str], int] = {}
        self.rivals: list[frozenset[int]] = []
        """For each cell, the cells that conflict with it."""
        self.request_rivals: list[frozenset[int]] = []
        """For each cell, the cells whose requests conflict with the requests of this cell. Unlike ``rivals``, this
        includes the cells of conflicting ancestors and descendants."""
        for process, own in enumerate(instances.by_name):
            self._divide(process, own)

    def of(self, instance: Instance | None) -> int:
        """The cell of an instance, or ``NO_CELL``."""
        return NO_CELL if instance is None else self._numbers.get((instance.process, instance.name), NO_CELL)

    def conflict(self, one: Instance, other: Instance, requests: bool = False) -> bool:
        """Return whether two instances of one object conflict. With ``requests``, return whether the requests of the
        two instances conflict."""
        cell = self.of(one)
        return cell != NO_CELL and self.of(other) in (self.request_rivals if requests else self.rivals)[cell]

    def _divide(self, process: int, own: dict[str, Instance]) -> None:
        where = self.trace.names[process]
        pairs = self.conflicts.at(where)
        relatives: dict[str, set[str]] = {}
        for name, instance in own.items():
            for other in self.instances.ancestors_among(name, own):
                if own[other].operation in pairs.get(instance.operation or "", ()):
                    relatives.setdefault(name, set()).add(other)
                    relatives.setdefault(other, set()).add(name)
        check_relatives(len(relatives), where)
        shared: dict[str, int] = {}
        members: list[tuple[str, str | None]] = []
        """For each cell, its operation. If the cell belongs to a single instance, also the name of this instance."""
        begin = len(self.rivals)
        for name, instance in own.items():
            if instance.operation is None:
                continue
            if name in relatives:
                number = begin + len(members)
                members.append((instance.operation, name))
            else:
                number = shared.setdefault(instance.operation, begin + len(members))
                if number == begin + len(members):
                    members.append((instance.operation, None))
            self._numbers[process, name] = number
        for operation, alone in members:
            rivals = pairs.get(operation, frozenset())
            others = [
                (begin + number, name)
                for number, (other, name) in enumerate(members)
                if other in rivals and (name is None or name != alone)
            ]
            excluded = relatives.get(alone, ()) if alone is not None else ()
            self.request_rivals.append(frozenset(number for number, _ in others))
            self.rivals.append(frozenset(number for number, name in others if name not in excluded))


def check_relatives(count: int, where: str) -> None:
    """Refuse an object with more than ``kin_instances_max`` instances that need separate cells."""
    if count > limits.kin_instances_max:
        raise UsageError(
            f"{where}: {count} instances of this object conflict with an ancestor or descendant at the same object: "
            f"significant order can be judged for at most {limits.kin_instances_max} such instances"
        )


_squeezed_bits = 1_024
"""The unused bits are removed from the masks when this condition is true: the number of unused bits, minus the number
of bits in use, is larger than this number."""


class _Running(msgspec.Struct):
    """The messages that a running instance knows, as bit masks."""

    base: int
    known: int = 0
    received: int = 0
    """The part of ``known`` that came with requests and responses to this instance."""


class DeliveryMasks(msgspec.Struct):
    """The data that is needed to judge a delivery, as bit masks: the bit of its message, the messages that this message
    carries, and the messages that earlier deliveries at the object carried."""

    bit: int
    carried: int
    received: int
    """The messages that earlier requests and responses to the same instance carried."""
    requests: int
    """The messages that earlier requests at the object carried. Only requests that conflict with the delivered request
    or response are considered."""


class Significance:
    """The messages that each instance knows while the events of a trace are processed one after the other (the *walk*).

    ``asked``: the messages that get a bit in the masks. ``None`` means all messages that are delivered somewhere. If
    ``squeeze`` is set, the bit of a message exists only until the last delivery of this message.

    The significant precedence of messages, computed along a trace.

    **The relation** (Enokido, Higaki, Takizawa, *Protocol for a group of objects*, §3.2). m1 → m2 means that m1
    significantly precedes m2. An *instance* is one execution of an operation. m1 → m2 holds in exactly these three
    cases:

    1. an object sends m1 before m2, and (1-1) one instance sends both, or (1-2) the instance that sends m1 conflicts
    with the one that sends m2;
    2. an object receives m1 before it sends m2, and (2-1) one instance does both, or (2-2) the instance that receives
    m1 conflicts with the one that sends m2;
    3. m1 → m3 → m2 for some message m3.

    In (1-2) and (2-2) the first instance must *precede* the second: it must be complete before the second begins. (In
    the paper, this is required by the cases S2.2 and R2.2 of §3.2.) An instance that aborted precedes nothing (§4.1). A
    message that no instance sends has no predecessors. In (2-1), an instance also receives repeated requests, commits
    and aborts of its operation. :class:`Cells` defines which instances conflict.

    **The computation** is one walk over all events of the trace. The walk visits an event after all events that
    happened before it. An instance *knows* the messages that it received and sent, and all messages that precede these.
    A message carries the messages that its sender knows. Each instance i also has a *base*. Take all instances that
    conflict with i and ended before i began: the base contains the messages that they knew at their end. When i sends
    its first message, the base is added to the messages that i knows. The base is not added earlier, because (1-2) and
    (2-2) apply only to messages that i sends. Conflicting instances are found by *cell*: a cell is a group of instances
    of one object that have the same conflicts. An object keeps one set of messages for each cell: all messages that the
    completed instances of the cell knew. (Conflict is not transitive, so several cells cannot share a set.) The base of
    an instance is the union of the sets of all cells that conflict with its own cell.

    The sets are bit masks. The bit of a message is needed until the last delivery of the message. Unused bits are
    removed from time to time, so that masks do not become much wider than the number of messages in transit.
    """

    def __init__(self, cells: Cells, asked: Collection[str] | None = None, squeeze: bool = True) -> None:
        self._instances = cells.instances
        self._cells = cells
        self._asked = asked
        self._squeeze = squeeze
        self._awaited = Counter(event.message for line in cells.trace.lines for event in line if event.kind == DELIVER)
        self.bits: dict[str, int] = {}
        self._width = 0
        self._running: dict[tuple[int, str], _Running] = {}
        self._done: dict[int, int] = {}
        self._requests: dict[int, int] = {}
        self._carried: dict[str, int] = {}

    def carried(self, message: str) -> int:
        """Return the messages that the sender of a message knew when it sent the message, as a bit mask. The mask is 0
        before the send and after the last delivery."""
        return self._carried.get(message, 0)

    def take(self, process: int, position: int, event: Event) -> DeliveryMasks | None:
        """Handle one event of a walk. If the event is a delivery to an instance, return the data that is needed to
        judge the delivery. For any other event, return None."""
        instance = self._instances.of(process, event)
        if instance is None:
            if event.kind == SEND:
                self._send(event.message or "", None)
            elif event.kind == DELIVER:
                self._delivered(event.message or "")
            return None
        key = process, instance.name
        if position == instance.first:
            self._running[key] = _Running(self._union(self._done, instance, self._cells.rivals))
        running = self._running[key]
        arrived = None
        if event.kind == SEND:
            self._send(event.message or "", running)
        elif event.kind == DELIVER:
            arrived = self._deliver(process, position, event, instance, running)
        if position == instance.last:
            del self._running[key]
            cell = self._cells.of(instance)
            if cell != NO_CELL and not instance.aborted:
                self._done[cell] = self._done.get(cell, 0) | running.known
        return arrived

    def _union(self, sets: dict[int, int], instance: Instance, conflicting: list[frozenset[int]]) -> int:
        """Return the union of the sets of all cells that conflict with the cell of an instance."""
        cell = self._cells.of(instance)
        union = 0
        if cell != NO_CELL:
            rivals = conflicting[cell]
            for rival in rivals if len(rivals) < len(sets) else rivals & sets.keys():
                union |= sets.get(rival, 0)
        return union

    def _send(self, message: str, running: _Running | None) -> None:
        bit = 0
        if self._awaited[message] and (self._asked is None or message in self._asked):
            bit = self.bits[message] = 1 << self._width
            self._width += 1
        carried = bit
        if running is not None:
            running.known |= running.base | bit
            carried = running.known
        if self._awaited[message] and carried:
            self._carried[message] = carried
        if self._width > 2 * len(self.bits) + _squeezed_bits:
            self._squeeze_out()

    def _deliver(
        self, process: int, position: int, event: Event, instance: Instance, running: _Running
    ) -> DeliveryMasks:
        message = event.message or ""
        carried = self._carried.get(message, 0)
        received_as = self._instances.received_as(process, position, event)
        conflicting = self._cells.request_rivals if received_as == REQUEST else self._cells.rivals
        requests = self._union(self._requests, instance, conflicting)
        arrived = DeliveryMasks(self.bits.get(message, 0), carried, running.received, requests)
        running.known |= carried
        if received_as is not None:
            running.received |= carried
        cell = self._cells.of(instance)
        if cell != NO_CELL and received_as == REQUEST:
            self._requests[cell] = self._requests.get(cell, 0) | carried
        self._delivered(message)
        return arrived

    def _delivered(self, message: str) -> None:
        self._awaited[message] -= 1
        if not self._awaited[message]:
            self._carried.pop(message, None)
            if self._squeeze:
                self.bits.pop(message, None)

    def _squeeze_out(self) -> None:
        """Remove the unused bits from every mask, and renumber the bits that are in use."""
        new = {bit: 1 << number for number, bit in enumerate(self.bits.values())}
        alive = sum(new)
        self.bits = {message: new[bit] for message, bit in self.bits.items()}
        self._width = len(new)

        def squeezed(mask: int) -> int:
            mask &= alive
            out = 0
            while mask:
                lowest = mask & -mask
                out |= new[lowest]
                mask ^= lowest
            return out

        for masks in (self._done, self._requests):
            for place, mask in masks.items():
                masks[place] = squeezed(mask)
        self._carried = {message: squeezed(mask) for message, mask in self._carried.items()}
        for running in self._running.values():
            running.base, running.known, running.received = map(
                squeezed, (running.base, running.known, running.received)
            )


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
    """For each instance, the number of its cell (:class:`Cells`); -1 if it has no cell."""
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
    (:class:`Cells`)."""
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
    the receiver's events.

    The reason why a delivery of m is late under significant order: the shortest chain of messages that overtook m.

    A chain is a list of messages x0 = m, x1, … xk. Each message x(i) directly precedes the next message x(i+1), by one
    of the four cases (1-1), (1-2), (2-1) and (2-2) in :class:`Significance`. That is, the object that sent
    x(i+1) had sent or received x(i) before. Let j be the instance that sent x(i+1). There are two cases: j itself had
    sent or received x(i), or an instance that conflicts with j had done so and had ended before j began. The last
    message xk was delivered at m's object before m, against the rule. The search starts at m. Each round makes the
    chains one message longer:

    * Let i be an instance that sent or received a message of the previous round. The later sends of i are examined.
    * Some instances conflict with i and began after i ended. All sends of these instances are also examined.

    The search stores, for each instance, the earliest of the instance's events on a chain. A cell is a group of
    instances with the same conflicts (:class:`Cells`). For each cell, the search looks at the instances
    with an event on a chain, and stores the smallest position at which one of them ended. Later events and later ends
    lead to no additional sends, so a send is examined only a few times.

    Events are numbered process by process, in the order of the processes' names, so both engines search the same
    arrays. The search also needs the *moment* of each event: its position in one sequence of all events. (This sequence
    agrees with happened-before.) Events with a later moment than the late delivery cannot be on a chain. If there are
    several shortest chains, the search keeps the one whose last message was delivered first, so both engines give the
    same answer.
    """
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
    """Explains late deliveries of a trace in memory.

    An explanation contains a chain of messages: the last of them overtook the late message. A link of a chain describes
    a message and its send. Some of its keys are:

    * **after**: an earlier event at the process that sends this message. With this event, the process sent or received
      the previous message of the chain. ``kind``, ``index`` and ``instance`` describe the event. ``sender`` is the
      instance that sends this message. ``by`` compares the instance of the event with ``sender``: it is ``instance`` if
      the two are the same, and ``conflict`` if they conflict.
    * **to** and **deliver_index**: a delivery of this message. The next message of the chain was sent after this
      delivery. Both keys are null if the chain continues from the send of this message. In the last link, they describe
      the early delivery.

    A delivery that breaks the rule *agreement* is late because two objects received two requests in different orders.
    Its explanation has only one link, the other request. The key ``elsewhere`` describes an object that received the
    late request before the other request.

    Both engines provide the numbers of a chain's events, and a function that returns an event by
    its number.
    """

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
