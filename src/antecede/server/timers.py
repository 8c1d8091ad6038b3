"""The timers of a server's agents: store them, and find the timers that must fire. All times are server time."""

from heapq import heapify, heappop, heappush

from antecede import limits
from antecede.channel.footprint import Footprint
from antecede.channel.letters import Letter


class Timers:
    """The timers that are set. Each timer has a number, and a letter that its agent gets when the timer fires."""

    def __init__(self, footprint: Footprint) -> None:
        self.waiting: dict[int, tuple[int, str, Letter]] = {}
        """The number of each timer → the server time in milliseconds at which it fires, its agent, and its letter."""
        self.alarms: list[tuple[int, int]] = []
        """A heap with a pair (time, number) for each timer. The time is the server time in milliseconds at which the
        timer fires."""
        self._footprint = footprint

    def __len__(self) -> int:
        return len(self.waiting)

    def set(self, number: int, when_ms: int, agent: str, letter: Letter) -> None:
        """Set a timer: at ``when_ms`` of server time the agent gets the letter."""
        self.waiting[number] = (when_ms, agent, letter)
        heappush(self.alarms, (when_ms, number))
        self._footprint.add(letter)

    def due(self, clock_ms: int) -> tuple[int, ...]:
        """Return the numbers of the timers that must fire now, but at most ``timers_together_max`` of them. The caller
        must then call ``fire`` with these numbers."""
        alarms = self.alarms
        due: list[int] = []
        while alarms and alarms[0][0] <= clock_ms and len(due) < limits.timers_together_max:
            due.append(heappop(alarms)[1])
        return tuple(due)

    def fire(self, numbers: tuple[int, ...]) -> list[tuple[str, Letter]]:
        """Remove timers; return their agents and letters."""
        fired = [self.waiting.pop(number) for number in numbers]
        for _, _, letter in fired:
            self._footprint.remove(letter)
        while self.alarms and self.alarms[0][1] not in self.waiting:
            heappop(self.alarms)
        return [(agent, letter) for _, agent, letter in fired]

    def take_out(self, agent: str) -> list[tuple[int, Letter]]:
        """Remove the timers of an agent. For each timer, return the server time at which it would have fired, and its
        letter."""
        numbers = tuple(number for number, timer in self.waiting.items() if timer[1] == agent)
        times = [self.waiting[number][0] for number in numbers]
        taken = [(when, letter) for when, (_, letter) in zip(times, self.fire(numbers), strict=True)]
        self.alarms = [alarm for alarm in self.alarms if alarm[1] in self.waiting]
        heapify(self.alarms)
        return taken

    def put_in(self, agent: str, timers: list[tuple[int, Letter]]) -> None:
        """Set timers of an agent that comes from another server. They get negative numbers, because the positive
        numbers are used for this server's own timers and letters."""
        last = min(self.waiting, default=0)
        for number, (when, letter) in enumerate(timers, 1):
            self.set(min(0, last) - number, when, agent, letter)

    def load(self, waiting: dict[int, tuple[int, str, Letter]]) -> None:
        """Load saved timers into a new object."""
        self.waiting = waiting
        self.alarms = [(timer[0], number) for number, timer in waiting.items()]
        heapify(self.alarms)
        for _, _, letter in waiting.values():
            self._footprint.add(letter)
