"""Significant order word for word, by pairs and closure, and random traces of objects to hold a checker against.

Nothing here shares code with the checker: instances are found again, the relation is closed as a relation.
"""

from collections.abc import Callable
from itertools import combinations
from random import Random
from typing import Any

import msgspec

from antecede.trace import Event

OPERATIONS = ("read", "write", "add", "audit")


class Trace(msgspec.Struct):
    """Rows of a run of objects and their conflict table, as metadata have it."""

    rows: list[Event]
    conflicts: Any


def random_trace(seed: int, steps: int = 60) -> Trace:
    """A run in which nothing is kept in order: operations interleave, copies arrive at will, rows leave things out."""
    random = Random(f"objects {seed}")
    objects = [f"o{k}" for k in range(random.randint(2, 4))]
    table = {"*": [list(pair) for pair in _drawn_pairs(random)]}
    if random.random() < 0.3:
        table[objects[0]] = [list(pair) for pair in _drawn_pairs(random)]
    lean = random.random() < 0.3
    world = _World(random, objects, bounds=random.random() < 0.7, lean=lean)
    for _ in range(random.randint(10, random.choice((steps, 4 * steps)))):
        world.step()
    for _ in range(random.randint(0, len(world.air))):
        world.deliver()
    return Trace(world.rows, table)


def careful_trace(seed: int, plant: str | None = None, steps: int = 80) -> tuple[Trace, tuple[str, str] | None]:
    """A run that keeps significant order and no more, but for one planted violation; the two messages in question, if
    it could be planted.

    A copy waits for those sent before it to its object that one of them must not overtake; what is compatible arrives
    in any order. ``plant`` is a rule to break once, or ``drop``: a copy that is lost.
    """
    random = Random(f"careful {seed}")
    objects = [f"o{k}" for k in range(random.randint(2, 5))]
    trace = Trace([], {"*": [list(pair) for pair in _drawn_pairs(random)]})
    world = _CarefulWorld(random, objects, bounds=random.random() < 0.5, lean=False, trace=trace, plant=plant)
    for _ in range(steps):
        world.step()
    while world.deliver() or world.finish():
        pass
    if plant != "drop" and world.planted is not None:
        # What came later may have shown instances to be interleaved that seemed to be one after the other, or undone.
        rows = [row for row in trace.rows if row.kind == "deliver" and row.message in world.planted]
        unrelated = world.planted not in significantly_precedes(trace)
        if unrelated != (plant == "agreement") or not all(received_as(trace, row) for row in rows):
            return trace, None
    return trace, world.planted


def _drawn_pairs(random: Random) -> list[tuple[str, str]]:
    pairs = [*combinations(OPERATIONS, 2), *((one, one) for one in OPERATIONS)]
    density = random.choice((0.1, 0.3, 0.6, 1.0))
    return [pair for pair in pairs if random.random() < density]


class _Instance(msgspec.Struct):
    name: str
    process: str
    operation: str
    parent: str | None
    caller: tuple[str, str] | None


