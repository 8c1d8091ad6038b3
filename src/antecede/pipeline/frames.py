"""``verify``, ``measure``, ``explain``, ``late`` and ``matched`` on a table. The table is a Spark DataFrame or any
other table that Arrow can read (:mod:`antecede.pipeline.framed`). A Spark DataFrame is processed in the session that it
belongs to."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from antecede import __version__, limits
from antecede.errors import UsageError
from antecede.pipeline.explaining.explain import explained_on
from antecede.pipeline.framed import Table, framed, is_spark, required, table_of, warn_of_unread
from antecede.pipeline.judge.aside import LATE_SCHEMA
from antecede.pipeline.judge.significant import significant_on
from antecede.pipeline.judge.trace import late_in, verdict_on
from antecede.pipeline.judge.verdict import LATE_PARTS
from antecede.pipeline.kernels.match import ARRIVE, LEFT_OUT, REASON_NAMES, SEND, VALID
from antecede.pipeline.match.buckets import Numbering, bucket_of
from antecede.pipeline.measuring.measure import measured_on
from antecede.pipeline.measuring.orderings import orderings_on
from antecede.pipeline.pieces import read_late
from antecede.pipeline.read.columns import KIND_NUMBERS
from antecede.pipeline.shown import Report
from antecede.pipeline.spark.flow import FrameParts, ddl
from antecede.trace.epochs import epochs_in, united
from antecede.trace.explain import ExplainRequest
from antecede.trace.verdicts import known_orders

MATCHED_SCHEMA = pa.schema(
    [
        ("process", pa.string()),
        ("index", pa.int64()),
        ("kind", pa.string()),
        ("message", pa.string()),
        ("from", pa.string()),
        ("send_index", pa.int64()),
        ("reason", pa.string()),
    ]
)
"""The columns of the table that :func:`matched` returns."""

_places_schema = pa.schema(
    [
        ("order", pa.string()),
        ("from", pa.string()),
        ("send_index", pa.int64()),
        ("to", pa.string()),
        ("deliver_index", pa.int64()),
        ("over_from", pa.string()),
        ("over_index", pa.int64()),
    ]
)
_sends_schema = pa.schema([("process", pa.string()), ("index", pa.int64()), ("message", pa.string())])
_kind_names = np.array(sorted(KIND_NUMBERS, key=KIND_NUMBERS.__getitem__), object)
_reasons = np.array([name or None for name in REASON_NAMES], object)
_rows_at_once = 65_536
_local_max = limits.frame_rows_local_max


def verify(
    df: Any,
    orders: Sequence[str] = ("fifo", "causal"),
    *,
    conflicts: Table = None,
    epochs: Sequence[Any] | None = None,
    local_max: int = _local_max,
) -> Report:
    """Judge the trace in a table. Return the report of ``antecede verify``, without the keys that occur only in reports
    on files.

    ``conflicts`` says which operations conflict, and is required for significant order. It has the same form as the
    file of ``--conflicts FILE``: ``{"*": [["deposit", "audit"]]}``. If the topology changed, each topology is an
    *epoch*, and ``epochs`` is the list of epochs from the metadata of the trace. Then late deliveries that break no
    guarantee of the topology are counted separately (:mod:`antecede.trace.epochs` has the exact rule). If more than one
    row in ten is not an event, a warning reports this and the report's ``readable`` is false. A Spark DataFrame of at
    most ``local_max`` rows is collected and judged in this process. The DataFrame is read more than once. If it is
    costly to compute, cache it.
    """
    orders = known_orders(orders)
    table = required(conflicts) if "significant" in orders else None
    known = None if epochs is None else united([epochs_in(epochs, "verify")])

    def work() -> dict[str, Any]:
        trace = framed(df, local_max, instances=table is not None)
        report = verdict_on(trace, orders, epochs=known).report
        if table is not None:
            report["orders"]["significant"], _ = significant_on(trace, table, report["deliveries"])
        return {"version": __version__, "engine": _engine(df), **report}

    return _reported(df, work)[0]


def measure(df: Any, *, conflicts: Table = None, local_max: int = _local_max) -> Report:
    """Measure the trace in a table. Return the report of ``antecede measure``, with ``significance`` if ``conflicts``
    is given."""
    table = table_of(conflicts)

    def work() -> dict[str, Any]:
        report = measured_on(framed(df, local_max, figures=True, numbered=True))[0]
        if table is not None:
            report["significance"] = orderings_on(framed(df, local_max, instances=True), table)
        return report | {"engine": _engine(df)}

    return _timed(df, work)


def explain(
    df: Any,
    order: str = "causal",
    *,
    message: str | None = None,
    first: int = 10,
    conflicts: Table = None,
    local_max: int = _local_max,
) -> Report:
    """Explain violations of an order in the trace that a table contains. Return the report of ``antecede explain``. If
    ``message`` is given, the report explains all late deliveries of this message. Otherwise it explains at most
    ``first`` late deliveries. For total and synchronous order, it explains one cycle of messages. For significant
    order, ``conflicts`` must say which operations conflict."""
    significant = order == "significant"
    request = ExplainRequest(order, message, first, required(conflicts) if significant else None)
    request.check()

    def work() -> dict[str, Any]:
        return explained_on(framed(df, local_max, instances=significant), request) | {"engine": _engine(df)}

    return _timed(df, work)


def late(df: Any, orders: Sequence[str] = ("fifo", "causal"), *, local_max: int = _local_max) -> Any:
    """Return a table of all late deliveries of a trace, with the columns that ``antecede verify --late`` writes. The
    table is a Spark DataFrame if ``df`` is a Spark DataFrame, otherwise a :class:`pyarrow.Table`.

    The trace is judged immediately. The late deliveries of a large DataFrame stay in Spark until the result is used.
    """
    chosen_orders = known_orders(orders)
    other = next((order for order in chosen_orders if order not in ("fifo", "causal")), None)
    if other is not None:
        raise UsageError(f"order {other}: cannot list the late deliveries of this order, only of fifo and causal")
    with _translated(df):
        trace = framed(df, local_max, lasting=True)
        parts = trace.judge(tuple(chosen_orders), every_late=True)[1]
        if not isinstance(parts, FrameParts):
            assert parts is not None
            rows = list(late_in(trace, parts, LATE_PARTS))
            return _as_given(df, pa.Table.from_pylist(rows, schema=LATE_SCHEMA))
        places = parts.frame(partial(_late_places, names=trace.names), _places_schema, range(1, 1 + LATE_PARTS))
        sends = trace.bucket_rows(partial(_sends, numbering=trace.numbering, names=trace.names), _sends_schema)
        own = sends.selectExpr("process `from`", "index send_index", "message")
        over = sends.selectExpr("process over_from", "index over_index", "message overtaken_by")
        found = places.join(own, ["from", "send_index"]).join(over, ["over_from", "over_index"])
        return found.select(*LATE_SCHEMA.names)


def matched(df: Any, *, local_max: int = _local_max) -> Any:
    """Return a table of the sends, arrivals and deliveries in a trace. A valid row has the place of the send of its
    message (``from``, ``send_index``). A row that is set aside has the ``reason`` instead. The result is a Spark
    DataFrame if ``df`` is a Spark DataFrame, otherwise a :class:`pyarrow.Table`.

    Rows that are set aside because another row has the same place (``duplicate_row``, ``duplicate_index``) are not
    included. If a cycle of events puts a delivery before its own send, the delivery has no ``reason`` here. Only
    :func:`verify` finds such deliveries.
    """
    with _translated(df):
        trace = framed(df, local_max, lasting=True)
        stage = partial(_matched, numbering=trace.numbering, names=trace.names)
        found = trace.bucket_rows(stage, MATCHED_SCHEMA)
        return _as_given(df, found) if isinstance(found, pa.Table) else found


def _as_given(df: Any, table: Any) -> Any:
    """Return ``table`` in the form that the caller expects. ``df`` is the table that the caller passed. If ``df`` is a
    Spark DataFrame, return a Spark DataFrame, otherwise ``table`` unchanged."""
    return df.sparkSession.createDataFrame(table, ddl(table.schema)) if is_spark(df) else table


def _late_places(blobs: Iterable[bytes], names: list[str]) -> Iterator[Any]:
    known = np.array(names, object)
    for blob in blobs:
        rows = read_late(blob)
        yield pa.record_batch(
            [
                pa.array([rows.order] * len(rows.index), pa.string()),
                pa.array(known[rows.source], pa.string()),
                pa.array(rows.send_index),
                pa.array(known[rows.process], pa.string()),
                pa.array(rows.index),
                pa.array(known[rows.over_process], pa.string()),
                pa.array(rows.over_index),
            ],
            schema=_places_schema,
        )


def _sends(blobs: Iterable[bytes], numbering: Numbering, names: list[str]) -> Iterator[Any]:
    bucket = bucket_of(blobs, numbering)
    rows = bucket.valid(SEND)
    process = pa.array(np.array(names, object)[bucket.process[rows]], pa.string())
    message = bucket.message.take(pa.array(rows)).cast(pa.string())
    yield from _some_at_a_time(pa.record_batch([process, pa.array(bucket.index[rows]), message], schema=_sends_schema))


def _matched(blobs: Iterable[bytes], numbering: Numbering, names: list[str]) -> Iterator[Any]:
    bucket = bucket_of(blobs, numbering)
    known = np.array(names, object)
    rows = np.flatnonzero((bucket.kind <= ARRIVE) & (bucket.reason != LEFT_OUT))
    send = np.where(bucket.kind[rows] == SEND, rows, bucket.send_row[rows])
    linked = (bucket.reason[rows] == VALID) & (send >= 0)
    columns = [
        pa.array(known[bucket.process[rows]], pa.string()),
        pa.array(bucket.index[rows]),
        pa.array(_kind_names[bucket.kind[rows]], pa.string()),
        bucket.message.take(pa.array(rows)).cast(pa.string()),
        pa.array(known[bucket.process[send]], pa.string(), mask=~linked),
        pa.array(bucket.index[send], mask=~linked),
        pa.array(_reasons[bucket.reason[rows]], pa.string()),
    ]
    yield from _some_at_a_time(pa.record_batch(columns, schema=MATCHED_SCHEMA))


def _some_at_a_time(batch: Any) -> Iterator[Any]:
    for start in range(0, batch.num_rows, _rows_at_once):
        yield batch.slice(start, _rows_at_once)


def _engine(df: Any) -> str:
    return "spark" if is_spark(df) else "local"


def _translated(df: Any) -> AbstractContextManager[None]:
    """Return a context manager that turns the exception of a failed Spark job into an :class:`AntecedeError`. If ``df``
    is not a Spark DataFrame, the context manager does nothing."""
    if not is_spark(df):
        return nullcontext()
    from antecede.pipeline.sessions import one_line

    return one_line()


def _reported(df: Any, work: Callable[[], dict[str, Any]]) -> tuple[Report, float]:
    """Run ``work``. Return its report, and its duration in seconds."""
    started = time.perf_counter()
    with _translated(df):
        report = Report(work())
    warn_of_unread(report)
    return report, time.perf_counter() - started


def _timed(df: Any, work: Callable[[], dict[str, Any]]) -> Report:
    report, seconds = _reported(df, work)
    report["seconds"] = round(seconds, 3)
    return report
