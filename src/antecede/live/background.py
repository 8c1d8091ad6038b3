"""The background work of a running server. No failure of one piece of work ends the others, or stays unseen."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from time import monotonic
from typing import Any

from antecede import limits
from antecede.failures import described
from antecede.live.logs import ServerLog


class Background:
    """Starts background tasks, and counts the failures of all background work. A failure is logged. If a kind of work
    fails again and again, ``trouble`` says so, and the page ``/live`` reports that the server does not work."""

    def __init__(self, log: ServerLog) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: dict[str, tuple[int, float, str]] = {}
        """For each kind of work that has failed: how often in succession, the time of the last failure, its reason."""

    def start(self, work: str, task: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task. ``work``: what it does, for the log."""
        started = asyncio.get_running_loop().create_task(task)
        self._tasks.add(started)
        started.add_done_callback(partial(self._ended, work))
        return started

    def _ended(self, work: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.failed(work, error)

    def failed(self, work: str, error: Exception) -> None:
        """Log and count a failure of this kind of work. Any thread may call this method."""
        now = monotonic()
        count, before, _ = self._failures.get(work, (0, now, ""))
        count = 1 if now - before > limits.background_failure_seconds else count + 1
        self._failures[work] = count, now, described(error)
        # The first failures, then fewer and fewer lines.
        if not count & (count - 1):
            self._log.warning("background-failed", raised=error, work=work, failures=count)

    def trouble(self) -> str:
        """Return which work fails repeatedly; empty if there is none. Any thread may call this method."""
        now = monotonic()
        for work, (count, last, reason) in list(self._failures.items()):
            if count >= limits.background_failures_max and now - last <= limits.background_failure_seconds:
                return f"{work} failed {count} times: {reason}"
        return ""