class _World:
    def __init__(self, random: Random, objects: list[str], bounds: bool, lean: bool) -> None:
        self.random, self.objects, self.bounds, self.lean = random, objects, bounds, lean
        self.rows: list[Event] = []
        self.lengths = dict.fromkeys(objects, 0)
        self.running: list[_Instance] = []
        self.everyone: dict[tuple[str, str], _Instance] = {}
        self.air: list[tuple[str, str, str, Any]] = []
        self.calls: list[tuple[tuple[str, str], list[_Instance]]] = []
        self.count = 0

    def row(self, instance: _Instance | None, process: str, kind: str, **said: Any) -> None:
        random = self.random
        if instance is not None and not (self.lean and random.random() < 0.1):
            said["instance"] = instance.name
            if not self.lean or random.random() < 0.6:
                said["operation"] = instance.operation
            if instance.parent is not None and (not self.lean or random.random() < 0.6):
                said["parent"] = instance.parent
        if self.lean and kind != "local" and random.random() < 0.3:
            said.pop("type", None)
        self.rows.append(Event(process, self.lengths[process], kind, **said))
        self.lengths[process] += 1

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.15 or not (self.running or self.air):
            process = self.random.choice(self.objects)
            self.begin(_Instance(self.name("r"), process, self.random.choice(OPERATIONS), None, None))
        elif choice < 0.6 and self.air:
            self.deliver()
        elif self.running:
            instance = self.random.choice(self.running)
            choice = self.random.random()
            if choice < 0.55:
                self.call(instance)
            elif choice < 0.65:
                # A replica that repeats a call, or the word that ends one.
                for caller, children in self.calls[-5:]:
                    if caller[1] == instance.name:
                        self.tell(instance, children, self.random.choice(("request", "request", "commit", "abort")))
                        break
            else:
                self.end(instance)

    def name(self, mark: str) -> str:
        self.count += 1
        return f"{mark}{self.count}"

    def begin(self, instance: _Instance) -> None:
        self.running.append(instance)
        self.everyone[instance.process, instance.name] = instance
        if self.bounds:
            self.row(instance, instance.process, "local", type="begin")

    def call(self, instance: _Instance) -> None:
        to = tuple(sorted(self.random.sample(self.objects, self.random.randint(1, min(3, len(self.objects))))))
        call = self.name("i")
        operation = self.random.choice(OPERATIONS)
        caller = instance.process, instance.name
        children = [_Instance(call, process, operation, instance.name, caller) for process in to]
        self.calls.append((caller, children))
        self.tell(instance, children, "request")

    def tell(self, instance: _Instance, children: list[_Instance], type_: str) -> None:
        message = self.name("m")
        to = tuple(child.process for child in children)
        self.row(instance, instance.process, "send", message=message, to=to, type=type_)
        self.air += [(message, child.process, type_, child) for child in children]

    def end(self, instance: _Instance) -> None:
        self.running.remove(instance)
        answers = self.random.choice((0, 1, 1, 1, 1, 2)) if instance.caller is not None else 0
        for _ in range(answers):
            self.answer(instance, instance.caller)
        if self.bounds:
            type_ = "abort" if self.random.random() < 0.2 else "commit"
            self.row(instance, instance.process, "local", type=type_)

    def answer(self, instance: _Instance, caller: Any) -> None:
        message, to = self.name("m"), caller[0]
        self.row(instance, instance.process, "send", message=message, to=(to,), type="response")
        self.air.append((message, to, "response", self.everyone[caller]))

    def deliver(self) -> None:
        message, process, type_, instance = self.air.pop(self.random.randrange(min(len(self.air), 8)))
        self.row(instance, process, "deliver", message=message, type=type_)
        if type_ == "request" and (process, instance.name) not in self.everyone:
            self.begin(instance)


