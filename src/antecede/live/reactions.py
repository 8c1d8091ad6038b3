"""Run the reactions that the driver requests, and report their outcomes to the driver.

The driver requests reactions in batches. A batch has one or several letters for one agent. If all handlers of an agent
are plain functions, a batch is handled immediately, before the driver continues. If an agent has an ``async`` handler,
each batch of this agent becomes a task. Until the task ends, the other letters of this agent wait, and all other agents
continue. A batch of an isolated agent goes to the agent's worker process. An ``async`` reaction that takes too long is
cancelled. If a plain handler takes too long, :mod:`antecede.live.process` ends the process. If a handler raises an
exception (other than Ctrl-C and ``TooEarly``), this attempt to process the letter has failed. Then
:mod:`antecede.server.driver` decides when the letter is tried again.
"""

import asyncio
import gc
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, perf_counter, time
from typing import Any

from antecede import limits, telemetry
from antecede.engine import React
from antecede.engine.host import Host, Outcome, Stepwise
from antecede.errors import AgentError
from antecede.failures import is_ctrl_c
from antecede.live.isolation import Isolated
from antecede.server.driver import Driver
from antecede.server.inputs import Log
from antecede.server.progress import ENDED_WELL, Interrupted, Memory, Progress, interrupted, size_of


class Reactions:
    """The running reactions of one server."""

    def __init__(
        self,
        host: Host,
        driver: Driver,
        limit: Callable[[str], float],
        isolated: Mapping[str, Isolated],
        broken: Callable[[BaseException], None],
    ) -> None:
        """``limit``: returns how many seconds one reaction of an agent may take. ``isolated``: the agents with worker
        processes. ``broken``: called if the driver cannot take the outcome of a task."""
        self.host = host
        host.each = self._begins
        host.share_time(perf_counter, limits.reactions_together_seconds)
        self._limit = limit
        self.isolated = isolated
        self._on_broken = broken
        self._timeouts: dict[str, asyncio.Timeout] = {}
        spans = telemetry.spans(host.server)
        if spans is not None:
            host.watches.append(spans)
        self._driver = driver
        self._plain: set[str] = set()
        """The agents whose handlers are all plain functions and run in this process."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._of: dict[str, asyncio.Task[None]] = {}
        """The running task of each agent. ``drop_agents`` removes a task from this dictionary. Then the outcome of the
        task is ignored."""
        self.reacting = ""
        """The agent whose plain handlers run at this moment."""
        self._late: dict[str, float] = {}
        """For each agent with a reaction that took too long and was cancelled, but has not ended: when ``look`` first
        saw it."""
        self.stuck: list[str] = []
        """The agents in ``_late`` that had a second to end."""
        self.copied = False
        """Whether this process is a copy of the server's process: a handler has forked."""
        self._uncollected = 0
        """The bytes of the letters that were handled since the garbage collector ran here."""

    def run(self, due: React) -> None:
        """React to a batch. If the handlers are plain functions of this process, report the outcome to the driver
        immediately. Otherwise report it when the task of the batch ends."""
        agent = due.agent
        if agent not in self._plain:
            isolated = self.isolated.get(agent)
            if isolated is not None:
                self._begin(due, isolated.react(due))
                return
            if self.host.is_async(agent):
                self._begin(due, self._bounded(due))
                return
            self._plain.add(agent)
        self.reacting = agent
        try:
            outcome = self.host.react(due)
        except BaseException as error:
            outcome = self._broken(due, error)
        self._leave_copy()
        self.reacting = ""
        self._driver.reacted(due, outcome, monotonic(), int(time() * 1000.0))
        outcome.failure = None
        self._collect(due)

    def _collect(self, due: React) -> None:
        """Run the garbage collector after so many bytes of letters. It counts objects, not bytes: a handler that leaves
        one reference cycle per letter would keep gigabytes of long letters in memory before it runs by itself."""
        size = self._uncollected
        for letter in due.letters:
            size += len(letter.body)
        if size > limits.uncollected_bytes_max:
            size = 0
            gc.collect()
        self._uncollected = size

    def _begin(self, due: React, reacting: Coroutine[Any, Any, Outcome]) -> None:
        task = self._of[due.agent] = asyncio.get_running_loop().create_task(self._await(due, reacting))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await(self, due: React, reacting: Coroutine[Any, Any, Outcome]) -> None:
        try:
            # If it is cancelled because the server stops, it fails as well; its outcome is then ignored.
            outcome = await reacting
        except BaseException as error:
            outcome = self._broken(due, error)
        try:
            self._report(due, outcome)
        except Exception as error:
            self._on_broken(error)
        outcome.failure = None
        self._collect(due)

    def _report(self, due: React, outcome: Outcome) -> None:
        if self._of.get(due.agent) is not asyncio.current_task():
            # The agent leaves, and reacts again elsewhere.
            self.host.forget(due.agent)
            return
        del self._of[due.agent]
        if not self._driver.stopping:
            self._driver.reacted(due, outcome, monotonic(), int(time() * 1000))

    async def _bounded(self, due: React) -> Outcome:
        """React to a batch in this process; cancel a reaction that takes too long."""
        limit = self._limit(due.agent)
        async with asyncio.timeout(limit) as timeout:
            self._timeouts[due.agent] = timeout
            try:
                outcome = await Stepwise(self.host.react_async(due), _nothing, self._leave_copy)
            finally:
                # The agent may have been dropped, and react to another batch already.
                if self._timeouts.get(due.agent) is timeout:
                    del self._timeouts[due.agent]
        if timeout.expired() and outcome.failure is not None:
            outcome.failure = AgentError(f"agent {due.agent}: a reaction took longer than {limit:g} s")
        return outcome

    def _leave_copy(self) -> None:
        """End this process if a handler has forked it. The event loop and its sockets belong to the server."""
        if self.copied:
            os._exit(0)

    def _begins(self, agent: str) -> None:
        timeout = self._timeouts.get(agent)
        if timeout is not None and not timeout.expired():
            timeout.reschedule(asyncio.get_running_loop().time() + self._limit(agent))

    def look(self, now: float) -> list[str]:
        """Look for reactions that took too long, and go on although they were cancelled. Return the agents for which
        this is new. Call this method from time to time."""
        late = [agent for agent, timeout in self._timeouts.items() if timeout.expired()]
        self._late = {agent: self._late.get(agent, now) for agent in late}
        before = self.stuck
        # A handler that was cancelled may need a moment to clean up.
        self.stuck = [agent for agent, since in self._late.items() if now - since >= _stuck_seconds]
        return [agent for agent in self.stuck if agent not in before]

    def _broken(self, due: React, error: BaseException) -> Outcome:
        """Return the outcome of a batch that had no effect. There are three possible causes: the agent could not be
        loaded, an observer of reactions raised an exception, or the batch was cancelled. (A batch is cancelled when the
        server stops, or when the agent leaves this server.)"""
        if is_ctrl_c(error):
            raise error
        self.host.forget(due.agent)
        return Outcome(due.agent, [], None, error)

    def drop_agents(self, agents: list[str]) -> None:
        """Drop agents from memory, and cancel their reactions in progress. These reactions run again later, on this
        server or on another."""
        for agent in agents:
            self.host.forget(agent)
            task = self._of.pop(agent, None)
            if task is not None:
                task.cancel()
                if agent in self.isolated:
                    self.isolated[agent].close()

    def organised(self) -> None:
        """Forget which agents have only plain handlers (not ``async``), because a change of the topology may have
        replaced the classes of agents."""
        self._plain.clear()

    def cancel(self) -> None:
        """Cancel reactions in progress; they run again after the next start."""
        for task in self._tasks:
            task.cancel()
        for isolated in self.isolated.values():
            isolated.close()


