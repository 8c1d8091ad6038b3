"""What each process of a scenario has still to do, in the sequence of the file.

A process is sequential. A send that the file lists after an arrival at the same process waits for that arrival, if the
copy has not been posted yet: it may be an answer. (So Mattern and Fünfrocken's Fig. 6 comes out of the lines of Fig. 4:
the buffer protocol delays y, and with it z.)

A process with ``receive`` statements takes messages only through them (ibid. §4.1–4.2); its later statements wait
behind a receive that finds nothing. Where its messages wait depends on the order: see
:mod:`antecede.simulator.mailbox`. A router cannot choose, for what it receives in one domain others wait for in the
next; so where there are domains a program takes what its server delivers, in that sequence.
"""

from collections import deque
from collections.abc import Callable, Collection

from antecede.messages import Message, Packet
from antecede.orders.contract import Order
from antecede.simulator.flights import Flight
from antecede.simulator.machine import letter_of
from antecede.simulator.mailbox import QueueMailbox, SelectiveMailbox
from antecede.simulator.statements import ReceiveLine, SendLine


class Programs:
    """What each process has still to do, and what waits to be received."""

    def __init__(self, processes: Collection[str], receiving: Collection[str], selective: bool) -> None:
        self._waiting: dict[str, deque[SendLine | ReceiveLine]] = {process: deque() for process in processes}
        self._running: set[str] = set()
        self._choices = {process: SelectiveMailbox() for process in receiving} if selective else {}
        self._queues = {process: QueueMailbox() for process in receiving} if not selective else {}

    def add(self, process: str, line: SendLine | ReceiveLine) -> None:
        """The next thing that a process will do."""
        self._waiting[process].append(line)

    def run(self, process: str, perform: Callable[[SendLine | ReceiveLine], bool]) -> None:
        """Go on with a program as far as it gets: ``perform`` says whether a statement could be carried out."""
        if process in self._running:
            return
        self._running.add(process)
        program = self._waiting[process]
        try:
            while program and perform(program[0]):
                program.popleft()
        finally:
            self._running.discard(process)

    def waiting(self) -> list[str]:
        """Processes that wait in a receive."""
        return sorted(
            process
            for process, program in self._waiting.items()
            if program and any(isinstance(line, ReceiveLine) for line in program)
        )

    # Mailboxes.

    def chooses(self, process: str) -> bool:
        """Do packets wait for this process before its order?"""
        return process in self._choices

    def keep_packet(self, process: str, flight: Flight) -> None:
        """A packet has arrived for a process that chooses."""
        self._choices[process].put(flight.packet, flight)

    def keeps(self, process: str, packet: Packet) -> bool:
        """Does this very packet wait to be chosen?"""
        return process in self._choices and packet in self._choices[process]

    def choose(self, process: str, order: Order, source: int | None) -> Flight | None:
        """The first packet from ``source`` that the order would deliver now."""
        flight: Flight | None = self._choices[process].take(order, source)
        return flight

    def keep_message(self, process: str, message: Message, source: str) -> None:
        """The order of a process that cannot choose has delivered a message."""
        self._queues[process].put(message, source)

    def queues(self, process: str) -> bool:
        """Do messages wait for this process behind its order?"""
        return process in self._queues

    def next_message(self, process: str, source: str | None) -> Message | None:
        """The first message that was delivered, if it is from ``source``."""
        return self._queues[process].take(source)

    def forget(self, process: str) -> list[Packet]:
        """A crash: packets that waited to be chosen are lost."""
        return self._choices[process].clear() if process in self._choices else []

    def kept(self, process: str) -> list[str]:
        """Return the names of the messages that wait for a process to receive them."""
        if process in self._choices:
            return [letter_of(message).id for message in self._choices[process].messages()]
        return [message.id for message in self._queues[process].messages()] if process in self._queues else []