class _CarefulWorld(_World):
    def __init__(self, *given: Any, trace: Trace, plant: str | None, **more: Any) -> None:
        super().__init__(*given, **more)
        self.trace, self.plant = trace, plant
        self.rows = trace.rows
        self.planted: tuple[str, str] | None = None

    def finish(self) -> bool:
        """End whoever still runs, so that what waits for it can go on."""
        for instance in self.running:
            self.end(instance)
            return True
        return False

    def deliver(self) -> bool:  # type: ignore[override]
        if self.plant is not None and self.planted is None and self.break_rule():
            return True
        ready = [copy for copy in self.air if self.may_arrive(copy)]
        if not ready:
            return False
        self.arrive(self.random.choice(ready))
        return True

    def arrive(self, copy: tuple[str, str, str, Any]) -> None:
        self.air.remove(copy)
        self.air.insert(0, copy)
        self.random, kept = _First(), self.random
        super().deliver()
        self.random = kept

    def may_arrive(self, copy: tuple[str, str, str, Any]) -> bool:
        if copy[2] == "request":
            clashing = [one for one in self.running if one.process == copy[1] and self.clash(one, copy[3])]
            if any(not self.kin(one, copy[3]) for one in clashing):
                return False
        return not any(self.must_wait(copy, one) for one in self.air[: self.air.index(copy)])

    def must_wait(self, copy: tuple[str, str, str, Any], earlier: tuple[str, str, str, Any]) -> bool:
        if copy[1] != earlier[1]:
            return False
        return copy[3] is earlier[3] or (copy[2] == "request" and self.clash(copy[3], earlier[3]))

    def clash(self, one: _Instance, other: _Instance) -> bool:
        return conflict(self.trace, one.process, one.operation, other.operation)

    def kin(self, one: _Instance, other: _Instance) -> bool:
        def line(instance: _Instance) -> set[str]:
            above = {instance.parent} | _ancestors(self.trace, instance.parent) if instance.parent else set()
            return {instance.name} | above

        return one.name in line(other) or other.name in line(one)

    def break_rule(self) -> bool:
        if self.plant == "drop":
            if len(self.rows) > 30 and self.air:
                self.planted = self.air.pop(0)[0], ""
            return False
        if self.random.random() < 0.8:
            return False
        precedes = significantly_precedes(self.trace)
        for number, copy in enumerate(self.air):
            for earlier in self.air[:number]:
                if self.must_wait(copy, earlier) and self.breaks(copy, earlier, precedes):
                    self.planted = earlier[0], copy[0]
                    self.arrive(copy)
                    return True
        return False

    def breaks(
        self, copy: tuple[str, str, str, Any], earlier: tuple[str, str, str, Any], precedes: set[tuple[str, str]]
    ) -> bool:
        pair = earlier[0], copy[0]
        if self.plant == "agreement":
            if copy[2] != "request" or earlier[2] != "request" or pair in precedes:
                return False
            for other in self.objects:
                order = [row.message for row in self.rows if row.kind == "deliver" and row.process == other]
                if [message for message in order if message in pair] == list(pair):
                    return True
            return False
        same = copy[3] is earlier[3]
        if same and earlier[2] == "request":
            return False
        if same != (self.plant == "instance") or pair not in precedes:
            return False
        return same or earlier[2] == "request" or not self.kin(earlier[3], copy[3])


class _First(Random):
    def randrange(self, *_: Any) -> int:  # type: ignore[override]
        return 0


def significantly_precedes(trace: Trace) -> set[tuple[str, str]]:
    """Every pair with m1 → m2 (§3.2), by closing the direct pairs."""
    about = _about(trace.rows)
    after: dict[str, set[str]] = {}
    for own in _lines(trace.rows).values():
        for i, one in enumerate(own):
            for two in own[i + 1 :]:
                if one.kind in ("send", "deliver") and two.kind == "send" and one.message != two.message:
                    a, b = one.instance, two.instance
                    if a is None or b is None:
                        continue
                    here, there = about[one.process, a], about[two.process, b]
                    precedes = here["last"] < there["first"] and not here["aborted"]
                    if a == b or (precedes and conflict(trace, one.process, here["operation"], there["operation"])):
                        after.setdefault(one.message or "", set()).add(two.message or "")
    pairs = set()
    for start in after:
        reached: set[str] = set()
        edge = set(after[start])
        while edge:
            reached |= edge
            edge = {far for near in edge for far in after.get(near, ())} - reached
        pairs |= {(start, far) for far in reached}
    return pairs


def late_deliveries(trace: Trace) -> dict[tuple[str, int], tuple[str, str]]:
    """By process and index, what breaks §3.3: the first message that should have waited, and the rule."""
    precedes, about, lines = significantly_precedes(trace), _about(trace.rows), _lines(trace.rows)
    late: dict[tuple[str, int], tuple[str, str]] = {}
    for process, own in lines.items():
        delivered = [row for row in own if row.kind == "deliver" and row.instance is not None]
        for i, one in enumerate(delivered):
            for other in delivered[:i]:
                if (one.message, other.message) not in precedes:
                    continue
                rule = _forbidden(trace, about, one, other)
                if rule:
                    late.setdefault((process, one.index), (other.message or "", rule))
    crossed: dict[tuple[str, int], Event] = {}
    requests = {
        process: [
            row
            for row in own
            if row.kind == "deliver" and received_as(trace, row) == "request"
            if (process, row.index) not in late
        ]
        for process, own in lines.items()
    }
    operation: Callable[[Event], str | None] = lambda row: about[row.process, row.instance]["operation"]  # noqa: E731
    for here, there in combinations(sorted(lines), 2):
        for m in requests[here]:
            for n in requests[here]:
                twins = [[row for row in requests[there] if row.message == one.message] for one in (m, n)]
                if m.index >= n.index or not all(twins):
                    continue
                (m2,), (n2,) = twins
                same = operation(m) == operation(m2) and operation(n) == operation(n2)
                clash = all(conflict(trace, place, operation(m), operation(n)) for place in (here, there))
                if same and clash and n2.index < m2.index:
                    known = crossed.get((there, m2.index))
                    if known is None or n2.index < known.index:
                        crossed[there, m2.index] = n2
    return late | {place: (row.message or "", "agreement") for place, row in crossed.items()}


