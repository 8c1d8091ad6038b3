"""Where in an application's own code an exception came from.

A reason such as ``KeyError: 'key'`` is of no use to whoever wrote the handler. What is wanted is the innermost frame of
their own code: not of this package, which called it, nor of a library that it called.
"""

import os
import sysconfig
import traceback
from pathlib import Path

from antecede.interrupts import is_ctrl_c

_house = f"{Path(__file__).parent}{os.sep}"
_standard, _installed = (
    tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in names})
    for names in (("stdlib", "platstdlib"), ("purelib", "platlib"))
)


def place_of(error: BaseException) -> str:
    """``shop.py:31 in total``; nothing if no code but this package's was run."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    libraries = [one for one in frames if one.filename.startswith(_installed) and not one.filename.startswith(_house)]
    own = [one for one in frames if not one.filename.startswith(("<", _house, *_standard, *_installed))]
    # An application may be installed as a library is: then the first frame after ours is the best that is known.
    if not own and not libraries:
        return ""
    frame = own[-1] if own else libraries[0]
    function = "" if frame.name == "<module>" else f" in {frame.name}"
    return f"{Path(frame.filename).name}:{frame.lineno}{function}"


def described(error: BaseException) -> str:
    """The exception with its place: ``KeyError: 'key' (shop.py:31 in total)``."""
    place = place_of(error)
    return f"{type(error).__name__}: {text_of(error)}" + (f" ({place})" if place else "")


def text_of(error: BaseException) -> str:
    """The exception's own text, as one that can be written down: it is the application's, and may be a text that
    UTF-8 cannot say, or an exception of its own."""
    try:
        # The text of a syntax error names its place already, not always on one line.
        text = str(error.msg) if isinstance(error, SyntaxError) else str(error)
    except BaseException as another:
        if is_ctrl_c(another):
            raise
        return "its text cannot be had"
    return writable(text)


def writable(text: str) -> str:
    """A text with escapes for what UTF-8 cannot say: halves of surrogate pairs."""
    return text.encode(errors="backslashreplace").decode()
