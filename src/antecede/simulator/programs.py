"""The programs of the processes in a scenario. A program consists of the ``send`` and ``receive`` statements of one
process.

A process is sequential. A send may come after an ``arrive`` of the same process in the file. If the arriving copy is
not on the network yet, the send waits until the copy has arrived, because the send may be an answer to it. (For
example, in Fig. 4 of Mattern and Fünfrocken a process receives a message y and then sends a message z. If a scenario
file with this figure is played under the buffer protocol, the protocol puts y on the network late, and z waits for y.
The result is their Fig. 6.)

A process with ``receive`` statements takes messages only through these statements (Mattern and Fünfrocken, §4.1–4.2). A
``receive`` may be limited to one sender. Messages that have arrived wait until the process receives them. The order
determines where they wait:

* **In front of** an order that can judge a packet without accepting it (``selective``): the program gets the first
  packet that the order would deliver *now*. This depends on the messages that the program has already received. For
  example, under the matrix protocol a program may take a message while a message that arrived earlier still waits. But
  if the message depends on another message to this process, the program must receive that other message first.
* **Behind** any other order, in a queue, in the sequence in which the order delivers them. The program can take only
  the first message of the queue. The buffer protocol, for example, has no information about dependencies, so it cannot
  offer a choice. With domains, messages also wait in a queue: a router cannot choose, because processes in the next
  domain wait for the messages that the router receives.

A ``receive`` that finds no message waits, and all later statements of its program wait too. If nothing more can arrive,
the program is blocked for ever. For example, a program may demand messages in a sequence that contradicts causal order.
Then the programs cannot run to their end.
"""

from collections import deque
from collections.abc import Callable, Collection

from antecede.messages import Verdict
from antecede.orders.contract import Order
from antecede.simulator.flights import Flight
from antecede.simulator.statements import ReceiveLine, SendLine


class Programs:
    """The remaining statements of each process, and the messages that have arrived and wait for a ``receive`` statement
    of the process."""

    def __init__(self, processes: Collection[str], receiving: Collection[str], selective: bool) -> None:
        self._waiting: dict[str, deque[SendLine | ReceiveLine]] = {process: deque() for process in processes}
        self._running: set[str] = set()
        self.choices: dict[str, dict[Flight, None]] = {process: {} for process in receiving if selective}
        """For each process: the packets that have arrived but that its order has not accepted yet, in the sequence of
        their arrivals. The program chooses among these packets."""
        self.queues: dict[str, deque[tuple[str, str]]] = {process: deque() for process in receiving if not selective}
        """For each process: the messages that its order has delivered but that its program has not received yet, each
        as (name, sender), in the sequence of the deliveries."""

    def add(self, process: str, line: SendLine | ReceiveLine) -> None:
        """Add the next statement of a process."""
        self._waiting[process].append(line)

    def run(self, process: str, perform: Callable[[SendLine | ReceiveLine], bool]) -> None:
        """Carry out the next statements of a process, until one must wait. ``perform`` tries to carry out one
        statement, and returns whether this was possible."""
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
        """Return whether this packet has arrived and waits until a ``receive`` statement chooses it."""
        return flight in self.choices.get(flight.at, ())

    def choose(self, process: str, order: Order, source: str | None) -> Flight | None:
        """Remove and return the first packet that ``order`` would deliver now. If ``source`` is not None, only packets
        from ``source`` are considered. If there is no such packet, return None."""
        for flight in self.choices[process]:
            if source in (None, flight.source) and order.check(flight.packet) is Verdict.DELIVER:
                del self.choices[process][flight]
                return flight
        return None

    def take(self, process: str, source: str | None) -> str | None:
        """Remove the first message of the queue, and return its name. If ``source`` is not None, do this only if
        ``source`` is the sender of the message. Return None if no message was removed."""
        queue = self.queues[process]
        return queue.popleft()[0] if queue and source in (None, queue[0][1]) else None

    def kept(self, process: str) -> list[str]:
        """Return the names of the messages that wait for a process to receive them."""
        if process in self.choices:
            return [flight.parcel.message for flight in self.choices[process] if flight.packet.message]
        return [message for message, _ in self.queues.get(process, ())]
