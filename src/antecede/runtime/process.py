"""A server as a process of its own: its event loop, its signals, its exit code.

SIGTERM and SIGINT stop it gracefully: nothing more is taken from outside, what is under way comes to an end, a snapshot
is kept, exit code 0. A second signal ends it at once; its log is as good as after any kill. A failed disk, or a
step that failed, is exit code 2.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Coroutine
from importlib import import_module
from typing import Any

from antecede.errors import UsageError
from antecede.runtime.descriptors import raise_limit
from antecede.runtime.metrics import MetricsPage
from antecede.runtime.server import ServerRuntime
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


async def serve(
    topology: TopologyFile, server: str, data: str | None, *, metrics: Address | None = None, **options: Any
) -> int:
    """Run a server until it is told to stop; its metrics page, if it has one, to the very end."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if told.is_set():
            os._exit(130)
        told.set()

    # Before anybody can see that the server is there.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
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
