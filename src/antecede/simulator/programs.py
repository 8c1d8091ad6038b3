"""The statements that each process of a scenario still has to carry out, and the messages that it has not received.

A process is sequential. A send that the file lists after an arrival at the same process waits for that arrival, if the
copy has not been posted yet: it may be an answer. (So Mattern and Fünfrocken's Fig. 6 results from the lines of Fig. 4:
the buffer protocol delays y, and with it z.)

A process with ``receive`` statements takes messages only through them (ibid. §4.1–4.2), and perhaps only from one
sender. Where its messages wait depends on the order:

* :class:`SelectiveMailbox` is **in front of** an order that can judge a packet without accepting it (``selective``). It
  finds the first packet that the order would deliver *now*, given what the program has received. So the matrix protocol
  lets a program take x although y came first, and refuses z while an x that it depends on has not been received.
* :class:`QueueMailbox` is **behind** any other order and keeps its sequence: the buffer protocol has no information
  about dependencies, so only the head can be taken. It is also used with domains: a router cannot choose, because
  others wait in the next domain for the messages that it receives.

A receive that finds nothing waits, and so do all later statements of its program. When nothing can arrive any more,
such a program is blocked for ever: selective receive may contradict causal order, and then no execution exists.
"""

from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from antecede.messages import Packet, Verdict
from antecede.orders.contract import Order
from antecede.simulator.statements import ReceiveLine, SendLine


class SelectiveMailbox:
    """Packets in front of an order that can judge them without accepting them, each with an attached value."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Packet, Any]] = {}

    def __contains__(self, packet: Packet) -> bool:
        return id(packet) in self._waiting

    def put(self, packet: Packet, kept: Any) -> None:
        """Add a packet that has arrived."""
        self._waiting[id(packet)] = (packet, kept)

    def take(self, order: Order, source: int | None = None) -> Any:
        """Remove the first packet (from ``source``, if given) that ``order`` would deliver now; return its value."""
        for packet, kept in self._waiting.values():
            if source in (None, packet.source) and order.check(packet) is Verdict.DELIVER:
                del self._waiting[id(packet)]
                return kept
        return None

    def clear(self) -> None:
        """Lose everything in a crash."""
        self._waiting.clear()

    def kept(self) -> list[Any]:
        """Return the attached values of all packets."""
        return [kept for _, kept in self._waiting.values()]


class QueueMailbox:
    """Messages that their order has delivered, in that sequence, each with its source."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[str, str]] = deque()

    def take(self, source: str | None = None) -> str | None:
        """Remove the head, if it is from ``source`` or no source is named."""
        if not self.waiting or source not in (None, self.waiting[0][1]):
            return None
        return self.waiting.popleft()[0]


class Programs:
    """The statements still to be carried out, and the messages that wait to be received."""

    def __init__(self, processes: Collection[str], receiving: Collection[str], selective: bool) -> None:
        self._waiting: dict[str, deque[SendLine | ReceiveLine]] = {process: deque() for process in processes}
        self._running: set[str] = set()
        self.choices = {process: SelectiveMailbox() for process in receiving if selective}
        self.queues = {process: QueueMailbox() for process in receiving if not selective}

    def add(self, process: str, line: SendLine | ReceiveLine) -> None:
        """Add the next statement of a process."""
        self._waiting[process].append(line)

    def run(self, process: str, perform: Callable[[SendLine | ReceiveLine], bool]) -> None:
        """Continue a program as far as possible: ``perform`` returns whether a statement could be carried out."""
        if process in self._running:
            return
        self._running.add(process)
        program = self._waiting[process]
        try:
            while program and perform(program[0]):
                program.popleft()
        finally:
            self._running.discard(process)

    def receiving(self) -> list[str]:
        """Return the processes that wait in a receive."""
        return sorted(
            process
            for process, program in self._waiting.items()
            if any(isinstance(line, ReceiveLine) for line in program)
        )

    def choosing(self, process: str, packet: Packet) -> bool:
        """Return whether this packet waits to be chosen."""
        return process in self.choices and packet in self.choices[process]

    def kept(self, process: str) -> list[str]:
        """Return the names of the messages that wait for a process to receive them."""
        if process in self.choices:
            return [flight.parcel.message for flight in self.choices[process].kept() if flight.packet.message]
        return [message for message, _ in self.queues[process].waiting] if process in self.queues else []
