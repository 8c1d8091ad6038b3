"""Simulated groups of objects: their world, random workloads, the checks of a run, and a study of delays.

In the world, frames can be lost, repeated and reordered, and machines can crash and restart.

Each object is a :class:`antecede.objects.Site`. The simulator (:mod:`antecede.simulator.worlds`) runs a site in the
same way as an order: with the channel of real servers, and with a simulated disk. The events of a site become rows of a
trace with the columns ``instance``, ``operation``, ``parent`` and ``type``. The delivery of a request is recorded when
its instance begins.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from graphlib import CycleError, TopologicalSorter
from math import log
from random import Random
from typing import Any, ClassVar

import msgspec

from antecede.channel import Channel
from antecede.messages import COPY, REQUEST, Deliver, Label, Message, Packet, Sent, members_of
from antecede.objects import Answered, Call, CallFailed, Local, Object, Site, SiteSpec, group, operation
from antecede.orders import parse
from antecede.orders.relation import Relation
from antecede.simulator.draws import Draw, below, parse_draw, stream, subset
from antecede.simulator.kernel import World
from antecede.simulator.machine import FLAT, FlatChannel, Received, Step
from antecede.simulator.machine import Event as MachineEvent
from antecede.simulator.observers import Figures, Recorder, process_names
from antecede.simulator.run import SHAPES, Spontaneous
from antecede.simulator.schedules import Stuck
from antecede.simulator.worlds import BareWorld, ChannelWorld
from antecede.topology import Domain, Topology
from antecede.trace import DELIVER, LOCAL, Event, match
from antecede.trace.conflicts import conflicts_in
from antecede.trace.significant import judge_significant


class ObjectWorld(ChannelWorld):
    """A group of objects in a world with faults."""

    def __init__(
        self,
        spec: SiteSpec,
        delay: Draw,
        faults: Random,
        *,
        sink: Callable[[Event], None] | None = None,
        **settings: Any,
    ) -> None:
        self.recorder = Recorder(spec.names, sink or (lambda row: None))
        self.answers: dict[str, Answered] = {}
        """The result of each root that has ended, by the root's name."""
        self.started: dict[str, tuple[int, tuple[Any, ...]]] = {}
        """For each root, by name: the number of the object where it was started, and its arguments."""
        topology = Topology([Domain(FLAT, spec.names)])
        super().__init__(topology, {FLAT: spec}, delay, faults, channel=FlatChannel, **settings)

    def sites(self) -> list[Site]:
        """Return the objects as they are now."""
        return self.orders  # type: ignore[return-value]

    def missing(self) -> list[str]:
        """Return the ids of the messages that are still undelivered at one or more of their destinations."""
        return list(self._under_way)

    def start(
        self, process: int, operation: str, arguments: tuple[Any, ...] = (), timeout: float | None = None
    ) -> None:
        """Start a root for a user at the object ``process``. If the simulated machine of this object is down, start the
        root when the machine is up again."""
        self._maybe_cut()
        undone: list[str] = []

        def begin(channel: Channel) -> None:
            consumer = channel.consumers[FLAT]
            deadline = None if timeout is None else self.now + timeout
            root, effects = consumer.order.start(operation, arguments, deadline=deadline)  # type: ignore[attr-defined]
            # The root may end in this same step.
            self.started[root] = (process, arguments)
            undone.append(root)
            consumer.perform(consumer.order.carried_out(effects), self.now)  # type: ignore[attr-defined]

        def again() -> None:
            for root in undone:
                del self.started[root]
            self.start(process, operation, arguments, timeout)

        self._act(process, begin, again)

    def _happened(self, process: int, step: Step, event: MachineEvent) -> Message | None:
        what = event.what
        if isinstance(what, Local):
            self.recorder.local(process, self.now, what.instance, what.operation, what.parent, what.type)
        elif isinstance(what, Answered):
            self.answers[what.root] = what
        elif isinstance(what, Sent):
            self._under_way[what.message.id] = (what.message, what.message.to)
            self.recorder.sent(process, what.message, [], self.now)
        elif isinstance(what, Deliver):
            if self._deliver(process, what.message) is not None:
                self.recorder.delivered(process, what.message, self.now)
        elif isinstance(what, Received) and what.packet.kind == COPY:
            assert what.packet.message is not None
            self.recorder.arrived(process, what.packet.message, None, self.now)
        return None


