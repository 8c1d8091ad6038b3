"""The Spark pipeline: from a recorded trace alone, at any scale, a verdict with its proof.

This room knows traces, arrays and Spark; verification judges from the trace alone and knows no orders and no servers.

* :func:`verify_files` judges files on a Spark session of its own (``antecede verify --engine spark``).
* :func:`verify` judges a DataFrame with the columns of a trace, on whatever session it belongs to, classic or of Spark
  Connect; or a table of pandas, Polars or pyarrow. :func:`late`, :func:`measure` and :func:`explain` answer the other
  questions about it, and :func:`matched` gives its messages matched.
* :func:`session` is the one place that makes a Spark session.
* :func:`missing` lists what of the extra ``spark`` is not installed, and :func:`require` refuses to go on without it.

Nothing heavy is imported before it is needed.
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
    lacking = missing()
    if lacking:
        raise SparkError(f"the spark engine needs {', '.join(lacking)}: install antecede[spark]")


def __getattr__(name: str) -> Any:
    if name not in _homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_homes[name]}"), name)