def _nothing() -> None: ...


_stuck_seconds = 1.0


# A file in the data directory with the handler calls that are in progress (:mod:`antecede.server.progress`).
#
# After a crash, the server reads from this file which handlers were running. Each of these calls can count as a
# failed try of its letter (the message that the handler got). The file is mapped into memory and never synced, so
# recording a call costs no I/O. The disk space for the file is allocated before the file is mapped, because writing
# to a mapped file without disk space would end the process. A server also works without this file, for example if it
# has no data directory, if the disk is full, or if the file system is unsuitable. Without the file, a crash of the
# server never counts as a failed try of a letter.


class CallsFile:
    """The file in which one server records its handler calls in progress."""

    def __init__(self, directory: str | None, log: Log) -> None:
        self._path = directory and f"{directory}/{NAME}"
        self._log = log
        self._boot = boot_id()
        self._file = -1
        self._progress: Progress | None = None

    def ended(self) -> Interrupted:
        """Return the handler calls that count as failed tries, because they were in progress when the previous process
        of this server crashed (:func:`antecede.server.progress.interrupted`). After a normal stop or a boot of the
        computer, there are none."""
        if self._path is None:
            return ENDED_WELL
        try:
            return interrupted(Path(self._path).read_bytes(), self._boot)
        except OSError:
            return ENDED_WELL

    def begin(self, life: int) -> Progress:
        """Make the file empty, and return the object that records handler calls in it. ``life``: the number of this
        start of the server. The calls from ``ended`` must already be in the log, because this method deletes them from
        the file."""
        memory: Memory | None = None
        if self._path is not None:
            with suppress(OSError):
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                memory = self._grow(size_of(_slots))
            if memory is None:
                self._log.warning("calls-not-named", reason=f"{self._path} cannot be used")
        self._progress = Progress(memory or bytearray(size_of(_slots)), self._boot, life, self._grow)
        return self._progress

    def _grow(self, size: int) -> Memory | None:
        if self._file < 0:
            return None
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, 0, size)
            else:
                os.pwrite(self._file, bytes(size - os.fstat(self._file).st_size), os.fstat(self._file).st_size)
            return mmap.mmap(self._file, size)
        except (OSError, ValueError):
            return None

    def copied(self) -> None:
        """Write nothing to the file from now on: this process is a copy of the server's process."""
        if self._progress is not None:
            self._progress.detach()

    def close(self) -> None:
        """Clear and delete the file. The server calls this when it ends for a known reason, not by a crash. So the next
        start does not count the calls in progress as failed tries of their letters."""
        if self._progress is not None:
            self._progress.clear()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            with suppress(OSError):
                os.unlink(str(self._path))


def boot_id() -> str:
    """Return the id of the current boot of the machine; empty if the system has no such id."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if sys.platform == "darwin":
        with suppress(OSError, subprocess.SubprocessError):
            asked = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            return subprocess.run(asked, capture_output=True, text=True, timeout=5, check=False).stdout.strip()
    return ""


NAME = "calls"
_slots = 16
