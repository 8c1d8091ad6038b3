"""Write tables of measured values (traffic, delays, rates, …) as Parquet files, one file per table.

Each row is one observation. The columns of a table are always the same. For a table without data, a file without rows
is written. Each file is written completely or not at all.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from antecede.errors import TraceError, UsageError
from antecede.trace.schema import INT64_MAX, INT64_MIN

Tables = dict[str, list[dict[str, Any]]]

COLUMNS: dict[str, dict[str, str]] = {
    "traffic": {"from": "string", "to": "string", "messages": "int64", "bytes": "int64"},
    "delay": {
        "from": "string",
        "to": "string",
        "deliveries": "int64",
        "negative": "int64",
        "mean": "float64",
        "p50": "float64",
        "p99": "float64",
        "min": "float64",
        "max": "float64",
    },
    "rates": {"process": "string", "second": "int64", "messages": "int64"},
    "held": {"process": "string", "arrivals": "int64", "held": "int64"},
    "hops": {"router": "string", "domain": "string", "hop": "int64", "messages": "int64", "stamp_bytes": "int64"},
}
"""Every table's columns and their types."""


def write_tables(directory: str | os.PathLike[str], tables: Tables) -> None:
    """Write each table into the directory, as ``NAME.parquet``."""
    try:
        pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError("Parquet needs pyarrow: install antecede[spark]") from None
    target = Path(directory)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, rows in tables.items():
            schema = pa.schema([(column, getattr(pa, kind)()) for column, kind in COLUMNS[name].items()])
            temporary = target / f".{name}.parquet.{os.getpid()}.part"
            try:
                pq.write_table(pa.Table.from_pylist(list(map(_fitting, rows)), schema=schema), temporary)
                os.replace(temporary, target / f"{name}.parquet")
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise TraceError(f"{target}: cannot be written: {error.strerror or error}") from None


def _fitting(row: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a row, in which each integer that needs more than 64 bits is replaced by ``None``. Such an
    integer is a sum of sizes. It can be so large only if the trace contains wrong sizes."""
    return {
        name: None if type(value) is int and not INT64_MIN <= value <= INT64_MAX else value
        for name, value in row.items()
    }
