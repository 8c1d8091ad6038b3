"""An order runs under a random schedule, and the run is judged.

Each seed gives one schedule (:mod:`antecede.simulator.schedules`). The events of a run are recorded as a trace. An
oracle judges the trace (:mod:`antecede.trace.oracle`), and sees nothing else of the run. Each run must obey these
rules:

* the guarantees of the order hold (FIFO, causal, total, synchronous);
* every message is delivered exactly once at each of its destinations, and only after it was sent;
* at the end, no order holds a message;
* if a packet arrives a second time, the order answers ``DUPLICATE``, and its state does not change;
* orders that know exactly which messages must come first (``TIGHT``) hold no message longer than needed.
"""

import msgspec

from antecede.diagram import from_events
from antecede.orders import OrderSpec
from antecede.orders.contract import Order
from antecede.simulator.observers import NAMES, Finding, Watcher
from antecede.simulator.schedules import BareSchedule, FaultySchedule, Plan, Stuck
from antecede.trace import LOCAL, SEND, Delay, Event, Matched, judge, match, needless_delays

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
