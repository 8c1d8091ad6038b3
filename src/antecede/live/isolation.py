"""Isolated agents: each isolated agent has a worker process that runs its handlers.

The server sends letters to a worker in batches; the first batch starts the worker. If a reaction (one handler call)
takes longer than its limit, the server kills the worker. A worker can also end by itself. In both cases, the reaction
that was in progress counts as a failed try of its letter. The other letters of the same batch are handled again
(:mod:`antecede.server.driver`). The next batch starts a new worker. The server and all other agents continue.
"""

import asyncio
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Final, NoReturn

import msgspec
from msgspec.structs import replace

from antecede import limits, telemetry
from antecede.channel import Channel
from antecede.crashes import how_ended
from antecede.engine import React, Reaction
from antecede.engine.agents import TooEarly
from antecede.engine.host import Host, Outcome
from antecede.errors import AgentError, AntecedeError
from antecede.failures import described, traceback_of
from antecede.live.application import load_class, plan_of
from antecede.live.tcp import disconnect
from antecede.server.inputs import Log
from antecede.topology import TopologyFile, parse_topology

# The messages between a server and the worker process of an isolated agent. A message is sent as four bytes with its
# length, and then its content as MessagePack.
#
# Both ends run the same program, so the messages need no version.


class Setup(msgspec.Struct, frozen=True, tag=True):
    """The first message to a worker; it is sent again when the topology has changed."""

    server: str
    agent: str
    kind: str
    """The agent's class, as ``module:Class``."""
    topology: str
    """The text of the topology file."""


class Batch(msgspec.Struct, frozen=True, tag=True):
    """A message with letters to which the agent must react."""

    due: React
    load: bool
    """Whether the worker must first load the agent from ``due.state``; if not, ``due.state`` is None."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The worker's answer to the first ``Setup``. If ``failure`` is empty, the worker has loaded the agent's class.
    Otherwise ``failure`` is the reason why it could not load the class."""

    failure: str = ""


class At(msgspec.Struct, frozen=True, tag=True):
    """The worker is about to call the handler of this letter."""

    letter: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """The outcome of a batch."""

    reactions: list[Reaction]
    state: bytes | None
    failure: str = ""
    """The text of the exception with which a reaction failed. It is empty if no reaction failed."""
    traceback: str = ""
    too_early: bool = False
    """Whether a handler ended the batch because it asked for the id of its reaction while a crash could still change
    this id (:class:`antecede.engine.agents.TooEarly`). Then ``failure`` is empty."""


ToWorker = Setup | Batch
FromWorker = Ready | At | Done
LENGTH: Final = struct.Struct("<I")
encode = msgspec.msgpack.Encoder().encode
decode_to_worker: Final = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker: Final = msgspec.msgpack.Decoder(FromWorker).decode


def framed(message: ToWorker | FromWorker) -> bytes:
    """Return a message as bytes: its length, then its content."""
    body = encode(message)
    return LENGTH.pack(len(body)) + body


# The worker process of an isolated agent: it runs the agent's handlers, and nothing else.
#
# The server sends batches of letters, and the worker sends the outcome of each batch. Before each handler call, the
# worker also sends the id of the letter. So the server knows which call was in progress if the worker ends. The
# worker keeps the agent in memory between batches; the server has the saved state.
#
# If the server ends, for any reason, the worker must end, too. A thread of the worker notices that the connection to
# the server is closed, and ends the worker. This thread cannot run while a handler holds the interpreter lock. So on
# Linux the kernel also kills the worker when the server ends. If memory runs out, the kernel should kill the worker
# before the server.
#
# A handler may start processes. They have no connection to the server. A forked copy of the worker ends when its
# handler returns. All these processes end with the worker, unless they have begun a new session (``setsid``).


