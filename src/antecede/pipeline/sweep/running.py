"""Run the cells of a sweep on Spark. Each cell is a separate job with one task; on each core, one cell runs at a time.

With one job per cell, a finished cell can be stored immediately, and a failed cell does not affect others. If the code
of a cell raises an error, the task reports the error. If the worker dies, the job reports this. If Spark itself ends,
the sweep ends too, and the finished cells are kept.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

import msgspec

from antecede.errors import AntecedeError
from antecede.pipeline.sessions import one_line
from antecede.pipeline.sweep.cells import Cell, Row, Study, measured

_poll_seconds = 1.0
"""The progress is reported each time a cell ends. While no cell ends, it is reported at this interval."""


class Failure(msgspec.Struct, frozen=True):
    """A cell that failed, the reason, and the command that runs the cell again."""

    cell: Cell
    error: str
    command: str


class Progress:
    """Counts the finished cells of a sweep, and estimates the finished share of the work and the remaining time."""

    def __init__(self, cells: Sequence[Cell], kept: int) -> None:
        self._efforts = {cell.key: cell.effort() for cell in cells}
        self._all = sum(self._efforts.values()) or 1.0
        self._began = perf_counter()
        self._ended = 0.0
        self.total = len(cells) + kept
        self.done = kept
        self.failed = 0

    def count(self, cell: Cell, failed: bool) -> None:
        """Count a cell that ended."""
        self._ended += self._efforts[cell.key]
        self.failed += failed
        self.done += not failed

    def text(self, now: float | None = None) -> str:
        """Return a line such as ``12 of 50 cells, 31 %, 4 min left``."""
        share = self._ended / self._all
        text = f"{self.done} of {self.total} cells, {share:.0%}"
        if self.failed:
            text += f", {self.failed} failed"
        if 0 < share < 1:
            elapsed = (perf_counter() if now is None else now) - self._began
            text += f", {_duration(elapsed * (1 - share) / share)} left"
        return text


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"


def carry_out(
    context: Any,
    cells: Sequence[Cell],
    keep: Callable[[Row], None],
    report: Callable[[Failure], None],
    progress: Progress,
    report_status: Callable[[str], None],
    study: Study,
) -> None:
    """Run the cells, the longest first. When a cell ends, call ``keep`` with its row, or ``report`` with its failure.
    While cells run, call ``report_status`` with a text about the progress. ``study`` must be a function at the top
    level of a module, because Spark sends it to the workers."""
    waiting = sorted(cells, key=lambda cell: -cell.effort())
    pool = ThreadPoolExecutor(max(1, context.defaultParallelism))
    try:
        open_: dict[Future[Row | str], Cell] = {pool.submit(_job, context, cell, study): cell for cell in waiting}
        while open_:
            report_status(progress.text())
            ended, _ = wait(open_, _poll_seconds, FIRST_COMPLETED)
            for future in ended:
                cell = open_.pop(future)
                found = future.result()
                if isinstance(found, Row):
                    keep(found)
                else:
                    report(Failure(cell, found, cell.command()))
                progress.count(cell, not isinstance(found, Row))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        with suppress(Exception):
            context.cancelAllJobs()
        raise
    pool.shutdown()


def _job(context: Any, cell: Cell, study: Study) -> Row | str:
    """Run one cell as a job. Return its row, or the reason why it failed."""
    given = msgspec.json.encode(cell)
    try:
        with one_line():
            found = context.parallelize([given], 1).map(partial(_task, study)).collect()[0]
    except AntecedeError as error:
        if context._jsc is None or context._jsc.sc().isStopped():
            raise
        return str(error)
    return msgspec.json.decode(found[1:], type=Row) if found[:1] == b"+" else found[1:].decode()


def _task(study: Study, given: bytes) -> bytes:
    """Run a cell in a worker. Return bytes: ``+`` followed by the row of the cell, or ``-`` followed by the error."""
    try:
        return b"+" + msgspec.json.encode(measured(msgspec.json.decode(given, type=Cell), study))
    except AntecedeError as error:
        return b"-" + str(error).encode()
    except Exception as error:
        # An order may come from another package and fail in any way; the other cells continue.
        return b"-" + f"{type(error).__name__}: {error}".encode()
