"""The periodic work of a server with its event loop: an adapter around :class:`antecede.server.upkeep.Upkeep`.

Snapshots are written in a separate thread.
"""

import asyncio
from typing import TYPE_CHECKING

from antecede.server.upkeep import LOOK_SECONDS, Snapshot

if TYPE_CHECKING:
    from antecede.live.server import ServerRuntime


class Housekeeping:
    """Calls the upkeep of one server, and writes its snapshots."""

    def __init__(self, runtime: "ServerRuntime") -> None:
        self._runtime = runtime
        self._upkeep = runtime.core.upkeep
        self._task: asyncio.Task[None] | None = None
        self._snapshotting: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Start the periodic work."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def end(self) -> None:
        """Stop; a snapshot that is being written is completed."""
        if self._task is not None:
            self._task.cancel()

    async def settled(self) -> None:
        """Wait until no snapshot is being written."""
        if self._snapshotting is not None:
            await asyncio.wait([self._snapshotting])

    async def _keep(self) -> None:
        recorder = self._runtime.recorder
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if recorder is not None:
                recorder.look()
            snapshot = self._upkeep.look(loop.time())
            if snapshot is not None:
                self._snapshotting = asyncio.ensure_future(asyncio.to_thread(self._write, snapshot))
                self._snapshotting.add_done_callback(self._written)

    def _write(self, snapshot: Snapshot) -> None:
        runtime = self._runtime
        runtime.store.snapshot(snapshot.data, snapshot.upto)
        if runtime.recorder is None:
            runtime.store.release(snapshot.upto)

    def _written(self, done: "asyncio.Future[None]") -> None:
        self._snapshotting = None
        error = None if done.cancelled() else done.exception()
        if error is None:
            self._upkeep.kept()
        else:
            self._upkeep.not_kept(str(error), asyncio.get_running_loop().time())
