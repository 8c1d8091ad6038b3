"""``verify``, ``measure``, ``explain``, ``late`` and ``matched`` on a table. The table is a Spark DataFrame or any
other table that Arrow can read. A Spark DataFrame is processed in the session that it belongs to."""

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from html import escape
from typing import Any

import numpy as np
import pyarrow as pa

from antecede import __version__, limits
from antecede.diagram import draw_stack, of_explanation
from antecede.errors import DiagramError, TraceError, UsageError
from antecede.pipeline.explaining import explained_on
from antecede.pipeline.flow import Flow, FrameParts, Here, SparkFrameFiles, SparkFrames, ddl, shares_our_files
from antecede.pipeline.judge.files import LATE_SCHEMA
from antecede.pipeline.judge.significant import significant_on
from antecede.pipeline.judge.trace import Trace, late_in, layout_for, verdict_on
from antecede.pipeline.judge.verdict import LATE_PARTS
from antecede.pipeline.kernels.match import ARRIVE, LEFT_OUT, REASON_NAMES, SEND, VALID
from antecede.pipeline.match import Numbering, bucket_of
from antecede.pipeline.measuring import measured_on, orderings_on
from antecede.pipeline.pieces import read_late
from antecede.pipeline.read.columns import KIND_NUMBERS, without_views
from antecede.pipeline.read.encode import Layout
from antecede.pipeline.read.splits import Batches, Input
from antecede.trace.conflicts import Conflicts, conflicts_in
from antecede.trace.epochs import epochs_in, united
from antecede.trace.explain import ExplainRequest
from antecede.trace.quarantine import unreadable_rows
from antecede.trace.schema import COLUMNS, case_matched
from antecede.trace.verdicts import known_orders

# Tables as traces: a Spark DataFrame (classic or Spark Connect), or any table that Arrow can read.
#
# The stages are the same as for files. Only the source of the rows differs. Each partition of a DataFrame is used as a
# *split* (a piece of the input) that has already been read. Spark passes the partition to Python as Arrow batches. A
# small DataFrame is collected and judged in this process, because a Spark job takes seconds even for little work. All
# other tables (pandas, Polars, pyarrow) are already in the memory of this process. So they are judged here too.
#
# In a trace file, the metadata may say which operations conflict. A DataFrame or another table has no such metadata. So
# for significant order, the caller must pass this information.


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


# Reports that a Jupyter notebook shows as tables and drawings. Outside of notebooks, a report is a plain dictionary.


_rows_max = 20
"""A notebook shows at most this number of entries of a list. The report itself has all entries."""


class Report(dict[str, Any]):
    """A report of the pipeline, with the keys of the JSON report."""

    def _repr_html_(self) -> str:
        """Return the HTML that Jupyter shows."""
        parts = [_table(_flat(self))]
        if "orders" in self:
            entries = [{"order": order, **entry} for order, entry in self["orders"].items()]
            parts.append(_rows(entries))
        if self.get("traffic"):
            parts.append(_rows(self["traffic"]))
        if self.get("explanations"):
            parts.append(_drawing(self["explanations"]))
        return "\n".join(parts)


def _flat(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the single values of a report. A value in an inner dictionary gets the name ``outer.inner``. Lists, the
    key ``orders`` and dictionaries within inner dictionaries are left out."""
    found: dict[str, Any] = {}
    for key, value in report.items():
        if isinstance(value, Mapping):
            if key != "orders":
                found |= {f"{key}.{name}": inner for name, inner in value.items() if not isinstance(inner, list | dict)}
        elif not isinstance(value, list):
            found[key] = value
    return found


def _table(figures: Mapping[str, Any]) -> str:
    rows = (f"<tr><th>{escape(key)}</th><td>{_cell(value)}</td></tr>" for key, value in figures.items())
    return f"<table>{''.join(rows)}</table>"


def _rows(entries: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for entry in entries for name in entry))
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(entry.get(name))}</td>' for name in names)}</tr>" for entry in entries[:_rows_max]
    )
    more = len(entries) - _rows_max
    return f"<table><tr>{head}</tr>{body}</table>" + (f"<p>… and {more:,} more</p>" if more > 0 else "")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return escape(", ".join(f"{key} {inner}" for key, inner in value.items()))
    if isinstance(value, Iterable) and not isinstance(value, str):
        return escape(" → ".join(map(str, value)))
    return escape(f"{value:,}" if type(value) is int else str(value))


def _drawing(explanations: list[dict[str, Any]]) -> str:
    try:
        return draw_stack([of_explanation(explanation) for explanation in explanations[:_rows_max]])
    except DiagramError as error:
        return f"<p>not drawn: {escape(str(error))}</p>"


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
