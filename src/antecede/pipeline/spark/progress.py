"""The progress of the running jobs of a Spark session, to be shown during the work."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

Counter = Callable[[], tuple[int, int] | None]
"""Returns the number of finished tasks and the number of all tasks; None if they are unknown."""


@runtime_checkable
class Watching(Protocol):
    """A function that shows texts and can also show a counter."""

    def __call__(self, text: str) -> None: ...

    def watch(self, counter: Counter) -> AbstractContextManager[None]: ...


def shown_tasks(context: Any, say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Show the tasks of the running jobs beside the texts, if ``say`` can show a counter."""
    return say.watch(lambda: tasks_of(context)) if isinstance(say, Watching) else nullcontext()


def tasks_of(context: Any) -> tuple[int, int] | None:
    """Return the number of finished tasks and of all tasks of the running stages; ``None`` if it is unknown or there is
    at most one task."""
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
