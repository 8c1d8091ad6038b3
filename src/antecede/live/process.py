"""A server as a separate process: its event loop, its signals, its exit code.

SIGTERM and SIGINT stop the server gracefully: the server accepts nothing more from outside, waits a few seconds for the
work in progress, and writes a snapshot. The exit code is then 0. A second signal ends the process immediately, with
exit code 130. The log is then in the same state as after a kill. If the disk or a *step* (the processing of a batch of
inputs) fails, the exit code is 2. If SIGINT was ignored when the process started, the process continues to ignore it.
(Shells start background processes with SIGINT ignored, because Ctrl-C is meant for other processes.)

If the server has an access file, SIGHUP makes the server read this file again. If it has no access file, and the
terminal of the process was closed, SIGHUP stops the server. In all other cases SIGHUP is logged and ignored.

If ``antecede up`` has started a server, the server ends when ``up`` ends, even if ``up`` is killed. The server's
standard input is a pipe, and ``up`` holds the other end of this pipe without writing to it. The system closes the pipe
when ``up`` ends, and so the server notices the end. (Linux can also send a signal to a child when its parent ends. This
signal is not used, because Linux sends it already when the *thread* that started the child ends, and other systems have
no such signal.)
"""

import asyncio
import faulthandler
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from importlib import import_module
from threading import Event, Thread, main_thread
from time import monotonic, sleep
from types import FrameType, TracebackType
from typing import Any

from antecede import limits
from antecede.live.keys import authoriser_of
from antecede.live.logs import logger
from antecede.live.metrics import MetricsPage
from antecede.live.server import Pulse, ServerRuntime, raise_limit
from antecede.server.upkeep import Slow, Watchdog
from antecede.topology import Address, TopologyFile

# Notifications to a service manager (systemd, ``Type=notify``): the server is ready, it works, it stops.
#
# The manager gives the address of a datagram socket in ``NOTIFY_SOCKET``. Each notification is one datagram with
# lines ``NAME=value``. ``WATCHDOG_USEC`` is a number of microseconds. If it is set, the manager expects at least one
# sign of life in every period of this length. The event loop sends signs of life, but only while the server works
# (:mod:`antecede.live.server`). So the manager restarts a server for the same reasons for which the page ``/live``
# (:mod:`antecede.live.metrics`) reports a failure. Without ``NOTIFY_SOCKET`` nothing is sent. If the manager does not
# read the notifications, this is not an error.


