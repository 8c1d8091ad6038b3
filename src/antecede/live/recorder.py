"""The server's part in recording: ensure that closed segments are converted before they are deleted.

A segment is one file of the log. When a segment closes, the server starts a process. This process converts the segment
to a part of the trace (:mod:`antecede.recording.converting`). When the process has succeeded, the segment is released.
The store deletes a released segment when recovery does not need it. A failed conversion is tried again, with growing
pauses. Records that are not converted stay in the log, so nothing is lost while they wait. But the size of the log is
limited (``store_log_bytes_max``). When the log has reached three quarters of this limit, the server refuses new
messages from clients. ``status`` shows why the conversion failed.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import time
from typing import Any

import msgspec

from antecede import limits
from antecede.crashes import how_ended
from antecede.errors import StoreError
from antecede.failures import described
from antecede.live.background import Background
from antecede.live.logs import ServerLog
from antecede.recording import segments
from antecede.recording.segments import FOLDER, pieces_in
from antecede.store import Store, closed_segments
from antecede.store.directory import named, numbered, segment_name
from antecede.store.files import Files

# The limits for data that a server keeps without needing it: the converted trace, and old segments of the log.
#
# There may be a limit of age, a limit of size, or both. Files beyond a limit are deleted, the oldest first. The
# newest file of the trace is never deleted, because the trace continues from it. Segments of the log are not deleted
# here. They are only released, and the store deletes them when recovery does not need them
# (:mod:`antecede.store.log`). A log without limits keeps only the segments that are needed. If a limit is set for the
# log, the log also keeps segments that are no longer needed, up to this limit. The limit of size is then at most half
# of the log's maximal size (``store_log_bytes_max``).


class Keep(msgspec.Struct, frozen=True):
    """The limits of age (in seconds) and size (in bytes) of the trace and of the log. A limit of None has no effect. If
    the trace has no limit, all of it is kept. If both limits of the log are None, the log keeps only the segments that
    are needed. Otherwise it also keeps segments that are no longer needed, up to this age and size."""

    trace_seconds: float | None = None
    trace_bytes: int | None = None
    log_seconds: float | None = None
    log_bytes: int | None = None

    @property
    def bounds_trace(self) -> bool:
        """Whether old files of the trace are deleted, because the trace has a limit of age or size."""
        return self.trace_seconds is not None or self.trace_bytes is not None

    @property
    def extends_log(self) -> bool:
        """Whether segments of the log are kept for longer than they are needed."""
        return self.log_seconds is not None or self.log_bytes is not None


KEEP_NEEDED = Keep()


def superfluous(files: Sequence[os.stat_result], now: float, seconds: float | None, size: int | None) -> int:
    """Return how many files must be deleted, the oldest first. Afterwards, no remaining file is older than ``seconds``,
    and the remaining files together have at most ``size`` bytes. A limit of None has no effect. ``files``: all files,
    the oldest first."""
    total = 0
    for place in range(len(files) - 1, -1, -1):
        total += files[place].st_size
        if (size is not None and total > size) or (seconds is not None and now - files[place].st_mtime > seconds):
            return place + 1
    return 0


def prune_trace(directory: str, keep: Keep, now: float) -> int:
    """Delete files of the trace that exceed the limits; return the number of deleted files. ``now``: seconds since
    1970."""
    with named(directory):
        # The newest one has the place where the trace continues.
        pieces = pieces_in(directory)[:-1]
        count = superfluous([os.stat(piece.path) for piece in pieces], now, keep.trace_seconds, keep.trace_bytes)
        for piece in pieces[:count]:
            os.unlink(piece.path)
        if count:
            Files().sync_directory(f"{directory}/{FOLDER}")
        return count


def releasable(directory: str, upto: int, keep: Keep, now: float) -> int:
    """Return the number of the last record that may be released. This is ``upto``, or less if ``keep`` requires that
    more segments are kept."""
    if not keep.extends_log:
        return upto
    with named(directory):
        ends = closed_segments(directory)
        numbers = numbered(os.listdir(directory), "segment")[: len(ends)]
        files = [os.stat(f"{directory}/{segment_name(number)}") for number in numbers]
        most = limits.store_log_bytes_max // 2
        if keep.log_bytes is not None:
            most = min(most, keep.log_bytes)
        count = superfluous(files, now, keep.log_seconds, most)
        return min(upto, ends[count - 1] if count else 0)


class Recorder:
    """Watches the log of one server. It lets another process convert the closed segments, and then releases them."""

    def __init__(
        self,
        directory: str,
        store: Store,
        log: ServerLog,
        background: Background,
        keep: Keep = KEEP_NEEDED,
    ) -> None:
        self._keep = keep
        self._background = background
        self._directory = directory
        self._store = store
        self._log = log
        self.trouble = ""
        """The reason why the last conversion failed. It is empty if the last conversion succeeded."""
        self.converted = 0
        """All records up to this number are in the converted trace."""
        self._closed: deque[int] = deque()
        """The number of the last record of each closed segment that waits for its conversion."""
        self._handled = 0
        """The number of the last record in the newest converted segment. The next segment may contain the rest of this
        record. Then this record is not converted yet, and ``converted`` is smaller than ``_handled``."""
        self._behind = False
        self._wait = limits.trace_retry_seconds
        self._not_before = 0.0
        self._task: asyncio.Task[None] | None = None
        segments.check_converter()
        self._check()

    def _check(self) -> None:
        pieces = segments.pieces_in(self._directory)
        self.converted = pieces[-1].upto if pieces else 0
        found = self._store.recovered
        if self.converted > found.last:
            raise StoreError(
                f"{self._directory}: the trace ends with record {self.converted}, but the log ends with {found.last}: "
                f"an older log was put here; move {segments.FOLDER}/ away to start a new trace"
            )
        if found.first > self.converted + 1:
            raise StoreError(
                f"{self._directory}: the log begins with record {found.first}, but the trace needs record "
                f"{self.converted + 1}: a server that ran without --trace can be recorded only with an empty directory"
            )
        segments.begin(self._directory)
        self._handled = self.converted
        self._release()

    def _release(self) -> None:
        """Release the records that are in the converted trace. But if a limit of age or size is set for the log, the
        records within this limit are not released yet."""
        self._store.release(releasable(self._directory, self.converted, self._keep, time()))

    def prune(self, now: float) -> None:
        """Delete files of the trace that exceed the limits of age or size. An error is logged, and the deletion is
        tried again later."""
        try:
            count = prune_trace(self._directory, self._keep, now)
        except StoreError as error:
            self._log.error("trace-not-pruned", reason=str(error))
            return
        if count:
            self._log.info("trace-pruned", files=count)

    def look(self) -> None:
        """Look for closed segments of the log. Start their conversion, unless a conversion is running or must wait
        after a failure. Call this method from time to time from the event loop."""
        closed = self._store.closed
        if closed > (self._closed[-1] if self._closed else self._handled):
            self._closed.append(closed)
        self._log_behind()
        loop = asyncio.get_running_loop()
        if self._closed and self._task is None and loop.time() >= self._not_before:
            self._task = self._background.start("the conversion of the trace", self._convert())

    def status(self) -> dict[str, Any]:
        """Return three values: the number of the last converted record, the number of closed segments that wait for
        their conversion, and the reason why the last conversion failed (empty if it succeeded)."""
        return {"converted": self.converted, "segments_behind": len(self._closed), "trouble": self.trouble}

    async def stop(self) -> None:
        """Abandon a conversion in progress; the next start repeats it."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _convert(self) -> None:
        loop = asyncio.get_running_loop()
        upto = self._closed[-1]
        try:
            code, error_text = await self._run()
            if code == 0:
                await self._advance(upto)
            elif code == segments.CONVERTER_BUSY:
                # A process that an earlier server left behind; it will notice that it is no longer needed.
                self._not_before = loop.time() + limits.trace_retry_seconds
            else:
                self._fail(error_text or f"the conversion ended: {how_ended(code)}")
        except (OSError, StoreError) as error:
            self._fail(str(error))
        except Exception as error:
            self._fail(described(error))
            self._background.failed("the conversion of the trace", error)
        finally:
            self._task = None

    async def _run(self) -> tuple[int, str]:
        command = [sys.executable, "-m", segments.CONVERTER, self._directory]
        null = asyncio.subprocess.DEVNULL
        # Not in a separate session: Linux divides CPU time among sessions, and a nice value only has an effect within
        # one.
        process = await asyncio.create_subprocess_exec(
            *command, stdin=null, stdout=null, stderr=asyncio.subprocess.PIPE
        )
        try:
            _, stderr = await process.communicate()
        except asyncio.CancelledError:
            # Until the rename its work has no effect, so it can be killed at any point.
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            with suppress(OSError):
                segments.tidy(self._directory)
            raise
        lines = stderr.decode(errors="replace").strip().splitlines()
        return process.returncode or 0, lines[-1] if lines else ""

    async def _advance(self, upto: int) -> None:
        # A record that ends in the next segment is not converted yet, so this may be less than requested.
        pieces = segments.pieces_in(self._directory)
        self.converted = pieces[-1].upto if pieces else 0
        self._handled = upto
        while self._closed and self._closed[0] <= upto:
            self._closed.popleft()
        self.trouble = ""
        self._wait = limits.trace_retry_seconds
        await asyncio.to_thread(self._release)

    def _fail(self, reason: str) -> None:
        self._log.error("trace-failed", reason=reason, converted=self.converted, again_seconds=self._wait)
        self.trouble = reason
        self._not_before = asyncio.get_running_loop().time() + self._wait
        self._wait = min(2 * self._wait, limits.trace_retry_seconds_max)

    def _log_behind(self) -> None:
        behind = len(self._closed) >= (limits.trace_segments_behind_max if not self._behind else 2)
        if behind != self._behind:
            self._behind = behind
            write_log = self._log.warning if behind else self._log.info
            write_log(
                "trace-behind" if behind else "trace-caught-up", segments=len(self._closed), bytes=self._store.log_bytes
            )
