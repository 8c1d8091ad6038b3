"""Random schedules that test orders: a plan is drawn from a seed, and then carried out.

A **plan** depends only on the order, the seed and the choice of faults. It determines:

* the number of processes, from two to eight;
* the number of sends, and their destinations (one process, subsets, all, the sender itself, none);
* the probability that an application sends before the next packet arrives;
* the probability that an application answers or forwards a delivery;
* the network: one of ``STYLES``.

In most schedules the orders run on the bare network, without links. If an order recognises duplicates, it may get
the same packet twice. In the other schedules the orders run on links, in a
:class:`~antecede.simulator.worlds.FaultyWorld`: frames are lost and duplicated, machines crash and restart, the
network splits.

Applications react to a delivery only after the step with the delivery has ended.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import log
from random import Random

import msgspec

from antecede.diagram import from_events
from antecede.errors import UsageError
from antecede.messages import COPY, Effects, Message, Packet, Verdict, members_of
from antecede.orders import OrderSpec
from antecede.orders.contract import Order
from antecede.simulator.draws import below, parse_draw, stream, subset
from antecede.simulator.kernel import World
from antecede.simulator.observers import NAMES, Finding, Watcher
from antecede.simulator.worlds import BareWorld, FaultyWorld
from antecede.trace import LOCAL, SEND, Delay, Event, Matched, judge, match, needless_delays

# Simulated networks on which packets arrive in unfavourable sequences, to find errors in orders (ordering protocols).
#
# If all delays are drawn from one distribution, most packets overtake only a few others, and arrive only a little
# before them. A faulty order shows its error when one packet is very late and long chains of messages overtake it. So
# each schedule uses one of the following networks. Each network has a different kind of unfavourable arrivals:
#
# =============  =====================================================================================
# ``any``        any packet in flight may be next, with equal probability
# ``last``       mostly the newest packet in flight arrives next
# ``first``      mostly the oldest packet in flight arrives next, and only rarely a newer one
# ``starved``    each packet has a fixed rank, and the packet in flight with the best rank arrives next
# ``timed``      exponential delays, as by default in ``antecede simulate``
# ``heavy``      delays with a heavy tail
# ``slow link``  like ``timed``, but one random link is very slow (none if its source and target are the same process)
# ``slow peer``  like ``timed``, but all packets to one random process are very slow
# ``slow kind``  like ``timed``, but one kind of packet is very slow: copies of messages, or all other packets
# =============  =====================================================================================

STYLES = ("any", "last", "first", "starved", "timed", "heavy", "slow link", "slow peer", "slow kind")

_slow = 30.0
"""The mean delay of slow packets, as a multiple of the mean delay of others."""


class UnorderedPackets:
    """Packets in flight that have no arrival times. The packet that arrives next is drawn at random."""

    def __init__(self, rng: Random, end: int | None = None) -> None:
        self._random = rng.random
        self._flying: list[Packet] = []
        self._end = end
        """The index of the packet that arrives next in most cases: 0 for the oldest packet in flight, −1 for the
        newest. It is None if all packets have the same probability."""

    def __len__(self) -> int:
        return len(self._flying)

    def put(self, packet: Packet) -> None:
        """Put a packet in flight."""
        self._flying.append(packet)

    def take(self) -> Packet:
        """Remove and return the packet that arrives next."""
        flying = self._flying
        at = self._end
        if at is None or self._random() < 0.15:
            at = int(self._random() * len(flying))
        return flying.pop(at)


class Ranked:
    """Packets in flight. Each packet has a number: its arrival time or, in the network ``starved``, its rank. The
    packet with the smallest number arrives next."""

    def __init__(self, moment: Callable[[float, Packet], float]) -> None:
        self._moment = moment
        self._now = 0.0
        self._ties = 0
        self._flying: list[tuple[float, int, Packet]] = []

    def __len__(self) -> int:
        return len(self._flying)

    def put(self, packet: Packet) -> None:
        """Put a packet in flight."""
        self._ties += 1
        heappush(self._flying, (self._moment(self._now, packet), self._ties, packet))

    def take(self) -> Packet:
        """Remove and return the packet that arrives next."""
        moment, _, packet = heappop(self._flying)
        self._now = max(self._now, moment)
        return packet


Network = UnorderedPackets | Ranked


def network(style: str, processes: int, rng: Random) -> Network:
    """Return a network of one of the ``STYLES``. If one link, process or kind of packet is slow in this style, it is
    chosen at random."""
    if style in ("any", "last", "first"):
        return UnorderedPackets(rng, {"any": None, "last": -1, "first": 0}[style])
    random = rng.random
    if style == "starved":
        return Ranked(lambda now, packet: random())
    if style == "heavy":
        return Ranked(lambda now, packet: now + 1.0 / (1.0 - random()))
    slow = below(rng, processes), below(rng, processes), below(rng, 2)
    is_slow: dict[str, Callable[[Packet], bool]] = {
        "timed": lambda packet: False,
        "slow link": lambda packet: (packet.source, packet.target) == slow[:2],
        "slow peer": lambda packet: packet.target == slow[0],
        "slow kind": lambda packet: (packet.kind == COPY) == bool(slow[2]),
    }
    judge = is_slow[style]
    return Ranked(lambda now, packet: now - log(1.0 - random()) * (_slow if judge(packet) else 1.0))


_faulty_share = 0.1
_travels_max = 20_000
"""The largest number of frames and acknowledgements in one schedule with faults. If a schedule needs more, it is
regarded as stuck, because its links probably resend for ever."""


class Plan:
    """The settings of one schedule, drawn from a seed."""

    def __init__(self, spec: OrderSpec, seed: int, faults: bool | None) -> None:
        rng = self.rng = stream(seed, "campaign")
        random = rng.random
        sample = spec.sample()
        if sample.members > len(NAMES):
            raise UsageError(f"order {spec} needs {sample.members} members: schedules have at most {len(NAMES)}")
        self.faulty = random() < _faulty_share if faults is None else faults
        self.processes = max(2 + below(rng, 7), sample.members)
        self.messages = 8 + below(rng, 23)
        self.eager = (0.15, 0.35, 0.6, 0.9)[below(rng, 4)]
        self.style = STYLES[below(rng, len(STYLES))]
        self.react = (0.0, 0.3, 0.8)[below(rng, 3)]
        self.repeat = 0.2 if below(rng, 2) and sample.recognises_repeats else 0.0
        everyone = list(range(self.processes))
        actors = subset(rng, everyone, 1 + below(rng, self.processes)) if below(rng, 2) else (1 << self.processes) - 1
        self.actors = list(members_of(actors))
        """Processes that send by themselves; the other processes send only in reaction to a delivery."""
        shapes = ("single", "subset", "everybody", "mixed", "others")
        self.shape = "everybody" if "broadcast" in sample.needs else shapes[below(rng, len(shapes))]
        self.destinations = _destinations(self.shape, self.processes, rng)

    def __str__(self) -> str:
        where = "faulty links" if self.faulty else f"network {self.style!r}"
        return f"{self.processes} processes, at most {self.messages} messages, {self.shape}, {where}"


def _destinations(shape: str, processes: int, rng: Random) -> Callable[[int], int]:
    """Return a function that draws the destinations of a process's next send. The result of this function is a bit mask
    of processes."""
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


class BareSchedule(BareWorld):
    """A schedule in which orders run without links. The network is an adversary: it chooses the packet that arrives
    next. Virtual time does not pass."""

    def __init__(self, spec: OrderSpec, plan: Plan, recorder: Watcher) -> None:
        super().__init__(spec, plan.processes, float, observer=recorder)
        self.plan = plan
        self._findings = recorder.findings
        self._flying = network(plan.style, plan.processes, plan.rng)
        self._repeated: dict[int, Packet] = {}
        """Packets that have already arrived and are in flight again, as duplicates. The key is ``id(packet)``."""
        self._fresh: list[tuple[int, Message]] = []
        """Deliveries to which the application has not reacted yet: the process and the message."""

    def play(self) -> None:
        """Let applications send and let packets arrive, until all sends are made and no packet is in flight."""
        plan, random, flying = self.plan, self.plan.rng.random, self._flying
        actors = plan.actors
        while self._sends < plan.messages or flying:
            if self._sends < plan.messages and (not flying or random() < plan.eager):
                process = actors[int(random() * len(actors))]
                self.send(process, plan.destinations(process))
            else:
                self._arrive(flying.take())
            while self._fresh:
                process, message = self._fresh.pop(0)
                if self._sends < plan.messages and random() < plan.react:
                    answer = random() < 0.5 and plan.shape != "everybody"
                    self.send(process, 1 << message.source if answer else plan.destinations(process))

    def _react(self, process: int, delivered: list[Message]) -> None:
        self._fresh += [(process, message) for message in delivered]

    def _transmit(self, packet: Packet) -> None:
        self._flying.put(packet)

    def _arrive(self, packet: Packet) -> tuple[Verdict, Effects]:
        again = self._repeated.pop(id(packet), None) is not None
        verdict, effects = super()._arrive(packet)
        if again and (verdict is not Verdict.DUPLICATE or effects):
            where = f"{packet.kind} {packet.subject} at {NAMES[packet.target]}"
            self._findings.append(Finding("duplicate", f"the second {where} is answered {verdict.name}"))
        if self.plan.repeat and self.plan.rng.random() < self.plan.repeat:
            self._repeated[id(packet)] = packet
            self._flying.put(packet)
        return verdict, effects


class Stuck(Exception):
    """The error that is raised if a schedule with faults does not end."""


class FaultySchedule:
    """A schedule in which orders run on simulated links and disks that can fail. This class is also the workload: it
    decides when processes send, and to which destinations."""

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


# An order runs under a random schedule, and the run is judged.
#
# The events of a run are recorded as a trace. An oracle judges the trace (:mod:`antecede.trace.oracle`), and sees
# nothing else of the run. Each run must obey these rules:
#
# * the guarantees of the order hold (FIFO, causal, total, synchronous);
# * every message is delivered exactly once at each of its destinations, and only after it was sent;
# * at the end, no order holds a message;
# * if a packet arrives a second time, the order answers ``DUPLICATE``, and its state does not change;
# * orders that know exactly which messages must come first (``TIGHT``) hold no message longer than needed.


TIGHT = frozenset({"fifo", "matrix", "updates", "vector", "pruned", "direct"})
"""Orders that hold a message only as long as necessary. ``fifo`` holds it until the previous message on the same link
is delivered. The other orders hold it until all messages on which it depends are delivered."""

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
    "objects",
    "objects:clocks=asked",
)
"""Every order of the project, and every option that changes an order's behaviour in a campaign."""


