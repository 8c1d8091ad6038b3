"""The periodic work of a server: check its marks, write snapshots, watch its connections."""

import asyncio
from typing import TYPE_CHECKING

from antecede import limits

if TYPE_CHECKING:
    from antecede.live.server import ServerRuntime


class Housekeeping:
    """The periodic work of one server."""

    def __init__(self, runtime: "ServerRuntime") -> None:
        self._runtime = runtime
        self.logged_bytes = 0
        """Bytes written to the log since the last snapshot."""
        self._covered = 0
        """The part of these that is in the snapshot being written."""
        self._not_before = 0.0
        """The time of the next try, after a failed snapshot."""
        self.task: asyncio.Task[None] | None = None
        self._snapshotting: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Start the periodic work."""
        self.task = asyncio.get_running_loop().create_task(self._keep())

    def end(self) -> None:
        """Stop; a snapshot that is being written is completed."""
        if self.task is not None:
            self.task.cancel()

    async def settled(self) -> None:
        """Wait until no snapshot is being written."""
        if self._snapshotting is not None:
            await asyncio.wait([self._snapshotting])

    async def _keep(self) -> None:
        runtime = self._runtime
        loop = asyncio.get_running_loop()
        turns = 0
        while True:
            await asyncio.sleep(_house_seconds)
            turns += 1
            runtime.marks.watch(runtime.stopping)
            if runtime.recorder is not None:
                runtime.recorder.look()
            due = self.logged_bytes > limits.snapshot_log_bytes and loop.time() >= self._not_before
            if due and self._snapshotting is None:
                self._take_snapshot()
            if turns % 10 == 0:
                runtime.core.watch(loop.time())

    def _take_snapshot(self) -> None:
        runtime = self._runtime
        if runtime.behind:
            return
        self._covered, self.logged_bytes = self.logged_bytes, 0
        data, upto = runtime.machine.snapshot(), runtime.store.last
        self._snapshotting = asyncio.ensure_future(asyncio.to_thread(self._keep_snapshot, data, upto))
        self._snapshotting.add_done_callback(self._kept)

    def _keep_snapshot(self, data: bytes, upto: int) -> None:
        runtime = self._runtime
        runtime.store.snapshot(data, upto)
        if runtime.recorder is None:
            runtime.store.release(upto)

    def _kept(self, done: "asyncio.Future[None]") -> None:
        self._snapshotting = None
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._runtime.log.error("snapshot-failed", reason=str(error), again_seconds=limits.snapshot_retry_seconds)
            self.logged_bytes += self._covered
            self._not_before = asyncio.get_running_loop().time() + limits.snapshot_retry_seconds


_house_seconds = 0.1
