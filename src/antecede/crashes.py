"""Internal errors: one line for the user, a full report in a file, exit code 2.

Exit code 1 means "the property is violated". Python itself would also exit with 1 after an uncaught exception, so every
entry point runs inside :func:`guarded`. The reports are private to their user, limited in number and size, and contain
the traceback, the versions and the command line. From this package, this module imports only ``antecede.limits``, so
that it works even if the other modules cannot be imported.
"""

import os
import re
import signal
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress

from antecede import limits

interrupted = 130
"""The exit code after Ctrl-C."""

broken_pipe = 141
"""The exit code if the program that reads our output, such as ``head``, ended early. Shells report 141 for SIGPIPE."""


def guarded(main: Callable[[], int]) -> int:
    """Run an entry point and return its exit code. After Ctrl-C, return 130. If the program that reads our output has
    ended early, return 141. If the entry point calls ``sys.exit`` with 0, 2 or a code above 128, return this code.
    After any other call of ``sys.exit``, and after any other exception, report an internal error and return 2."""
    try:
        return main()
    except KeyboardInterrupt:
        print_error("interrupted")
        return interrupted
    except BrokenPipeError:
        discard_output()
        return broken_pipe
    except SystemExit as stop:
        if isinstance(stop.code, int) and (stop.code in (0, 2) or stop.code > 128):
            return stop.code
        return crashed(stop)
    except BaseException as error:
        return crashed(error)


def crashed(error: BaseException) -> int:
    """Write the full report of an unexpected error to a file, and print one line that names the error and the file.
    Return the exit code."""
    reason = _summary(error)
    try:
        where = f"full report: {_write(error)}"
    except Exception as failure:
        where = f"the full report cannot be written: {_summary(failure)}"
    print_error(f"internal error: {reason}; {where}")
    return 2


def how_ended(code: int) -> str:
    """Return how a process with this return code has ended: ``exit code 3`` or ``signal SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    known = {one.value: one.name for one in signal.Signals}
    return f"signal {known.get(-code, -code)}"


def escaped(text: str) -> str:
    """Return a text as a terminal may get it. Names, labels and reasons come from clients, files and other servers, and
    a terminal would execute the control characters in them, or show their letters in another sequence."""
    return _controls.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


_controls = re.compile("[\x00-\x08\x0b-\x1f\x80-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""The control characters except line break and tab, and the characters that change the direction of a text. Delete
(\\x7f) is left out: a terminal ignores it, and JSON has it without an escape."""


def print_error(reason: str) -> None:
    """Print a message on standard error, as one line that begins with "antecede: "."""
    print_line("antecede: " + " ".join(reason.split()))


def print_line(line: str) -> None:
    """Print one line on standard error. If that is not possible, for example because the terminal was closed or the
    disk is full, drop the line. Later calls still try to print their lines."""
    if sys.stderr is None:
        return
    with suppress(OSError, ValueError):
        print(escaped(line), file=sys.stderr, flush=True)
        return
    # Python would flush the line again at its end, fail, and change the exit code.
    with suppress(OSError, ValueError):
        target = sys.stderr.fileno()
        real = os.dup(target)
        try:
            _redirect(2)
            sys.stderr.flush()
        finally:
            os.dup2(real, target)
            os.close(real)


def discard_output() -> None:
    """Discard everything that is written to standard output from now on, because its reader is gone. This includes the
    text that Python flushes when it exits."""
    _redirect(1)


def reports_folder() -> str:
    """Return the directory of this user's reports, which is inside the temporary directory of the machine."""
    return os.path.join(tempfile.gettempdir(), f"antecede-crashes-{os.getuid()}")


def _redirect(descriptor: int) -> None:
    # A program that runs commands in its own process may have replaced the stream by one that is not a file.
    stream = sys.stdout if descriptor == 1 else sys.stderr
    with suppress(OSError, ValueError):
        target = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, target)
        os.close(null)


def _summary(error: BaseException) -> str:
    """Return the type, the text and the source line of an exception. This function does not fail, even if the
    ``__str__`` method of the exception fails."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(its text cannot be shown)"
    if len(text) > _text_chars_max:
        text = text[:_text_chars_max] + " …"
    return type(error).__name__ + (f": {text}" if text else "") + _place(error)


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"


def _write(error: BaseException) -> str:
    import time
    from secrets import token_hex

    folder = reports_folder()
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    # All users share the temporary directory: another user may have made this folder, or a link in its place.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not a directory that belongs to this user")
    text = _report(error).encode("utf-8", "backslashreplace")[: limits.crash_report_bytes_max]
    path = os.path.join(folder, time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + f"{os.getpid()}-{token_hex(4)}.txt")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as out:
        out.write(text)
    _drop_oldest(folder)
    return path


def _report(error: BaseException) -> str:
    import platform
    import shlex
    import traceback

    from antecede import __version__

    # A deep recursion may have a million calls; the last ones show the cycle.
    trace = "".join(traceback.format_exception(error, limit=-_frames_max))
    return (
        f"command: {shlex.join(map(str, sys.orig_argv))}\n"
        f"antecede {__version__}, Python {platform.python_version()} ({sys.executable}), {platform.platform()}\n"
        f"{_libraries()}\n\n{trace}"
    )


def _libraries() -> str:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in ("msgspec", "typer", "rich", "uvloop", "pyspark", "pyarrow", "numpy", "numba", "pandas"):
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def _drop_oldest(folder: str) -> None:
    reports = sorted(name for name in os.listdir(folder) if name.endswith(".txt"))
    for name in reports[: -limits.crash_reports_max]:
        # Another process may have removed it just now.
        with suppress(OSError):
            os.unlink(os.path.join(folder, name))


_text_chars_max = 300
_frames_max = 200