class _Line:
    """The connection to the server. Only one process may use it: a forked copy of the worker ends when it tries to
    send."""

    def __init__(self, descriptor: int) -> None:
        self._connection = socket.socket(fileno=descriptor)
        self._process = os.getpid()
        # Otherwise the server would not notice the end of the worker while a process that it started is running.
        os.set_inheritable(descriptor, False)
        os.register_at_fork(after_in_child=self._connection.close)

    def send(self, message: Ready | At | Done) -> None:
        if os.getpid() != self._process:
            os._exit(0)
        self._connection.sendall(framed(message))

    def read(self) -> Setup | Batch:
        """Return the next message of the server."""
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        message: Setup | Batch = decode_to_worker(self._exactly(length))
        return message

    def _exactly(self, count: int) -> bytes:
        pieces = []
        while count:
            piece = self._connection.recv(min(count, 1 << 20))
            if not piece:
                # The server is gone, or needs this worker no more.
                _leave()
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)


class _Named:
    """Sends the id of each letter to the server, before the handler of the letter is called."""

    def __init__(self, line: _Line) -> None:
        self._line = line
        self._letter = ""
        self.running, self.number = None, 0

    def begin(self, agent: str) -> int:
        self._letter = ""
        return 0

    def call(self, agent: str, letter: str) -> None:
        self._letter = ""
        self.at(0, letter)

    def then(self, letter: str) -> None:
        self.at(0, letter)

    def at(self, slot: int, letter: str) -> None:
        if letter != self._letter:
            self._letter = letter
            self._line.send(At(letter))

    def on(self, slot: int) -> None: ...

    def off(self) -> None: ...

    def end(self, slot: int) -> None: ...


def _work(line: _Line) -> None:
    """Load the agent's class, then handle batches of letters until the server closes the connection. If the class
    cannot be loaded, send the reason to the server, and return."""
    setup = line.read()
    assert isinstance(setup, Setup)
    try:
        host = _host_of(setup, line)
    except BaseException as error:
        line.send(Ready(str(error) if isinstance(error, AntecedeError) else described(error)))
        return
    line.send(Ready())
    with asyncio.Runner() as runner:
        while True:
            batch = line.read()
            if isinstance(batch, Setup):
                # The topology has changed; the class is the same.
                host = _host_of(batch, line)
                continue
            line.send(_react(host, batch, runner))


def _host_of(setup: Setup, line: _Line) -> Host:
    plan = plan_of(parse_topology(setup.topology))
    channel = Channel(setup.server, plan.topology, plan.orders, plan.homes, 1, moved=plan.moved)
    host = Host(setup.server, channel.check)
    host.declare(setup.agent, load_class(setup.kind))
    host.progress = _Named(line)
    spans = telemetry.spans(setup.server)
    if spans is not None:
        host.watches.append(spans)
    return host


def _react(host: Host, batch: Batch, runner: asyncio.Runner) -> Done:
    due, agent = batch.due, batch.due.agent
    if batch.load:
        host.forget(agent)
    try:
        outcome = runner.run(host.react_async(due)) if host.is_async(agent) else host.react(due)
    except BaseException as error:
        host.forget(agent)
        outcome = Outcome(agent, [], None, error)
    try:
        return _done(outcome)
    finally:
        # The traceback leads to this frame, so otherwise the letters would wait for the garbage collector.
        outcome.failure = None


def _done(outcome: Outcome) -> Done:
    outcome.merge()
    failure = outcome.failure
    if failure is None:
        return Done(outcome.reactions, outcome.state)
    if outcome.too_early:
        return Done(outcome.reactions, outcome.state, too_early=True)
    return Done(outcome.reactions, outcome.state, described(failure), traceback_of(failure))


def main(descriptor: int) -> None:
    """Run the worker on an inherited socket."""
    line = _Line(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    Thread(target=_await_end, args=(descriptor,), name="server", daemon=True).start()
    _work(line)


def _await_end(descriptor: int) -> None:
    """Wait until the server has closed the connection. Then end this process."""
    poll = select.poll()
    poll.register(descriptor, getattr(select, "POLLRDHUP", 0))
    while not poll.poll():
        pass
    _leave()


def _leave() -> NoReturn:
    """End this process and the processes that its handlers started."""
    os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(_pr_set_pdeathsig, signal.SIGKILL)


_pr_set_pdeathsig = 1


_program = """
import json, os, sys
os.nice(5)
try:
    with open("/proc/self/autogroup", "w") as group:
        group.write("5")
except OSError:
    pass
sys.path[:] = json.loads(sys.argv[1])
from antecede.live.isolation import main
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
