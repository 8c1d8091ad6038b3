"""The Spark pipeline: it judges a recorded trace of any size and gives evidence for the verdict.

This package knows traces, arrays and Spark. Verification uses the trace alone, not the code that implements orders and
servers.

* :func:`verify_files` judges files on a new Spark session (``antecede verify --engine spark``).
* :func:`verify` judges a table with the columns of a trace: a table of pandas, Polars or pyarrow, or a Spark DataFrame.
  A DataFrame is judged in its own session (classic or Spark Connect). :func:`late`, :func:`measure` and :func:`explain`
  answer other questions about the table. :func:`matched` returns the rows of the table that are about messages, and
  adds where each message was sent.
* :func:`session` is the only function that makes a Spark session.
* :func:`missing` lists the modules of the extra ``spark`` that are not installed, and :func:`require` raises an error
  if there are any.

Large libraries are imported only when they are needed.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from antecede.errors import SparkError

if TYPE_CHECKING:
    from antecede.pipeline.frames import explain, late, matched, measure, verify
    from antecede.pipeline.judge.files import verify_files, verify_in
    from antecede.pipeline.sessions import session

_homes = {
    "explain": "frames",
    "late": "frames",
    "matched": "frames",
    "measure": "frames",
    "session": "sessions",
    "verify": "frames",
    "verify_files": "judge.files",
    "verify_in": "judge.files",
}

__all__ = [
    "explain",
    "late",
    "matched",
    "measure",
    "missing",
    "require",
    "session",
    "verify",
    "verify_files",
    "verify_in",
]


_modules = ("numba", "numpy", "pandas", "pyarrow", "pyspark")


def missing() -> list[str]:
    """Return the modules that the pipeline needs and that are not installed."""
    return [name for name in _modules if find_spec(name) is None]


def require() -> None:
    """Raise :class:`SparkError` if a module that the pipeline needs is not installed."""
    absent = missing()
    if absent:
        raise SparkError(f"the spark engine needs {', '.join(absent)}: install antecede[spark]")


def __getattr__(name: str) -> Any:
    if name not in _homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_homes[name]}"), name)
