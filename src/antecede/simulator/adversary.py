"""Simulated networks on which packets arrive in unfavourable sequences, to find errors in orders (ordering protocols).

If all delays are drawn from one distribution, most packets overtake only a few others, and arrive only a little before
them. A faulty order shows its error when one packet is very late and long chains of messages overtake it. So each
schedule uses one of the following networks. Each network has a different kind of unfavourable arrivals:

=============  =====================================================================================
``any``        any packet in flight may be next, with equal probability
``last``       mostly the newest packet in flight arrives next
``first``      mostly the oldest packet in flight arrives next, and only rarely a newer one
``starved``    each packet has a fixed rank, and the packet in flight with the best rank arrives next
``timed``      exponential delays, as by default in ``antecede simulate``
``heavy``      delays with a heavy tail
``slow link``  like ``timed``, but one random link is very slow (none if its source and target are the same process)
``slow peer``  like ``timed``, but all packets to one random process are very slow
``slow kind``  like ``timed``, but one kind of packet is very slow: copies of messages, or all other packets
=============  =====================================================================================
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import log
from random import Random

from antecede.messages import COPY, Packet
from antecede.simulator.draws import below

STYLES = ("any", "last", "first", "starved", "timed", "heavy", "slow link", "slow peer", "slow kind")

_slow = 30.0
"""The mean delay of slow packets, as a multiple of the mean delay of others."""


class UnorderedPackets:
    """Packets in flight that have no arrival times. The packet that arrives next is drawn at random."""

    def __init__(self, rng: Random, end: int | None = None) -> None:
        self._random = rng.random
        self._flying: list[Packet] = []
        self._end = end
        """The index of the packet that arrives next in most cases: 0 for the oldest packet in flight, −1 for the
        newest. It is None if all packets have the same probability."""

    def __len__(self) -> int:
        return len(self._flying)

    def put(self, packet: Packet) -> None:
        """Put a packet in flight."""
        self._flying.append(packet)

    def take(self) -> Packet:
        """Remove and return the packet that arrives next."""
        flying = self._flying
        at = self._end
        if at is None or self._random() < 0.15:
            at = int(self._random() * len(flying))
        return flying.pop(at)


class Ranked:
    """Packets in flight. Each packet has a number: its arrival time or, in the network ``starved``, its rank. The
    packet with the smallest number arrives next."""

    def __init__(self, moment: Callable[[float, Packet], float]) -> None:
        self._moment = moment
        self._now = 0.0
        self._ties = 0
        self._flying: list[tuple[float, int, Packet]] = []

    def __len__(self) -> int:
        return len(self._flying)

    def put(self, packet: Packet) -> None:
        """Put a packet in flight."""
        self._ties += 1
        heappush(self._flying, (self._moment(self._now, packet), self._ties, packet))

    def take(self) -> Packet:
        """Remove and return the packet that arrives next."""
        moment, _, packet = heappop(self._flying)
        self._now = max(self._now, moment)
        return packet


Network = UnorderedPackets | Ranked


def network(style: str, processes: int, rng: Random) -> Network:
    """Return a network of one of the ``STYLES``. If one link, process or kind of packet is slow in this style, it is
    chosen at random."""
    if style in ("any", "last", "first"):
        return UnorderedPackets(rng, {"any": None, "last": -1, "first": 0}[style])
    random = rng.random
    if style == "starved":
        return Ranked(lambda now, packet: random())
    if style == "heavy":
        return Ranked(lambda now, packet: now + 1.0 / (1.0 - random()))
    slow = below(rng, processes), below(rng, processes), below(rng, 2)
    is_slow: dict[str, Callable[[Packet], bool]] = {
        "timed": lambda packet: False,
        "slow link": lambda packet: (packet.source, packet.target) == slow[:2],
        "slow peer": lambda packet: packet.target == slow[0],
        "slow kind": lambda packet: (packet.kind == COPY) == bool(slow[2]),
    }
    judge = is_slow[style]
    return Ranked(lambda now, packet: now - log(1.0 - random()) * (_slow if judge(packet) else 1.0))