# Random groups of objects and their operations. The share of conflicts and the depth of nested calls can be set.
#
# The class of the objects exists only for these tests. Each conflicting pair of operations has its own cell of the
# state: one operation adds to the cell, the other multiplies it. So the two do not commute (their sequence matters),
# but each commutes with itself. If an operation conflicts with itself, it has one more cell. On this cell, two
# executions of the operation do not commute. So if two objects compute conflicting operations in different sequences,
# their final states are different. If compatible operations are computed between the conflicting operations, the states
# still differ.
#
# The argument of an operation is a plan of its calls. A state may store a value as an entry of a dictionary or in a
# list. To test both ways, every number is stored twice, once in each way. In the end both copies of a number must be
# equal.


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


# Check that a run ends as if its roots had run alone, one after the other.
#
# Significant order determines the sequence in which messages are delivered. Locks and intentions
# (:mod:`antecede.objects.replay`) hide the effects of a root until it commits, and then apply the effects as if the
# root had run alone. The checker of significant order examines only messages. This module checks the effects. Suppose
# that instances of two roots conflict at an object. The trace shows which of these instances began first. The root of
# this instance must come before the other root. There must be *one* sequence of all roots that fulfils all these
# conditions. The roots are then computed in that sequence, on plain dictionaries and without any protocol. This must
# lead to the same final states of the objects.


def unserial(ended: Ended) -> list[str]:
    """Compute the roots one after the other, in a sequence that agrees with the trace. Return a text for each object
    whose final state is not the same as in the run. If no sequence agrees with the trace, return one text that reports
    this fact."""
    try:
        order = list(TopologicalSorter(_earlier(ended)).static_order())
    except CycleError as error:
        return [f"each of {', '.join(error.args[1])} must come before the next, because their instances conflict"]
    cells: dict[str, dict[str, int]] = {name: {} for name in ended.names}
    for root in order:
        home, plan = ended.lasting[root]
        _compute((home,), plan, ended.relation, cells)
    return [
        f"{name} ends with {ended.cells[name]}: expected {cells[name]}, after {', '.join(order)}"
        for name in ended.names
        if ended.cells[name] != cells[name]
    ]


def _earlier(ended: Ended) -> dict[str, set[str]]:
    """Return, for each committed root, the roots that must come before it. Root A must come before root B if, at some
    object, an instance of A began before a conflicting instance of B."""
    committed = {(event.process, event.instance) for event in ended.events if _is(event.type, "commit", event.kind)}
    before: dict[str, set[str]] = {root: set() for root in ended.lasting}
    begun: dict[str, set[tuple[str, str]]] = {name: set() for name in ended.names}
    for event in ended.events:
        if not _is(event.type, "begin", event.kind) or (event.process, event.instance) not in committed:
            continue
        root = (event.instance or "").partition("/")[0].partition("~")[0]
        operation = event.operation or ""
        here = begun[event.process]
        before.setdefault(root, set()).update(
            other for other, earlier in here if other != root and ended.relation.conflict(earlier, operation)
        )
        here.add((root, operation))
    return before


def _is(type_: str | None, wanted: str, kind: str) -> bool:
    return kind == LOCAL and type_ == wanted


def _compute(at: tuple[str, ...], plan: Plan, relation: Relation, cells: dict[str, dict[str, int]]) -> None:
    """Compute an operation: first its nested calls, then the operation itself at each of the objects in ``at``. All
    these objects make the same nested calls, so each nested call is computed only once. Calls that fail have no effect
    and are left out."""
    for to, called in plan.calls:
        if not called.fails:
            _compute(to, called, relation, cells)
    for name in at:
        changed(cells[name], relation, plan.operation, plan.tag)


# Random runs of groups of objects on faulty networks, and their verdicts.
#
# Each seed gives one :class:`Workload` with random settings. Its run is correct if four conditions hold:
#
# 1. No delivery broke a rule of significant order, the order that the objects guarantee. The checker of this order uses
#    only the trace. It does not know the protocol.
# 2. Every message was delivered exactly once, nothing is blocked, and every root ended as planned. The effects of a
#    root are at all objects that it called, or at none.
# 3. The final states are the same as if the roots had run one after the other.
# 4. Conflicting roots with the same home began in the sequence in which they were started.


