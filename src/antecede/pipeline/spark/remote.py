"""A remote master: does it answer, has it workers, and have they what our stages need?

A standalone master that is not there would be tried for more than a minute, and what Spark says then is that it was
stopped; so we knock first. A master without workers is legitimate, they may be on their way: that is said once, and we
wait. The workers are asked what they have. The package itself is shipped if they lack it; of libraries that they lack
we can only say so.
"""

import socket
import sys
from contextlib import suppress
from pathlib import Path
from threading import Timer
from types import FunctionType
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import antecede
from antecede.errors import SparkError, UsageError

_needed = ("msgspec", "numba", "numpy", "pyarrow")
_scheme = "spark://"
_knock_s_max = 10.0
_patience_s = 20.0


def answering(master: str) -> None:
    """Refuse a standalone master of which nobody answers; other kinds of masters are left to Spark."""
    if not master.startswith(_scheme):
        return
    refused = ""
    for place in master.removeprefix(_scheme).split(","):
        host, _, port = place.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"--master: expected spark://HOST:PORT, not {master!r}")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _knock_s_max):
                return
        except (OSError, UnicodeError) as error:
            refused = getattr(error, "strerror", None) or str(error)
    raise SparkError(f"no Spark master answers at {master}: {refused}")


def outfit(context: Any, scratch: Path) -> None:
    """See that the workers of a remote master can run our stages; ``scratch`` holds what is shipped to them."""
    # A function of module __main__ travels as its code, not as a name that only this package could resolve.
    ask = FunctionType(_ask.__code__, {"__builtins__": __builtins__, "__name__": "__main__"}, "ask")
    ask.__module__ = "__main__"
    waiting = Timer(_patience_s, _say_that_nobody_comes, [context])
    waiting.daemon = True
    waiting.start()
    try:
        said = context.parallelize(range(64), 64).map(ask).collect()
    finally:
        waiting.cancel()
    lacking = {name for one in said for name in one}
    libraries = sorted(lacking & set(_needed))
    if libraries:
        raise SparkError(f"the workers lack {', '.join(libraries)}: install antecede[spark] where their Python is")
    if "antecede" in lacking:
        context.addPyFile(_package(scratch))


def _say_that_nobody_comes(context: Any) -> None:
    with suppress(Exception):
        # The driver counts as one.
        if context._jsc.sc().getExecutorMemoryStatus().size() < 2:
            print(f"antecede: waiting: {context.master} has no worker for us yet", file=sys.stderr, flush=True)


def _ask(_: Any) -> list[str]:
    """What a worker lacks. It must not need this package to run, so it imports everything itself."""
    import importlib.util

    wanted = ("antecede", "msgspec", "numba", "numpy", "pyarrow")
    return [name for name in wanted if importlib.util.find_spec(name) is None]


def _package(directory: Path) -> str:
    """This package as an archive that Spark hands to its workers."""
    home = Path(antecede.__file__).resolve().parent
    target = directory / "antecede.zip"
    with ZipFile(target, "w", ZIP_DEFLATED) as archive:
        for file in sorted(home.rglob("*.py")):
            archive.write(file, Path("antecede") / file.relative_to(home))
    return str(target)
