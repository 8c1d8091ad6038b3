"""Decide whether a ``KeyboardInterrupt`` in an application's code is Ctrl-C, or was raised by the application.

Any exception of a handler or an operation counts as its failure, ``KeyboardInterrupt`` included; but Ctrl-C must stop
the program. In ``antecede serve`` the event loop handles SIGINT, as in programs under ``asyncio.run``: Ctrl-C raises
nothing inside application code, so a ``KeyboardInterrupt`` comes from the application. With Python's default handler,
Ctrl-C raises the exception at any point of the program. Then the two cases cannot be distinguished, and the exception
counts as Ctrl-C. Inside :func:`noted` they can be distinguished.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """Raised when SIGTERM ends a command, which then cleans up as after Ctrl-C."""


class _Noting:
    """A handler of SIGINT that calls Python's default handler, and also records that the signal came."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.default_int_handler(number, frame)


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether an exception from an application's code may be Ctrl-C, or is the :class:`Terminated` of
    SIGTERM."""
    if isinstance(error, Terminated):
        return True
    # Python handles signals in the main thread only.
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    return handler.came if isinstance(handler, _Noting) else handler is signal.default_int_handler


@contextmanager
def noted() -> Iterator[None]:
    """Record SIGINT inside the context, so that the answer of ``is_ctrl_c`` is certain. This has no effect outside the
    main thread, or if Python's default handler was replaced."""
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
