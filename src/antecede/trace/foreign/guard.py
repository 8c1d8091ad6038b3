"""A guard that ends the search of a regular expression if the search takes too long.

Python's matching is exponential in the worst case: ``(a+)+$`` needs years for forty letters. A limit on the length of
lines does not prevent this, so a timer checks the search at regular intervals. If the same line is being searched at
two successive checks, the search ends with an error that names the line. The timer needs a signal, so the guard works
only in the main thread. In other threads there is no guard.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

from antecede import limits
from antecede.errors import UsageError


class Guard:
    """A context manager. It ends a search that takes too long. Use it once around all searches, and use :meth:`on`
    around the searches of each line."""

    def __init__(self, seconds: float = limits.pattern_seconds_max) -> None:
        self._seconds = seconds
        self._place: tuple[str, int] | None = None
        self._seen: tuple[str, int] | None = None
        self._before: object = None
        self._armed = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
            self._before = signal.signal(signal.SIGALRM, self._look)
            signal.setitimer(signal.ITIMER_REAL, self._seconds, self._seconds)
            self._armed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._armed:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)  # type: ignore[arg-type]
            self._armed = False

    @contextmanager
    def on(self, file: str, line: int) -> Iterator[None]:
        """Return a context manager. While it is open, the guard limits the time of the searches in one line of a
        file."""
        self._place = file, line
        try:
            yield
        finally:
            self._place = None

    def _look(self, number: int, frame: FrameType | None) -> None:
        place = self._place
        if place is not None and place is self._seen:
            raise UsageError(
                f"{place[0]}:{place[1]}: a pattern searched this line for more than {self._seconds:g} s: the pattern "
                "backtracks too much; avoid a repetition in a repetition, such as (a+)+, and begin the pattern with ^"
            )
        self._seen = place
