"""The watchdog's rule: what to do about a handler that does not return.

A plain handler runs until it returns, and an ``async`` handler runs until it next waits. Meanwhile no other part of the
server runs. So the watchdog runs in another thread. It checks which call runs, and reads a number that changes with
each batch of calls. If the watchdog sees the same call with the same number again, the call is still running.

A call that runs too long is logged with its stack: after ``reaction_slow_seconds``, and then each time the duration of
the call has doubled. When the call exceeds its limit, the process must end, because a thread cannot be stopped from
outside. The id of the letter that the call handles is in shared memory (:mod:`antecede.server.progress`). So after the
restart, the server counts one failed try of this letter.

An operation of a replicated object runs within a step of the server, and is watched in the same way. Its failed tries
are not counted, because another try would give the same result, on this server and on the servers of all other
replicas.
"""

from collections.abc import Callable

import msgspec

from antecede import limits


class Slow(msgspec.Struct, frozen=True):
    """A call that runs too long."""

    name: str
    """The agent or the object."""
    part: str
    """The letter or the operation."""
    seconds: float
    ends: bool
    """Whether the process must end now."""


class Watchdog:
    """Watches the calls of one server."""

    def __init__(self, limit: Callable[[str], float]) -> None:
        """``limit``: a function that gets the name of an agent or object, and returns how many seconds its calls may
        take."""
        self._limit = limit
        self._seen: tuple[int, tuple[str, str] | None] = (-1, None)
        self._since = 0.0
        self._log_at = 0.0

    def look(self, running: tuple[str, str] | None, number: int, now: float) -> Slow | None:
        """Return the running call if it must be logged now, or if it has run so long that the process must end.
        Otherwise return None. ``running``: the agent and letter, or the object and operation, of the running call; None
        if no call runs. ``number``: a number that changes with each batch of calls."""
        if running is None or (number, running) != self._seen:
            self._seen, self._since = (number, running), now
            self._log_at = limits.reaction_slow_seconds
            return None
        seconds = now - self._since
        ends = seconds >= self._limit(running[0])
        if seconds < self._log_at and not ends:
            return None
        while self._log_at <= seconds:
            self._log_at *= 2
        return Slow(*running, seconds, ends)
