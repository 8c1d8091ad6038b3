"""The packets of a played scenario, and the state of each packet: flying, lost or arrived.

A packet is *posted* when a process hands it to the network. It is *flying* until it arrives or is lost. In general, a
statement of the script decides when a packet arrives or is lost. Only packets that are marked with ``mark_due`` need no
further statement. A lost packet flies again when its link resends it. A statement may name a packet before the packet
exists. The statement then waits until the packet is posted.
"""

from collections import deque
from heapq import heappop, heappush
from math import inf

import msgspec

from antecede.messages import COPY, Packet
from antecede.simulator.machine import InTransit, letter_of
from antecede.simulator.statements import ArriveLine, LoseLine, Parcel

FLYING = "flying"
LOST = "lost"
ARRIVED = "arrived"


class Flight(msgspec.Struct, eq=False):
    """One packet from one process to another."""

    parcel: Parcel
    source: str
    sent: InTransit
    """The frame, its domain and its destination."""
    packet: Packet
    """The packet as the source's order handed it to the network."""
    state: str = LOST
    age: int = 0
    arrivals: int = 0

    @property
    def at(self) -> str:
        return self.sent.peer

    @property
    def ends(self) -> bool:
        """Whether this packet brings a message to the application of the process ``at``. This is False for a control
        packet, and for a copy that the process only forwards."""
        return self.packet.message is not None and self.at in letter_of(self.packet.message).to


Early = ArriveLine | LoseLine
"""A statement about a packet that is not posted yet."""


class Flights:
    """All packets of a scenario, in any state."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, str, str, int], Flight] = {}
        self._by_name: dict[tuple[Parcel, str], list[Flight]] = {}
        self._flying: dict[int, Flight] = {}
        self._ages = 0
        self._due: list[int] = []
        self.lost: dict[int, Flight] = {}
        self.early: dict[tuple[Parcel, str], deque[Early]] = {}

    def flying(self) -> list[Flight]:
        """Return the packets in transit, oldest first."""
        return list(self._flying.values())

    def __len__(self) -> int:
        return len(self._flying) + len(self.lost)

    def known(self, source: str, sent: InTransit) -> Flight | None:
        """Return the flight of this frame, if the frame has already been posted; otherwise None."""
        return self._all.get((sent.domain, source, sent.peer, sent.content.number))

    def add(self, flight: Flight) -> None:
        """Add a frame that is posted for the first time."""
        sent = flight.sent
        self._all[sent.domain, flight.source, sent.peer, sent.content.number] = flight
        self._by_name.setdefault((flight.parcel, flight.at), []).append(flight)

    def arrived_at(self, process: str) -> list[Flight]:
        """Return the packets that have arrived at a process."""
        return [flight for flight in self._all.values() if flight.at == process and flight.state == ARRIVED]

    def launch(self, flight: Flight) -> None:
        """Let a packet fly, for the first time or again."""
        self.lost.pop(flight.age, None)
        self._ages += 1
        flight.age = self._ages
        flight.state = FLYING
        self._flying[flight.age] = flight

    def land(self, flight: Flight, state: str) -> None:
        """End a flight: the packet has arrived, or is lost."""
        self._flying.pop(flight.age, None)
        self.lost.pop(flight.age, None)
        flight.state = state
        if state == LOST:
            self.lost[flight.age] = flight
        else:
            flight.arrivals += 1

    def mark_due(self, flight: Flight) -> None:
        """Mark a flying packet, so that ``next_due`` returns it. It then needs no further statement of the script."""
        heappush(self._due, flight.age)

    def next_due(self) -> Flight | None:
        """Return the oldest flying packet that ``mark_due`` has marked, and remove its mark. Return None if there is no
        such packet."""
        while self._due:
            flight = self._flying.get(heappop(self._due))
            if flight is not None:
                return flight
        return None

    def oldest(self) -> Flight | None:
        """Return the packet that has been flying for the longest time; None if no packet is flying."""
        return next(iter(self._flying.values()), None)

    def find(self, parcel: Parcel, at: str) -> Flight | None:
        """Return the packet with the name ``parcel`` that is flying to ``at``. If there are several, return the one
        that was posted first. Return None if there is no such packet."""
        return next((flight for flight in self._by_name.get((parcel, at), ()) if flight.state == FLYING), None)

    def landed(self, parcel: Parcel, at: str) -> Flight | None:
        """Return the packet with the name ``parcel`` that has arrived at ``at`` at least once. If there are several,
        return the one that was posted last. Return None if there is no such packet."""
        flights = self._by_name.get((parcel, at), [])
        return next((flight for flight in reversed(flights) if flight.arrivals), None)

    # Statements about packets that are not posted yet.

    def add_early(self, line: Early) -> None:
        """Keep a statement until its packet is posted."""
        self.early.setdefault((line.parcel, line.at), deque()).append(line)

    def awaited(self, at: str, before: float = inf) -> list[str]:
        """Return the names of the messages that are not posted yet, although an ``arrive`` statement already waits for
        them. ``at``: the process of the ``arrive`` statements. ``before``: only statements in lines with smaller
        numbers count."""
        return [
            parcel.message
            for (parcel, place), waiting in self.early.items()
            if place == at
            and parcel.kind == COPY
            and any(isinstance(line, ArriveLine) and line.line < before for line in waiting)
        ]

    def next_early(self, flight: Flight) -> Early | None:
        """Return the first statement that waits for this packet; None if no statement waits."""
        waiting = self.early.get((flight.parcel, flight.at))
        return waiting[0] if waiting else None

    def done_early(self, flight: Flight) -> None:
        """Remove the first statement that waits for this packet."""
        waiting = self.early[flight.parcel, flight.at]
        waiting.popleft()
        if not waiting:
            del self.early[flight.parcel, flight.at]

    def why_never(self, line: Early) -> str:
        """Return the reason why a statement still waits for its packet at the end of the scenario."""
        earlier = self.landed(line.parcel, line.at)
        name = f"{line.parcel} to {line.at}"
        if earlier is not None and earlier.state == ARRIVED:
            return f"{name} has already arrived, and is not put on the network again"
        if isinstance(line, ArriveLine) and line.again:
            return f"{name} cannot arrive again: it has not arrived before"
        if any(flight.at == line.at and flight.parcel == line.parcel for flight in self.lost.values()):
            return f"{name} was lost and not resent (let time pass with wait or drain)"
        return f"{name} is never put on the network"
