"""Isolated agents: each isolated agent has a worker process that runs its handlers (:mod:`antecede.live.worker`).

The server sends letters to a worker in batches; the first batch starts the worker. If a reaction (one handler call)
takes longer than its limit, the server kills the worker. A worker can also end by itself. In both cases, the reaction
that was in progress counts as a failed try of its letter. The other letters of the same batch are handled again
(:mod:`antecede.server.driver.retries`). The next batch starts a new worker. The server and all other agents continue.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from time import perf_counter

from msgspec.structs import replace

from antecede import limits
from antecede.crashes import how_ended
from antecede.engine import React
from antecede.engine.agents import TooEarly
from antecede.engine.host import Host, Outcome
from antecede.errors import AgentError
from antecede.live.application import load_class
from antecede.live.tcp import disconnect
from antecede.live.worker_messages import LENGTH, At, Batch, Done, FromWorker, Ready, Setup, decode_from_worker, framed
from antecede.server.inputs import Log
from antecede.topology import TopologyFile

_program = """
import json, os, sys
os.nice(5)
try:
    with open("/proc/self/autogroup", "w") as group:
        group.write("5")
except OSError:
    pass
sys.path[:] = json.loads(sys.argv[1])
from antecede.live.worker import main
main(int(sys.argv[2]))
"""
"""The program that starts a worker. The program lowers its own priority first, because its imports use CPU time that
the server may need. Linux may divide CPU time among the sessions of the operating system (autogroup). So the program
also lowers the priority of its session."""


class WorkerError(AgentError):
    """A handler failed in a worker process; the text describes the worker's exception."""

    code = "worker"

    def __init__(self, text: str, traceback: str = "") -> None:
        super().__init__(text)
        if traceback:
            self.add_note(traceback)


class Isolated:
    """One isolated agent. This object starts the agent's worker process, sends batches of letters to it, and kills it
    if a reaction takes too long."""

    def __init__(self, host: Host, setup: Setup, limit: float, log: Log) -> None:
        """``limit``: the seconds that one reaction may take."""
        self._host = host
        self._setup = setup
        self._limit = limit
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._loaded = False
        """True if the worker has loaded the agent with its saved state."""
        self._news = b""
        """A message with a new topology. The worker must get this message before its next batch. It is empty if there
        is no new topology."""

    def renewed(self, other: "Isolated") -> "Isolated":
        """Return the isolated agent to use after a change of the topology. ``other``: this agent, created with the new
        topology. If the class of the agent is unchanged, return ``self`` with the settings of ``other``. The worker of
        ``self`` then gets the new topology before the next batch. If the class has changed, kill the worker of
        ``self``, and return ``other``."""
        if other._setup.kind != self._setup.kind:
            self.close()
            return other
        self._setup, self._limit = other._setup, other._limit
        self._news = framed(self._setup)
        return self

    async def react(self, due: React) -> Outcome:
        """Let the worker react to a batch."""
        try:
            await self._start()
        except AgentError as error:
            self.close()
            return Outcome(due.agent, [], None, error)
        places = {letter.id: place for place, letter in enumerate(due.letters)}
        marks, place = [perf_counter()], 0
        try:
            self._send(due)
            while True:
                async with asyncio.timeout(self._limit):
                    message = await self._read()
                if isinstance(message, Done):
                    marks.append(perf_counter())
                    self._host.time_run(marks)
                    return self._outcome(due, message)
                if isinstance(message, At):
                    if places[message.letter] > place:
                        marks.append(perf_counter())
                    place = places[message.letter]
        except TimeoutError:
            reason = f"a reaction took longer than {self._limit:g} s: its worker process was killed"
        except (asyncio.IncompleteReadError, ConnectionError):
            reason = f"its worker process ended: {self._end()}"
        self.close()
        self._log.warning("worker-ended", agent=due.agent, letter=due.letters[place].id, reason=reason)
        return Outcome(due.agent, [], None, AgentError(f"agent {due.agent}: {reason}"), place)

    def _send(self, due: React) -> None:
        assert self._streams is not None
        if self._news:
            self._streams[1].write(self._news)
            self._news, self._loaded = b"", False
        batch = replace(due, state=None) if self._loaded else due
        self._streams[1].write(framed(Batch(batch, not self._loaded)))
        self._loaded = True

    def _outcome(self, due: React, done: Done) -> Outcome:
        outcome = Outcome(due.agent, done.reactions, done.state)
        try:
            for reaction in done.reactions:
                for birth in reaction.births:
                    address = f"{birth.name}@{self._host.server}"
                    self._host.created(address, due.agent, reaction.letter, load_class(birth.kind))
        except AgentError as error:
            self._loaded = False
            return Outcome(due.agent, [], None, error)
        if done.too_early:
            outcome.failure = TooEarly()
            self._loaded = False
        elif done.failure:
            outcome.failure = WorkerError(done.failure, done.traceback)
            self._loaded = False
        return outcome

    async def _start(self) -> None:
        if self._streams is not None and self._process is not None and self._process.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        try:
            command = [sys.executable, "-P", "-c", _program, json.dumps(sys.path), str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            ours.close()
            raise AgentError(f"agent {self._setup.agent}: its worker process cannot start: {error}") from None
        finally:
            theirs.close()
        self._streams = await asyncio.open_connection(sock=ours)
        self._streams[1].write(framed(self._setup))
        self._news = b""
        failure = ""
        try:
            async with asyncio.timeout(limits.worker_start_seconds_max):
                ready = await self._read()
            failure = ready.failure if isinstance(ready, Ready) else "an unexpected answer"
        except TimeoutError:
            failure = f"no answer within {limits.worker_start_seconds_max:g} s"
        except (asyncio.IncompleteReadError, ConnectionError):
            failure = self._end()
        if failure:
            raise AgentError(f"agent {self._setup.agent}: its worker process did not start: {failure}")
        self._log.info("worker-started", agent=self._setup.agent, pid=self._process.pid)

    async def _read(self) -> FromWorker:
        assert self._streams is not None
        reader = self._streams[0]
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        message: FromWorker = decode_from_worker(await reader.readexactly(length))
        return message

    def _end(self) -> str:
        """Return how the worker ended."""
        assert self._process is not None
        try:
            code = self._process.wait(_end_seconds)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        return how_ended(code)

    def copied(self) -> None:
        """Let this process have no part in the connection to the worker: it is a copy of the server's process."""
        if self._streams is not None:
            disconnect(self._streams[1].get_extra_info("socket").fileno())

    def close(self) -> None:
        """Kill the worker, if there is one. The next batch starts a new worker."""
        self._loaded = False
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
        if self._process is not None:
            # It leads a process group, so this also ends what its handlers have started.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            self._process = None


def isolated_agents(topology: TopologyFile, host: Host, log: Log) -> dict[str, Isolated]:
    """Return the isolated agents of a host, by name. The class of an isolated agent always comes from the topology,
    even if other classes were given to the server, because the worker process must import the class."""
    text = topology.text()
    found = {}
    for agent in topology.agents:
        if agent.name in topology.reactions.isolated and host.lives(agent.name):
            setup = Setup(host.server, agent.name, agent.kind, text)
            found[agent.name] = Isolated(host, setup, topology.reactions.limit(agent.name), log)
    return found


_end_seconds = 0.2
