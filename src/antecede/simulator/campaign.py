"""Campaigns: an order, a seed, and an adversary; the verdict is the plain oracle's.

A **schedule** is drawn from (order, seed) and nothing else: two to eight processes; some to many sends, single, to
subsets, to everybody, to oneself, to nobody; how eager the applications are to send rather than to wait; how often a
delivery is answered or passed on; one of the networks of :mod:`antecede.simulator.adversary`. In most schedules the
orders stand on the bare network, which may hand a packet over a second time to an order that has counters. In a share
of them, and always with ``faults=True``, they stand on links in a :class:`~antecede.simulator.faults.FaultyWorld`:
frames are lost and duplicated, machines crash and come back, the network splits.

What happened is recorded as trace events, and judged from those alone (:mod:`antecede.trace.oracle`), by:

* what the order guarantees (FIFO, causal, total, synchronous);
* everything is delivered, once, where it was addressed, after it was sent, and nothing is left over;
* a second arrival is answered ``DUPLICATE`` and changes nothing;
* orders that know exactly what must come first hold nothing for longer (``TIGHT``).

Applications react to a delivery after the step that delivered, when all that the step did is done.
"""

from collections.abc import Callable
from random import Random

import msgspec

from antecede.diagram import from_events
from antecede.errors import UsageError
from antecede.messages import COPY, Deliver, Effects, Message, Packet, Send, Sent, Verdict, members_of
from antecede.orders import OrderSpec
from antecede.orders.contract import Order
from antecede.simulator.adversary import STYLES, Network, network
from antecede.simulator.draws import below, parse_draw, stream, subset
from antecede.simulator.faults import FaultyWorld
from antecede.simulator.recorder import process_names
from antecede.simulator.world import World
from antecede.trace import ARRIVE, DELIVER, SEND, Event, judge, match, needless_delays

TIGHT = frozenset({"matrix", "updates", "vector", "pruned", "direct"})
"""Orders that may hold a message only while one that causally precedes it is missing."""

VARIANTS = (
    "none",
    "fifo",
    "matrix",
    "updates",
    "vector",
    "pruned",
    "direct",
    "buffer",
    "buffer:pipelined=true",
    "buffer:multicast=hold-delivery",
    "buffer:multicast=hold-delivery,pipelined=true",
    "synchronous",
    "coordinator",
    "coordinator:member=1",
    "token",
    "lamport",
    "skeen",
    "skeen:causal=true",
)
"""Every order of the house, and every option of one that changes what it does."""

_faulty_share = 0.1
_travels_max = 20_000
"""Frames of one faulty schedule: one that needs more is stuck, its links resending for ever."""

_names = process_names(8)


class Finding(msgspec.Struct, frozen=True):
    """One thing that should not have happened."""

    kind: str
    """A guarantee, or ``undelivered``, ``twice``, ``stray``, ``needless``, ``duplicate``, ``error``."""
    text: str


class Outcome(msgspec.Struct):
    """One schedule, as it went."""

    order: str
    seed: int
    plan: str
    """The schedule's draws, in words."""
    processes: int
    events: list[Event]
    """In the sequence in which they happened."""
    deliveries: int = 0
    findings: list[Finding] = []
    faults: bool | None = None

    def kinds(self) -> set[str]:
        return {finding.kind for finding in self.findings}

    def replay(self) -> str:
        """The one command that plays this very schedule again."""
        chosen = {None: "", True: " --faults", False: " --no-faults"}[self.faults]
        return f"antecede campaign --order {self.order} --seed {self.seed}{chosen} --show"

    def diagram(self) -> str:
        """The schedule as a space-time diagram."""
        late = {(found.message, found.to) for found in judge(self.events, ("causal",)).causal}
        return from_events(self.events, processes=_names[: self.processes], late=late).text()

    def __str__(self) -> str:
        found = "; ".join(f"{finding.kind}: {finding.text}" for finding in self.findings[:5])
        return f"{self.order}, seed {self.seed} ({self.plan}): {found or 'nothing found'}\n  replay: {self.replay()}"


