"""The simulated network: how long a packet takes, whether it is lost or repeated, and which processes are cut off.

Links reorder packets unless they are FIFO. There are two streams of random numbers: one for delays, and one for faults.
So the sequence of random delays is the same with and without faults.
"""

from collections.abc import Callable
from heapq import heappush
from random import Random
from typing import Any

from antecede.simulator.draws import Draw
from antecede.simulator.kernel import Kernel


class Network:
    """Carries packets between processes."""

    def __init__(
        self,
        kernel: Kernel,
        delay: Draw,
        faults: Random | None = None,
        *,
        fifo: bool = False,
        loss: float = 0.0,
        duplicate: float = 0.0,
    ) -> None:
        self._kernel = kernel
        self._delay = delay
        self._faults = faults or Random(0)
        self._loss = loss
        self._duplicate = duplicate
        self._last_arrival: dict[tuple[int, int], float] | None = {} if fifo else None
        self.cut: set[int] = set()
        """The processes on one side of the present partition; empty if there is no partition."""

    def carry(self, source: int, target: int, arrive: Callable[[Any], object], packet: Any) -> None:
        """Call ``arrive(packet)`` when the packet arrives. Call it twice if the packet is duplicated. Do not call it if
        the packet is lost, or if a partition separates the two processes."""
        if self.cut and (source in self.cut) != (target in self.cut):
            return
        if self._loss and self._faults.random() < self._loss:
            return
        twice = self._duplicate and self._faults.random() < self._duplicate
        for _ in range(2 if twice else 1):
            self.carry_in(self._delay(), source, target, arrive, packet)

    def carry_in(self, seconds: float, source: int, target: int, arrive: Callable[[Any], object], packet: Any) -> None:
        """Call ``arrive(packet)`` after this number of seconds. On a FIFO link, wait longer if the previous packet of
        the link has not arrived by then."""
        kernel = self._kernel
        arrival = kernel.now + seconds
        if self._last_arrival is not None:
            link = (source, target)
            arrival = max(arrival, self._last_arrival.get(link, 0.0))
            self._last_arrival[link] = arrival
        # As ``Kernel.at`` does, without another call: this is the hot path of every simulation.
        heappush(kernel.events, (arrival, kernel.tie(), arrive, packet))
