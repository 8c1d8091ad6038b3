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
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib import import_module
from threading import Event, Thread
from time import sleep
from typing import Any

from antecede import limits
from antecede.live.descriptors import raise_limit
from antecede.live.logs import logger
from antecede.live.metrics import MetricsPage
from antecede.live.notifying import ServiceManager
from antecede.live.security import authoriser_of
from antecede.live.server import ServerRuntime
from antecede.live.watchdog import WatchdogThread
from antecede.topology import Address, TopologyFile


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
