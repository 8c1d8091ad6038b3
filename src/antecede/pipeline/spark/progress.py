"""Show the user how many tasks of the running Spark jobs are finished."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

Counter = Callable[[], tuple[int, int] | None]
"""A function that returns the number of finished tasks and the number of all tasks; None if these numbers are
unknown."""


@runtime_checkable
class Watching(Protocol):
    """A display of progress. When the display is called with a text, it shows this text. ``watch`` returns a context
    manager. While the block of this context manager runs, the display shows the numbers of ``counter`` next to the
    text."""

    def __call__(self, text: str) -> None: ...

    def watch(self, counter: Counter) -> AbstractContextManager[None]: ...


def shown_tasks(context: Any, report_status: Callable[[str], None]) -> AbstractContextManager[None]:
    """Return a context manager. While its block runs, ``report_status`` shows how many tasks of the running jobs are
    finished. If ``report_status`` cannot show a counter, the context manager does nothing. ``context``: the Spark
    context."""
    return report_status.watch(lambda: tasks_of(context)) if isinstance(report_status, Watching) else nullcontext()


def tasks_of(context: Any) -> tuple[int, int] | None:
    """Return two numbers for the running stages: the finished tasks, and all tasks. Return ``None`` if these numbers
    are unknown or there is at most one task."""
    try:
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:
        # Spark may be ending. That is reported elsewhere.
        return None
    known = [stage for stage in stages if stage is not None]
    total = sum(stage.numTasks for stage in known)
    # A single task has no progress before its end.
    return (sum(stage.numCompletedTasks for stage in known), total) if total > 1 else None
