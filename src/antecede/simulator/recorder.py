"""Turns what happens in a world into the rows of a trace.

Processes are called P1 … Pn. Virtual seconds become nanoseconds. A send row carries the mean stamp of its copies where
they leave in the same step (an order that posts later leaves it out), an arrival that of its own copy.
"""

from collections.abc import Callable, Sequence

from antecede.messages import Message, Packet, members_of
from antecede.orders.contract import Order
from antecede.trace import ARRIVE, DELIVER, SEND, Event
from antecede.trace.schema import INT64_MAX


def process_names(processes: int) -> list[str]:
    """The names that simulated processes have in traces."""
    return [f"P{number}" for number in range(1, processes + 1)]


def nanoseconds(now: float) -> int:
    """Virtual seconds as a trace counts them; its numbers end after some 292 years."""
    return min(round(now * 1e9), INT64_MAX)


class Recorder:
    """An observer that hands every event to ``sink``, in the sequence in which they happen."""

    def __init__(self, processes: int, sink: Callable[[Event], None]) -> None:
        self.names = process_names(processes)
        self.orders: Sequence[Order] = ()
        """Whoever can say what a stamp weighs; none, and the rows do not tell."""
        self._next = [0] * processes
        self._sink = sink

    def sent(self, process: int, message: Message, packets: list[Packet], now: float) -> None:
        sizes = [self.orders[process].size(packet) for packet in packets] if self.orders else []
        self._sink(
            Event(
                self.names[process],
                self._index(process),
                SEND,
                message.id,
                to=tuple(self.names[target] for target in members_of(message.to)),
                time=nanoseconds(now),
                stamp_bytes=round(sum(sizes) / len(sizes)) if sizes else None,
            )
        )

    def arrived(self, process: int, packet: Packet, now: float) -> None:
        if packet.message is None or not packet.message.to >> process & 1:
            # A copy on a detour reaches the protocol, but not as a destination.
            return
        size = self.orders[process].size(packet) if self.orders else None
        index = self._index(process)
        self._sink(Event(self.names[process], index, ARRIVE, packet.subject, time=nanoseconds(now), stamp_bytes=size))

    def delivered(self, process: int, message: Message, now: float) -> None:
        self._sink(Event(self.names[process], self._index(process), DELIVER, message.id, time=nanoseconds(now)))

    def _index(self, process: int) -> int:
        index = self._next[process]
        self._next[process] += 1
        return index
