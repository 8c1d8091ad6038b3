"""Decides whether a ``KeyboardInterrupt`` in an application's code is Ctrl-C, or the application's own.

Whatever a handler or an operation raises is its failure, ``KeyboardInterrupt`` included; but Ctrl-C must stop the
program. ``antecede serve`` has its event loop handle SIGINT, as programs under ``asyncio.run`` do: there Ctrl-C raises
nothing inside application code, and a ``KeyboardInterrupt`` is the application's own. Where Python's default handler is
in force, Ctrl-C raises wherever the program is. Nobody can tell the two apart then, and Ctrl-C wins; inside
:func:`noted` they can be told apart.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """Raised where a command is told to end by SIGTERM: it cleans up as after Ctrl-C."""


class _Noting:
    """Python's default handler of SIGINT, with a note that the signal came."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.default_int_handler(number, frame)


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether an exception that left an application's code may be Ctrl-C."""
    if isinstance(error, Terminated):
        return True
    # Python handles signals in the main thread only.
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    return handler.came if isinstance(handler, _Noting) else handler is signal.default_int_handler


@contextmanager
def noted() -> Iterator[None]:
    """Note SIGINT meanwhile, so that ``is_ctrl_c`` is certain; only where Python's default handler is in force."""
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
