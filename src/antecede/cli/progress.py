"""Progress of long work: the work, how much is done, percent and time left. It is shown only on a terminal.

Use :func:`bar` for work that reports each step. Use :func:`watched` for work that must not stop to report: it only
counts its steps, and its counter is read at intervals. Use :func:`status` for work in several phases: it sets a text
for each phase, and may pass a counter of the present phase. Use :func:`line` for many short pieces of work: it shows a
line after each piece.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

Say = Callable[[str], None]
"""A function that sets the text of the progress."""

Tell = Callable[[int, int], None]
"""A function that reports how many steps are done, and how many there are."""

_pause_seconds = 0.2
_patience_seconds = 2.0


@contextmanager
def bar(text: str) -> Iterator[tuple[Say, Tell]]:
    """Show a progress bar; yield the functions that set its text and its numbers."""
    if not sys.stderr.isatty():
        yield lambda _: None, lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    # The numbers of steps stand between the bar and the percentage.
    about, shape, *rest = Progress.get_default_columns()
    columns = (about, shape, MofNCompleteColumn(), *rest)
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=None)
        yield (
            lambda text: shown.update(task, description=text),
            lambda done, total: shown.update(task, completed=done, total=total),
        )


@contextmanager
def watched(text: str, total: int, done: Callable[[], int]) -> Iterator[None]:
    """Show a progress bar while work goes on; ``done`` returns the number of its steps so far."""
    if not sys.stderr.isatty():
        yield
        return
    with bar(text) as (_, tell), _repeated(lambda: tell(min(done(), total), total)):
        yield


def line(text: str) -> None:
    """Show a text on a terminal instead of the previous one."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="\r", file=sys.stderr, flush=True)


@contextmanager
def _repeated(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` repeatedly in another thread, as long as the context is open."""
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
        watcher.join(_patience_seconds)


class Status:
    """A text on a terminal. While a counter is watched, the text also shows how much of the present phase is done, and
    the time left."""

    def __init__(self, show: Say, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock = show, clock
        self(text)

    def __call__(self, text: str) -> None:
        """Begin a phase."""
        self._text, self._began = text, self._clock()
        self._show(text)

    @contextmanager
    def watch(self, counter: Callable[[], tuple[int, int] | None]) -> Iterator[None]:
        """Show the numbers of a counter: how much is done, and how much there is. ``None``: the counter does not
        know."""
        with _repeated(lambda: self.tell(counter())):
            yield

    def tell(self, counted: tuple[int, int] | None) -> None:
        """Show the progress of the phase: ``counted`` is what is done, and the total; None: not known."""
        if counted is None or not counted[1]:
            return
        done, total = counted
        text = f"{self._text}: {done / total:.0%} ({done:,} of {total:,} tasks)"
        if done:
            left = (self._clock() - self._began) * (total - done) / done
            text += f", {left:.0f} s left"
        self._show(text)


@contextmanager
def status(text: str) -> Iterator[Say]:
    """Show on a terminal what is being done; yield a function that sets the text (on a terminal, a :class:`Status`)."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as shown:
        yield Status(lambda text: shown.update(text), text)