class Judged(msgspec.Struct):
    """One run, and what is wrong with it."""

    seed: int
    ended: Ended | None
    findings: dict[str, list[str]]
    """The problems of the run, by kind. ``error``: the run raised an exception. ``stuck``: for example, a message was
    not delivered, something is blocked or not atomic, or the parts of a state do not agree. ``serial``: the result is
    not the same as if the roots had run one after the other. ``admission``: a root began before an older conflicting
    root of the same home. Any other kind is the name of a rule of significant order that a delivery broke."""

    def __str__(self) -> str:
        first = "; ".join(f"{kind}: {texts[0]}" for kind, texts in self.findings.items())
        return f"seed {self.seed}: {first or 'nothing found'}"


def play(seed: int, *, site: type[Site] = Site, workload: Workload | None = None) -> Judged:
    """Run a workload, and judge the run. If ``workload`` is None, the workload is drawn at random from ``seed``."""
    driver = Driver(workload or Workload.drawn(seed), site)
    try:
        ended = driver.run()
    except Exception as error:
        # A broken variant may do anything; this, too, is a finding.
        return Judged(seed, None, {"error": [repr(error)]})
    findings: dict[str, list[str]] = {}
    if ended.problems:
        findings["stuck"] = ended.problems
    elif wrong := unserial(ended):
        findings["serial"] = wrong
    if overtaken := overtaking(ended):
        findings["admission"] = overtaken
    for rule, text in broken(ended):
        findings.setdefault(rule, []).append(text)
    return Judged(seed, ended, findings)


def overtaking(ended: Ended) -> list[str]:
    """Find conflicting roots of one process that began in the wrong order: the root that was started later began
    first. Return a text for each such pair. Only the first try of each root is examined. Later tries may begin in
    another order, because a root may be aborted to let an older root continue."""
    found: list[str] = []
    begun: dict[str, list[tuple[int, str, str]]] = {}
    for event in ended.events:
        root = event.instance or ""
        if event.kind != LOCAL or event.type != "begin" or "/" in root or "~" in root:
            continue
        operation, number = event.operation or "", int(root.rpartition(".")[2])
        here = begun.setdefault(event.process, [])
        found += [
            f"{other} begins at {event.process} before {root}, which is older"
            for later, other, earlier in here
            if later > number and ended.relation.conflict(earlier, operation)
        ]
        here.append((number, root, operation))
    return found


def broken(ended: Ended) -> list[tuple[str, str]]:
    """Return a pair (rule, text) for each delivery that broke a rule of significant order. Use only the trace."""
    trace = match(ended.events)
    if not any(event.kind == DELIVER and event.instance for event in ended.events):
        return []
    verdict = judge_significant(trace, conflicts_in(ended.conflicts(), "conflicts"), every_overtaker=True)
    return [(one.rule, f"{one.message} is late at {one.to}, overtaken by {one.overtaken_by}") for one in verdict.late]


# A study of the delays that the order ``objects`` avoids, because it orders only conflicting messages.
#
# Every process sends requests at its own intervals, as in Jang et al. §6.2. A request calls either ``set``, which
# conflicts with itself, or ``add``, which conflicts with nothing. The share of requests that call ``set`` is the
# *density*. Each request is marked as sent by an instance of the same operation: for example, an instance of ``set``
# sends a request to call ``set``. A request is computed as soon as it is delivered. At density 1 all requests conflict,
# so every message must be delivered after all messages on which it depends, as in causal order. At density 0, messages
# need not wait for each other.
#
# Every order is tested with the same messages, the same destinations, and the same delay of each copy. Control packets
# have separate delays from the same distribution. The report has three figures for each of the two operations: the
# share of copies that were held, the mean time for which a copy was held (zero for a copy that was not held), and the
# mean time from send to delivery.


DENSITIES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
ORDERS = ("objects:conflicts=set~set", "objects:clocks=asked,conflicts=set~set", "pruned", "skeen")
_mean_delay = 0.1