def conflict(trace: Trace, process: str, one: str | None, other: str | None) -> bool:
    pairs = trace.conflicts.get(process, trace.conflicts.get("*", []))
    return one is not None and other is not None and ([one, other] in pairs or [other, one] in pairs)


def received_as(trace: Trace, row: Event) -> str | None:
    own = [one for one in _lines(trace.rows)[row.process] if one.instance == row.instance]
    if row.instance is None or any(one.kind == "local" and one.type == "abort" for one in own):
        return None
    received = [one for one in own if one.kind == "deliver"]
    types = [
        one.type or next(sent.type for sent in trace.rows if sent.kind == "send" and sent.message == one.message)
        for one in received
    ]
    types[0] = types[0] or "request"
    at = received.index(row)
    if types[at] in ("commit", "abort") or (types[at] == "request" and "request" in types[:at]):
        return None
    return "request" if types[at] == "request" else "response"


def _forbidden(trace: Trace, about: dict[Any, Any], late: Event, earlier: Event) -> str | None:
    what, before = received_as(trace, late), received_as(trace, earlier)
    if what is None or before is None:
        return None
    if late.instance == earlier.instance:
        return None if what == "request" else "instance"
    one, other = about[late.process, late.instance], about[late.process, earlier.instance]
    if not conflict(trace, late.process, one["operation"], other["operation"]) or before != "request":
        return None
    if what == "request":
        return "conflict"
    kin = _ancestors(trace, late.instance or "") | _ancestors(trace, earlier.instance or "")
    return None if {late.instance, earlier.instance} & kin else "conflict"


def _ancestors(trace: Trace, name: str) -> set[str]:
    found: set[str] = set()
    climbing: str | None = name
    while climbing is not None:
        rows = sorted(
            (row.process, row.index, row.parent) for row in trace.rows if row.instance == climbing and row.parent
        )
        climbing = rows[0][2] if rows and rows[0][2] not in found else None
        if climbing is not None:
            found.add(climbing)
    return found


def _lines(rows: list[Event]) -> dict[str, list[Event]]:
    lines: dict[str, list[Event]] = {}
    for row in sorted(rows, key=lambda row: row.index):
        lines.setdefault(row.process, []).append(row)
    return lines


def _about(rows: list[Event]) -> dict[tuple[str, str | None], dict[str, Any]]:
    found: dict[tuple[str, str | None], dict[str, Any]] = {}
    for process, own in _lines(rows).items():
        for name in {row.instance for row in own if row.instance is not None and row.kind != "arrive"}:
            mine = [row for row in own if row.instance == name and row.kind != "arrive"]
            found[process, name] = {
                "first": mine[0].index,
                "last": mine[-1].index,
                "operation": next((row.operation for row in mine if row.operation is not None), None),
                "aborted": any(row.kind == "local" and row.type == "abort" for row in mine),
            }
    return found


def _direct(trace: Trace, about: dict[Any, Any], one: Event, two: Event) -> str | None:
    """By what the message of a send or delivery directly precedes that of a later send at the same object."""
    if one.index >= two.index or one.message == two.message or one.instance is None or two.instance is None:
        return None
    if one.instance == two.instance:
        return "instance"
    here, there = about[one.process, one.instance], about[two.process, two.instance]
    if here["last"] >= there["first"] or here["aborted"]:
        return None
    return "conflict" if conflict(trace, one.process, here["operation"], there["operation"]) else None


