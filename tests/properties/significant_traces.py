"""Random traces of objects: in any order, or in significant order and no other, but for one planted violation."""

import importlib.util
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from antecede.trace import Event


def _load() -> Any:
    path = Path(__file__).with_name("significant_definitions.py")
    spec = importlib.util.spec_from_file_location("significant_definitions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


definitions = _load()
Trace = definitions.Trace
OPERATIONS = ("read", "write", "add", "audit")


def random_trace(seed: int, steps: int = 60) -> Any:
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


def careful_trace(seed: int, plant: str | None = None, steps: int = 80) -> tuple[Any, tuple[str, str] | None]:
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
        unrelated = world.planted not in definitions.significantly_precedes(trace)
        if unrelated != (plant == "agreement") or not all(definitions.received_as(trace, row) for row in rows):
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
    def __init__(self, *given: Any, trace: Any, plant: str | None, **more: Any) -> None:
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
        return definitions.conflict(self.trace, one.process, one.operation, other.operation)

    def kin(self, one: _Instance, other: _Instance) -> bool:
        def line(instance: _Instance) -> set[str]:
            names = {instance.name}
            while instance.caller is not None:
                instance = self.everyone[instance.caller]
                names.add(instance.name)
            return names

        return one.name in line(other) or other.name in line(one)

    def break_rule(self) -> bool:
        if self.plant == "drop":
            if len(self.rows) > 30 and self.air:
                self.planted = self.air.pop(0)[0], ""
            return False
        if self.random.random() < 0.8:
            return False
        precedes = definitions.significantly_precedes(self.trace)
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
            if copy[2] != "request" or earlier[2] != "request" or pair in precedes or self.kin(earlier[3], copy[3]):
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
