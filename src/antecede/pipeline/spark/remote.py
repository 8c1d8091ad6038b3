"""Prepare a remote Spark master: check that it answers and has workers, and that the workers can run our code.

If a standalone master does not exist, Spark tries to reach it for more than a minute, and then reports only that Spark
was stopped. So we first open a connection to the master. If a master has no workers yet, they may still be starting. In
this case we print one line and wait. Then we ask the workers which modules they lack. If they lack this package, we
send it to them. If they lack libraries, an error lists these libraries.
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
_connect_s_max = 10.0
_worker_wait_s = 20.0


def check_master(master: str) -> None:
    """Raise an error if no host of a standalone master (``spark://…``) answers. Other kinds of masters are not checked
    here."""
    if not master.startswith(_scheme):
        return
    refused = ""
    for place in master.removeprefix(_scheme).split(","):
        host, _, port = place.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"--master: expected spark://HOST:PORT, not {master!r}")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _connect_s_max):
                return
        except (OSError, UnicodeError) as error:
            refused = getattr(error, "strerror", None) or str(error)
    raise SparkError(f"no Spark master answers at {master}: {refused}")


def prepare_workers(context: Any, scratch: Path) -> None:
    """Make sure that the workers of a remote master can run our code. If they lack this package, write an archive of
    the package to ``scratch`` and send it to them. Raise an error if they lack libraries."""
    # Spark sends a function of module __main__ as its code, not as a name that only this package could resolve.
    ask = FunctionType(_ask.__code__, {"__builtins__": __builtins__, "__name__": "__main__"}, "ask")
    ask.__module__ = "__main__"
    waiting = Timer(_worker_wait_s, _warn_of_no_workers, [context])
    waiting.daemon = True
    waiting.start()
    try:
        answers = context.parallelize(range(64), 64).map(ask).collect()
    finally:
        waiting.cancel()
    missing = {name for one in answers for name in one}
    libraries = sorted(missing & set(_needed))
    if libraries:
        raise SparkError(f"the workers lack {', '.join(libraries)}: install antecede[spark] for the workers' Python")
    if "antecede" in missing:
        context.addPyFile(_package(scratch))


def _warn_of_no_workers(context: Any) -> None:
    with suppress(Exception):
        # The driver is counted too.
        if context._jsc.sc().getExecutorMemoryStatus().size() < 2:
            print(f"antecede: waiting: {context.master} has no free worker yet", file=sys.stderr, flush=True)


def _ask(_: Any) -> list[str]:
    """Return the modules that a worker lacks. This function must run without this package, so it imports everything
    itself."""
    import importlib.util

    wanted = ("antecede", "msgspec", "numba", "numpy", "pyarrow")
    return [name for name in wanted if importlib.util.find_spec(name) is None]


def _package(directory: Path) -> str:
    """Write this package to a zip archive in ``directory``, to be sent to the workers. Return the path of the
    archive."""
    home = Path(antecede.__file__).resolve().parent
    target = directory / "antecede.zip"
    with ZipFile(target, "w", ZIP_DEFLATED) as archive:
        for file in sorted(home.rglob("*.py")):
            archive.write(file, Path("antecede") / file.relative_to(home))
    return str(target)
