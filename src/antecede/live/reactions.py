"""Runs the reactions that are due, and reports their outcomes to the driver.

A batch of plain handlers runs at once, between two steps of the machine. A batch with an ``async`` handler becomes a
task; its agent's mailbox waits for it while all others continue. Any exception of a handler is a failed try;
:mod:`antecede.server.retries` decides when it is tried again.
"""

import asyncio
from time import monotonic, time

from antecede import telemetry
from antecede.engine import React
from antecede.engine.host import Host, Outcome
from antecede.interrupts import is_ctrl_c
from antecede.server.driver import Driver


class Reactions:
    """The running reactions of one server."""

    def __init__(self, host: Host, driver: Driver) -> None:
        self.host = host
        spans = telemetry.spans(host.server)
        if spans is not None:
            host.watches.append(spans)
        self._driver = driver
        self._async: dict[str, bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.reacting = ""
        """The agent whose plain handlers run at this moment."""

    def run(self, due: React) -> None:
        """React to a batch; its outcome is reported now or later."""
        is_async = self._async.get(due.agent)
        if is_async is None:
            is_async = self._async[due.agent] = self.host.is_async(due.agent)
        if is_async:
            task = asyncio.get_running_loop().create_task(self._await(due))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self.reacting = due.agent
        try:
            outcome = self.host.react(due)
        except BaseException as error:
            outcome = self._broken(due, error)
        self.reacting = ""
        self._driver.reacted(due, outcome, monotonic(), int(time() * 1000))

    async def _await(self, due: React) -> None:
        try:
            # If it is cancelled because the server stops, it fails as well; its outcome is then ignored.
            outcome = await self.host.react_async(due)
        except BaseException as error:
            outcome = self._broken(due, error)
        if not self._driver.stopping:
            self._driver.reacted(due, outcome, monotonic(), int(time() * 1000))

    def _broken(self, due: React, error: BaseException) -> Outcome:
        """Return the outcome of a batch without any effect: the agent could not be loaded, or a watch raised."""
        if is_ctrl_c(error):
            raise error
        self.host.forget(due.agent)
        return Outcome(due.agent, [], None, error)

    def cancel(self) -> None:
        """Cancel reactions in progress; they run again after the next start."""
        for task in self._tasks:
            task.cancel()
