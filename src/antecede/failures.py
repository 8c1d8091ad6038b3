"""Exceptions in an application's code: whether Ctrl-C caused them, what they say, and where in the application they
came from."""

import os
import signal
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from antecede import limits


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
    """Return whether an exception in an application's code comes from SIGTERM, or may come from Ctrl-C.

    If a handler or an operation raises any exception, even ``KeyboardInterrupt``, this handler or operation has failed.
    But Ctrl-C must stop the program. There are two cases:

    * In ``antecede serve``, and in programs that run in ``asyncio.run``, the event loop handles SIGINT. Then Ctrl-C
      raises no exception inside application code, so a ``KeyboardInterrupt`` comes from the application.
    * With Python's default handler of SIGINT, Ctrl-C may raise ``KeyboardInterrupt`` at any point of the program. Then
      the origin of the exception is not known, and the exception is treated like Ctrl-C. Inside :func:`noted`, however,
      the origin is known.
    """
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


_package = f"{Path(__file__).parent}{os.sep}"
_standard, _installed = (
    tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in names})
    for names in (("stdlib", "platstdlib"), ("purelib", "platlib"))
)


def place_of(error: BaseException) -> str:
    """Return the place in the application that an exception came from, for example ``shop.py:31 in price_of``. If no
    frame belongs to the application, return the first frame of an installed library. Return an empty string if all
    frames belong to this package, to Python's standard library, or to code without a file. For a SyntaxError in a file,
    return only the file and the line of this error.

    A reason such as ``KeyError: 'key'`` does not show the author of a handler where the error is. The author needs the
    innermost frame of the application's own code. Frames of this package (it calls the application) and frames of
    libraries (the application calls them) do not help the author.
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    libraries = [one for one in frames if one.filename.startswith(_installed) and not one.filename.startswith(_package)]
    own = [one for one in frames if not one.filename.startswith(("<", _package, *_standard, *_installed))]
    # An application may be installed like a library: then the first frame after ours is the best guess.
    if not own and not libraries:
        return ""
    frame = own[-1] if own else libraries[0]
    function = "" if frame.name == "<module>" else f" in {frame.name}"
    return f"{Path(frame.filename).name}:{frame.lineno}{function}"


def described(error: BaseException) -> str:
    """Return the type, text and place of an exception, for example ``KeyError: 'key' (shop.py:31 in price_of)``."""
    place = place_of(error)
    return f"{type(error).__name__}: {text_of(error)}" + (f" ({place})" if place else "")


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception; if it is very long, only its beginning and its end."""
    text, most = writable("".join(traceback.format_exception(error)).rstrip()), limits.log_traceback_chars_max
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"


def text_of(error: BaseException) -> str:
    """Return the text of an exception. The exception may come from the application, so its text may contain characters
    that UTF-8 cannot encode; these are escaped. If ``str(error)`` itself raises an exception, return a fixed text."""
    try:
        # The text of a syntax error already names its place, sometimes on several lines.
        text = str(error.msg) if isinstance(error, SyntaxError) else str(error)
    except BaseException as another:
        if is_ctrl_c(another):
            raise
        return "its text cannot be read"
    return writable(text)


def writable(text: str) -> str:
    """Return the text with each surrogate character replaced by an escape, because UTF-8 cannot encode surrogates."""
    return text.encode(errors="backslashreplace").decode()
