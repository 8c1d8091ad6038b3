"""Which engine answers a question about a trace: the plain one in this process, or Spark.

``auto`` takes the plain engine for what it can answer at once, and wherever Spark is not installed.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from antecede.errors import TraceError, UsageError
from antecede.trace.sources import shown, trace_files

ENGINES = ("auto", "plain", "spark")

_plain_bytes_max = 64 * 1024 * 1024
"""As much text as the plain engine reads before Spark has started."""


def chosen_engine(engine: str, master: str | None, conf: list[str] | None, paths: list[str]) -> str:
    """Return ``plain`` or ``spark``, by what was asked for and by the size of the files; refuse a Spark that is not
    installed before anything is read."""
    if engine not in ENGINES:
        raise UsageError(f"--engine must be one of {', '.join(ENGINES)}, not {engine!r}")
    if engine == "plain" and (master is not None or conf):
        raise UsageError("--master and --conf are for --engine spark")
    from antecede.pipeline import missing, require

    if engine == "spark" or master is not None or conf:
        require()
        return "spark"
    if engine == "plain":
        return "plain"
    return "spark" if _text_bytes(paths) > _plain_bytes_max and not missing() else "plain"


@contextmanager
def trace_inputs(paths: list[str]) -> Iterator[list[str]]:
    """What to read for what was named: a server's data directory stands for its trace, while the context lasts."""
    if all(path == "-" or "://" in path or os.path.isfile(path) for path in paths):
        yield paths
        return
    from antecede.runtime.gathering import gathered

    with gathered(paths) as files:
        yield files


def spark_settings(conf: list[str] | None) -> dict[str, str]:
    """``--conf KEY=VALUE`` as a table."""
    settings = {}
    for given in conf or []:
        key, equals, value = given.partition("=")
        if not equals or not key.startswith("spark."):
            raise UsageError(f"--conf: expected spark.KEY=VALUE, not {given!r}")
        settings[key] = value
    return settings


def _text_bytes(paths: list[str]) -> int:
    """Roughly how large a trace is as plain text, from the sizes of its files; 0 where only reading can tell."""
    size = 0
    if any("://" in path for path in paths):
        return _plain_bytes_max + 1
    for path in trace_files(paths)[0]:
        try:
            factor = 10 if path.lower().endswith(".gz") else 3 if path.lower().endswith(".parquet") else 1
            size += factor * os.path.getsize(path) if path != "-" else 0
        except OSError as error:
            raise TraceError(f"{shown(path)}: cannot be read: {error.strerror}") from None
    return size


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Something to look at on a terminal while the work goes on, and a way to say what it is at."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield lambda text: status.update(text)
