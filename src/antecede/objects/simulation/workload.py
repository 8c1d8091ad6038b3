"""Random groups of objects and their operations. The share of conflicts and the depth of nested calls can be set.

The class of the objects exists only for these tests. Each conflicting pair of operations has its own cell of the state:
one operation adds to the cell, the other multiplies it. So the two do not commute (their sequence matters), but each
commutes with itself. If an operation conflicts with itself, it has one more cell. On this cell, two executions of the
operation do not commute. So if two objects compute conflicting operations in different sequences, their final states
are different. If compatible operations are computed between the conflicting operations, the states still differ.

The argument of an operation is a plan of its calls. A state may store a value as an entry of a dictionary or in a list.
To test both ways, every number is stored twice, once in each way. In the end both copies of a number must be equal.
"""

from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import msgspec

from antecede.messages import members_of
from antecede.objects import Answered, Call, CallFailed, Object, Site, group, operation
from antecede.objects.simulation.world import ObjectWorld
from antecede.orders.relation import Relation
from antecede.simulator.draws import below, parse_draw, stream, subset
from antecede.simulator.kernel import World
from antecede.simulator.observers import process_names
from antecede.simulator.schedules import Stuck
from antecede.trace import Event

_modulus = 1_000_003
_travels_max = 60_000
_travels_each_max = 3_000
"""The largest number of frames per root. A run with more frames is treated as endless. If frames can be lost, the limit
is higher. For a whole run, the limit is never lower than ``_travels_max`` frames."""


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """The plan of one operation: the calls that it makes, and whether it fails in the end."""

    operation: str
    tag: int
    calls: tuple[tuple[tuple[str, ...], "Plan"], ...] = ()
    fails: bool = False

    def arguments(self) -> tuple[Any, ...]:
        calls = [(list(to), plan.operation, list(plan.arguments())) for to, plan in self.calls]
        return (self.tag, calls, self.fails)

    def lasting(self, at: str, path: str = "") -> Iterator[tuple[str, str, str]]:
        """Yield a triple (object, path, operation) for each computation that takes effect if this operation commits:
        the operation itself, and its nested calls that do not fail. ``at``: the object that computes the operation.

        If a call goes to several objects, each of them makes the nested calls of the plan. Such a nested call takes
        effect only once, but its triple is yielded for each of these callers. The triples are equal, because a path
        contains only the numbers of the calls, and not the names of the callers.
        """
        yield at, path, self.operation
        for number, (to, plan) in enumerate(self.calls, 1):
            if not plan.fails:
                for name in to:
                    yield from plan.lasting(name, f"{path}/{number}")


def scripted(relation: Relation, operations: tuple[str, ...]) -> type[Object]:
    """Return a class of objects with these operations. Conflicting operations do not commute. All other pairs of
    operations commute."""

    def named(name: str) -> Any:
        def compute(self: Any, tag: int, calls: list[Any], fails: bool) -> Generator[Call, Any, int]:
            answered = 0
            self.tally[operations.index(name)] += 1
            for to, called, arguments in calls:
                try:
                    yield Call(tuple(to), called, tuple(arguments))
                    answered += 1
                except CallFailed:
                    pass
            self.counts[name] = self.counts.get(name, 0) + 1
            changed(self.cells, relation, name, tag)
            for cell, value in self.cells.items():
                box = self.boxes.setdefault(cell, [0, 0])
                box[0] += box[1] != value
                box[1] = value
            if fails:
                raise ValueError("as planned")
            return answered

        compute.__name__ = name
        return operation(compute)

    def start(self: Any) -> None:
        self.counts = {}
        self.cells = {}
        self.boxes = {}
        self.tally = [0] * len(operations)

    members: dict[str, Any] = {name: named(name) for name in operations}
    members["compatible"] = staticmethod(lambda one, other: not relation.conflict(one, other))
    members["__init__"] = start
    return type("Scripted", (Object,), members)


def changed(cells: dict[str, int], relation: Relation, name: str, tag: int) -> None:
    """Apply an operation to the cells of an object."""
    for one, other in relation.pairs():
        if name in (one, other):
            cell = f"{one}~{other}"
            cells[cell] = _changed(cells.get(cell, 1), name, other if name == one else one, tag)


def _changed(cell: int, name: str, other: str, tag: int) -> int:
    if name == other:
        return (cell * 31 + tag) % _modulus
    return (cell + tag) % _modulus if name < other else cell * (2 + tag % 5) % _modulus