class Outcome(msgspec.Struct):
    """The outcome of one schedule."""

    order: str
    seed: int
    plan: str
    """The settings that were drawn for this schedule, in words."""
    processes: int
    events: list[Event]
    """The events, in the sequence in which they happened."""
    deliveries: int = 0
    findings: list[Finding] = []
    faults: bool | None = None

    def kinds(self) -> set[str]:
        return {finding.kind for finding in self.findings}

    def diagram(self) -> str:
        """Return the schedule as a space-time diagram."""
        late = {(found.message, found.to) for found in judge(self.events, ("causal",)).causal}
        return from_events(self.events, processes=NAMES[: self.processes], late=late).text()

    def __str__(self) -> str:
        found = "; ".join(f"{finding.kind}: {finding.text}" for finding in self.findings[:5])
        return f"{self.order}, seed {self.seed} ({self.plan}): {found or 'nothing found'}"


def play(spec: OrderSpec, seed: int, *, faults: bool | None = None) -> Outcome:
    """Play one schedule and judge it. If ``faults`` is True, the orders run on links with faults. If it is False, they
    run on the bare network, without links. If it is None, the seed decides."""
    plan = Plan(spec, seed, faults)
    recorder = Watcher()
    outcome = Outcome(str(spec), seed, str(plan), plan.processes, recorder.events, 0, recorder.findings, faults)
    tight = spec.name in TIGHT
    leftover: str | None = None
    try:
        if plan.faulty:
            faulty = FaultySchedule(spec, plan, recorder)
            tight = tight and not faulty.crash
            faulty.world.run(faulty)
            orders = faulty.world.orders
            for process, message in faulty.world.twice:
                recorder.findings.append(Finding("twice", f"{message} is delivered again at {NAMES[process]}"))
        else:
            bare = BareSchedule(spec, plan, recorder)
            bare.play()
            orders = bare.orders
        leftover = _leftover(orders)
    except Stuck:
        leftover = "and links resend for ever"
    except Exception as error:
        recorder.findings.append(Finding("error", repr(error)))
    _judge(outcome, spec.guarantees(), tight, leftover)
    return outcome


