"""Find the place in an application's own code that an exception came from.

A reason such as ``KeyError: 'key'`` does not show the author of a handler where the error is. The author needs the
innermost frame of the application's own code. Frames of this package (it calls the application) and frames of libraries
(the application calls them) do not help the author.
"""

import os
import sysconfig
import traceback
from pathlib import Path

from antecede import limits
from antecede.interrupts import is_ctrl_c

_package = f"{Path(__file__).parent}{os.sep}"
_standard, _installed = (
    tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in names})
    for names in (("stdlib", "platstdlib"), ("purelib", "platlib"))
)


def place_of(error: BaseException) -> str:
    """Return the place in the application that an exception came from, for example ``shop.py:31 in price_of``. If no
    frame belongs to the application, return the first frame of an installed library. Return an empty string if all
    frames belong to this package, to Python's standard library, or to code without a file. For a SyntaxError in a file,
    return only the file and the line of this error."""
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