class Workload(msgspec.Struct, frozen=True):
    """The settings of one run. ``seed`` decides everything that is random in the run."""

    seed: int = 0
    objects: int = 4
    operations: int = 4
    density: float = 0.3
    """The share of conflicting pairs among all pairs of operations. Each operation is also paired with itself."""
    depth: int = 3
    """The largest depth of nested calls."""
    roots: int = 8
    several: float = 0.4
    """The share of calls that go to more than one object."""
    failing: float = 0.05
    gap: str = "exponential:0.1"
    delay: str = "exponential:0.1"
    loss: float = 0.0
    duplicate: float = 0.0
    crash: float = 0.0
    clocks: str = "eager"
    partition: float = 0.0
    timeout: float | None = None
    """The number of seconds after which a root is aborted."""

    @classmethod
    def drawn(cls, seed: int) -> "Workload":
        """Return a workload whose settings are all drawn at random: 3–6 objects, depth up to 3, loss up to 20 %, and so
        on. One in sixteen workloads is crowded: some of its roots wait to be admitted."""
        rng = stream(seed, "objects")
        random = rng.random
        drawn = cls(
            seed,
            objects=3 + below(rng, 4),
            operations=1 + below(rng, 5),
            density=(0.0, 0.1, 0.3, 0.6, 1.0)[below(rng, 5)],
            depth=below(rng, 4),
            roots=2 + below(rng, 8),
            several=(0.0, 0.3, 0.7)[below(rng, 3)],
            failing=(0.0, 0.1)[below(rng, 2)],
            gap=f"exponential:{(0.02, 0.2, 1.0)[below(rng, 3)]}",
            delay=("exponential:0.1", "pareto:1.1,0.02", "uniform:0.05,0.15")[below(rng, 3)],
            loss=0.2 * random() * below(rng, 2),
            duplicate=0.2 * random() * below(rng, 2),
            crash=(0.0, 0.0, 0.0, 0.02)[below(rng, 4)],
            clocks=("eager", "eager", "asked")[below(rng, 3)],
            partition=(0.0, 0.0, 0.0, 0.2)[below(rng, 4)],
            timeout=(None, None, None, 3.0)[below(rng, 4)],
        )
        crowded = below(rng, 16) == 0
        return msgspec.structs.replace(drawn, roots=8 * drawn.roots, depth=min(drawn.depth, 1)) if crowded else drawn


class Ended(msgspec.Struct):
    """The outcome of a run."""

    workload: Workload
    relation: Relation
    names: tuple[str, ...]
    events: list[Event]
    answers: dict[str, Answered]
    lasting: dict[str, tuple[str, Plan]]
    """For each root that committed, by name: the object where it was started, and its plan."""
    cells: dict[str, dict[str, int]]
    """The final state of each object."""
    problems: list[str]
    """Errors that do not concern order: for example, a message was not delivered, an instance is blocked, or a root was
    not atomic."""
    wounds: int
    seconds: float
    """The length of the run in virtual time."""

    def conflicts(self) -> dict[str, list[list[str]]]:
        """Return the table of conflicts for a trace's metadata."""
        return {"*": [list(pair) for pair in self.relation.pairs()]}


