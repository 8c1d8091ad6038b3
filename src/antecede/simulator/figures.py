"""Counters for the costs of a run. Their memory does not grow with the number of messages in the run.

Latencies go into a histogram whose buckets are 1 % wide, which is precise enough for a 99th percentile. Warm-up sends
and their deliveries are not counted.

The mean stamp size is computed in two steps: first the mean over the copies of each message, then the mean of these
means over all messages. So every message has the same weight (as in the figures of Jang et al.). A mean over all copies
would give more weight to multicasts with many destinations. The stamps of these multicasts are shortened (pruned) more
than other stamps. The report also contains the totals over all copies, so that a reader can compute the mean over all
copies.
"""

from math import ceil, exp, floor, log
from typing import Any

from antecede.messages import COPY, Message, Packet
from antecede.orders.contract import Order

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
