"""A DataFrame as a trace: its partitions are the splits, and it is read on its own session.

The stages are those of the files' path. What differs is where rows come from: each partition is encoded where it is,
as the Arrow batches that Spark hands to Python, and what it says goes into a shuffle as for files on a cluster. A
DataFrame has no metadata, so whoever asks about significant order brings the table of conflicts.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from antecede.errors import TraceError, UsageError
from antecede.pipeline.flow import Emit, SparkParts
from antecede.pipeline.run import Trace, layout_for
from antecede.pipeline.splits import Batches, Input
from antecede.pipeline.typed import named
from antecede.trace.conflicts import Conflicts, conflicts_in
from antecede.trace.quarantine import unreadable_rows

Table = Conflicts | Mapping[str, Any] | Sequence[Any] | None
"""A table of conflicts, read already or as the document that says it."""


def framed(df: DataFrame, **layout: Any) -> Trace:
    """The trace in a DataFrame; ``layout`` says what its stages are to carry."""
    df = named(df)
    if not {"process", "index", "kind"} & set(df.columns):
        raise TraceError("the DataFrame has none of the columns process, index and kind of a trace")
    given = Input([], [], [], 0, df.count())
    return Trace(FrameFlow(df), given, layout_for(given, **layout))


def table_of(conflicts: Table) -> Conflicts | None:
    """The table that was given."""
    if conflicts is None or isinstance(conflicts, Conflicts):
        return conflicts
    return conflicts_in(conflicts, "conflicts")


def required(conflicts: Table) -> Conflicts:
    """The table that was given; without one the significant order cannot be judged."""
    found = table_of(conflicts)
    if found is None:
        raise UsageError('the significant order needs conflicts={"*": [["read", "write"], …]}: a DataFrame names none')
    return found


def warn_of_unread(report: Mapping[str, Any]) -> None:
    """Warn whoever called the pipeline if too many rows of the DataFrame are no events."""
    too_many = unreadable_rows(report)
    if too_many is not None:
        warnings.warn(f"{too_many}: the report is about the other rows", stacklevel=4)


@contextmanager
def unweighed(df: DataFrame) -> Iterator[None]:
    """Keep Spark from weighing each Arrow batch after every row of it, which is quadratic where a column has nulls."""
    key, conf = "spark.sql.execution.arrow.maxBytesPerBatch", df.sparkSession.conf
    before = conf.get(key, None)
    conf.set(key, str(2**31 - 1))
    try:
        yield
    finally:
        if before is None:
            conf.unset(key)
        else:
            conf.set(key, before)


class FrameFlow:
    """Work as Spark tasks, on the partitions of a DataFrame."""

    def __init__(self, df: DataFrame) -> None:
        self._df = df

    def scatter(self, stage: Callable[[Any], Emit], inputs: Sequence[Any], onto: int) -> SparkParts:
        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            number = context.partitionId()
            for part, blob in stage(Batches(number, 0, "", "batches", 0, 0, batches=batches)):
                yield pa.record_batch([pa.array([part], pa.int32()), pa.array([blob], pa.binary())], ["part", "blob"])

        def pairs(_: int, rows: Iterable[Any]) -> Emit:
            for row in rows:
                yield row.part, bytes(row.blob)

        source = self._df.mapInArrow(read, "part int, blob binary").rdd
        return SparkParts.shuffled(self._df.sparkSession.sparkContext, source, pairs, onto)
