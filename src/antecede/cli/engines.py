"""Choose the engine that answers a question about a trace: the plain engine in this process, or Spark.

With ``--engine auto``, Spark is chosen if an option for Spark is given (``--master`` or ``--conf``). Without such an
option, Spark is chosen if it is installed and one of two conditions holds: a path is a URL, or the plain engine would
take longer than Spark takes to start. Otherwise the plain engine is chosen.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from antecede.errors import UsageError, similar
from antecede.trace.sources import size_of

ENGINES = ("auto", "plain", "spark")
ORDERS = ("fifo", "causal", "total", "synchronous", "significant")
"""The orders that both engines can check."""

_spark_starts_seconds = 15.0
"""The estimated time from the start of Spark until it reads the first event."""

_plain_event_seconds = 8e-6
"""The time that the plain engine takes to read, match and judge one event. Measured: 8.1 to 9.3 µs of CPU time on a
busy machine, from Parquet and from JSON Lines, with 8 to 1,024 processes."""

_entry_seconds = {True: 1e-9, False: 5e-9}
"""The additional time per event and process. For each event, the plain engine computes a vector that has one entry per
process. The key is True if numpy is installed."""


def chosen_engine(engine: str, master: str | None, conf: list[str] | None, paths: list[str]) -> str:
    """Return the engine to use, ``plain`` or ``spark``. The docstring of this module says how the choice depends on the
    options and on the paths. If the options demand Spark but Spark is not installed, raise an error before anything is
    read."""
    if engine not in ENGINES:
        raise UsageError(f"--engine must be one of {', '.join(ENGINES)}, not {engine!r}")
    if engine == "plain" and (master is not None or conf):
        raise UsageError("--master and --conf are for --engine spark")
    from antecede.pipeline import missing, require

    if engine == "spark" or master is not None or conf:
        require()
        return "spark"
    if engine == "plain" or missing():
        return "plain"
    if any("://" in path for path in paths):
        return "spark"
    size = size_of(paths)
    return "spark" if plain_seconds(size.events, size.processes) > _spark_starts_seconds else "plain"


def asked_orders(text: str) -> tuple[str, ...]:
    """Return the orders in ``text``, a list of names that are separated by commas."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ORDERS:
            raise UsageError(f"--order: {name!r} is not one of {', '.join(ORDERS)}{similar(name, ORDERS)}")
    return tuple(dict.fromkeys(names))


def plain_seconds(events: int, processes: int) -> float:
    """Estimate how many seconds the plain engine takes for a trace."""
    return events * (_plain_event_seconds + processes * _entry_seconds[find_spec("numpy") is not None])


@contextmanager
def trace_inputs(paths: list[str]) -> Iterator[list[str]]:
    """Yield the files to read for the given paths. Instead of the data directory of a server (a path, or a folder below
    a path), yield files with the server's trace. Some of these files are temporary, and are deleted when the context
    ends."""
    if all(path == "-" or "://" in path or os.path.isfile(path) for path in paths):
        yield paths
        return
    from antecede.recording.segments import gathered

    with gathered(paths) as files:
        yield files


def spark_settings(conf: list[str] | None) -> dict[str, str]:
    """Return the options ``--conf KEY=VALUE`` as a dictionary from key to value."""
    settings = {}
    for given in conf or []:
        key, equals, value = given.partition("=")
        if not equals or not key.startswith("spark."):
            raise UsageError(f"--conf: expected spark.KEY=VALUE, not {given!r}")
        settings[key] = value
    return settings
