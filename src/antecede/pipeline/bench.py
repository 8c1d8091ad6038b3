"""``antecede bench verify``: the speed of judging a trace, compared with floors measured in the same run.

A floor is the time of work that cannot be avoided. There are two: pyarrow's scan of the same columns, and one thread's
walk with the causal kernel over lines that are already assembled. Peak memory is that of the whole tree of processes
(driver, JVM, Python workers), by their proportional set sizes, sampled during a run. The first run in a new session is
*cold*, the others are *warm*; neither includes the start of the session.
"""

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from antecede.pipeline.bench_trace import write_bench_trace
from antecede.pipeline.frames import verify as verify_frame
from antecede.pipeline.judge import orders as judge
from antecede.pipeline.judge.files import open_trace, verify_in
from antecede.pipeline.judge.verdict import assembled
from antecede.pipeline.match.lines import recounted
from antecede.pipeline.sessions import Session, session
from antecede.pipeline.spark.flow import FileParts, pieces_of

_columns = ("process", "index", "kind", "message", "to")
_sample_seconds = 0.2


def bench_verify(
    messages: int = 1_000_000,
    processes: int = 64,
    rounds: int = 3,
    dataframe: bool = True,
    lost: float = 0.0,
    spanning: bool = False,
    chunks: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write a trace of ``messages`` messages, judge it for FIFO and causal order several times, and return the
    figures."""
    with tempfile.TemporaryDirectory(prefix="antecede-bench-") as directory:
        path = str(Path(directory) / "bench.parquet")
        say("writing the trace")
        started = time.perf_counter()
        events = write_bench_trace(path, messages, processes, lost=lost, spanning=spanning)
        report: dict[str, Any] = {
            "bench": "verify",
            "events": events,
            "messages": messages,
            "processes": processes,
            "cores": os.cpu_count(),
            "trace_bytes": os.path.getsize(path),
            "trace_seconds": round(time.perf_counter() - started, 2),
        }
        with session(lean=True) as running:
            report["session_seconds"] = round(running.seconds, 2)
            say("judging, reading files")
            report["files"] = _measured(lambda: verify_in(running, [path], causal="walk"), events, rounds)
            if chunks:
                say("judging, reading files, by chunks of time")
                report["chunks"] = _measured(lambda: verify_in(running, [path], causal="chunks"), events, rounds)
            say("measuring the floors")
            scan = min(_timed(lambda: _scan(path)) for _ in range(3))
            kernel = _kernel_seconds(running, path)
        if dataframe:
            # A separate session that is not lean: here the JVM does most of the work.
            with session() as running:
                say("judging, as a DataFrame")
                frame = running.spark.read.parquet(path)
                report["dataframe"] = _measured(lambda: verify_frame(frame), events, rounds)
    report["floors"] = {"scan_seconds": round(scan, 3), "kernel_seconds": round(kernel, 3)}
    for name in ("files", "chunks", "dataframe"):
        if name in report:
            warm = report[name]["warm_seconds"]
            report[name] |= {"times_scan": round(warm / scan, 1), "times_kernel": round(warm / kernel, 1)}
    return report


def _measured(work: Callable[[], Any], events: int, rounds: int) -> dict[str, Any]:
    with _watched() as peak:
        times = [_timed(work) for _ in range(1 + rounds)]
    warm = statistics.median(times[1:]) if rounds else times[0]
    return {
        "cold_seconds": round(times[0], 2),
        "warm_seconds": round(warm, 2),
        "events_per_second": round(events / warm),
        "peak_bytes": peak[0],
    }


def _timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _scan(path: str) -> None:
    for batch in pq.ParquetFile(path, pre_buffer=False).iter_batches(columns=list(_columns)):
        del batch


def _kernel_seconds(running: Session, path: str) -> float:
    """Return the seconds of one thread's causal walk over assembled lines, in this process."""
    trace = open_trace(running, [path])
    parts = trace.matched()
    assert isinstance(parts, FileParts), "the floor is measured on one machine"
    lines, _, _ = assembled(pieces_of(parts.pieces[0]), trace.docket(()))
    times = []
    # The first round loads the kernel, the second is timed.
    for _ in range(2):
        recounted(lines)
        times.append(_timed(lambda: [None for _ in judge.causal_late(lines)]))
    return min(times)


@contextmanager
def _watched() -> Iterator[list[int]]:
    """Measure the largest memory of this process and its descendants, in bytes, while the block runs."""
    peak = [0]
    done = threading.Event()

    def watch() -> None:
        pause = _sample_seconds
        while not done.wait(pause):
            started = time.perf_counter()
            peak[0] = max(peak[0], _tree_bytes(os.getpid()))
            # Reading the sizes of much memory takes time that the measured processes need.
            pause = max(_sample_seconds, 20 * (time.perf_counter() - started))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def _tree_bytes(root: int) -> int:
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            below.setdefault(parent, []).append(int(entry.name))
    total = 0
    todo = [root]
    while todo:
        process = todo.pop()
        todo += below.get(process, [])
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            total += 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return total
