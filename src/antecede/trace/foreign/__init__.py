"""Traces from other systems: logs with vector clocks, spans of distributed tracing, editing sessions.

This package converts such records into our own schema. Every host, service or agent becomes a process, and its events
get indices from 0. If a process P learned of an event of a process Q, the trace gets a message from Q to P. The package
only reads files. It must not judge their content.

* :func:`convert` converts files of a known format into a trace and a report.
* :func:`convert_mapped` does the same for any other log. A :class:`Mapping` says which fields of the log to use.
* :func:`recognised` returns the foreign format of a file. It is for code that expected one of our own traces.
"""

import os

from antecede.errors import TraceError
from antecede.trace.foreign.convert import FORMATS, OURS, convert, guess
from antecede.trace.foreign.mapped import convert_mapped
from antecede.trace.foreign.mapping import (
    PRESETS,
    LoggedEvent,
    Mapping,
    Pattern,
    Plan,
    Value,
    choose,
    nanoseconds,
    pairs_of,
    read_mapping,
    write_mapping,
)
from antecede.trace.foreign.records import Guard, Unreadable, files_of, opened, parquet_columns

__all__ = [
    "FORMATS",
    "PRESETS",
    "Guard",
    "LoggedEvent",
    "Mapping",
    "Pattern",
    "Plan",
    "Value",
    "choose",
    "columns_of_parquet",
    "convert",
    "convert_mapped",
    "files_of",
    "nanoseconds",
    "pairs_of",
    "read_mapping",
    "recognised",
    "write_mapping",
]


def recognised(path: str) -> str | None:
    """Return the foreign format of a file, as the beginning of the file shows it. Return ``None`` if the format is
    unknown, or if the file is one of our own traces. Also return ``None`` if the file is not regular or not
    readable."""
    # A pipe has already been read; reading again would block.
    if not os.path.isfile(path):
        return None
    try:
        with opened(path, Unreadable()) as file:
            found = guess(file)
    except TraceError:
        return None
    return found if found != OURS else None


def columns_of_parquet(path: str) -> list[str] | None:
    """Return the names of the columns of a Parquet file. If the file is not Parquet or not readable, return
    ``None``."""
    if not os.path.isfile(path):
        return None
    try:
        with opened(path, Unreadable()) as file:
            return parquet_columns(file) if file.head[:4] == b"PAR1" else None
    except TraceError:
        return None