class Driver:
    """A driver that starts the roots of a workload, and runs the simulation to its end."""

    def __init__(self, workload: Workload, site: type[Site] = Site) -> None:
        self.workload = workload
        rng = self._rng = stream(workload.seed, "plans")
        self.operations = tuple(f"op{number}" for number in range(workload.operations))
        pairs = [
            (one, other)
            for place, one in enumerate(self.operations)
            for other in self.operations[place:]
            if rng.random() < workload.density
        ]
        self.relation = Relation(pairs)
        self.names = tuple(process_names(workload.objects))
        kind = scripted(self.relation, self.operations)
        self.spec = group(dict.fromkeys(self.names, kind), clocks=workload.clocks, site=site)
        self._tags = 0
        self._gap = parse_draw(workload.gap, stream(workload.seed, "gap"))
        self._delay = parse_draw(workload.delay, stream(workload.seed, "delay"))
        self._travels = 0
        self._travels_max = max(_travels_max, _travels_each_max * workload.roots / (1 - workload.loss))
        self.plans: dict[int, Plan] = {}
        """The plans of the roots that were started. The key is the number ``tag`` of the plan."""
        self._queue = [self._drawn(workload.depth) for _ in range(workload.roots)]
        self.events: list[Event] = []

    def _drawn(self, depth: int) -> Plan:
        rng, workload = self._rng, self.workload
        self._tags += 1
        tag = self._tags
        name = self.operations[below(rng, len(self.operations))]
        calls = []
        if depth:
            for _ in range(below(rng, 3)):
                size = 2 + below(rng, workload.objects - 1) if rng.random() < workload.several else 1
                mask = subset(rng, list(range(workload.objects)), min(size, workload.objects))
                to = tuple(self.names[member] for member in members_of(mask))
                calls.append((to, self._drawn(depth - 1)))
        return Plan(name, tag, tuple(calls), rng.random() < workload.failing)

    def run(self) -> Ended:
        """Run the workload to its end, and return the outcome."""
        workload = self.workload
        world = ObjectWorld(
            self.spec,
            self._travel,
            stream(workload.seed, "faults"),
            loss=workload.loss,
            duplicate=workload.duplicate,
            crash=workload.crash,
            partition=workload.partition,
            sink=self.events.append,
        )
        problems = []
        try:
            world.run(self)
        except Stuck:
            problems.append("the run does not end")
        problems += self._problems(world)
        wounds = sum(site.roots.wounds for site in world.sites())
        lasting = {
            root: (self.names[world.started[root][0]], self.plans[world.started[root][1][0]])
            for root, answer in world.answers.items()
            if answer.ok
        }
        cells = {self.names[site.me]: site.state["cells"] for site in world.sites()}
        return Ended(
            workload,
            self.relation,
            self.names,
            self.events,
            world.answers,
            lasting,
            cells,
            problems,
            wounds,
            world.now,
        )

    def start(self, world: World) -> None:
        at = 0.0
        for _ in range(self.workload.roots):
            at += self._gap()
            world.wake_after(at, below(self._rng, self.workload.objects))

    def wake(self, world: World, process: int) -> None:
        assert isinstance(world, ObjectWorld)
        plan = self._queue.pop()
        self.plans[plan.tag] = plan
        world.start(process, plan.operation, plan.arguments(), self.workload.timeout)

    def delivered(self, world: World, process: int, message: Any) -> None:
        pass

    def _travel(self) -> float:
        self._travels += 1
        if self._travels > self._travels_max:
            raise Stuck
        return self._delay()

    def _problems(self, world: ObjectWorld) -> list[str]:
        problems = [f"{message} is delivered twice at {self.names[at]}" for at, message in world.twice]
        problems += [f"{message} is not delivered everywhere" for message in world.missing()]
        for site in world.sites():
            problems += [f"{one} is left at {self.names[site.me]}" for one in site.unended()]
        if len(world.answers) != self.workload.roots:
            problems.append(f"{len(world.answers)} roots ended: expected {self.workload.roots}")
        wanted: Counter[tuple[str, str]] = Counter()
        for root, answer in world.answers.items():
            home, arguments = world.started[root]
            plan = self.plans[arguments[0]]
            if answer.ok is plan.fails and not answer.late:
                problems.append(
                    f"{root} ended with {answer.answer!r}: expected {'a failure' if plan.fails else 'no failure'}"
                )
            if answer.ok:
                wanted.update((at, name) for at, _, name in set(plan.lasting(self.names[home])))
        found = Counter(
            {
                (self.names[site.me], name): count
                for site in world.sites()
                for name, count in site.state["counts"].items()
            }
        )
        if wanted != found:
            problems.append(
                f"committed operations: {dict(found - wanted)} too often, {dict(wanted - found)} too rarely"
            )
        return problems + [problem for site in world.sites() for problem in self._forms(site)]

    def _forms(self, site: Site) -> list[str]:
        """Return a text for each error in the final state of an object: the two copies of a number differ, or the size
        or digest of the state is wrong."""
        name, state = self.names[site.me], site.state
        problems = []
        if {cell: box[1] for cell, box in state["boxes"].items()} != state["cells"]:
            problems.append(f"{name} ends with {state['boxes']} and {state['cells']}")
        if state["tally"] != [state["counts"].get(operation, 0) for operation in self.operations]:
            problems.append(f"{name} ends with {state['tally']} and {state['counts']}")
        return problems + [f"{name}: {wrong}" for wrong in site.execution.intentions.live.wrong()]
