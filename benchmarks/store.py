"""The speed of the log, compared with bare system calls on the same disk in the same minute.

The lower bound (``floor``) is a loop that only writes the bytes of a group into an allocated file and syncs the file. A
sync can take twenty times as long on a busy machine as on a quiet machine. So the loop and the log are measured
alternately, several times each, and the medians are compared.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from antecede.errors import StoreFullError, UsageError
from antecede.store import Store, open_store
from antecede.store.directory import HEADER_BYTES, LENGTH_BYTES
from benchmarks import common
from benchmarks.common import report_status

_durabilities = ("disk", "os", "memory")


def bench_store(
    directory: str | None = None,
    record_bytes: int = 100,
    group_records: int = 1_000,
    records: int = 300_000,
    syncs: int = 200,
    rounds: int = 3,
) -> dict[str, Any]:
    """Measure the store with each durability. Also measure the lower bound (``floor``): the same writes and syncs
    without a log. Return a report. It has an entry with medians for each durability and for ``floor``. The files are
    written into ``directory`` (default: the temporary folder)."""
    samples: dict[str, dict[str, list[float]]] = {}

    def note(durability: str, figure: str, value: float) -> None:
        samples.setdefault(durability, {}).setdefault(figure, []).append(value)

    record = os.urandom(record_bytes)
    single = HEADER_BYTES + LENGTH_BYTES + record_bytes
    grouped = HEADER_BYTES + group_records * (LENGTH_BYTES + record_bytes)
    for number in range(rounds):
        with TemporaryDirectory(dir=directory) as place:
            note("floor", "grouped_per_second", group_records / _grouped_floor(place, grouped, syncs))
        for durability in _durabilities:
            with TemporaryDirectory(dir=directory) as place:
                for figure, value in _measure(place, durability, record, group_records, records, syncs).items():
                    note(durability, figure, value)
        with TemporaryDirectory(dir=directory) as place:
            bare, ours = _one_in_flight(place, single, record, syncs)
            note("floor", "one_in_flight_us", bare * 1e6)
            note("disk", "one_in_flight_us", ours * 1e6)
        report_status(f"round {number + 1}/{rounds}")
    result: dict[str, Any] = {
        name: {figure: median(values) for figure, values in figures.items()} for name, figures in samples.items()
    }
    disk, floor = samples["disk"], samples["floor"]
    result["disk"]["one_in_flight_over_floor"] = _ratio(disk["one_in_flight_us"], floor["one_in_flight_us"])
    result["disk"]["grouped_over_floor"] = _ratio(disk["grouped_per_second"], floor["grouped_per_second"])
    return {
        "bench": "store",
        "record_bytes": record_bytes,
        "group_records": group_records,
        "records": records,
        "rounds": rounds,
        **result,
    }


def _ratio(ours: list[float], floor: list[float]) -> float:
    return median(mine / bare for mine, bare in zip(ours, floor, strict=True))


class _Bare:
    """A bare program for comparison, which does only the unavoidable work: each call of ``once`` writes ``size`` bytes
    into an allocated file and syncs the file."""

    def __init__(self, place: str, size: int, count: int) -> None:
        self.data = os.urandom(size)
        self.offset = 0
        self.file = os.open(f"{place}/floor", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.posix_fallocate(self.file, 0, size * count)
        os.fsync(self.file)

    def once(self) -> None:
        os.pwrite(self.file, self.data, self.offset)
        os.fdatasync(self.file)
        self.offset += len(self.data)


def _grouped_floor(place: str, size: int, syncs: int) -> float:
    """Return the median time, in seconds, to write the bytes of a group to a file and sync the file, without a log."""
    bare = _Bare(place, size, syncs)
    try:
        return median(_seconds(bare.once) for _ in range(syncs))
    finally:
        os.close(bare.file)


def _one_in_flight(place: str, size: int, record: bytes, syncs: int) -> tuple[float, float]:
    """Return two median times, in seconds: to write and sync the bytes of a record without a log, and to make a record
    durable in the log. The two are measured alternately, because the load of a machine changes every second."""
    bare = _Bare(place, size, syncs)
    store = open_store(f"{place}/log")
    try:
        pairs = [(_seconds(bare.once), _seconds(lambda: store.wait(store.append(record)))) for _ in range(syncs)]
    finally:
        store.close()
        os.close(bare.file)
    return median(floor for floor, _ in pairs), median(ours for _, ours in pairs)


def _measure(
    place: str, durability: str, record: bytes, group_records: int, records: int, syncs: int
) -> dict[str, float]:
    store = open_store(f"{place}/log", durability=durability)
    figures = {}
    try:
        if durability != "disk":
            waits = [_seconds(lambda: store.wait(store.append(record))) for _ in range(syncs)]
            figures["one_in_flight_us"] = median(waits) * 1e6
        figures["records_per_second"] = _flat_out(store, record, records)
        figures["grouped_per_second"] = _grouped(store, record, group_records, records)
    finally:
        store.close()
    return figures


def _seconds(once: Callable[[], object]) -> float:
    started = perf_counter()
    once()
    return perf_counter() - started


def _flat_out(store: Store, record: bytes, records: int) -> float:
    """Return how many records per second become durable if the caller waits only when the log accepts no more records.
    The log decides how many records are in a group."""
    append = store.append
    started = perf_counter()
    for _ in range(records):
        try:
            append(record)
        except StoreFullError:
            store.wait(store.last)
            append(record)
    store.wait(store.last)
    return records / (perf_counter() - started)


def _grouped(store: Store, record: bytes, group_records: int, records: int) -> float:
    """Return how many records per second become durable in groups of about ``group_records`` records. While one group
    is being written, the caller appends the records of the next group."""
    append = store.append
    started = perf_counter()
    before = store.last
    groups = max(1, records // group_records)
    for _ in range(groups):
        for _ in range(group_records):
            append(record)
        store.wait(before)
        before = store.last
    store.wait(before)
    return groups * group_records / (perf_counter() - started)


def _lines(report: dict[str, Any]) -> Iterator[str]:
    for name in ("floor", *_durabilities):
        figures = ", ".join(f"{figure} {value:,.1f}" for figure, value in report[name].items())
        yield f"{name:<8}{figures}"


def main(arguments: Sequence[str]) -> int:
    parser = common.parser("store", __doc__)
    parser.add_argument(
        "--records", type=common.at_least(1_000), default=300_000, help="per measurement; one_in_flight_us needs 200"
    )
    parser.add_argument("--rounds", type=common.at_least(1), default=3, help="the results are medians")
    common.add_directory(parser)
    given = parser.parse_args(arguments)
    try:
        found = bench_store(given.directory, records=given.records, rounds=given.rounds)
    except OSError as error:
        raise UsageError(f"--directory {given.directory}: {error.strerror}") from None
    common.report(found, given.json, _lines)
    return 0
