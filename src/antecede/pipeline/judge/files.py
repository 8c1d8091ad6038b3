"""``verify`` for files on Spark: a session, the stages, and the report with its timings."""

import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from antecede import __version__, limits
from antecede.errors import TraceError, UsageError
from antecede.pipeline.flow import Flow, SparkFiles, SparkFrames
from antecede.pipeline.judge.significant import significant_on
from antecede.pipeline.judge.trace import Outcome, Trace, layout_for, verdict_on
from antecede.pipeline.kernels.match import REASON_NAMES
from antecede.pipeline.pieces import unpack
from antecede.pipeline.read.columns import odd_rows
from antecede.pipeline.read.splits import Input, Split, line_before, plan, read
from antecede.pipeline.sessions import Session, master_of, session, shown_tasks
from antecede.trace.conflicts import Conflicts, needed
from antecede.trace.epochs import epochs_of
from antecede.trace.files import Item, items_in
from antecede.trace.schema import NEEDED_BY_INSTANCES, Fault, Metadata, Nulled
from antecede.trace.sources import Cut, shown
from antecede.trace.verdicts import known_orders

# Write two files for a person to examine: the rows that were set aside, and all late deliveries.
#
# For a row that was set aside during matching, only its split (a piece of the input) and its number in the split are
# known. So each split is read once more, in the order of the trace, to get the text of these rows. The late deliveries
# are written to a Parquet file, in portions. Each of the two files is either written completely or not at all.


LATE_SCHEMA = pa.schema(
    [
        ("order", pa.string()),
        ("message", pa.string()),
        ("from", pa.string()),
        ("to", pa.string()),
        ("send_index", pa.int64()),
        ("deliver_index", pa.int64()),
        ("overtaken_by", pa.string()),
    ]
)
"""The columns of a table of late deliveries."""


def write_quarantine(trace: Trace, outcome: Outcome, directory: str) -> None:
    """Write ``DIR/quarantine.jsonl``: one line for each row set aside, in the order of the trace."""
    known: dict[int, dict[int, str]] = {}
    for split, number, again in trace.contested_rows:
        known.setdefault(split, {})[number - 1] = "duplicate_row" if again else "duplicate_index"
    for split, at in outcome.circular:
        known.setdefault(split, {})[at] = "cycle"
    parts = trace.set_aside()
    used = NEEDED_BY_INSTANCES if trace.layout.instances else ()

    def rows() -> Iterator[bytes]:
        for split in trace.given.splits:
            stage = partial(
                describe, split=split, known=known.get(split.number, {}), faults=bool(+trace.unread), used=used
            )
            yield from parts.stream(stage, [split.number])

    _write(directory, "quarantine.jsonl", lambda out: [out.write(row + b"\n") for row in rows()])


def describe(
    blobs: Iterable[bytes], split: Split, known: dict[int, str], faults: bool, used: Sequence[str] = ()
) -> Iterator[bytes]:
    """Yield one line of JSON for each row that was set aside in this split (a piece of the input)."""
    asked = dict(known)
    for blob in blobs:
        rows = unpack(blob)
        asked |= {int(at): REASON_NAMES[reason] for at, reason in zip(rows["at"], rows["reason"], strict=True)}
    if not asked and not faults:
        return
    before = line_before(split)
    nulled = Nulled(used)
    numbers = np.array(sorted(asked), np.int64)
    for piece in read(split, keep_raw=True):
        if isinstance(piece, list):
            items: Iterable[Item] = piece
        else:
            numbered = np.arange(piece.first, piece.first + piece.batch.num_rows, dtype=np.int64)
            wanted = np.isin(numbered, numbers) | (odd_rows(piece.batch) if piece.plain else True)
            some = piece.batch.filter(pa.array(wanted))
            items = (
                (int(row) + 1, raw, decoded)
                for row, (_, raw, decoded) in zip(numbered[wanted], items_in(some, piece.folded, 0, True), strict=True)
            )
        for number, raw, read_as in items:
            decoded = nulled.take(number, read_as)
            is_fault = isinstance(decoded, Fault)
            if is_fault or number - 1 in asked:
                row = {
                    "file": split.name or shown(split.path),
                    "line": before + number,
                    "reason": decoded.reason if isinstance(decoded, Fault) else asked[number - 1],
                    "detail": decoded.detail if isinstance(decoded, Fault) else "",
                    "raw": raw.decode("utf-8", "replace"),
                }
                yield json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def write_late(rows: Iterator[dict[str, Any]], directory: str) -> None:
    """Write ``DIR/late.parquet``: one row for each late delivery."""

    def put(out: Any) -> None:
        with pq.ParquetWriter(out, LATE_SCHEMA) as writer:
            while some := list(islice(rows, 65_536)):
                writer.write_batch(pa.RecordBatch.from_pylist(some, schema=LATE_SCHEMA))

    _write(directory, "late.parquet", put)


