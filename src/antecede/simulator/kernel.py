"""Virtual time: one heap of events, and one ``step`` that takes the next event. All simulated worlds use this clock.

An event is a function and its argument, with the time at which it takes place. Events of the same time take place in
the order in which they were scheduled, so that a run depends only on its seed.
"""

from abc import abstractmethod
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, ClassVar, Protocol

from antecede.messages import Message


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
