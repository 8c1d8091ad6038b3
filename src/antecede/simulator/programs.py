"""For each process of a scenario: the statements that it still has to carry out, and the messages that have arrived but
that it has not received yet.

A process is sequential. If a send comes after an ``arrive`` of the same process in the file, and the arriving copy has
not been posted yet, the send waits for the arrival, because the send may be an answer. (For this reason, a scenario
file of Mattern and Fünfrocken's Fig. 4 leads to their Fig. 6 under the buffer protocol: this protocol delays y, and
therefore also z.)

A process with ``receive`` statements takes messages only through these statements (ibid. §4.1–4.2); each may be limited
to one sender. Where its messages wait depends on the order:

* **In front of** an order that can judge a packet without accepting it (``selective``): the program gets the first
  packet that the order would deliver *now*, after the messages that the program has already received. So the matrix
  protocol lets a program take x although y came first, and refuses z while an x on which z depends has not been
  received.
* **Behind** any other order, in a queue, in the sequence in which the order delivers them. The buffer protocol, for
  example, has no information about dependencies, so the program can take only the first message of the queue. The same
  is true with domains: a router cannot choose, because processes in the next domain wait for the messages that it
  receives.

A receive that finds nothing waits, and so do all later statements of its program. When nothing can arrive any more,
such a program is blocked for ever: selective receive may contradict causal order, and then no execution exists.
"""

from collections import deque
from collections.abc import Callable, Collection

from antecede.messages import Verdict
from antecede.orders.contract import Order
from antecede.simulator.flights import Flight
from antecede.simulator.statements import ReceiveLine, SendLine


class Programs:
    """The statements still to be carried out, and the messages that wait to be received."""

    def __init__(self, processes: Collection[str], receiving: Collection[str], selective: bool) -> None:
        self._waiting: dict[str, deque[SendLine | ReceiveLine]] = {process: deque() for process in processes}
        self._running: set[str] = set()
        self.choices: dict[str, dict[Flight, None]] = {process: {} for process in receiving if selective}
        """The packets in front of the order of a process, in the sequence of their arrivals."""
        self.queues: dict[str, deque[tuple[str, str]]] = {process: deque() for process in receiving if not selective}
        """The messages that the order of a process has delivered, each with its source, in the sequence of the
        deliveries."""

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
        """Return the processes that still have a ``receive`` statement to carry out."""
        return sorted(
            process
            for process, program in self._waiting.items()
            if any(isinstance(line, ReceiveLine) for line in program)
        )

    def choosing(self, flight: Flight) -> bool:
        """Return whether this packet waits to be chosen."""
        return flight in self.choices.get(flight.at, ())

    def choose(self, process: str, order: Order, source: str | None) -> Flight | None:
        """Remove and return the first packet (from ``source``, if given) that ``order`` would deliver now; None if
        there is none."""
        for flight in self.choices[process]:
            if source in (None, flight.source) and order.check(flight.packet) is Verdict.DELIVER:
                del self.choices[process][flight]
                return flight
        return None

    def take(self, process: str, source: str | None) -> str | None:
        """Remove and return the first message of the queue, if its sender is ``source`` or ``source`` is None.
        Otherwise return None."""
        queue = self.queues[process]
        return queue.popleft()[0] if queue and source in (None, queue[0][1]) else None

    def kept(self, process: str) -> list[str]:
        """Return the names of the messages that wait for a process to receive them."""
        if process in self.choices:
            return [flight.parcel.message for flight in self.choices[process] if flight.packet.message]
        return [message for message, _ in self.queues.get(process, ())]