def _leftover(orders: list[Order]) -> str:
    for order in orders:
        for message in order.held():
            return f"and {message.id} is held at {NAMES[order.me]}"
        for message, target in order.unposted():
            return f"and {message.id} never left {NAMES[order.me]} for {NAMES[target]}"
        if order.held_packets():
            return f"and {NAMES[order.me]} holds packets"
    return ""


def _judge(outcome: Outcome, guarantees: frozenset[str], tight: bool, leftover: str | None) -> None:
    """Judge the events. ``leftover`` describes what was unfinished at the end, for example a message that an order
    still holds. It is empty if nothing was unfinished, and ``None`` if an error ended the schedule early."""
    trace = match(outcome.events)
    verdict = judge(trace, tuple(sorted(guarantees)))
    outcome.deliveries = trace.deliveries
    findings = outcome.findings
    for order in ("fifo", "causal"):
        for late in getattr(verdict, order)[:3]:
            findings.append(Finding(order, f"{late.message} is late at {late.to}, overtaken by {late.overtaken_by}"))
    if verdict.cycle:
        findings.append(Finding("total", f"delivered in a cycle: {' '.join(verdict.cycle)}"))
    if verdict.crown:
        findings.append(Finding("synchronous", f"events in a cycle: {' '.join(verdict.crown)}"))
    if leftover is None:
        return
    if verdict.undelivered or leftover:
        findings.append(Finding("undelivered", f"{verdict.undelivered} copies are undelivered {leftover}".strip()))
    if tight:
        delays = needless_delays(trace) if "causal" in guarantees else fifo_delays(trace)
        for delay in delays[:3]:
            findings.append(Finding("needless", f"{delay.message} is held longer than needed at {delay.process}"))


def fifo_delays(trace: Matched) -> list[Delay]:
    """Return the messages that were held although all earlier messages on their link had been delivered.

    To find these messages, the function makes a changed trace, in which the sends of each process belong to a separate
    process. This separate process delivers nothing. So no send follows from a delivery, and causal order is the same as
    FIFO order. The function returns the messages of the changed trace that were held longer than causal order needs.
    Undelivered messages are left out: a separate check reports them.
    """
    apart = []
    for line in trace.lines:
        for event in line:
            if event.kind == SEND:
                apart.append(msgspec.structs.replace(event, process=f"{event.process} sends"))
                event = Event(event.process, event.index, LOCAL)
            apart.append(event)
    return [delay for delay in needless_delays(apart) if delay.deliver_index is not None]
