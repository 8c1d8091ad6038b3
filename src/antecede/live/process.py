"""A server as a process of its own: its event loop, its signals, its exit code.

SIGTERM and SIGINT stop it gracefully: nothing more is taken from outside, what is under way comes to an end, a snapshot
is kept, exit code 0. A second signal ends it at once; its log is as good as after any kill. A failed disk, or a
step that failed, is exit code 2. SIGINT is left alone where it was ignored when the process started, as shells do for
what runs in the background: Ctrl-C is then meant for somebody else.

A server that ``antecede up`` started ends with it, however that ends. Its standard input is a pipe that only ``up`` can
write to, and never does: the system closes it with the process. (A signal at the parent's death, as Linux has it, comes
when the *thread* ends that started the child, and other systems have none.)
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib import import_module
from threading import Thread
from time import sleep
from typing import Any

from antecede import limits
from antecede.errors import UsageError
from antecede.live.descriptors import raise_limit
from antecede.live.metrics import MetricsPage
from antecede.live.server import ServerRuntime
from antecede.topology import Address, TopologyFile


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run to the end, on uvloop where there is one (``ANTECEDE_LOOP=asyncio``: not even then)."""
    factory = None
    if os.environ.get("ANTECEDE_LOOP") != "asyncio":
        try:
            factory = import_module("uvloop").new_event_loop
        except ImportError:
            factory = None
    # The commit thread must not wait for five milliseconds whenever it comes back from the disk.
    sys.setswitchinterval(_switch_seconds)
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def settle_memory() -> None:
    """Spare the collector what will live as long as the server does: code, classes, the state that was recovered.

    What comes and goes with messages is freed by counting references; cycles are rare, and may gather for a while.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_gc_objects, 20, 50)


def stopping_signals() -> list[signal.Signals]:
    """Return the signals that stop a server: SIGTERM, and SIGINT unless this process was started to ignore it."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return [signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGINT]


def _await_end_of_input(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Stop the server when standard input ends. A thread, so that no handler that blocks can keep it from ending."""
    while os.read(0, 4_096):
        pass
    with suppress(RuntimeError):
        # It may have come to its end by itself.
        loop.call_soon_threadsafe(stop)
    sleep(limits.orphan_seconds_max)
    os._exit(2)


async def serve(
    topology: TopologyFile,
    server: str,
    data: str | None,
    *,
    metrics: Address | None = None,
    until_stdin_closes: bool = False,
    **options: Any,
) -> int:
    """Run a server until it is told to stop; its metrics page, if it has one, to the very end."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if told.is_set():
            os._exit(130)
        told.set()

    # Before anybody can see that the server is there.
    for number in stopping_signals():
        loop.add_signal_handler(number, stop)
    if until_stdin_closes:
        Thread(target=_await_end_of_input, args=(loop, stop), name="stdin", daemon=True).start()
    raise_limit()
    runtime = ServerRuntime(topology, server, data, **options)
    page: MetricsPage | None = None
    try:
        if metrics is not None:
            page = MetricsPage(runtime)
            await page.start(metrics)
    except UsageError:
        runtime.store.close()
        raise
    await runtime.start()
    settle_memory()
    waiting = loop.create_task(told.wait())
    awaited: list[asyncio.Future[Any]] = [waiting, runtime.failed]
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    if runtime.failed.done():
        await runtime.give_up(str(runtime.failed.result()))
        raise runtime.failed.result()
    runtime.log.info("stopping")
    await runtime.stop()
    if page is not None:
        await page.stop()
    return 0


_switch_seconds = 0.0005
_gc_objects = 20_000
