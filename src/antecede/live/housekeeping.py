"""The periodic work of a server (:class:`antecede.server.upkeep.Upkeep`), called from the server's event loop.

Another process builds each snapshot, and a separate thread then checks it. If another process cannot be used, or fails
several times, the server copies its state, and a separate thread writes the copy as a snapshot.
"""

import asyncio
from time import time
from typing import TYPE_CHECKING

from antecede.live.apart import build_apart
from antecede.live.retention import releasable
from antecede.server.building import Task
from antecede.server.upkeep import LOOK_SECONDS, Snapshot

if TYPE_CHECKING:
    from antecede.live.server import ServerRuntime


class Housekeeping:
    """Does the periodic work of one server, and writes the server's snapshots."""

    def __init__(self, runtime: "ServerRuntime") -> None:
        self._runtime = runtime
        self._upkeep = runtime.core.upkeep
        self._task: asyncio.Task[None] | None = None
        self._snapshotting: asyncio.Future[None] | None = None
        self._building = False
        """True while another process builds a snapshot."""

    def begin(self) -> None:
        """Start the task that does the periodic work."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def end(self) -> None:
        """Stop the periodic work. If this process is writing a snapshot, the snapshot is completed. If another process
        builds a snapshot, the snapshot is abandoned."""
        if self._task is not None:
            self._task.cancel()
        if self._building:
            self._snapshotting.cancel()  # type: ignore[union-attr]

    async def settled(self) -> None:
        """Wait until no snapshot is being written."""
        if self._snapshotting is not None:
            await asyncio.wait([self._snapshotting])

    async def _keep(self) -> None:
        recorder, background, pruned = self._runtime.recorder, self._runtime.background, 0.0
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self._look(loop.time())
            except Exception as error:
                background.failed("upkeep", error)
            if recorder is None:
                continue
            try:
                recorder.look()
                if self._runtime.keep.bounds_trace and loop.time() >= pruned + _prune_seconds:
                    pruned = loop.time()
                    await asyncio.to_thread(recorder.prune, time())
            except Exception as error:
                background.failed("recording", error)

    def _look(self, now: float) -> None:
        runtime = self._runtime
        for agent in runtime.reactions.look(now):
            runtime.log.warning("reaction-stuck", agent=agent, reason="its handler goes on although it was cancelled")
        due = self._upkeep.look(now)
        if due is not None:
            self._building = isinstance(due, Task)
            work = self._build(due) if isinstance(due, Task) else self._write(due)
            self._snapshotting = asyncio.ensure_future(work)
            self._snapshotting.add_done_callback(self._written)

    async def _build(self, task: Task) -> None:
        runtime = self._runtime
        # The other process reads only what is durable.
        await asyncio.to_thread(runtime.store.wait, task.upto)
        draft = await build_apart(runtime.data, runtime.name, runtime.topology, task)
        self._building = False
        await asyncio.to_thread(runtime.store.adopt_snapshot, draft, task.upto)
        await asyncio.to_thread(self._release, task.upto)

    async def _write(self, snapshot: Snapshot) -> None:
        await asyncio.to_thread(self._runtime.store.snapshot, snapshot.data, snapshot.upto)
        await asyncio.to_thread(self._release, snapshot.upto)

    def _release(self, upto: int) -> None:
        runtime = self._runtime
        if runtime.recorder is None:
            runtime.store.release(releasable(str(runtime.data), upto, runtime.keep, time()))

    def _written(self, done: "asyncio.Future[None]") -> None:
        self._snapshotting, self._building = None, False
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._upkeep.kept()
        else:
            self._upkeep.not_kept(str(error), asyncio.get_running_loop().time())


_prune_seconds = 60.0
"""The seconds between two checks of the trace's files. A check deletes files that are too old or take too much
space."""
