"""``verify`` on a DataFrame: the stages of :mod:`antecede.pipeline.stages` in their order, and the report."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from antecede import __version__
from antecede.pipeline.framed import Table, framed, required, unweighed, warn_of_unread
from antecede.pipeline.kernels.texts import WIDE
from antecede.pipeline.packing import unpack
from antecede.pipeline.report import assemble_report
from antecede.pipeline.sessions import one_line
from antecede.pipeline.significant import significant_on
from antecede.pipeline.stages import UNREAD, events, judged, linked, nulled_in, places, settled
from antecede.pipeline.typed import named
from antecede.pipeline.verdict import Docket
from antecede.trace.schema import NEEDED_BY_INSTANCES
from antecede.trace.verdicts import known_orders

_match_rows = 400_000
_places_spelled_out_max = 50


def verify(
    df: DataFrame,
    orders: Sequence[str] = ("fifo", "causal"),
    *,
    conflicts: Table = None,
    narrow: int = WIDE,
    partitions: int | None = None,
) -> dict[str, Any]:
    """Judge the trace in a DataFrame; the report of ``antecede verify``, without what only files have.

    ``conflicts`` is the table that the significant order is judged by, as ``--conflicts FILE`` has it:
    ``{"*": [["deposit", "audit"]]}``. If more than one row in ten is no event, a warning says so and the report's
    ``readable`` is false. The DataFrame is read several times: cache it if it is costly to compute.
    """
    orders = known_orders(orders)
    significant = "significant" in orders
    table = required(conflicts) if significant else None
    with one_line(), unweighed(df):
        used = NEEDED_BY_INSTANCES if significant else ()
        report = _verify(df, tuple(name for name in orders if name != "significant"), narrow, partitions, used)
        if table is not None:
            entry, _ = significant_on(framed(df, instances=True), table, report["deliveries"])
            report["orders"]["significant"] = entry
    warn_of_unread(report)
    return report


def _verify(
    df: DataFrame, orders: tuple[str, ...], narrow: int, partitions: int | None, used: Sequence[str]
) -> dict[str, Any]:
    df = named(df)
    rows = events(df, used)
    about = places(rows).collect()
    unread = {reason: sum(one[reason] or 0 for one in about) for reason in UNREAD}
    placed = [one for one in about if one["process"] is not None]
    contested = any(one["rows"] != one["taken"] for one in placed)
    aside = {}
    total = sum(one["rows"] for one in about)
    if contested:
        rows = settled(rows)
        twice = rows.filter(fn.col("reason").isin("duplicate_row", "duplicate_index")).groupBy("reason").count()
        aside = {one["reason"]: one["count"] for one in twice.collect()}
    own = sorted(one["process"] for one in placed if not one["hop"])
    rowless = _clock_names(rows, df, set(own))
    names = own + rowless
    # Numbers must follow the order of names; names of clocks alone have no line, so they may come in between.
    names.sort()
    lengths, sparse = _lengths(names, {one["process"]: one for one in placed if not one["hop"]})
    docket = Docket(lengths.tobytes(), sparse.tobytes(), orders)
    count = partitions or max(2, total // _match_rows)
    verdicts = unpack(judged(linked(rows, names, count, rowless, narrow), docket).collect()[0]["verdicts"])

    def ids(process: Any, index: Any) -> list[str]:
        return _ids(rows, [names[p] for p in process], [int(i) for i in index])

    def known(process: Any, index: Any) -> int:
        return _known(rows, [names[p] for p in process], [int(i) for i in index])

    report = assemble_report(
        names=names,
        orders=orders,
        said=verdicts,
        unread=unread,
        unread_first={},
        nulled=nulled_in(df, used),
        nulled_first={},
        aside=aside,
        rows=total,
        processes=len(own),
        silent=len(set(verdicts["silent"]) - set(own)),
        missing=sum(one["largest"] + 1 - one["distinct"] for one in placed),
        ids=ids,
        known=known,
    )
    return {"version": __version__, "engine": "spark", **report}


def _clock_names(rows: DataFrame, df: DataFrame, own: set[str]) -> list[str]:
    """Names that occur in clocks and are no processes."""
    if "clock" not in df.columns:
        return []
    found = rows.select(fn.explode(fn.map_keys("clock")).alias("name")).distinct().collect()
    return [one["name"] for one in found if one["name"] not in own]


def _lengths(names: list[str], placed: dict[str, Any]) -> tuple[Any, Any]:
    lengths = np.zeros(len(names), np.int64)
    sparse = []
    for number, name in enumerate(names):
        one = placed.get(name)
        if one is None:
            continue
        if one["largest"] + 1 > 4 * one["distinct"] + 1024:
            sparse.append(number)
        else:
            lengths[number] = one["largest"] + 1
    return lengths, np.array(sparse, np.int32)


def _at(rows: DataFrame, kind: str, process: list[str], index: list[int]) -> DataFrame:
    """The good rows of a kind at these places."""
    good = rows.filter(fn.col("reason").isNull() & (fn.col("kind") == kind))
    wanted = sorted(set(zip(process, index, strict=True)))
    if len(wanted) <= _places_spelled_out_max:
        # What is spelled out goes down to the files, which then hand over few rows.
        few = fn.lit(False)
        for name, number in wanted:
            few = few | ((fn.col("process") == name) & (fn.col("index") == number))
        return good.filter(few)
    table = rows.sparkSession.createDataFrame(wanted, "process string, index bigint")
    return good.join(fn.broadcast(table), ["process", "index"])


def _ids(rows: DataFrame, process: list[str], index: list[int]) -> list[str]:
    found = _at(rows, "send", process, index).select("process", "index", "message").collect()
    table = {(one["process"], one["index"]): one["message"] for one in found}
    return [table[place] for place in zip(process, index, strict=True)]


def _known(rows: DataFrame, process: list[str], index: list[int]) -> int:
    """How many of these deliveries have a send that names its destinations."""
    sends = rows.filter(fn.col("reason").isNull() & (fn.col("kind") == "send") & fn.col("to").isNotNull())
    return _at(rows, "deliver", process, index).select("message").join(sends.select("message"), "message").count()