def _write(directory: str, name: str, put: Any) -> None:
    target = Path(directory) / name
    temporary = target.with_name(f".{name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as out:
                put(out)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise TraceError(f"{target}: cannot be written: {error.strerror}") from None


def late_to_parquet(directory: str) -> None:
    """Read the file ``late.jsonl`` that the plain engine wrote, and write its rows to ``late.parquet``."""
    with open(Path(directory) / "late.jsonl", "rb") as lines:
        write_late((msgspec.json.decode(line) for line in lines), directory)


ReportStatus = Callable[[str], None]

Given = Sequence[str] | Input
"""The input of a run: paths, or an :class:`Input` if the files at the paths have already been divided into splits."""

WAYS = ("auto", "walk", "chunks")
"""The ways to judge FIFO and causal order: in one walk over all events (``walk``), or by chunks of time (``chunks``).
With ``auto``, the program chooses one of them."""

_chunk_cores_min = 16
_cluster_tasks = 512
_bytes_a_row = 100
_files_asked_about = 20


def verify_files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    orders: Sequence[str] = ("fifo", "causal"),
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    quarantine: str | None = None,
    late: str | None = None,
    cut: Cut = Cut(),  # noqa: B008 (it cannot be changed)
    causal: str = "auto",
    conflicts: Conflicts | None = None,
    everywhere: bool = False,
    report_status: ReportStatus = lambda _: None,
) -> dict[str, Any]:
    """Judge the traces at these paths together, as one trace, on a new Spark session. Return the report. ``causal`` is
    one of ``WAYS``.

    ``conflicts`` is the table of conflicts for significant order. Without ``conflicts``, the table in the trace's
    metadata is used. If the metadata contains epochs (one for each topology that the system had), late deliveries
    that break no guarantee of the topology are counted separately (:mod:`antecede.trace.epochs` has the exact rule).
    With ``everywhere``, epochs are ignored, and the whole trace is judged by all ``orders``.
    """
    named = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    orders = known_orders(orders)

    def check(metadata: list[Metadata]) -> None:
        if "significant" in orders:
            needed(conflicts, metadata)
        if not everywhere:
            epochs_of(metadata)

    with spark_for(named, master, conf, report_status, check) as (running, given):
        return verify_in(running, given, orders, quarantine, late, cut, causal, conflicts, everywhere, report_status)


@contextmanager
def spark_for(
    paths: Sequence[str | os.PathLike[str]],
    master: str | None,
    conf: Mapping[str, str] | None,
    report_status: ReportStatus,
    check: Callable[[list[Metadata]], Any] | None = None,
) -> Iterator[tuple[Session, Given]]:
    """Start a Spark session. Yield the session, and the input at these paths. Errors in the paths or in their metadata
    are raised before the session starts, unless standard input is one of the paths."""
    named = [os.fspath(path) for path in paths]
    master = master_of(master, conf)
    given: Given = named
    if "-" not in named:
        given = plan(named, _tasks(master))
        if check is not None:
            check(given.metadata)
    elif not master.startswith("local"):
        raise UsageError(
            "standard input cannot be read by the workers of a remote master: give a path that every worker has"
        )
    report_status("starting Spark")
    with session(master, conf, lean=True) as running, shown_tasks(running.context, report_status):
        yield running, given


def _tasks(master: str) -> int:
    """Return the number of pieces (splits) into which text files should be divided. If the tasks run on this machine,
    the number is two per core that Spark may use. On a cluster, the number is large enough to keep even a large cluster
    busy. Splits have a smallest size, so a small trace has fewer splits."""
    if not master.startswith("local"):
        return _cluster_tasks
    cores = re.fullmatch(r"local\[(\d+)\]", master)
    return 2 * (int(cores[1]) if cores else os.cpu_count() or 1)


def open_trace(running: Session, given: Given, report_status: ReportStatus = lambda _: None, **layout: Any) -> Trace:
    """Open a trace: read it, encode it, and find its processes. ``layout`` sets options of the encoding, such as
    ``figures``."""
    return _read(running, _planned(running, given), running.scratch, report_status, **layout)


def _planned(running: Session, given: Given) -> Input:
    tasks = running.context.defaultParallelism
    if not isinstance(given, Input):
        given = plan([_spooled(path, running.scratch) for path in given], tasks=2 * tasks)
    if not running.local:
        check_seen(running.context, given, tasks)
    return given


