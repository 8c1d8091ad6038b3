"""Decide whether a ``KeyboardInterrupt`` in an application's code comes from Ctrl-C, or was raised by the application.

If a handler or an operation raises any exception, even ``KeyboardInterrupt``, this handler or operation has failed. But
Ctrl-C must stop the program. There are two cases:

* In ``antecede serve``, and in programs that run in ``asyncio.run``, the event loop handles SIGINT. Then Ctrl-C raises
  no exception inside application code, so a ``KeyboardInterrupt`` comes from the application.
* With Python's default handler of SIGINT, Ctrl-C may raise ``KeyboardInterrupt`` at any point of the program. Then the
  origin of the exception is not known, and the exception is treated like Ctrl-C. Inside :func:`noted`, however, the
  origin is known.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """Raised when SIGTERM ends a command, so that the command cleans up in the same way as after Ctrl-C."""


class _Noting:
    """A handler of SIGINT that records that the signal came, and then calls Python's default handler."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.default_int_handler(number, frame)


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether an exception in an application's code comes from SIGTERM, or may come from Ctrl-C."""
    if isinstance(error, Terminated):
        return True
    # Python handles signals in the main thread only.
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    return handler.came if isinstance(handler, _Noting) else handler is signal.default_int_handler


@contextmanager
def noted() -> Iterator[None]:
    """Return a context manager that records whether SIGINT comes while its ``with`` block runs. So the answer of
    ``is_ctrl_c`` is certain inside this block. The context manager does nothing in two cases: outside the main thread,
    and if the program has replaced Python's default handler of SIGINT."""
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, _Noting())
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
