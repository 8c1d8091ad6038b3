"""Server time: the clock for timers, time limits and the age of letters. It never goes back.

The wall clock can be set back or forward at any time. So a running server uses the monotonic clock: it adds the
seconds since its start to the server time at the start.

At the start, server time continues from the last server time in the log. But only the wall clock runs while a server is
down. So the server compares the wall clock at the start with the last wall clock time in the log. If the wall clock is
later, the difference is added to server time. If it is not later, nothing is added. In a new log, server time begins
with the wall clock.

Traces and people see wall clock times. These are computed from server time and the difference between the two clocks.
When this difference has changed by more than ``_drift_ms``, the server writes the new difference to the log.
"""

from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from antecede import limits
from antecede.channel.letters import Footprint, Letter
from antecede.server.items import Clocked, Item


class Times(msgspec.Struct):
    """The times in a log, up to its last record."""

    logged_ms: int = 0
    """The latest server time, or 0 if the log contains no time yet."""
    ahead_ms: int = 0
    """The wall clock minus server time, in milliseconds. The value is negative if the wall clock was behind server
    time."""


class Clock:
    """The clock of a server, from one start of the server to its end, and the times in the server's log."""

    def __init__(self) -> None:
        self.times = Times()
        self.first: list[Item] = []
        """A list of one item: the time at which the server started. The list is empty if the clock was not started."""
        self._begun: float | None = None
        self._start_ms = 0

    def start(self, now: float, wall_ms: int) -> None:
        """Continue server time where the log ended. ``now``, ``wall_ms``: the monotonic clock and the wall clock."""
        logged_ms, ahead_ms = self.times.logged_ms, self.times.ahead_ms
        self._begun = now
        self._start_ms = logged_ms + max(0, wall_ms - logged_ms - ahead_ms) if logged_ms else wall_ms
        self.first = [Clocked(self._start_ms, wall_ms)]

    def at(self, now: float, wall_ms: int) -> int:
        """Return server time in milliseconds. If the clock was not started, return the wall clock."""
        return wall_ms if self._begun is None else self._start_ms + int((now - self._begun) * 1000.0)

    def differs(self, server_ms: int, wall_ms: int) -> bool:
        """Return whether the difference between the wall clock and server time has changed by more than ``_drift_ms``
        since it was last logged. If so, the difference must be logged again. If the clock was not started, return
        False."""
        return self._begun is not None and abs(wall_ms - server_ms - self.times.ahead_ms) > _drift_ms

    def set(self, item: Clocked) -> Clocked:
        """Set ``times`` from an item of the log. The item contains server time and the wall clock. Return the item."""
        self.passed(item.clock_ms)
        self.times.ahead_ms = item.wall_ms - item.clock_ms
        return item

    def passed(self, server_ms: int) -> None:
        """Record that an item of the log has this server time."""
        if server_ms > self.times.logged_ms:
            self.times.logged_ms = server_ms


_drift_ms: Final = 2
"""The largest error of wall clock times in a trace, in milliseconds. Both clocks are rounded to milliseconds, so 1
would be too small."""


# The timers of a server's agents: store them, and find the timers that must fire. All times are server time.


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
