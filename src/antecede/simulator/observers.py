"""Observers of simulated worlds: recorders of traces and of findings, and the counters for the costs of a run.

A recorder turns the events of a world into the rows of a trace. It numbers the events of each process 0, 1, 2 … without
gaps. The ``hop`` rows of routers are numbered separately, because they are events of the server and not of its
application. Virtual seconds become nanoseconds. The stamp size in a send row is the mean over the copies that leave in
the same step. The stamp size in an arrival row is the size of the stamp of the copy that arrived.

A message between operations of objects contains a :class:`antecede.messages.Label` with the names of the instances and
their operations. These names fill the columns ``instance``, ``operation``, ``parent`` and ``type``.
"""

from collections.abc import Callable, Sequence
from math import ceil, exp, floor, log
from typing import Any, ClassVar

import msgspec

from antecede.messages import COPY, REQUEST, Message, Packet, members_of
from antecede.orders.contract import Order
from antecede.trace import ARRIVE, DELIVER, HOP, LOCAL, SEND, Event
from antecede.trace.schema import INT64_MAX


def process_names(processes: int) -> list[str]:
    """Return the names that simulated processes have in traces: P1 … Pn."""
    return [f"P{number}" for number in range(1, processes + 1)]


def mean_size(sizes: list[int]) -> int | None:
    """Return the mean of these stamp sizes, rounded, or None if the list is empty."""
    return round(sum(sizes) / len(sizes)) if sizes else None


class Recorder:
    """An observer that hands every event to ``sink``, in the sequence in which the events happen."""

    weighs: ClassVar[bool] = True

    def __init__(self, names: Sequence[str], sink: Callable[[Event], None]) -> None:
        self.names = names
        self._sink = sink
        self._next = [0] * len(names)
        self._next_hop = [0] * len(names)

    def sent(self, process: int, message: Message, sizes: list[int], now: float | None) -> None:
        names, label = self.names, message.label
        to = tuple([names[target] for target in members_of(message.to)])
        columns = None if label is None else _columns(label.by_instance, label.by_operation, "", label.type)
        self.row(process, SEND, now, message.id, to, mean_size(sizes) if sizes else None, columns)

    def arrived(self, process: int, message: Message, size: int | None, now: float | None) -> None:
        self.row(process, ARRIVE, now, message.id, None, size)

    def delivered(self, process: int, message: Message, now: float | None) -> None:
        label, columns = message.label, None
        if label is not None:
            parent = label.by_instance if label.type == REQUEST else ""
            columns = _columns(label.instance, label.operation, parent, label.type)
        self.row(process, DELIVER, now, message.id, None, None, columns)

    def local(self, process: int, now: float, instance: str, operation: str, parent: str, type_: str) -> None:
        """Record that an operation begins or ends. ``instance`` is the name of this execution of the operation."""
        self.row(process, LOCAL, now, columns=_columns(instance, operation, parent, type_))

    def hopped(
        self, process: int, message: Message, domain: str, hop: int, sizes: list[int], now: float | None
    ) -> None:
        """Record that a router has forwarded a message into its next domain."""
        index = self._next_hop[process]
        self._next_hop[process] = index + 1
        columns: dict[str, Any] = {"domain": domain, "hop": hop, "stamp_bytes": mean_size(sizes)}
        self._sink(Event(self.names[process], index, HOP, message.id, time=_nanoseconds(now), **columns))

    def row(
        self,
        process: int,
        kind: str,
        now: float | None,
        message: str | None = None,
        to: tuple[str, ...] | None = None,
        size: int | None = None,
        columns: dict[str, Any] | None = None,
    ) -> None:
        """Record one event of the application."""
        index = self._next[process]
        self._next[process] = index + 1
        time = None if now is None else _nanoseconds(now)
        if columns:
            self._sink(Event(self.names[process], index, kind, message, to, time, None, None, size, **columns))
        else:
            self._sink(Event(self.names[process], index, kind, message, to, time, None, None, size))


def _columns(instance: str, operation: str, parent: str, type_: str) -> dict[str, str]:
    columns = {"instance": instance, "operation": operation, "parent": parent, "type": type_}
    return {name: value for name, value in columns.items() if value}


