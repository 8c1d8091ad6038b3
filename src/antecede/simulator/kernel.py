"""Virtual time and the simulated network: one heap of events, and one ``step`` that takes the next event.

An event is a function and its argument, with the time at which it takes place. Events of the same time take place in
the order in which they were scheduled, so that a run depends only on its seed. All simulated worlds use this clock.
"""

from abc import abstractmethod
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random
from typing import Any, ClassVar, Protocol

from antecede.messages import Message
from antecede.simulator.draws import Draw


class Observer(Protocol):
    """An object that receives every event of the applications: for example, a recorder of traces, a meter, or a
    test."""

    weighs: ClassVar[bool]
    """Whether the observer wants the sizes of stamps. Computing them takes time."""

    def sent(self, process: int, message: Message, sizes: list[int], now: float) -> None: ...

    def arrived(self, process: int, message: Message, size: int | None, now: float) -> None: ...

    def delivered(self, process: int, message: Message, now: float) -> None: ...


class Workload(Protocol):
    """The application of a simulated system. It decides when processes send messages, and how they react to
    deliveries."""

    def start(self, world: "World") -> None: ...

    def wake(self, world: "World", process: int) -> None: ...

    def delivered(self, world: "World", process: int, message: Message) -> None: ...


class Kernel:
    """The virtual clock, and the heap of events that are still to take place."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[Any], object], Any]] = []
        self.tie = count().__next__

    def at(self, time: float, act: Callable[[Any], object], subject: Any) -> None:
        """Call ``act(subject)`` at this time."""
        heappush(self.events, (time, self.tie(), act, subject))

    def step(self) -> None:
        """Take the next event: set the clock to the time of the event, and call its function."""
        self.now, _, act, subject = heappop(self.events)
        act(subject)

    def run_until(self, end: float = inf) -> None:
        """Take events until no event remains, or until the next event is later than ``end``."""
        events = self.events
        while events and events[0][0] <= end:
            # As ``step`` does, without another call for each event.
            self.now, _, act, subject = heappop(events)
            act(subject)


class World(Kernel):
    """A simulated system of processes, on which a workload runs."""

    def __init__(self, processes: int) -> None:
        super().__init__()
        self.processes = processes
        self._workload: Workload | None = None

    @abstractmethod
    def send(self, process: int, to: int, payload: bytes = b"") -> Message:
        """Send a message from the application at ``process`` to the processes in the bit mask ``to``."""

    def wake_after(self, seconds: float, process: int) -> None:
        """Wake the workload of this process after this number of seconds."""
        self.at(self.now + seconds, self._wake, process)

    def _wake(self, process: int) -> None:
        assert self._workload is not None
        self._workload.wake(self, process)

    def run(self, workload: Workload, until: float = inf) -> None:
        """Run the workload until no events remain, or until the time ``until``."""
        self._workload = workload
        workload.start(self)
        self.run_until(until)


# The simulated network: how long a packet takes, whether it is lost or repeated, and which processes are cut off.
#
# Links reorder packets unless they are FIFO. There are two streams of random numbers: one for delays, and one for
# faults. So the sequence of random delays is the same with and without faults.


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
