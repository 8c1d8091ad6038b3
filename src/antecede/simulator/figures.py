"""The costs of a run, counted during the run, in memory that does not grow with the number of messages.

Latencies go into a histogram whose buckets are 1 % wide, which is precise enough for a p99. Warm-up sends and their
deliveries are not counted.

The stamp size is the mean over a message's copies, and then over the messages, so that every message counts once (as in
the figures of Jang et al.). A mean over all copies would give more weight to multicasts with many destinations, whose
stamps are pruned most. Readers who want that mean can compute it from the totals over all copies, which are also in the
report.
"""

from math import ceil, exp, log
from typing import Any

from antecede.messages import COPY, Message, Packet
from antecede.orders.contract import Order

BUCKETS_PER_E = 100
"""The number of buckets in the histogram between a latency x and the latency e · x: each bucket is 1 % wide."""

INSTANT = -(10**6)
"""The bucket of deliveries that took no time."""


class Course:
    """A message that is not yet delivered everywhere."""

    __slots__ = ("bytes", "copies", "counted", "dependents", "paper_bytes", "remaining", "time")

    def __init__(self, time: float, remaining: int, counted: bool) -> None:
        self.time = time
        self.remaining = remaining
        self.counted = counted
        self.copies = self.dependents = self.bytes = self.paper_bytes = 0


class Figures:
    """Counts over the messages sent after the first ``warmup`` ones."""

    def __init__(self, warmup: int = 0, *, routed: bool = False) -> None:
        self.warmup = warmup
        self._routed = routed
        """Whether a message travels hop by hop, in several copies to one destination. The stamp size of a message is
        then the sum of the stamps of all copies divided by the number of its destinations."""
        self._packets = 0
        self.sends = 0
        self.deliveries = 0
        self.arrivals = 0
        self.held = 0
        self.copies = 0
        self.bytes_total = 0
        self.bytes_max = 0
        self._weighed = 0
        self._dependents = 0.0
        self._bytes = 0.0
        self._paper_bytes = 0.0
        self.outstanding = 0
        self._latency_sum = 0.0
        self._latencies: dict[int, int] = {}
        self._under_way: dict[str, Course] = {}
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
            course = self._under_way[message.id] = Course(now, destinations, counted)
            if self._routed and counted:
                course.copies = destinations

    def posted(self, order: Order, packet: Packet) -> None:
        """Add the size of the stamp of a copy that leaves."""
        course = self._under_way.get(packet.subject)
        if packet.kind != COPY or course is None or not course.counted:
            return
        size = order.size(packet)
        course.bytes += size
        if self._routed:
            self._packets += 1
        else:
            course.copies += 1
            if size > self.bytes_max:
                self.bytes_max = size
        course.dependents += order.dependents(packet)
        course.paper_bytes += order.paper_bytes(packet)

    def arrived(self, packet: Packet, held: bool) -> None:
        course = self._under_way.get(packet.subject)
        if packet.kind == COPY and course is not None and course.counted:
            self.arrivals += 1
            self.held += held

    def delivered(self, message: Message, now: float) -> None:
        course = self._under_way[message.id]
        self.outstanding -= 1
        course.remaining -= 1
        if not course.remaining:
            del self._under_way[message.id]
            self._weigh(course)
        if course.counted:
            latency = now - course.time
            self.deliveries += 1
            self._latency_sum += latency
            bucket = int(log(latency) * BUCKETS_PER_E) if latency > 1e-9 else INSTANT
            self._latencies[bucket] = self._latencies.get(bucket, 0) + 1

    def _weigh(self, course: Course) -> None:
        copies = course.copies
        if copies:
            self._weighed += 1
            self.copies += copies
            self.bytes_total += course.bytes
            self._dependents += course.dependents / copies
            self._bytes += course.bytes / copies
            self._paper_bytes += course.paper_bytes / copies
            if self._routed:
                self.bytes_max = max(self.bytes_max, ceil(course.bytes / copies))

    def latency_quantile(self, share: float) -> float:
        """Return the latency that ``share`` of the deliveries do not exceed, with a precision of 1 %; 0 without
        deliveries."""
        remaining = share * self.deliveries
        for bucket in sorted(self._latencies):
            remaining -= self._latencies[bucket]
            if remaining <= 0:
                return exp((bucket + 0.5) / BUCKETS_PER_E) if bucket > INSTANT else 0.0
        return 0.0

    def report(self) -> dict[str, Any]:
        """Return the part of ``simulate``'s document that depends on the run itself. Call this once, at the end of the
        run."""
        undelivered = 0
        for course in self._under_way.values():
            self._weigh(course)
            undelivered += course.remaining if course.counted else 0
        self._under_way.clear()
        weighed = self._weighed or 1
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
