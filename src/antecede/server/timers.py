"""The timers of a server's agents, by server time: which are set, which are due."""

from heapq import heapify, heappop, heappush

from antecede import limits
from antecede.channel import Letter
from antecede.channel.footprint import Footprint


class Timers:
    """Timers that are set; each has a number and a letter that its agent gets when it fires."""

    def __init__(self, footprint: Footprint) -> None:
        self.waiting: dict[int, tuple[int, str, Letter]] = {}
        """Number → (server time in ms, agent, letter)."""
        self.alarms: list[tuple[int, int]] = []
        """(when, number) of every timer, as a heap."""
        self._footprint = footprint

    def __len__(self) -> int:
        return len(self.waiting)

    def set(self, number: int, when_ms: int, agent: str, letter: Letter) -> None:
        """Set a timer: at ``when_ms`` of server time the agent gets the letter."""
        self.waiting[number] = (when_ms, agent, letter)
        heappush(self.alarms, (when_ms, number))
        self._footprint.add(letter)

    def due(self, clock_ms: int) -> tuple[int, ...]:
        """Return the numbers of timers whose time has come, at most as many as may fire in one step. ``fire`` must
        follow."""
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
        """Remove the timers of an agent; return for each the server time at which it fires, and its letter."""
        numbers = tuple(number for number, timer in self.waiting.items() if timer[1] == agent)
        times = [self.waiting[number][0] for number in numbers]
        taken = [(when, letter) for when, (_, letter) in zip(times, self.fire(numbers), strict=True)]
        self.alarms = [alarm for alarm in self.alarms if alarm[1] in self.waiting]
        heapify(self.alarms)
        return taken

    def put_in(self, agent: str, timers: list[tuple[int, Letter]]) -> None:
        """Set timers that another server had set. Their numbers are negative, because this server numbers its own
        timers, like letters, with positive numbers."""
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
