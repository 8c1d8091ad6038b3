"""``measure``, ``explain`` and ``late`` on a DataFrame, on its own session."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from antecede.errors import UsageError
from antecede.pipeline.explaining import explained_on
from antecede.pipeline.flow import SparkParts
from antecede.pipeline.framed import Table, framed, required, table_of, unweighed, warn_of_unread
from antecede.pipeline.measuring import measured_on
from antecede.pipeline.orderings import orderings_on
from antecede.pipeline.packing import unpack
from antecede.pipeline.sessions import one_line
from antecede.pipeline.stages import events, settled
from antecede.pipeline.verdict import LATE_PARTS
from antecede.trace.explain import Asked
from antecede.trace.verdicts import known_orders


def measure(df: DataFrame, *, conflicts: Table = None) -> dict[str, Any]:
    """Measure the trace in a DataFrame; the report of ``antecede measure``, with ``significance`` if there is a table
    of conflicts.

    The DataFrame may be read more than once: cache it if it is costly to compute.
    """
    table = table_of(conflicts)

    def work() -> dict[str, Any]:
        report = measured_on(framed(df, figures=True, numbered=True))[0]
        if table is not None:
            report["significance"] = orderings_on(framed(df, instances=True), table)
        return report

    return _reported(df, work)


def explain(
    df: DataFrame, order: str = "causal", *, message: str | None = None, first: int = 10, conflicts: Table = None
) -> dict[str, Any]:
    """Explain what broke an order in a DataFrame: the ``first`` late deliveries, or those of one message; the report
    of ``antecede explain``. Significant order needs a table of conflicts."""
    significant = order == "significant"
    asked = Asked(order, message, first, required(conflicts) if significant else None)
    asked.check()
    return _reported(df, lambda: explained_on(framed(df, instances=significant), asked))


def late(df: DataFrame, orders: Sequence[str] = ("fifo", "causal")) -> DataFrame:
    """Every late delivery of a trace, as a DataFrame with the columns that ``antecede verify --late`` writes.

    It is judged now; the late deliveries stay where they are until the DataFrame is used.
    """
    asked = known_orders(orders)
    other = next((order for order in asked if order not in ("fifo", "causal")), None)
    if other is not None:
        raise UsageError(f"late deliveries of order {other}: in a DataFrame only those of fifo and causal")
    with one_line(), unweighed(df):
        trace = framed(df)
        _, parts = trace.judge(asked, every_late=True)
        names = trace.names
        assert isinstance(parts, SparkParts)
        found = parts.spread(partial(_late_places, names=names), range(1, 1 + LATE_PARTS))
        places = df.sparkSession.createDataFrame(found, _late_places_schema)
        rows = settled(events(df)) if trace.again or trace.different else events(df)
        sends = rows.filter(fn.col("reason").isNull() & (fn.col("kind") == "send"))
        return places.join(_named(sends, "message", "from", "send_index"), ["from", "send_index"]).join(
            _named(sends, "overtaken_by", "over_from", "over_index"), ["over_from", "over_index"]
        ).select("order", "message", "from", "to", "send_index", "deliver_index", "overtaken_by")  # fmt: skip


_late_places_schema = (
    "order string, from string, send_index bigint, to string, deliver_index bigint, over_from string, over_index bigint"
)


def _late_places(blobs: Iterable[bytes], names: list[str]) -> Iterator[tuple[Any, ...]]:
    for blob in blobs:
        said = unpack(blob)
        columns = (
            said["source"], said["send_index"], said["process"], said["index"], said["over_process"], said["over_index"]
        )  # fmt: skip
        for source, sent, process, index, over, over_sent in zip(*(c.tolist() for c in columns), strict=True):
            yield said["order"], names[source], sent, names[process], index, names[over], over_sent


def _named(sends: DataFrame, message: str, process: str, index: str) -> DataFrame:
    """The ids of sends by their places, under these names."""
    return sends.select(
        fn.col("process").alias(process), fn.col("index").alias(index), fn.col("message").alias(message)
    )


def _reported(df: DataFrame, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    started = time.perf_counter()
    with one_line(), unweighed(df):
        report = work()
    warn_of_unread(report)
    return report | {"seconds": round(time.perf_counter() - started, 3)}
