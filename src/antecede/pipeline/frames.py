"""``measure`` and ``explain`` on a DataFrame, on its own session."""

import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from antecede.pipeline.explaining import explained_on
from antecede.pipeline.framed import Table, framed, required, table_of, unweighed
from antecede.pipeline.measuring import measured_on
from antecede.pipeline.orderings import orderings_on
from antecede.pipeline.sessions import one_line
from antecede.trace.explain import Asked


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


def _reported(df: DataFrame, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    started = time.perf_counter()
    with one_line(), unweighed(df):
        report = work()
    return report | {"seconds": round(time.perf_counter() - started, 3)}
