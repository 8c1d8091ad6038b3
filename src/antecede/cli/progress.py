"""Show the progress of long work on a terminal: a text, how much is done, the percentage and the time left. If standard
error is not a terminal, show nothing.

* :func:`bar` is for work that reports each step.
* :func:`watched` is for work that would become slower if it reported each step. The work only counts its steps, and
  another thread reads the counter at intervals.
* :func:`status` is for work in several phases. The work sets a text for each phase, and may pass a counter of the
  current phase.
* :func:`line` is for many short pieces of work. Each call shows one line in place of the previous line.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from antecede.cli.terminal import rich_console, unguarded
from antecede.crashes import escaped

ReportStatus = Callable[[str], None]
"""A function that sets the text next to a progress bar, or the text that :func:`status` shows."""

ReportProgress = Callable[[int, int], None]
"""A function that sets two numbers of a progress bar: the number of finished steps, and the number of all steps."""

_pause_seconds = 0.2
_join_seconds = 2.0


@contextmanager
def bar(text: str) -> Iterator[tuple[ReportStatus, ReportProgress]]:
    """Show a progress bar while the context is open. Yield two functions: one sets the text of the bar, the other sets
    its numbers."""
    if not sys.stderr.isatty():
        yield lambda _: None, lambda done, total: None
        return
    from rich.progress import MofNCompleteColumn, Progress

    # The numbers of steps stand between the bar and the percentage.
    about, shape, *rest = Progress.get_default_columns()
    columns = (about, shape, MofNCompleteColumn(), *rest)
    with Progress(*columns, console=rich_console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=None)
        yield (
            lambda text: shown.update(task, description=text),
            lambda done, total: shown.update(task, completed=done, total=total),
        )


@contextmanager
def watched(text: str, total: int, done: Callable[[], int]) -> Iterator[None]:
    """Show a progress bar while the context is open. ``done``: a function that returns how many of the ``total`` steps
    are finished. It is called at intervals, in another thread."""
    if not sys.stderr.isatty():
        yield
        return
    with bar(text) as (_, report_progress), _repeated(lambda: report_progress(min(done(), total), total)):
        yield


def line(text: str) -> None:
    """Show a text on a terminal, in place of the text that the previous call showed."""
    if sys.stderr.isatty():
        print(f"\r\033[K{escaped(text)}", end="\r", file=unguarded(sys.stderr), flush=True)


@contextmanager
def _repeated(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` at short intervals in another thread while the context is open."""
    ended = Event()

    def watch() -> None:
        while not ended.wait(_pause_seconds):
            act()

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        # What it asks may no longer answer, for instance after Ctrl-C.
        watcher.join(_join_seconds)


class Status:
    """Shows a text on a terminal. While a counter is watched, the text also says how much of the current phase is done,
    and how much time is left."""

    def __init__(self, show: ReportStatus, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock = show, clock
        self(text)

    def __call__(self, text: str) -> None:
        """Begin a phase of the work, and show its text."""
        self._text, self._began = text, self._clock()
        self._show(text)

    @contextmanager
    def watch(self, counter: Callable[[], tuple[int, int] | None]) -> Iterator[None]:
        """Call ``counter`` at intervals while the context is open, and show its two numbers: the finished tasks and all
        tasks. ``counter`` returns None if the numbers are not known."""
        with _repeated(lambda: self.tell(counter())):
            yield

    def tell(self, counted: tuple[int, int] | None) -> None:
        """Show the progress of the current phase. ``counted``: the number of finished tasks and the number of all
        tasks. It is None if these numbers are not known. Then the shown text does not change."""
        if counted is None or not counted[1]:
            return
        done, total = counted
        text = f"{self._text}: {done / total:.0%} ({done:,} of {total:,} tasks)"
        if done:
            left = (self._clock() - self._began) * (total - done) / done
            text += f", {left:.0f} s left"
        self._show(text)


@contextmanager
def status(text: str) -> Iterator[ReportStatus]:
    """Show a text on a terminal while the context is open. Yield a function that changes the text. If standard error is
    a terminal, this function is a :class:`Status`."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with rich_console(stderr=True).status(text) as shown:
        yield Status(lambda text: shown.update(text), text)