def distances(trace: Trace) -> dict[tuple[str, str], int]:
    """For every pair m1 → m2, how many direct steps lie between them at least."""
    about = _about(trace.rows)
    after: dict[str, set[str]] = {}
    for own in _lines(trace.rows).values():
        acts = [row for row in own if row.kind in ("send", "deliver")]
        for one in acts:
            for two in acts:
                if two.kind == "send" and _direct(trace, about, one, two):
                    after.setdefault(one.message or "", set()).add(two.message or "")
    found: dict[tuple[str, str], int] = {}
    for start in after:
        edge, steps = {start}, 0
        while edge:
            steps += 1
            edge = {far for near in edge for far in after.get(near, ()) if (start, far) not in found}
            found |= {(start, far): steps for far in edge}
    return found


def explained(trace: Trace, said: Any, steps: dict[tuple[str, str], int]) -> str | None:
    """What is wrong with an explanation, if anything is."""
    rows = {(row.process, row.index): row for row in trace.rows}
    about = _about(trace.rows)
    late = rows.get((said["to"], said["deliver_index"]))
    sent = rows.get((said["from"], said["send_index"]))
    if not late or not sent or (late.kind, sent.kind) != ("deliver", "send"):
        return "not a delivery and its send"
    if not late.message == sent.message == said["message"] or not said["chain"] or len(said["chain"]) != said["length"]:
        return "not one message, or no chain"
    last = said["chain"][-1]
    early = rows.get((last["to"], last["deliver_index"]))
    if not early or early.kind != "deliver" or early.process != late.process or early.index >= late.index:
        return "nothing came first"
    if early.message != last["message"]:
        return "another message came first"
    if said["rule"] == "agreement":
        there = said["elsewhere"]
        first, then = (rows[there["process"], there[key]] for key in ("index", "overtaken_by_index"))
        if (first.message, then.message) != (late.message, early.message) or first.index >= then.index:
            return "nobody disagrees"
        four = (late, early, first, then)
        if any(received_as(trace, row) != "request" for row in four) or first.process >= late.process:
            return "not requests, or the wrong one is late"
        clash = all(
            conflict(trace, one.process, *(about[row.process, row.instance]["operation"] for row in (one, other)))
            for one, other in ((late, early), (first, then))
        )
        return None if clash else "no conflict"
    if _forbidden(trace, about, late, early) != said["rule"]:
        return "not against the rule"
    return _chain_is_wrong(trace, said, steps, rows, about, late)


def _chain_is_wrong(trace: Trace, said: Any, steps: Any, rows: Any, about: Any, late: Event) -> str | None:
    before, place = said["message"], None
    for link in said["chain"]:
        send = rows.get((link["from"], link["send_index"]))
        after = rows.get((link["from"], link["after"]["index"]))
        if not send or not after or send.kind != "send" or send.message != link["message"] or after.message != before:
            return "a link that is none"
        if place is not None and place != (after.process, after.index):
            return "a link that does not go on where the last one ended"
        if _direct(trace, about, after, send) != link["after"]["by"]:
            return "a step that is none"
        if (after.instance, send.instance) != (link["after"]["instance"], link["after"]["sender"]):
            return "another instance"
        before = send.message
        place = (link["to"], link["deliver_index"]) if link["to"] is not None else (send.process, send.index)
    own = [row for row in rows.values() if row.kind == "deliver" and row.process == late.process]
    wrong = [row for row in own if row.index < late.index and _forbidden(trace, about, late, row)]
    least = min(steps[late.message, row.message] for row in wrong if (late.message, row.message) in steps)
    return None if said["length"] == least else f"{least} messages are enough"


def orderings(trace: Trace) -> int:
    """How many pairs of deliveries at an object the rule about m → m′ orders."""
    precedes, about = significantly_precedes(trace), _about(trace.rows)
    count = 0
    for own in _lines(trace.rows).values():
        received = [row for row in own if row.kind == "deliver" and row.instance is not None]
        for one in received:
            for other in received:
                related = (one.message, other.message) in precedes
                count += bool(related and one is not other and _forbidden(trace, about, one, other))
    return count