class ServiceManager:
    """The service manager that started this process, if there is one."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._seconds = _watchdog_seconds(environment)
        self._handle: asyncio.TimerHandle | None = None

    def ready(self, pulse: Pulse) -> None:
        """Report that the server has recovered and listens. Then send signs of life, if the manager expects them."""
        self._notify(f"READY=1\nSTATUS=running\nMAINPID={os.getpid()}")
        if self._seconds and self._address:
            self._beat(pulse)

    def stopping(self, reason: str) -> None:
        """Report that the server stops, with the reason in one line."""
        self._notify(f"STOPPING=1\nSTATUS={' '.join(reason.split())}")

    def _beat(self, pulse: Pulse) -> None:
        if not pulse.trouble():
            self._notify("WATCHDOG=1")
        # Twice as often as needed, because one datagram may be late.
        self._handle = asyncio.get_running_loop().call_later(self._seconds / 2, self._beat, pulse)

    def _notify(self, text: str) -> None:
        if self._address[:1] not in ("/", "@"):
            return
        # A name that begins with @ is not a file: it exists only in the kernel, and begins with a zero byte there.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.connect(address)
            sender.send(text.encode())


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """Return the longest time (in seconds) that the manager accepts between two signs of life. Return 0 if the manager
    expects no signs of life from this process."""
    for_process = environment.get("WATCHDOG_PID", "")
    if for_process and for_process != str(os.getpid()):
        return 0.0
    digits = environment.get("WATCHDOG_USEC", "")
    return int(digits) / 1e6 if digits.isascii() and digits.isdecimal() and len(digits) <= _digits_max else 0.0


_digits_max = 18


# The watchdog thread of a server process. The rules are in :class:`antecede.server.upkeep.Watchdog`.
#
# A handler that calls C code without releasing the interpreter lock stops this thread as well. So the thread sets an
# alarm of ``faulthandler``, and postpones the alarm every few seconds. The alarm has its own thread, which does not
# need the interpreter lock. If the alarm is not postponed in time, it writes the stacks of all threads and ends the
# process. The agents have limits for the time of a reaction. The alarm waits for the largest of these limits, plus
# some seconds.


class TooLong(Exception):
    """A handler or an operation runs too long; the traceback shows where it is."""


class WatchdogThread:
    """Watches the handlers of the server in this process, and the operations of its objects."""

    def __init__(self, runtime: ServerRuntime) -> None:
        self._runtime = runtime
        self._reactions = Watchdog(runtime.reaction_limit)
        self._operations = Watchdog(runtime.reaction_limit)
        self._stopped = Event()
        self._thread = Thread(target=self._watch, name="watchdog", daemon=True)
        self._watched = main_thread().ident or 0
        self._postponed = 0.0

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching: the server is about to end."""
        self._stopped.set()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self._stopped.wait(_look_seconds):
            try:
                self._look(monotonic())
            except Exception as error:
                self._runtime.background.failed("watchdog", error)

    def _look(self, now: float) -> None:
        if now - self._postponed > _postpone_seconds:
            self._postponed = now
            self._postpone()
        progress = self._runtime.reactions.host.progress
        if progress is not None:
            slow = self._reactions.look(progress.running, progress.number, now)
            if slow is not None:
                reason = "the process ends, and a try of the letter is counted"
                self._report("reaction", slow, {"agent": slow.name, "letter": slow.part}, reason)
        slow = self._operations.look(*self._runtime.machine.calls.computing(), now)
        if slow is not None:
            reason = "the process ends; the call comes again if its caller or another server still has it"
            self._report("operation", slow, {"object": slow.name, "operation": slow.part}, reason)

    def _postpone(self) -> None:
        try:
            seconds = self._runtime.topology.reactions.longest + _grace_seconds
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
        except (OSError, ValueError, AttributeError):
            # Standard error is not a file.
            return

    def _report(self, kind: str, slow: Slow, names: dict[str, str], reason: str) -> None:
        """Log that a handler or an operation is slow, and end the process if it has run too long. ``kind``:
        ``reaction`` or ``operation``."""
        frame = sys._current_frames().get(self._watched)
        what = f"a handler of {slow.name}" if kind == "reaction" else f"operation {slow.part} of {slow.name}"
        raised = TooLong(f"{what} runs for {slow.seconds:.0f} s").with_traceback(_traceback(frame))
        seconds = round(slow.seconds, 1)
        self._runtime.log.warning(f"{kind}-slow", raised=raised, **names, seconds=seconds)
        if slow.ends:
            self._runtime.log.error(f"{kind}-too-long", **names, seconds=seconds, reason=reason)
            os._exit(2)