_labels = {name: Label(REQUEST, name, "", name) for name in ("set", "add")}


class Meter:
    """A meter of two times, for each operation separately: how long copies of messages were held at their destination,
    and how long they took from send to delivery."""

    weighs: ClassVar[bool] = False

    def __init__(self, warmup: int) -> None:
        self._warmup = warmup
        self._sent: dict[str, tuple[float, str]] = {}
        self._arrived: dict[tuple[str, int], float] = {}
        self._seen = 0
        self.copies = {"set": 0, "add": 0}
        self.held = {"set": 0, "add": 0}
        self.hold = {"set": 0.0, "add": 0.0}
        self.latency = {"set": 0.0, "add": 0.0}

    def sent(self, process: int, message: Message, sizes: list[int], now: float) -> None:
        self._seen += 1
        if self._seen > self._warmup and message.label is not None:
            self._sent[message.id] = (now, message.label.operation)

    def arrived(self, process: int, message: Message, size: int | None, now: float) -> None:
        if message.id in self._sent:
            self._arrived.setdefault((message.id, process), now)

    def delivered(self, process: int, message: Message, now: float) -> None:
        found = self._sent.get(message.id)
        if found is None:
            return
        time, name = found
        waited = now - self._arrived.pop((message.id, process))
        self.copies[name] += 1
        self.held[name] += waited > 0
        self.hold[name] += waited
        self.latency[name] += now - time

    def report(self, name: str) -> dict[str, Any] | None:
        """Return the figures of one operation; None if it did not occur."""
        copies = self.copies[name]
        if not copies:
            return None
        return {
            "copies": copies,
            "held": self.held[name] / copies,
            "hold_seconds": self.hold[name] / copies,
            "latency_seconds": self.latency[name] / copies,
        }


class StudyWorld(BareWorld):
    """A simulated world for the study. The delay of a copy depends only on the seed, the message and the destination,
    so it is the same with every order."""

    def __init__(self, order: str, processes: int, density: float, seed: int, meter: Meter, figures: Figures) -> None:
        delay = parse_draw(f"exponential:{_mean_delay}", stream(seed, "control"))
        super().__init__(parse(order), processes, delay, figures=figures, observer=meter)
        self._seed = seed
        self._kinds = stream(seed, "operations")
        self._density = density
        self.controls = 0

    def send(self, process: int, to: int, payload: bytes = b"") -> Message:
        name = "set" if self._kinds.random() < self._density else "add"
        message = Message(f"m{self._sends}", process, to, payload, _labels[name])
        self._sends += 1
        self._carry_out(process, self.orders[process].send(message))
        return message

    def _transmit(self, packet: Packet) -> None:
        if packet.kind == COPY:
            drawn = Random(f"{self._seed}/{packet.subject}/{packet.target}").random()
            self._transmit_in(-_mean_delay * log(1.0 - drawn), packet)
        else:
            self.controls += 1
            self._transmit_in(self._delay(), packet)


class Study(msgspec.Struct, frozen=True):
    """The settings of a study."""

    processes: int = 20
    messages: int = 1_000
    warmup: int = 250
    workload: str = "multicast"
    seed: int = 1
    densities: tuple[float, ...] = DENSITIES
    orders: tuple[str, ...] = ORDERS

    def run(self, order: str, density: float) -> dict[str, Any]:
        """Run the workload with this order and this share of conflicting requests (``density``). Return the figures."""
        meter, figures = Meter(self.warmup), Figures(self.warmup)
        world = StudyWorld(order, self.processes, density, self.seed, meter, figures)
        gap = parse_draw("exponential:0.1", stream(self.seed, "gap"))
        destinations = SHAPES[self.workload](self.processes, stream(self.seed, "destinations"))
        world.run(Spontaneous(self.messages, gap, destinations))
        report = figures.report()
        return {
            "order": order,
            "density": density,
            "undelivered": report["undelivered"],
            "conflicting": meter.report("set"),
            "compatible": meter.report("add"),
            "stamp_bytes_mean": report["stamp"]["bytes_mean"],
            "control_packets_per_message": world.controls / self.messages,
        }