def _nanoseconds(now: float | None) -> int | None:
    """Return virtual seconds as nanoseconds, but at most the largest number that a trace can have (about 292 years)."""
    return None if now is None else min(round(now * 1e9), INT64_MAX)


# The recorder of a campaign, which records events and findings.
#
# The oracle (:mod:`antecede.trace.oracle`) can judge valid events only. So if a send or a delivery is not valid, the
# recorder records a finding instead of an event. Examples are a second delivery of a message, the delivery of a message
# that was not sent, and a delivery at a process that is not a destination.


NAMES = process_names(8)
"""The names of the processes; a schedule has at most 8 processes."""


class Finding(msgspec.Struct, frozen=True):
    """Something that an order did wrong in one schedule of a campaign."""

    kind: str
    """The name of the guarantee that was violated, or the name of another error: ``undelivered`` (a message was not
    delivered), ``twice`` (a second delivery), ``stray`` (a second send, or a delivery of a message that was not sent to
    this process), ``needless`` (a message was held longer than necessary), ``duplicate`` (the order accepted a repeated
    packet) or ``error`` (an exception)."""
    text: str


class Watcher(Recorder):
    """Records the valid events of one schedule, without times and sizes. A send or delivery that is not
    valid is recorded as a finding."""

    weighs: ClassVar[bool] = False

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.findings: list[Finding] = []
        super().__init__(NAMES, self.events.append)
        self._sent: set[str] = set()
        self._delivered: set[tuple[int, str]] = set()

    def sent(self, process: int, message: Message, sizes: list[int], now: float | None) -> None:
        if message.id in self._sent:
            self.findings.append(Finding("stray", f"{message.id} is sent twice"))
            return
        self._sent.add(message.id)
        super().sent(process, message, sizes, None)

    def arrived(self, process: int, message: Message, size: int | None, now: float | None) -> None:
        if message.id in self._sent:
            super().arrived(process, message, size, None)

    def delivered(self, process: int, message: Message, now: float | None) -> None:
        if message.id not in self._sent or not message.to >> process & 1:
            self.findings.append(
                Finding("stray", f"{message.id} is delivered at {NAMES[process]}, to which it was not sent")
            )
        elif (process, message.id) in self._delivered:
            self.findings.append(Finding("twice", f"{message.id} is delivered again at {NAMES[process]}"))
        else:
            self._delivered.add((process, message.id))
            super().delivered(process, message, None)


# Counters for the costs of a run. Their memory does not grow with the number of messages in the run.
#
# Latencies go into a histogram whose buckets are 1 % wide, which is precise enough for a 99th percentile. Warm-up sends
# and their deliveries are not counted.
#
# The mean stamp size is computed in two steps: first the mean over the copies of each message, then the mean of these
# means over all messages. So every message has the same weight (as in the figures of Jang et al.). A mean over all
# copies would give more weight to multicasts with many destinations. The stamps of these multicasts are shortened
# (pruned) more than other stamps. The report also contains the totals over all copies, so that a reader can compute the
# mean over all copies.


BUCKETS_PER_E = 100
"""The number of histogram buckets that cover the latencies from x to e · x, for any x; e is about 2.718. With 100
buckets, each bucket is about 1 % wide."""

INSTANT = -(10**6)
"""The bucket of deliveries that took no time."""


class MessageTotals:
    """Counters for one message that some destinations have not delivered yet. They count the copies of the message,
    and add up the sizes of their stamps."""

    __slots__ = ("bytes", "copies", "counted", "dependents", "paper_bytes", "remaining", "time")

    def __init__(self, time: float, remaining: int, counted: bool) -> None:
        self.time = time
        self.remaining = remaining
        self.counted = counted
        self.copies = self.dependents = self.bytes = self.paper_bytes = 0