def check_seen(context: Any, given: Input, tasks: int) -> None:
    """Raise an error if a worker cannot read the files. Without this check, the tasks of this worker would fail later,
    one after the other. If there are many files, only a sample of them is checked."""
    files = list(dict.fromkeys(split.path for split in given.splits if "://" not in split.path))
    some = files[:: max(1, len(files) // _files_asked_about)]

    def look(_: Any) -> list[tuple[str, str]]:
        return [(socket.gethostname(), path) for path in some if not os.access(path, os.R_OK)]

    unseen = context.parallelize(range(tasks), tasks).flatMap(look).collect() if some else []
    if unseen:
        host, path = sorted(unseen)[0]
        raise TraceError(
            f"{shown(path)}: the Spark worker on {host} cannot read this file: "
            "give a path that every worker has, or an address such as s3://…"
        )


def _read(running: Session, given: Input, scratch: Path, report_status: ReportStatus, **layout: Any) -> Trace:
    report_status("reading the trace")
    lines = str(scratch) if running.local else None
    return Trace(flow_of(running, scratch), given, layout_for(given, **layout), lines)


def verify_in(
    running: Session,
    given: Given,
    orders: Sequence[str] = ("fifo", "causal"),
    quarantine: str | None = None,
    late: str | None = None,
    cut: Cut = Cut(),  # noqa: B008
    causal: str = "auto",
    conflicts: Conflicts | None = None,
    everywhere: bool = False,
    report_status: ReportStatus = lambda _: None,
) -> dict[str, Any]:
    """Verify a trace in a running session. Return the report."""
    orders = known_orders(orders)
    started = time.perf_counter()
    given = _planned(running, given)
    way = chosen_way(causal, given, running.context.defaultParallelism)
    instances = "significant" in orders
    table = needed(conflicts, given.metadata) if instances else None
    carried = {"numbered": quarantine is not None, "timed": way == "chunks", "instances": instances}
    # The files between stages are removed when this run ends, not only with the session.
    with tempfile.TemporaryDirectory(dir=running.scratch, ignore_cleanup_errors=True) as scratch:
        trace = _read(running, given, Path(scratch), report_status, cut=cut, **carried)
        report_status(f"matching and judging {trace.rows:,} rows" + (" by chunks of time" if way == "chunks" else ""))
        epochs = None if everywhere else epochs_of(given.metadata)
        outcome = verdict_on(trace, orders, every_late=late is not None, causal=way, epochs=epochs)
        if table is not None:
            entry, rows = significant_on(trace, table, outcome.report["deliveries"], every_late=late is not None)
            outcome.report["orders"]["significant"] = entry
            outcome.late = chain(outcome.late, rows())
        if quarantine is not None:
            report_status("writing the rows that were set aside")
            write_quarantine(trace, outcome, quarantine)
        if late is not None:
            report_status("writing late deliveries")
            write_late(outcome.late, late)
    seconds = time.perf_counter() - started
    report = {"version": __version__, "engine": "spark", **outcome.report}
    return report | {
        "session_seconds": round(running.seconds, 3),
        "seconds": round(seconds, 3),
        "events_per_second": round(report["events"] / seconds),
    }


def chosen_way(causal: str, given: Input, cores: int) -> str:
    """Return the way to judge FIFO and causal order: ``walk`` or ``chunks``. If ``causal`` is one of these two, return
    it. If ``causal`` is ``auto``, return the way that is probably faster.

    The walk is one task. Chunks of time are many tasks, which do more work in total. So chunks are used if there are
    enough cores and events for them, or if the trace has more than ``limits.walk_events_max`` events.
    """
    if causal not in WAYS:
        raise UsageError(f"--causal must be one of {', '.join(WAYS)}, not {causal!r}")
    if causal != "auto":
        return causal
    rows = given.rows if given.rows is not None else given.bytes // _bytes_a_row
    if rows > limits.walk_events_max:
        return "chunks"
    return "chunks" if cores >= _chunk_cores_min and rows >= cores * limits.chunk_events_wanted else "walk"


def flow_of(running: Session, scratch: Path | None = None) -> Flow:
    """Return the object that runs the stages of the pipeline in this session. The stages exchange data through files if
    all tasks run on this machine, otherwise through DataFrames."""
    if running.local:
        return SparkFiles(running.context, str(scratch or running.scratch))
    return SparkFrames(running.spark)


def _spooled(path: str, scratch: Path) -> str:
    """Return the path of a file that can be read from any position. Standard input and pipes are first written to such
    a file. Any other path is returned unchanged."""
    if path != "-" and (not os.path.exists(path) or os.path.isfile(path) or os.path.isdir(path)):
        return path
    target = scratch / f"input-{len(list(scratch.glob('input-*')))}"
    with open(target, "wb") as out:
        if path == "-":
            shutil.copyfileobj(sys.stdin.buffer, out, 1 << 20)
        else:
            with open(path, "rb") as pipe:
                shutil.copyfileobj(pipe, out, 1 << 20)
    return str(target)
