"""The worker process of an isolated agent: it runs the agent's handlers, and nothing else.

The server sends batches of letters, and the worker sends the outcome of each batch. Before each handler call, the
worker also sends the id of the letter. So the server knows which call was in progress if the worker ends. The worker
keeps the agent in memory between batches; the server has the saved state.

If the server ends, for any reason, the worker must end, too. A thread of the worker notices that the connection to the
server is closed, and ends the worker. This thread cannot run while a handler holds the interpreter lock. So on Linux
the kernel also kills the worker when the server ends. If memory runs out, the kernel should kill the worker before the
server.

A handler may start processes. They have no connection to the server. A forked copy of the worker ends when its handler
returns. All these processes end with the worker, unless they have begun a new session (``setsid``).
"""

import asyncio
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import NoReturn

from antecede import telemetry
from antecede.channel import Channel
from antecede.engine.host import Host, Outcome
from antecede.errors import AntecedeError
from antecede.live.application import load_class, plan_of
from antecede.live.worker_messages import LENGTH, At, Batch, Done, Ready, Setup, decode_to_worker, framed
from antecede.topology import parse_topology
from antecede.whereabouts import described, traceback_of


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
