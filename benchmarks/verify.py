"""The speed of judging a trace with Spark, compared with floors that are measured in the same run.

A floor is the time of work that cannot be avoided. Two floors are measured. The first is pyarrow's scan of the same
columns. The second is the time in which one thread judges causal order. This thread reads the *lines* (the event
sequences of the processes) once. The lines are assembled before the measurement starts. The memory of a run is the sum
of the proportional set sizes of all processes (driver, JVM, Python workers). It is measured repeatedly during the runs,
and the largest value is the peak memory. The first run of each kind (files, chunks, DataFrame) is *cold*, the others
are *warm*; neither includes the start of the session. CPU time is the CPU time of the same processes. Unlike the wall
time, it is comparable on a busy machine.
"""

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from antecede.pipeline.flow import FileParts, pieces_of
from antecede.pipeline.frames import verify as verify_frame
from antecede.pipeline.judge import orders as judge
from antecede.pipeline.judge.files import open_trace, verify_in
from antecede.pipeline.judge.verdict import assembled
from antecede.pipeline.match import recounted
from antecede.pipeline.sessions import Session, session
from benchmarks import common
from benchmarks.common import report_status
from benchmarks.verify_trace import write_bench_trace

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
) -> dict[str, Any]:
    """Write a trace of ``messages`` messages, judge it for FIFO and causal order several times; return the figures."""
    with tempfile.TemporaryDirectory(prefix="antecede-benchmark-") as directory:
        path = str(Path(directory) / "bench.parquet")
        report_status("writing the trace")
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
            report_status("judging, reading files")
            report["files"] = _measured(lambda: verify_in(running, [path], causal="walk"), events, rounds)
            if chunks:
                report_status("judging, reading files, by chunks of time")
                report["chunks"] = _measured(lambda: verify_in(running, [path], causal="chunks"), events, rounds)
            report_status("measuring the floors")
            scans = [_timed(lambda: _scan(path)) for _ in range(3)]
            scan = min(one[0] for one in scans)
            # The kernel counts CPU time in ticks.
            scan_cpu = max(min(one[1] for one in scans), 1 / os.sysconf("SC_CLK_TCK"))
            kernel = _kernel_seconds(running, path)
        if dataframe:
            # A separate session that is not lean: here the JVM does most of the work.
            with session() as running:
                report_status("judging, as a DataFrame")
                frame = running.spark.read.parquet(path)
                report["dataframe"] = _measured(lambda: verify_frame(frame), events, rounds)
    report["floors"] = {
        "scan_seconds": round(scan, 3),
        "scan_cpu_seconds": round(scan_cpu, 3),
        "kernel_seconds": round(kernel, 3),
    }
    for name in ("files", "chunks", "dataframe"):
        if name in report:
            warm = report[name]["warm_seconds"]
            report[name] |= {
                "times_scan": round(warm / scan, 1),
                "cpu_times_scan": round(report[name]["cpu_seconds"] / scan_cpu, 1),
                "times_kernel": round(warm / kernel, 1),
            }
    return report


def _measured(work: Callable[[], Any], events: int, rounds: int) -> dict[str, Any]:
    with _watched() as watch:
        times = [_timed(work, watch) for _ in range(1 + rounds)]
    warm, cpu = (statistics.median(one[k] for one in times[1:] or times) for k in range(2))
    return {
        "cold_seconds": round(times[0][0], 2),
        "warm_seconds": round(warm, 2),
        "cpu_seconds": round(cpu, 2),
        "cpu_ns_per_event": round(cpu / events * 1e9),
        "events_per_second": round(events / warm),
        "peak_bytes": watch.peak,
    }


class _Watch:
    """The results of measuring memory repeatedly: the largest memory (``peak``, in bytes), and the CPU time of the
    measurements themselves (``seconds``)."""

    def __init__(self) -> None:
        self.peak, self.seconds = 0, 0.0


def _timed(work: Callable[[], Any], watch: _Watch | None = None) -> tuple[float, float]:
    """Run ``work``. Return its duration, and the CPU time that this process and its descendants used during the work.
    The CPU time of the measurements of ``watch`` is not included."""

    def used() -> float:
        return _tree_seconds(os.getpid()) - (watch.seconds if watch is not None else 0.0)

    started, before = time.perf_counter(), used()
    work()
    return time.perf_counter() - started, used() - before