def _traceback(frame: FrameType | None) -> TracebackType | None:
    found = None
    while frame is not None:
        found = TracebackType(found, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return found


_look_seconds = 0.25
_postpone_seconds = 2.0
_grace_seconds = 10.0


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine to its end, and return its result. The event loop is uvloop if this package is installed. It is
    asyncio's loop if uvloop is missing or ``ANTECEDE_LOOP=asyncio`` is set."""
    factory = None
    if os.environ.get("ANTECEDE_LOOP") != "asyncio":
        with suppress(ImportError):
            factory = import_module("uvloop").new_event_loop
    # Otherwise the commit thread would wait five milliseconds each time it returns from the disk.
    sys.setswitchinterval(_switch_seconds)
    runner, code = asyncio.Runner(loop_factory=factory), 2
    try:
        code = runner.run(main)
        return code
    finally:
        # This cancels all tasks and waits for them. But a handler may go on although it was cancelled, and its threads
        # cannot be cancelled at all.
        closed = Event()
        Thread(target=_leave, args=(code, closed), name="leave", daemon=True).start()
        runner.close()
        closed.set()


def _leave(code: int, closed: Event) -> None:
    """End the process if the event loop cannot be closed in time."""
    if not closed.wait(_leave_seconds):
        reason = "a handler goes on although it was cancelled"
        logger.warning("ended-by-force", extra={"server": "", "fields": {"reason": reason}})
        os._exit(code)


def settle_memory() -> None:
    """Make garbage collection rare, and exclude long-lived data from it: code, classes, the recovered state.

    The data of messages is freed by reference counting. Reference cycles are rare and may stay in memory for a while.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_gc_objects, 20, 50)


def stopping_signals() -> list[signal.Signals]:
    """Return the signals that stop a server: SIGTERM, and also SIGINT unless it was ignored when this process
    started."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return [signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGINT]


def terminal_watch() -> Callable[[], bool]:
    """Return a function without parameters. It returns True if the terminal of this process has been closed since
    ``terminal_watch`` was called. If SIGHUP was ignored when the process started, the function always returns False."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    terminals = [] if ignored else [number for number in range(3) if os.isatty(number)]
    return lambda: not all(map(os.isatty, terminals))


def _await_end_of_input(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Wait for the end of standard input, then stop the server. If the process still runs ``orphan_seconds_max``
    seconds later, end it. This function runs in a separate thread, so it works even if a handler blocks the event
    loop."""
    while os.read(0, 4_096):
        pass
    with suppress(RuntimeError):
        # The event loop may already be closed.
        loop.call_soon_threadsafe(stop)
    sleep(limits.orphan_seconds_max)
    os._exit(2)


class _Reloads:
    """Requests to read the access file again. If a request comes while the server still reads its log, the file is read
    again after the start of the server. (The server has read the access file before the log, and the file may have
    changed meanwhile.)"""

    def __init__(self) -> None:
        self._runtime: ServerRuntime | None = None
        self._missed = False

    def request(self) -> None:
        if self._runtime is None:
            self._missed = True
        else:
            self._runtime.reload()

    def started(self, runtime: ServerRuntime) -> None:
        self._runtime = runtime
        if self._missed:
            runtime.reload()


async def serve(
    topology: TopologyFile,
    server: str,
    data: str | None,
    *,
    metrics: Address | None = None,
    until_stdin_closes: bool = False,
    **options: Any,
) -> int:
    """Run a server until a signal stops it or a change of the topology removes it; then return 0. If the disk or a step
    (the processing of a batch of inputs) fails, raise the error. ``metrics``: the address of the metrics pages. These
    pages are already served while the server reads its log. ``until_stdin_closes``: also stop the server when its
    standard input ends."""
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if stop_requested.is_set():
            os._exit(130)
        stop_requested.set()

    # Do this before the server is visible from outside.
    for number in stopping_signals():
        loop.add_signal_handler(number, stop)
    if until_stdin_closes:
        Thread(target=_await_end_of_input, args=(loop, stop), name="stdin", daemon=True).start()
    reloads = _Reloads()
    closed = terminal_watch() if options.get("security") is None else lambda: False
    loop.add_signal_handler(signal.SIGHUP, lambda: stop() if closed() else reloads.request())
    raise_limit()
    page: MetricsPage | None = None
    if metrics is not None:
        page = MetricsPage(authoriser_of(options.get("security"), options.get("token", "")))
        await page.start(metrics)
    runtime = ServerRuntime(topology, server, data, **options)
    if page is not None:
        page.show(runtime)
    await runtime.start()
    reloads.started(runtime)
    settle_memory()
    manager = ServiceManager()
    manager.ready(runtime.pulse)
    watchdog = WatchdogThread(runtime)
    watchdog.start()
    waiting = loop.create_task(stop_requested.wait())
    awaited: list[asyncio.Future[Any]] = [waiting, runtime.failed, runtime.removed]
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    if runtime.removed.done() and not runtime.failed.done():
        runtime.log.info("removed", change=runtime.machine.organisation.change, stops_in=limits.removed_seconds)
        # Clients that connect meanwhile get the address of the server that has their mailboxes.
        await asyncio.wait(awaited[:2], return_when=asyncio.FIRST_COMPLETED, timeout=limits.removed_seconds)
    if runtime.failed.done():
        manager.stopping(str(runtime.failed.result()))
        await runtime.give_up(str(runtime.failed.result()))
        raise runtime.failed.result()
    manager.stopping("stopping")
    runtime.log.info("stopping")
    await runtime.stop()
    watchdog.stop()
    if page is not None:
        await page.stop()
    return 0


_switch_seconds = 0.0005
_leave_seconds = 3.0
_gc_objects = 20_000
