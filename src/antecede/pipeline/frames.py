"""``measure`` and ``explain`` on a DataFrame, on its own session: its partitions are the splits of a trace.

The stages are those of the files' path. What differs is where rows come from: each partition is encoded where it is,
as the Arrow batches that Spark hands to Python, and what it says goes into a shuffle as for files on a cluster.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from antecede.errors import TraceError
from antecede.pipeline.dataframe import unweighed
from antecede.pipeline.explaining import explained_on
from antecede.pipeline.flow import Emit, SparkParts
from antecede.pipeline.measuring import measured_on
from antecede.pipeline.run import Trace, layout_for
from antecede.pipeline.sessions import one_line
from antecede.pipeline.splits import Batches, Input
from antecede.trace.explain import Asked


def measure(df: DataFrame) -> dict[str, Any]:
    """Measure the trace in a DataFrame; the report of ``antecede measure``.

    The DataFrame may be read more than once: cache it if it is costly to compute.
    """
    return _reported(df, lambda trace: measured_on(trace)[0], figures=True, numbered=True)


def explain(df: DataFrame, order: str = "causal", *, message: str | None = None, first: int = 10) -> dict[str, Any]:
    """Explain what broke an order in a DataFrame: the ``first`` late deliveries, or those of one message; the report
    of ``antecede explain``."""
    asked = Asked(order, message, first)
    asked.check()
    return _reported(df, lambda trace: explained_on(trace, asked))


def _reported(df: DataFrame, work: Callable[[Trace], dict[str, Any]], **layout: Any) -> dict[str, Any]:
    if not {"process", "index", "kind"} & set(df.columns):
        raise TraceError("the DataFrame has none of the columns process, index and kind of a trace")
    started = time.perf_counter()
    with one_line(), unweighed(df):
        given = Input([], [], [], 0, df.count())
        report = work(Trace(FrameFlow(df), given, layout_for(given, **layout)))
    return report | {"seconds": round(time.perf_counter() - started, 3)}


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
        return SparkParts(self._df.sparkSession.sparkContext, source, pairs, onto)
