"""Progress of long work on a terminal: what is done, how much of it, percent and time left. Elsewhere nothing is shown.

Work that knows its steps reports them (:func:`bar`). Work that must not stop for that only counts, and its counter is
read now and then (:func:`watched`).
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

Say = Callable[[str], None]
"""Sets the text."""

Tell = Callable[[int, int], None]
"""Reports how many steps are done, and how many there are."""

_pause_seconds = 0.2


@contextmanager
def bar(text: str) -> Iterator[tuple[Say, Tell]]:
    """Show a progress bar; yield the functions that set its text and its numbers."""
    if not sys.stderr.isatty():
        yield lambda _: None, lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=None)
        yield (
            lambda text: shown.update(task, description=text),
            lambda done, total: shown.update(task, completed=done, total=total),
        )


@contextmanager
def watched(text: str, total: int, done: Callable[[], int]) -> Iterator[None]:
    """Show a progress bar while work goes on; ``done`` is its counter."""
    if not sys.stderr.isatty():
        yield
        return
    ended = Event()
    with bar(text) as (_, tell):

        def watch() -> None:
            while not ended.wait(_pause_seconds):
                tell(min(done(), total), total)

        watcher = Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
