"""Tables as traces: a Spark DataFrame (classic or Spark Connect), or any table that Arrow can read.

The stages are the same as for files. Only the source of the rows differs. Each partition of a DataFrame is used as a
*split* (a piece of the input) that has already been read. Spark passes the partition to Python as Arrow batches. A
small DataFrame is collected and judged in this process, because a Spark job takes seconds even for little work. All
other tables (pandas, Polars, pyarrow) are already in the memory of this process. So they are judged here too.

In a trace file, the metadata may say which operations conflict. A DataFrame or another table has no such metadata. So
for significant order, the caller must pass this information.
"""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from antecede import limits
from antecede.errors import TraceError, UsageError
from antecede.pipeline.judge.trace import Trace, layout_for
from antecede.pipeline.read.columns import without_views
from antecede.pipeline.read.encode import Layout
from antecede.pipeline.read.splits import Batches, Input
from antecede.pipeline.spark.flow import Flow, Here, SparkFrameFiles, SparkFrames, shares_our_files
from antecede.trace.conflicts import Conflicts, conflicts_in
from antecede.trace.quarantine import unreadable_rows
from antecede.trace.schema import COLUMNS, case_matched

Table = Conflicts | Mapping[str, Any] | Sequence[Any] | None
"""A table of conflicts: a :class:`Conflicts` object, or the content of a JSON document that describes it. ``None``
means that there is no table."""

_needed = ("process", "index", "kind")
_payload = ("bytes", "size", "extra")
"""Columns that may contain the size of a payload. They are read only for measuring."""


def is_spark(table: Any) -> bool:
    """Return whether this is a Spark DataFrame, of a classic session or of Spark Connect."""
    return hasattr(table, "sparkSession") and hasattr(table, "mapInArrow")


def framed(table: Any, local_max: int = limits.frame_rows_local_max, lasting: bool = False, **layout: Any) -> Trace:
    """Return the trace that a table contains. ``layout`` sets options of :class:`Layout`, such as ``figures``.

    If a Spark DataFrame has more than ``local_max`` rows, Spark tasks judge it. All other tables are judged in this
    process. In a classic session whose tasks run on this machine, the stages exchange data through files. These files
    are removed when the :class:`Trace` object is deleted. In other sessions, and always if ``lasting`` is true, the
    stages exchange DataFrames. Then a DataFrame made from the trace can be used even after the trace was deleted.
    """
    figures = bool(layout.get("figures"))
    if not is_spark(table):
        return _here(_arrow_table(table), **layout)
    _check_columns(table.columns)
    wanted = [f"`{name}`" for name in _read_columns(table.columns, figures)]
    table = table.select(*wanted)
    rows = table.count()
    if rows <= local_max:
        return _here(table.toArrow(), **layout)
    given = Input([], [], [], 0, rows)
    spark = table.sparkSession
    by_files = shares_our_files(spark) and not lasting
    flow: Flow = SparkFrameFiles(table, _split) if by_files else SparkFrames(spark, table, _split)
    return Trace(flow, given, layout_for(given, **layout))


def _split(number: int, batches: Iterable[Any]) -> Batches:
    """Return a partition of a DataFrame as a split (a piece of the input). Its rows have already been read."""
    return Batches(number, 0, "", "batches", 0, 0, batches=batches)


def _here(table: Any, **layout: Any) -> Trace:
    _check_columns(table.schema.names)
    table = without_views(table.select(_read_columns(table.schema.names, bool(layout.get("figures")))))
    given = Input([], [_split(0, table.to_batches())], [], 0, table.num_rows)
    return Trace(Here(), given, Layout(places=1, buckets=layout_for(given).buckets, **layout))


def _arrow_table(table: Any) -> Any:
    if isinstance(table, str | os.PathLike):
        path = os.fspath(table)
        raise UsageError(
            f"expected a DataFrame, not the path {path!r}: read it first (spark.read.parquet, pandas.read_parquet), "
            "or judge the file itself with pipeline.verify_files"
        )
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    if not hasattr(table, "__arrow_c_stream__"):
        raise UsageError(
            f"expected a Spark DataFrame or a table that Arrow can read (pandas, Polars, pyarrow), "
            f"not {type(table).__name__}"
        )
    try:
        return pa.RecordBatchReader.from_stream(table).read_all()
    except (pa.ArrowException, ValueError, TypeError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TraceError(f"the table cannot be read as Arrow: {reason[:200]}") from None


def _check_columns(columns: Sequence[str]) -> None:
    other = case_matched(columns)
    named = [other.get(name, name) for name in columns]
    absent = [name for name in _needed if name not in named]
    if len(absent) == len(_needed):
        raise TraceError("the DataFrame is not a trace: it has none of the columns process, index and kind")
    if absent:
        raise TraceError(
            f"the DataFrame lacks the column {absent[0]} of a trace, which every row needs: "
            "rename the column that has these values, or add the column"
        )
    twice = [name for name in COLUMNS if named.count(name) > 1]
    if twice:
        raise TraceError(f"column {twice[0]} of the DataFrame is given twice")


def _read_columns(columns: Sequence[str], figures: bool) -> list[str]:
    """Return the names of the columns to read: the columns of a trace and, if ``figures`` is true, the columns that may
    contain the size of a payload."""
    other = case_matched(columns)
    return [name for name in columns if other.get(name, name) in COLUMNS or (figures and name in _payload)]


def table_of(conflicts: Table) -> Conflicts | None:
    """Return the given table of conflicts in its parsed form. If no table is given, return ``None``."""
    if conflicts is None or isinstance(conflicts, Conflicts):
        return conflicts
    return conflicts_in(conflicts, "conflicts")


def required(conflicts: Table) -> Conflicts:
    """Return the given table of conflicts in its parsed form. Raise an error if it is ``None``, because significant
    order cannot be judged without a table."""
    found = table_of(conflicts)
    if found is None:
        raise UsageError(
            'significant order needs conflicts={"*": [["read", "write"], …]}, because a DataFrame has no metadata'
        )
    return found


def warn_of_unread(report: Mapping[str, Any]) -> None:
    """Warn the caller of the pipeline if more than one in ten rows of the DataFrame is not an event."""
    too_many = unreadable_rows(report)
    if too_many is not None:
        warnings.warn(f"{too_many}: the report covers only the other rows", stacklevel=5)
