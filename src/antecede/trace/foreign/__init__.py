"""Traces that others recorded: logs with vector clocks, spans of distributed tracing, editing sessions.

This room turns them into traces of our own schema, once: every host, service or agent becomes a process with indices
from 0, and whatever the record says must have carried knowledge from one to another becomes a message. It reads files;
it must not judge what they say.

* :func:`convert` is the whole way from files of a known format to a trace and a report.
* :func:`convert_mapped` is the same for any other log, by a :class:`Mapping` that says where its fields are.
* :func:`recognised` says which foreign format a file has, for readers that expected a trace.
"""

import os

from antecede.errors import TraceError
from antecede.trace.foreign.convert import convert
from antecede.trace.foreign.files import Unreadable, opened
from antecede.trace.foreign.guess import FORMATS, OURS, guess
from antecede.trace.foreign.mapped import convert_mapped
from antecede.trace.foreign.mapping import Mapping, pairs_of, read_mapping, write_mapping
from antecede.trace.foreign.patterns import PRESETS
from antecede.trace.foreign.records import parquet_columns

__all__ = [
    "FORMATS",
    "PRESETS",
    "Mapping",
    "columns_of_parquet",
    "convert",
    "convert_mapped",
    "pairs_of",
    "read_mapping",
    "recognised",
    "write_mapping",
]


def recognised(path: str) -> str | None:
    """The foreign format that a file has, if it can be seen from its beginning."""
    # A pipe has been read already, and would now be waited for.
    if not os.path.isfile(path):
        return None
    try:
        with opened(path, Unreadable()) as file:
            found = guess(file)
    except TraceError:
        return None
    return found if found != OURS else None


def columns_of_parquet(path: str) -> list[str] | None:
    """The names of the columns of a Parquet file, or ``None`` if it is no such file."""
    if not os.path.isfile(path):
        return None
    try:
        with opened(path, Unreadable()) as file:
            return parquet_columns(file) if file.head[:4] == b"PAR1" else None
    except TraceError:
        return None
