"""The same verdicts on a DataFrame: each stage a function from DataFrames to DataFrames, on the caller's own session.

::

    events(df)            rows with strict types; what is no event has a reason
    places(events)        a row for each process: how many rows, how many different indices, the largest
    settled(events)       with the rows that share a place set aside (needed only where places say so)
    matched(events, …)    each row of a message with its send's place, or the reason why it is set aside
    linked(events, …)     the same, and no more of it than a verdict needs: what verify uses
    judged(matched, …)    one row: the verdicts

It is the twin of the path that reads files by itself: reading, types, places and the exchange between stages are
Spark's own here, and the two are held against each other and against the plain oracle. A stage can be put into
somebody's own job: ``matched`` is a table of matched messages, ``judged`` a verdict on whatever table was matched.

Between two stages that run in Python every row passes the JVM twice, column by column. That is most of what this path
costs, so ``linked`` has a row for each delivery only, in four numbers; what else there is to say goes along packed.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn
from pyspark.sql.types import LongType, MapType, NullType, StringType, StructType

from antecede.errors import TraceError
from antecede.pipeline.buckets import Bucket
from antecede.pipeline.columns import KIND_NUMBERS, Encoder, joined
from antecede.pipeline.kernels.match import DELIVER, LOCAL, REASON_NAMES, SEND, VALID
from antecede.pipeline.kernels.texts import WIDE
from antecede.pipeline.kernels.walk import SENT
from antecede.pipeline.lines import Piece
from antecede.pipeline.packing import pack, packed_row, unpack
from antecede.pipeline.typed import entries_of, has_type, named
from antecede.pipeline.verdict import Docket, only_summary
from antecede.trace.schema import COLUMNS, KINDS, NEEDED

_with_message = ("send", "arrive", "deliver", "hop")
UNREAD = ("missing_field", "wrong_type", "unknown_kind")
"""Why a row of a DataFrame may be no event."""

MATCHED_COLUMNS = (
    "process int, index bigint, kind tinyint, reason string, source int, sent bigint, awaited int, undelivered int, "
    "known boolean, silent array<string>, lamport bigint, clock_name array<int>, clock_entry array<bigint>, "
    "assumed boolean"
)
LINKED_COLUMNS = "process int, index bigint, source int, sent bigint, said binary"

_linked_rows_at_once = 65_536
_absent = "antecede.absent"
"""Marks a column of events that the trace lacks, so that it need not be carried along."""

_no_rows: dict[str, Any] = {
    "d_process": np.zeros(0, np.int32),
    "d_index": np.zeros(0, np.int64),
    "d_source": np.zeros(0, np.int32),
    "d_sent": np.zeros(0, np.int64),
}


def events(df: DataFrame, used: Sequence[str] = (), with_nulled: bool = False) -> DataFrame:
    """The rows of a trace with the types of the contract; ``reason`` says why a row is no event, else it is null.

    A wrong type costs the row in the columns that every verdict needs and in those among ``used``, elsewhere the value;
    ``with_nulled`` adds a column that names the columns in which a row lost a value.
    """
    df = named(df)
    if len({name for name in df.columns if name in COLUMNS}) != sum(name in COLUMNS for name in df.columns):
        raise TraceError("a column of the trace is given twice")
    lacking = [name for name in ("process", "index", "kind") if name not in df.columns]
    if len(lacking) == 3:
        raise TraceError("the DataFrame has none of the columns process, index and kind of a trace")
    kinds = {field.name: field.dataType for field in df.schema.fields}
    if isinstance(kinds.get("clock"), StructType):
        df = df.withColumn("clock", entries_of(kinds["clock"]))
        kinds["clock"] = MapType(StringType(), LongType())

    def column(name: str, cast: str) -> Column:
        present = name in kinds and has_type(name, kinds[name])
        return fn.col(f"`{name}`").try_cast(cast) if present else fn.lit(None).cast(cast)

    def given(name: str) -> Column:
        return fn.col(f"`{name}`").isNotNull() if name in kinds else fn.lit(False)

    kind = column("kind", "string")
    missing = ~given("process") | ~given("index") | ~given("kind")
    missing = missing | (kind.isin(*_with_message) & ~given("message"))
    wrong = fn.lit(False)
    nulled = []
    for name in COLUMNS:
        if name in kinds and not isinstance(kinds[name], NullType) and not has_type(name, kinds[name]):
            if name in NEEDED or name in used:
                wrong = wrong | given(name)
            else:
                nulled.append(fn.when(given(name), fn.lit(name)))
    index = column("index", "bigint")
    if "index" in kinds and has_type("index", kinds["index"]):
        wrong = wrong | (given("index") & (index.isNull() | (index < 0)))
    if "to" in kinds and has_type("to", kinds["to"]):
        # A null comes first when sorted; asking each entry would be interpreted, row by row.
        wrong = wrong | ((fn.size("`to`") > 0) & fn.get(fn.sort_array("`to`"), fn.lit(0)).isNull())
    clock = column("clock", "map<string,bigint>")
    if "clock" in kinds and has_type("clock", kinds["clock"]):
        torn = fn.coalesce(fn.exists(fn.map_values("`clock`"), lambda one: one.isNull()), fn.lit(False))
        nulled.append(fn.when(torn, fn.lit("clock")))
        clock = fn.when(~torn, clock)
    unknown = ~fn.coalesce(kind.isin(*sorted(KINDS)), fn.lit(False))
    reason = (
        fn.when(missing, "missing_field")
        .when(wrong, "wrong_type")
        .when(unknown, "unknown_kind")
        .otherwise(fn.lit(None))
    )
    content = [fn.col(f"`{name}`").alias(name) for name in COLUMNS if name in kinds and name not in ("to", "clock")]
    return df.select(
        column("process", "string").alias("process"),
        fn.when(index >= 0, index).alias("index"),
        kind.alias("kind"),
        column("message", "string").alias("message"),
        column("to", "array<string>").alias("to"),
        column("lamport", "bigint").alias("lamport", metadata={_absent: "lamport" not in kinds}),
        clock.alias("clock", metadata={_absent: "clock" not in kinds}),
        column("assumed", "boolean").alias("assumed", metadata={_absent: "assumed" not in kinds}),
        reason.alias("reason"),
        fn.struct(*content).alias("rest"),
        *([fn.array_compact(fn.array(*nulled)).alias("nulled")] if with_nulled and nulled else []),
    )


def nulled_in(df: DataFrame, used: Sequence[str] = ()) -> dict[str, int]:
    """By column, how many values of events are taken as null for their type; an own job where there may be some."""
    rows = events(df, used, with_nulled=True)
    if "nulled" not in rows.columns:
        return {}
    found = rows.filter(fn.col("reason").isNull()).select(fn.explode("nulled").alias("name")).groupBy("name").count()
    return {one["name"]: one["count"] for one in found.collect()}


def places(rows: DataFrame) -> DataFrame:
    """For each process (and apart from those, each server's hops): ``rows`` that are events, different indices among
    them (``taken``) and among all rows (``distinct``), the ``largest``; a row without a process counts the others.

    Indices are gathered 64 at a time, as the bits of one number.
    """
    bit = fn.expr("shiftleft(1L, cast(index % 64 as int))")
    good = fn.col("reason").isNull()
    placed = fn.col("process").isNotNull() & fn.col("index").isNotNull()
    return (
        rows.groupBy(
            fn.col("kind").eqNullSafe("hop").alias("hop"),
            fn.when(placed, fn.col("process")).alias("process"),
            fn.when(placed, fn.expr("index div 64")).alias("block"),
        )
        .agg(
            fn.bit_or(fn.when(good, bit)).alias("taken"),
            fn.bit_or(bit).alias("distinct"),
            fn.count_if(good).alias("rows"),
            fn.max("index").alias("largest"),
            *[fn.count_if(fn.col("reason") == reason).alias(reason) for reason in UNREAD],
        )
        .groupBy("hop", "process")
        .agg(
            fn.sum(fn.bit_count("taken")).alias("taken"),
            fn.sum(fn.bit_count("distinct")).alias("distinct"),
            fn.sum("rows").alias("rows"),
            fn.max("largest").alias("largest"),
            *[fn.sum(reason).alias(reason) for reason in UNREAD],
        )
    )


def settled(rows: DataFrame) -> DataFrame:
    """The same rows with ``duplicate_row`` and ``duplicate_index`` as reasons where several claim one place."""
    content = fn.to_json(
        fn.struct(
            fn.col("rest"),
            fn.array_sort(fn.array_distinct("to")).alias("to"),
            fn.array_sort(fn.map_entries("clock")).alias("clock"),
        )
    )
    hop = fn.col("kind").eqNullSafe("hop")
    good = fn.col("reason").isNull()
    place = [hop, fn.col("process"), fn.col("index"), good]
    again = fn.row_number().over(Window.partitionBy(*place, "content").orderBy("content")) > 1
    marked = rows.withColumn("content", content)
    different = fn.size(fn.collect_set("content").over(Window.partitionBy(*place))) > 1
    reason = (
        fn.when(~good, fn.col("reason")).when(again, "duplicate_row").when(different, "duplicate_index").otherwise(None)
    )
    return marked.withColumn("reason", reason).drop("content")


def matched(
    rows: DataFrame, names: Sequence[str], partitions: int, rowless: Sequence[str] = (), narrow: int = WIDE
) -> DataFrame:
    """The events of messages (and others that have a clock), matched; ``names`` are the processes, in order.
    ``rowless`` are those among them that have no rows (they occur in clocks alone).

    Processes are numbers into ``names``. A valid delivery has its send's place (``source``, ``sent``); a valid send
    has the number of its deliveries (``awaited``), of destinations without one (``undelivered``), and the names among
    its destinations that are no processes (``silent``).
    """
    known, silent = tuple(names), frozenset(rowless)

    def match_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        bucket = _bucket(batches, known, narrow)
        if bucket is not None:
            yield from _matched_batches(bucket, known, silent)

    return _by_message(rows, partitions).mapInArrow(match_partition, MATCHED_COLUMNS)


def linked(
    rows: DataFrame, names: Sequence[str], partitions: int, rowless: Sequence[str] = (), narrow: int = WIDE
) -> DataFrame:
    """The same as far as a verdict needs it: a row for each valid delivery with its send's place, and for each send
    without one (its ``source`` is -2). Where ``said`` is not null it holds, packed, what a partition counted, or some
    clocks."""
    known, silent = tuple(names), frozenset(rowless)

    def link_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        bucket = _bucket(batches, known, narrow)
        if bucket is not None:
            yield from _linked_batches(bucket, known, silent)

    return _by_message(rows, partitions).mapInArrow(link_partition, LINKED_COLUMNS)


def _by_message(rows: DataFrame, partitions: int) -> DataFrame:
    """The rows that are to be matched, those of one message in one partition."""
    clocks = [name for name in ("lamport", "clock") if not rows.schema[name].metadata.get(_absent)]
    assumed = [] if rows.schema["assumed"].metadata.get(_absent) else ["assumed"]
    asked = fn.col("kind").isin("send", "deliver", "arrive")
    for name in clocks:
        asked = asked | fn.col(name).isNotNull()
    wanted = rows.filter(fn.col("reason").isNull() & ~fn.col("kind").eqNullSafe("hop") & asked)
    number = fn.lit(None)
    for kind, value in KIND_NUMBERS.items():
        number = fn.when(fn.col("kind") == kind, value).otherwise(number)
    wanted = wanted.select("process", "index", number.cast("tinyint").alias("kind"), "message", "to", *clocks, *assumed)
    # A local event has no message; any partition will do, but not all of them the same one.
    key = fn.when(fn.col("kind") == LOCAL, fn.concat_ws(" ", "process", "index")).otherwise(fn.col("message"))
    return wanted.repartition(partitions, key if clocks else fn.col("message"))


def _bucket(batches: Iterator[Any], names: tuple[str, ...], narrow: int) -> Bucket | None:
    """What a partition holds, matched; the names that it numbers itself come behind those that are known."""
    encoder = Encoder()
    for name in names:
        encoder.names.of(name)
    table = joined(encoder.encode(batch, np.zeros(batch.num_rows, np.int64)) for batch in batches)
    if not table.num_rows:
        return None
    bucket = Bucket(table, np.zeros(table.num_rows, np.int32), len(encoder.names), narrow)
    bucket.names = encoder.names.list()
    return bucket


def _linked_batches(bucket: Bucket, names: tuple[str, ...], rowless: frozenset[str]) -> Iterator[Any]:
    silent = {name for name, said in zip(bucket.names, bucket.named, strict=True) if said} - (set(names) - rowless)
    yield packed_row(pack(bucket.summary() | {"named": np.zeros(0, np.uint8), "silent": sorted(silent)}))
    piece = bucket.piece()
    sends = len(piece["s_process"])
    columns = {
        "process": np.concatenate([piece["s_process"], piece["d_process"]]),
        "index": np.concatenate([piece["s_index"], piece["d_index"]]),
        "source": np.concatenate([np.full(sends, SENT, np.int32), piece["d_source"]]),
        "sent": np.concatenate([np.zeros(sends, np.int64), piece["d_sent"]]),
    }
    rows = len(columns["process"])
    arrays = [pa.array(column) for column in columns.values()]
    whole = pa.record_batch([*arrays, pa.nulls(rows, pa.binary())], names=[*columns, "said"])
    clocks = _clocks_of(piece)
    for start in range(0, rows, _linked_rows_at_once):
        yield whole.slice(start, _linked_rows_at_once)
        # Spark fills its batches by rows, so large values had better not come one after the other.
        yield from map(packed_row, islice(clocks, 2))
    yield from map(packed_row, clocks)


def _clocks_of(piece: Piece) -> Iterator[bytes]:
    """The clocks of a piece, packed, some at a time."""
    for mark in ("l_", "c_", "a_"):
        sizes = piece.get("c_size", np.zeros(0, np.int64)) if mark == "c_" else None
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]) if sizes is not None else None
        for start in range(0, len(piece.get(mark + "process", ())), _linked_rows_at_once):
            some = slice(start, start + _linked_rows_at_once)
            part = {name: array[some] for name, array in piece.items() if name.startswith(mark)}
            if ends is not None:
                entries = slice(ends[start], ends[min(some.stop, len(ends) - 1)])
                part |= {name: piece[name][entries] for name in ("c_name", "c_entry")}
            yield pack(part)


def _matched_batches(bucket: Bucket, names: tuple[str, ...], rowless: frozenset[str]) -> Iterator[Any]:
    rows = len(bucket.process)
    delivered = np.flatnonzero((bucket.kind == DELIVER) & (bucket.reason == VALID))
    sent = (bucket.kind == SEND) & (bucket.reason == VALID)
    source, sent_at = np.zeros(rows, np.int32), np.zeros(rows, np.int64)
    source[delivered] = bucket.process[bucket.send_row[delivered]]
    sent_at[delivered] = bucket.index[bucket.send_row[delivered]]
    no_delivery = np.ones(rows, bool)
    no_delivery[delivered] = False
    known = bucket.to_known.astype(bool)
    known[delivered] = known[bucket.send_row[delivered]]
    owed = np.where(sent & known, bucket.to_end - bucket.to_start - bucket.awaited, 0)
    columns = {
        "process": pa.array(bucket.process),
        "index": pa.array(bucket.index),
        "kind": pa.array(bucket.kind.astype(np.int8)),
        "reason": _reasons(bucket),
        "source": pa.array(source, mask=no_delivery),
        "sent": pa.array(sent_at, mask=no_delivery),
        "awaited": pa.array(bucket.awaited, mask=~sent),
        "undelivered": pa.array(owed.astype(np.int32)),
        "known": pa.array(known),
        "silent": _silent(bucket, sent, bucket.names, len(names), rowless),
    }
    for name, kind in (
        ("lamport", pa.int64()),
        ("clock_name", pa.list_(pa.int32())),
        ("clock_entry", pa.list_(pa.int64())),
        ("assumed", pa.bool_()),
    ):
        present = name in bucket.table.schema.names
        columns[name] = bucket.table.column(name).combine_chunks() if present else pa.nulls(rows, kind)
    whole = pa.table(columns)
    yield from whole.to_batches(max_chunksize=131_072)


def _reasons(bucket: Bucket) -> Any:
    names = pa.array([name or None for name in REASON_NAMES], pa.string())
    return names.take(pa.array(bucket.reason))


def _silent(bucket: Bucket, sent: Any, names: list[str], processes: int, rowless: frozenset[str]) -> Any:
    """For each valid send, the destinations that are no processes; null where there are none."""
    if len(names) == processes and not rowless:
        return pa.nulls(len(sent), pa.list_(pa.string()))
    found = [
        [names[k] for k in bucket.to[start:end] if k >= processes or names[k] in rowless] or None if valid else None
        for start, end, valid in zip(bucket.to_start, bucket.to_end, sent & bucket.to_known.astype(bool), strict=True)
    ]
    return pa.array(found, pa.list_(pa.string()))


def judged(rows: DataFrame, docket: Docket) -> DataFrame:
    """One row, one column: the verdicts on matched or linked rows, packed
    (:func:`antecede.pipeline.packing.unpack`)."""
    lean = "said" in rows.columns

    def judge_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        verdicts = _judged_lean(batches, docket) if lean else _judged(batches, docket)
        yield pa.record_batch([pa.array([verdicts], pa.binary())], names=["verdicts"])

    return rows.repartition(1).mapInArrow(judge_all, "verdicts binary")


def _judged(batches: Iterator[Any], docket: Docket) -> bytes:
    silent: set[str] = set()

    def pieces() -> Iterator[bytes]:
        for batch in batches:
            reason = batch.column("reason")
            for texts in batch.column("silent").drop_null().to_pylist():
                silent.update(texts)
            counts = {one["values"]: one["counts"] for one in reason.value_counts().to_pylist() if one["values"]}
            valid = reason.is_null().to_numpy(zero_copy_only=False)
            kind = batch.column("kind").to_numpy()
            owed = batch.column("undelivered").to_numpy(zero_copy_only=False)
            yield pack({
                "reasons": counts,
                "messages": int(((kind == SEND) & valid).sum()),
                "deliveries": int(((kind == DELIVER) & valid).sum()),
                "undelivered": int(owed[valid].sum()),
                "named": np.zeros(0, np.uint8),
            })  # fmt: skip
            yield pack(dict(_piece(batch, kind, valid)))

    summary = unpack(only_summary(pieces(), docket))
    return pack(summary | {"silent": sorted(silent)})


def _judged_lean(batches: Iterator[Any], docket: Docket) -> bytes:
    silent: set[str] = set()

    def pieces() -> Iterator[bytes]:
        for batch in batches:
            said = batch.column("said")
            rows = said.is_null().to_numpy(zero_copy_only=False)
            for packed in said.drop_null().to_pylist():
                told = unpack(packed)
                silent.update(told.get("silent", ()))
                yield packed if "named" in told else pack(_no_rows | told)
            process, index, source, sent = (
                batch.column(name).fill_null(0).to_numpy(zero_copy_only=False)[rows]
                for name in ("process", "index", "source", "sent")
            )
            send, deliver = source == SENT, source != SENT
            yield pack({
                "s_process": process[send],
                "s_index": index[send],
                "d_process": process[deliver],
                "d_index": index[deliver],
                "d_source": source[deliver],
                "d_sent": sent[deliver],
            })  # fmt: skip

    summary = unpack(only_summary(pieces(), docket))
    return pack(summary | {"silent": sorted(silent)})


def _piece(batch: Any, kind: Any, valid: Any) -> Piece:
    unheard = batch.column("awaited").fill_null(0).to_numpy(zero_copy_only=False) == 0
    sends, delivers = np.flatnonzero((kind == SEND) & valid & unheard), np.flatnonzero((kind == DELIVER) & valid)

    def numbers(name: str, rows: Any) -> Any:
        return batch.column(name).fill_null(0).to_numpy(zero_copy_only=False)[rows]

    piece: Piece = {
        "s_process": numbers("process", sends),
        "s_index": numbers("index", sends),
        "d_process": numbers("process", delivers),
        "d_index": numbers("index", delivers),
        "d_source": numbers("source", delivers),
        "d_sent": numbers("sent", delivers),
    }
    assumed = batch.column("assumed").fill_null(False).to_numpy(zero_copy_only=False)
    placed = np.flatnonzero(assumed & valid & (kind <= DELIVER))
    if len(placed):
        piece |= {"a_process": numbers("process", placed), "a_index": numbers("index", placed)}
    for mark, column in (("l_", "lamport"), ("c_", "clock_name")):
        clocked = np.flatnonzero(valid & batch.column(column).is_valid().to_numpy(zero_copy_only=False))
        if not len(clocked):
            continue
        piece[mark + "process"], piece[mark + "index"] = numbers("process", clocked), numbers("index", clocked)
        keep = pa.array(clocked)
        if column == "lamport":
            piece["l_value"] = batch.column(column).take(keep).to_numpy(zero_copy_only=False)
        else:
            named = batch.column("clock_name").take(keep)
            piece["c_size"] = np.diff(named.offsets.to_numpy()).astype(np.int64)
            piece["c_name"] = named.flatten().to_numpy(zero_copy_only=False)
            piece["c_entry"] = batch.column("clock_entry").take(keep).flatten().to_numpy(zero_copy_only=False)
    return piece