class Watcher:
    """The events of one schedule, well formed whatever the order does: what cannot be an event is a finding."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.findings: list[Finding] = []
        self._indices = [0] * len(_names)
        self._sent: set[str] = set()
        self._delivered: set[tuple[int, str]] = set()

    def sent(self, process: int, message: Message, packets: list[Packet], now: float) -> None:
        if message.id in self._sent:
            self.findings.append(Finding("stray", f"{message.id} is sent twice"))
            return
        self._sent.add(message.id)
        self._add(process, SEND, message.id, tuple([_names[member] for member in members_of(message.to)]))

    def arrived(self, process: int, packet: Packet, now: float) -> None:
        # A stop on a detour is no event of the application.
        if packet.message is not None and packet.message.to >> process & 1 and packet.subject in self._sent:
            self._add(process, ARRIVE, packet.subject)

    def delivered(self, process: int, message: Message, now: float) -> None:
        if message.id not in self._sent or not message.to >> process & 1:
            self.findings.append(Finding("stray", f"{message.id} is delivered at {_names[process]}"))
        elif (process, message.id) in self._delivered:
            self.findings.append(Finding("twice", f"{message.id} at {_names[process]}"))
        else:
            self._delivered.add((process, message.id))
            self._add(process, DELIVER, message.id)

    def _add(self, process: int, kind: str, message: str, to: tuple[str, ...] | None = None) -> None:
        index = self._indices[process]
        self._indices[process] = index + 1
        self.events.append(Event(_names[process], index, kind, message, to))


class Plan:
    """What a seed decides before anything happens."""

    def __init__(self, spec: OrderSpec, seed: int, faults: bool | None) -> None:
        rng = self.rng = stream(seed, "campaign")
        random = rng.random
        sample = spec.sample()
        if sample.members > len(_names):
            raise UsageError(f"order {spec} needs {sample.members} members: schedules have at most {len(_names)}")
        self.faulty = random() < _faulty_share if faults is None else faults
        self.processes = max(2 + below(rng, 7), sample.members)
        self.messages = 8 + below(rng, 23)
        self.eager = (0.15, 0.35, 0.6, 0.9)[below(rng, 4)]
        self.style = STYLES[below(rng, len(STYLES))]
        self.react = (0.0, 0.3, 0.8)[below(rng, 3)]
        self.repeat = 0.2 if below(rng, 2) and recognises_duplicates(sample) else 0.0
        everyone = list(range(self.processes))
        actors = subset(rng, everyone, 1 + below(rng, self.processes)) if below(rng, 2) else (1 << self.processes) - 1
        self.actors = list(members_of(actors))
        """Who sends by itself; the others at most react."""
        shapes = ("single", "subset", "everybody", "mixed", "others")
        self.shape = "everybody" if "broadcast" in sample.needs else shapes[below(rng, len(shapes))]
        self.destinations = _destinations(self.shape, self.processes, rng)

    def __str__(self) -> str:
        where = "faulty links" if self.faulty else f"network {self.style!r}"
        return f"{self.processes} processes, at most {self.messages} messages, {self.shape}, {where}"


def recognises_duplicates(order: Order) -> bool:
    """Does the order promise to notice any packet that it had before? Others leave that to the link."""
    return order.name != "none" and not (order.name == "buffer" and not order.settings["pipelined"])


def _destinations(shape: str, processes: int, rng: Random) -> Callable[[int], int]:
    """Process → the bit mask of whom it sends to now."""
    everyone = (1 << processes) - 1
    members = list(range(processes))

    def single(process: int) -> int:
        return 1 << below(rng, processes)

    def some(process: int) -> int:
        return subset(rng, members, 1 + below(rng, processes))

    def everybody(process: int) -> int:
        return everyone if rng.random() < 0.5 else everyone & ~(1 << process)

    def others(process: int) -> int:
        return 1 << (process + 1 + below(rng, processes - 1)) % processes

    def nobody(process: int) -> int:
        return 0

    shapes = {"single": single, "subset": some, "everybody": everybody, "others": others}
    if shape != "mixed":
        return shapes[shape]
    choices = [single, single, others, some, some, everybody, nobody]
    return lambda process: choices[below(rng, len(choices))](process)


class BareSchedule:
    """Orders on the bare network of an adversary."""

    def __init__(self, spec: OrderSpec, plan: Plan, recorder: Watcher) -> None:
        self.plan = plan
        self.recorder = recorder
        self.orders = [spec.create(member, plan.processes) for member in range(plan.processes)]
        self.accepted = 0
        self._network: Network = network(plan.style, plan.processes, plan.rng)
        self._repeated: dict[int, Packet] = {}
        """Packets that have arrived once already and are in flight again, by their identity."""
        self._fresh: list[tuple[int, Message]] = []
        """Deliveries to which the application has not reacted."""

    def run(self) -> None:
        """Send and let arrive until nothing is left to do."""
        plan, random, flying = self.plan, self.plan.rng.random, self._network
        actors = plan.actors
        while self.accepted < plan.messages or flying:
            if self.accepted < plan.messages and (not flying or random() < plan.eager):
                process = actors[int(random() * len(actors))]
                self._send(process, plan.destinations(process))
            else:
                self._arrive(flying.take())
            while self._fresh:
                process, message = self._fresh.pop(0)
                if self.accepted < plan.messages and random() < plan.react:
                    answer = random() < 0.5 and plan.shape != "everybody"
                    self._send(process, 1 << message.source if answer else plan.destinations(process))

    def _send(self, process: int, to: int) -> None:
        message = Message(f"m{self.accepted}", process, to)
        self.accepted += 1
        self._carry_out(process, self.orders[process].send(message))

    def _arrive(self, packet: Packet) -> None:
        again = self._repeated.pop(id(packet), None) is not None
        if packet.kind == COPY:
            self.recorder.arrived(packet.target, packet, 0.0)
        verdict, effects = self.orders[packet.target].receive(packet)
        if again and (verdict is not Verdict.DUPLICATE or effects):
            where = f"{packet.kind} {packet.subject} at {_names[packet.target]}"
            self.recorder.findings.append(Finding("duplicate", f"the second {where} is answered {verdict.name}"))
        if effects:
            self._carry_out(packet.target, effects)
        if self.plan.repeat and self.plan.rng.random() < self.plan.repeat:
            self._repeated[id(packet)] = packet
            self._network.put(packet)

    def _carry_out(self, process: int, effects: Effects) -> None:
        recorder = self.recorder
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                self._network.put(effect.packet)  # type: ignore[union-attr]
            elif kind is Deliver:
                message = effect.message  # type: ignore[union-attr]
                recorder.delivered(process, message, 0.0)
                self._fresh.append((process, message))
            elif kind is Sent:
                recorder.sent(process, effect.message, [], 0.0)  # type: ignore[union-attr]


class Stuck(Exception):
    """A faulty schedule does not come to its end."""


class FaultySchedule:
    """Orders on links and disks, in a world with faults. It is its own workload."""

    def __init__(self, spec: OrderSpec, plan: Plan, recorder: Watcher) -> None:
        rng = self._rng = plan.rng
        random = rng.random
        self.plan = plan
        self._left = plan.messages
        self._travels = 0
        self._delay = parse_draw(("exponential:0.1", "pareto:1.1,0.02")[below(rng, 2)], rng)
        self._gap = parse_draw(f"exponential:{(0.02, 0.2, 1.0)[below(rng, 3)]}", rng)
        loss, duplicate, partition = (share * below(rng, 2) * random() for share in (0.4, 0.4, 0.2))
        self.crash = (0.0, 0.02, 0.08)[below(rng, 3)]
        self.world = FaultyWorld(
            spec,
            plan.processes,
            self._travel,
            stream(below(rng, 2**32), "faults"),
            loss=loss,
            duplicate=duplicate,
            crash=self.crash,
            partition=partition,
            observer=recorder,
        )

    def run(self) -> None:
        """Let everything happen until nothing is left to happen."""
        self.world.run(self)

    def _travel(self) -> float:
        self._travels += 1
        if self._travels > _travels_max:
            raise Stuck
        return self._delay()

    def start(self, world: World) -> None:
        for process in self.plan.actors:
            world.wake_after(self._gap(), process)

    def wake(self, world: World, process: int) -> None:
        if self._left:
            self._left -= 1
            world.wake_after(self._gap(), process)
            world.send(process, self.plan.destinations(process))

    def delivered(self, world: World, process: int, message: Message) -> None:
        if self._left and self._rng.random() < self.plan.react:
            self._left -= 1
            world.send(process, self.plan.destinations(process))


def play(spec: OrderSpec, seed: int, *, faults: bool | None = None) -> Outcome:
    """Play one schedule and judge it. ``faults`` decides between links and the bare network; else the seed does."""
    plan = Plan(spec, seed, faults)
    recorder = Watcher()
    outcome = Outcome(str(spec), seed, str(plan), plan.processes, recorder.events, 0, recorder.findings, faults)
    tight = spec.name in TIGHT
    leftover: str | None = None
    try:
        if plan.faulty:
            faulty = FaultySchedule(spec, plan, recorder)
            tight = tight and not faulty.crash
            faulty.run()
            orders = faulty.world.orders
            for process, message in faulty.world.twice:
                recorder.findings.append(Finding("twice", f"{message} at {_names[process]}"))
        else:
            bare = BareSchedule(spec, plan, recorder)
            bare.run()
            orders = bare.orders
        leftover = _leftover(orders)
    except Stuck:
        leftover = "links resend for ever"
    except Exception as error:
        recorder.findings.append(Finding("error", repr(error)))
    _judge(outcome, spec.guarantees(), tight, leftover)
    return outcome


def _leftover(orders: list[Order]) -> str:
    for order in orders:
        for message in order.held():
            return f"{message.id} is held at {_names[order.me]}"
        for message, target in order.unposted():
            return f"{message.id} never left {_names[order.me]} for {_names[target]}"
        if order.held_packets():
            return f"{_names[order.me]} holds packets"
    return ""


def _judge(outcome: Outcome, guarantees: frozenset[str], tight: bool, leftover: str | None) -> None:
    """Judge the events; ``leftover`` is what was not done in the end, ``None`` if an error came before the end."""
    trace = match(outcome.events)
    verdict = judge(trace, tuple(sorted(guarantees)))
    outcome.deliveries = trace.deliveries
    findings = outcome.findings
    for order in ("fifo", "causal"):
        for late in getattr(verdict, order)[:3]:
            findings.append(Finding(order, f"{late.message} is late at {late.to}, overtaken by {late.overtaken_by}"))
    if verdict.cycle:
        findings.append(Finding("total", f"delivered in a circle: {' '.join(verdict.cycle)}"))
    if verdict.crown:
        findings.append(Finding("synchronous", f"events in a circle: {' '.join(verdict.crown)}"))
    if leftover is None:
        return
    if verdict.undelivered or leftover:
        findings.append(Finding("undelivered", f"{verdict.undelivered} copies {leftover}".strip()))
    if tight:
        for delay in needless_delays(trace)[:3]:
            findings.append(Finding("needless", f"{delay.message} at {delay.process}"))