class Figures:
    """Counts the costs of all messages except the first ``warmup`` messages."""

    def __init__(self, warmup: int = 0, *, routed: bool = False) -> None:
        self.warmup = warmup
        self._routed = routed
        """Whether a message travels hop by hop through domains. Then one destination may need several copies: one for
        each hop. In this case, the stamp size of a message is the sum of the stamp sizes of all its copies, divided by
        the number of its destinations."""
        self._packets = 0
        self.sends = 0
        self.deliveries = 0
        self.arrivals = 0
        self.held = 0
        self.copies = 0
        self.bytes_total = 0
        self.bytes_max = 0
        self._counted_messages = 0
        self._dependents = 0.0
        self._bytes = 0.0
        self._paper_bytes = 0.0
        self.outstanding = 0
        self._latency_sum = 0.0
        self._latencies: dict[int, int] = {}
        self._under_way: dict[str, MessageTotals] = {}
        self.seen = 0
        """The number of sends so far, including the warm-up."""

    def sent(self, message: Message, now: float) -> None:
        counted = self.seen >= self.warmup
        self.seen += 1
        destinations = message.to.bit_count()
        self.outstanding += destinations
        if counted:
            self.sends += 1
        if destinations:
            totals = self._under_way[message.id] = MessageTotals(now, destinations, counted)
            if self._routed and counted:
                totals.copies = destinations

    def posted(self, order: Order, packet: Packet) -> None:
        """Count a copy of a message when the copy leaves a process, and add the size of the copy's stamp."""
        totals = self._under_way.get(packet.subject)
        if packet.kind != COPY or totals is None or not totals.counted:
            return
        size = order.size(packet)
        totals.bytes += size
        if self._routed:
            self._packets += 1
        else:
            totals.copies += 1
            if size > self.bytes_max:
                self.bytes_max = size
        totals.dependents += order.dependents(packet)
        totals.paper_bytes += order.paper_bytes(packet)

    def arrived(self, packet: Packet, held: bool) -> None:
        totals = self._under_way.get(packet.subject)
        if packet.kind == COPY and totals is not None and totals.counted:
            self.arrivals += 1
            self.held += held

    def delivered(self, message: Message, now: float) -> None:
        totals = self._under_way[message.id]
        self.outstanding -= 1
        totals.remaining -= 1
        if not totals.remaining:
            del self._under_way[message.id]
            self._add_totals(totals)
        if totals.counted:
            latency = now - totals.time
            self.deliveries += 1
            self._latency_sum += latency
            bucket = floor(log(latency) * BUCKETS_PER_E) if latency > 1e-9 else INSTANT
            self._latencies[bucket] = self._latencies.get(bucket, 0) + 1

    def _add_totals(self, totals: MessageTotals) -> None:
        copies = totals.copies
        if copies:
            self._counted_messages += 1
            self.copies += copies
            self.bytes_total += totals.bytes
            self._dependents += totals.dependents / copies
            self._bytes += totals.bytes / copies
            self._paper_bytes += totals.paper_bytes / copies
            if self._routed:
                self.bytes_max = max(self.bytes_max, ceil(totals.bytes / copies))

    def latency_quantile(self, share: float) -> float:
        """Return a quantile of the latencies: the fraction ``share`` of the deliveries took at most this time. The
        error is at most half a percent. Return 0 if there are no deliveries."""
        remaining = share * self.deliveries
        for bucket in sorted(self._latencies):
            remaining -= self._latencies[bucket]
            if remaining <= 0:
                return exp((bucket + 0.5) / BUCKETS_PER_E) if bucket > INSTANT else 0.0
        return 0.0

    def report(self) -> dict[str, Any]:
        """Return the measured part of the JSON document that the command ``simulate`` prints. Call this once, at the
        end of the run."""
        undelivered = 0
        for totals in self._under_way.values():
            self._add_totals(totals)
            undelivered += totals.remaining if totals.counted else 0
        self._under_way.clear()
        weighed = self._counted_messages or 1
        report = {
            "messages": self.sends,
            "deliveries": self.deliveries,
            "undelivered": undelivered,
            "held": self.held / self.arrivals if self.arrivals else 0.0,
            "stamp": {
                "dependents_mean": self._dependents / weighed,
                "bytes_mean": self._bytes / weighed,
                "bytes_max": self.bytes_max,
                "paper_bytes_mean": self._paper_bytes / weighed,
                "copies": self.copies,
                "bytes_total": self.bytes_total,
            },
            "latency": {"mean": self._latency_sum / (self.deliveries or 1), "p99": self.latency_quantile(0.99)},
        }
        if self._routed:
            report["hops"] = {"mean": self._packets / self.copies if self.copies else 0.0}
        return report
