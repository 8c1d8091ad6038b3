"""Find the place in an application's own code that an exception came from.

A reason such as ``KeyError: 'key'`` does not help the author of the handler. They need the innermost frame of their own
code. A frame of this package, which called that code, does not help them, nor does a frame of a library that the code
called.
"""

import os
import sysconfig
import traceback
from pathlib import Path

from antecede import limits
from antecede.interrupts import is_ctrl_c

_house = f"{Path(__file__).parent}{os.sep}"
_standard, _installed = (
    tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in names})
    for names in (("stdlib", "platstdlib"), ("purelib", "platlib"))
)


def place_of(error: BaseException) -> str:
    """Return the place that an exception came from, as ``shop.py:31 in price_of``. It is empty if all frames are of
    this package, of Python's standard library, or of code without a file."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    libraries = [one for one in frames if one.filename.startswith(_installed) and not one.filename.startswith(_house)]
    own = [one for one in frames if not one.filename.startswith(("<", _house, *_standard, *_installed))]
    # An application may be installed like a library: then the first frame after ours is the best guess.
    if not own and not libraries:
        return ""
    frame = own[-1] if own else libraries[0]
    function = "" if frame.name == "<module>" else f" in {frame.name}"
    return f"{Path(frame.filename).name}:{frame.lineno}{function}"


def described(error: BaseException) -> str:
    """Return the exception with its place: ``KeyError: 'key' (shop.py:31 in price_of)``."""
    place = place_of(error)
    return f"{type(error).__name__}: {text_of(error)}" + (f" ({place})" if place else "")


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception; if it is very long, only its beginning and its end."""
    text, most = writable("".join(traceback.format_exception(error)).rstrip()), limits.log_traceback_chars_max
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"


def text_of(error: BaseException) -> str:
    """Return the exception's own text in a form that can be written. The text comes from the application: characters
    that UTF-8 cannot encode are escaped, and if ``str`` raises another exception, a fixed text is returned."""
    try:
        # The text of a syntax error already names its place, sometimes on several lines.
        text = str(error.msg) if isinstance(error, SyntaxError) else str(error)
    except BaseException as another:
        if is_ctrl_c(another):
            raise
        return "its text cannot be read"
    return writable(text)


def writable(text: str) -> str:
    """Return a text with escapes for halves of surrogate pairs, which UTF-8 cannot encode."""
    return text.encode(errors="backslashreplace").decode()
