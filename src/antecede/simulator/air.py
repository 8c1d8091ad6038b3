"""What is between the processes of a played scenario: packets on their way, by name and by age.

Nothing moves by itself. A packet is *in the air* until the script lets it arrive or loses it; a lost one is in the air
again when its link resends it. The script may also speak of a packet before it exists: that is a promise, kept as soon
as the packet is posted.
"""

from collections import deque
from heapq import heappop, heappush
from math import inf

import msgspec

from antecede.link import Frame
from antecede.messages import COPY, Packet
from antecede.simulator.statements import ArriveLine, LoseLine, Parcel

AIR = "in the air"
LOST = "lost"
ARRIVED = "arrived"


class Flight(msgspec.Struct, eq=False):
    """One packet from one process to another."""

    parcel: Parcel
    domain: str
    source: str
    peer: int
    """The source's member number in the domain."""
    at: str
    frame: Frame
    state: str = LOST
    age: int = 0
    arrivals: int = 0

    @property
    def packet(self) -> Packet:
        packet: Packet = self.frame.body
        return packet


Promise = ArriveLine | LoseLine


class Air:
    """All packets of a scenario, wherever they are."""

    def __init__(self) -> None:
        self._flights: dict[tuple[str, str, str, int], Flight] = {}
        self._by_name: dict[tuple[Parcel, str], list[Flight]] = {}
        self._by_packet: dict[int, Flight] = {}
        self._flying: dict[int, Flight] = {}
        self._ages = 0
        self._due: list[int] = []
        self.lost: dict[int, Flight] = {}
        self.promises: dict[tuple[Parcel, str], deque[Promise]] = {}

    def __len__(self) -> int:
        return len(self._flying)

    def flying(self) -> list[Flight]:
        """What is in the air, oldest first."""
        return list(self._flying.values())

    def known(self, domain: str, source: str, at: str, number: int) -> Flight | None:
        """The flight of a frame that is sent again."""
        return self._flights.get((domain, source, at, number))

    def add(self, domain: str, source: str, peer: int, at: str, frame: Frame) -> Flight:
        """A frame is posted for the first time."""
        packet: Packet = frame.body
        parcel = Parcel(packet.kind, packet.subject, "" if packet.kind == COPY else source)
        flight = Flight(parcel, domain, source, peer, at, frame)
        self._flights[domain, source, at, frame.number] = flight
        self._by_name.setdefault((parcel, at), []).append(flight)
        self._by_packet[id(packet)] = flight
        return flight

    def launch(self, flight: Flight) -> None:
        """It is on its way, be it for the first time or again."""
        self.lost.pop(flight.age, None)
        self._ages += 1
        flight.age = self._ages
        flight.state = AIR
        self._flying[flight.age] = flight

    def land(self, flight: Flight, state: str) -> None:
        """It has arrived, or is lost."""
        self._flying.pop(flight.age, None)
        self.lost.pop(flight.age, None)
        flight.state = state
        if state == LOST:
            self.lost[flight.age] = flight
        else:
            flight.arrivals += 1

    def hurry(self, flight: Flight) -> None:
        """It needs no statement of the script to arrive."""
        heappush(self._due, flight.age)

    def next_due(self) -> Flight | None:
        """The oldest flight that needs no statement."""
        while self._due:
            flight = self._flying.get(heappop(self._due))
            if flight is not None:
                return flight
        return None

    def oldest(self) -> Flight | None:
        """The oldest flight in the air."""
        return next(iter(self._flying.values()), None)

    def find(self, parcel: Parcel, at: str) -> Flight | None:
        """The oldest packet of that name in the air towards ``at``."""
        return next((flight for flight in self._by_name.get((parcel, at), ()) if flight.state == AIR), None)

    def landed(self, parcel: Parcel, at: str) -> Flight | None:
        """The newest packet of that name that has ever arrived at ``at``."""
        flights = self._by_name.get((parcel, at), [])
        return next((flight for flight in reversed(flights) if flight.arrivals), None)

    def carrying(self, packet: Packet) -> Flight:
        """The flight that brought this very packet."""
        return self._by_packet[id(packet)]

    def promise(self, line: Promise) -> None:
        """Remember a statement about a packet that is not there yet."""
        self.promises.setdefault((line.parcel, line.at), deque()).append(line)

    def awaited(self, at: str, before: float = inf) -> list[str]:
        """Messages of which the script has said, before that line, that they arrive at a process, and whose copies are
        not there yet."""
        return [
            parcel.message
            for (parcel, place), waiting in self.promises.items()
            if place == at
            and parcel.kind == COPY
            and any(isinstance(line, ArriveLine) and line.line < before for line in waiting)
        ]

    def promised(self, flight: Flight) -> Promise | None:
        """What the script has already said about a packet that has just been posted."""
        waiting = self.promises.get((flight.parcel, flight.at))
        return waiting[0] if waiting else None

    def keep(self, flight: Flight) -> None:
        """The first promise about this packet is kept."""
        waiting = self.promises[flight.parcel, flight.at]
        waiting.popleft()
        if not waiting:
            del self.promises[flight.parcel, flight.at]

    def why_never(self, line: Promise) -> str:
        """Why a packet that the script speaks of was not there in the end."""
        earlier = self.landed(line.parcel, line.at)
        name = f"{line.parcel} to {line.at}"
        if earlier is not None and earlier.state == ARRIVED:
            return f"{name} has arrived before, and is not posted once more"
        if isinstance(line, ArriveLine) and line.again:
            return f"{name} cannot arrive again: it has not arrived before"
        if any(flight.at == line.at and flight.parcel == line.parcel for flight in self.lost.values()):
            return f"{name} was lost, and not resent (let time pass: wait or drain)"
        return f"{name} is never posted"