def _scan(path: str) -> None:
    for batch in pq.ParquetFile(path, pre_buffer=False).iter_batches(columns=list(_columns)):
        del batch


def _kernel_seconds(running: Session, path: str) -> float:
    """Return the time, in seconds, in which one thread of this process judges causal order. The lines (the event
    sequences of the processes) are assembled before the measurement starts. The time is measured twice, and the shorter
    time is returned."""
    trace = open_trace(running, [path])
    parts = trace.matched()
    assert isinstance(parts, FileParts), "the floor is measured on one machine"
    lines, _, _ = assembled(pieces_of(parts.pieces[0]), trace.task(()))
    times = []
    # The first round also loads the kernel, so the shorter time counts.
    for _ in range(2):
        recounted(lines)
        times.append(_timed(lambda: [None for _ in judge.causal_late(lines)])[0])
    return min(times)


@contextmanager
def _watched() -> Iterator[_Watch]:
    """Measure the peak memory of this process and its descendants while the body of the ``with`` statement runs. Yield
    the object that will contain the results."""
    found = _Watch()
    done = threading.Event()

    def watch() -> None:
        pause = _sample_seconds
        while not done.wait(pause):
            started = time.perf_counter()
            found.peak = max(found.peak, _tree_bytes(os.getpid()))
            found.seconds = time.thread_time()
            # Reading the sizes of much memory takes time that the measured processes need.
            pause = max(_sample_seconds, 20 * (time.perf_counter() - started))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()


def _tree(root: int) -> Iterator[tuple[int, list[str]]]:
    """Yield a pair for the process ``root`` and for each of its descendants: the process id, and the fields of
    ``/proc/PID/stat`` that follow the process name."""
    found: dict[int, list[str]] = {}
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                below.setdefault(int(fields[1]), []).append(int(entry.name))
            except (OSError, IndexError, ValueError):
                continue
            found[int(entry.name)] = fields
    todo = [root]
    while todo:
        process = todo.pop()
        todo += below.get(process, [])
        if process in found:
            yield process, found[process]


def _tree_seconds(root: int) -> float:
    """Return the CPU time, in seconds, of a process and its descendants, including children that have ended."""
    ticks = sum(int(field) for _, fields in _tree(root) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _tree_bytes(root: int) -> int:
    total = 0
    for process, _ in _tree(root):
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            total += 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return total


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"{report['events']:,} events, {report['processes']} processes, {report['trace_bytes']:,} bytes"
    for name in ("files", "chunks", "dataframe"):
        if name in report:
            of = report[name]
            yield (
                f"{name:<10}{of['events_per_second']:>12,.0f} events/s  {of['warm_seconds']:>7.2f} s "
                f"(cold {of['cold_seconds']:.2f} s)  {of['times_scan']} × scan, {of['times_kernel']} × kernel, "
                f"{of['peak_bytes'] / 2**20:,.0f} MiB"
            )


def main(arguments: Sequence[str]) -> int:
    parser = common.parser("verify", __doc__)
    parser.add_argument("--messages", type=common.at_least(1_000), default=1_000_000)
    parser.add_argument("--processes", type=common.at_least(2), default=64)
    parser.add_argument("--rounds", type=common.at_least(1), default=3, help="after a first, cold round; medians")
    parser.add_argument("--no-dataframe", action="store_true", help="leave out the check of a Spark DataFrame")
    parser.add_argument("--lost", type=float, default=0.0, help="share of messages that are never delivered")
    parser.add_argument("--spanning", action="store_true", help="deliver the first message only at the end")
    parser.add_argument("--chunks", action="store_true", help="also measure `antecede verify --causal chunks`")
    given = parser.parse_args(arguments)
    if not 0 <= given.lost <= 0.5:
        parser.error(f"--lost {given.lost}: expected a share from 0 to 0.5")
    found = bench_verify(
        given.messages, given.processes, given.rounds, not given.no_dataframe, given.lost, given.spanning, given.chunks
    )
    common.report(found, given.json, _lines)
    return 0
