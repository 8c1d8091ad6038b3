"""Sweeps: run a grid of simulations as Spark tasks, and write their results into one table.

A *grid* has axes (orders, numbers of processes, workloads and others). Each combination of their values is a *cell*:
one simulated run. The settings of a cell determine its result. A cell with a density of conflicts runs the code of
``antecede objects study``, any other cell that of ``antecede simulate``. Each cell is a Spark job with one task. So a
finished cell can be stored immediately, and a failed cell does not affect others.

The named studies follow the papers:

* ``paper003``: Jang et al. §6. Each process receives 10,000 messages in the warm-up, and then 50,000 messages that are
  measured. Each combination is run 5 times. The study adds two things that the paper does not have: the order
  ``updates``, and servers in several domains (shape ``bus``).
* ``paper000``: Laumay et al. §6.2, with organisations of up to 1,000 servers. The largest organisation in the paper has
  150 servers.
* ``paper002``: Mattern and Fünfrocken §4.3. The paper has no measurement. The study measures the latency for several
  values of this ratio: the mean time between two sends, divided by the mean delay of a message.
* ``paper004``: Enokido, Higaki and Takizawa. The paper has no measurement either. The study orders only conflicting
  requests, and measures the share of held copies and the latency. For comparison, it also measures these figures under
  causal order and under total order.
* ``stamps``: the mean size of a stamp, for each order and each size of a domain. The model of ``antecede plan``
  (:mod:`antecede.pipeline.planning`) uses these sizes.

The length of a run is given as the mean number of messages that each process receives, as in Jang et al.; a multicast
to k processes is received k times.

The results are in a directory with one table and, while the sweep runs, one file per finished cell. The file of a
finished cell is first written under a temporary name and then renamed, so that it is always complete. A sweep does not
repeat cells that already have a row. When it ends, it writes all rows into ``table.parquet``, also those of other
sweeps.

This module knows orders and the simulator. It must not know servers, sockets or traces.
"""

import fcntl
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cache, partial
from hashlib import sha256
from itertools import product
from math import atan, cos, pi, sin, sqrt
from pathlib import Path
from shlex import quote
from statistics import fmean, stdev
from time import perf_counter
from types import UnionType
from typing import Any, get_args, get_type_hints

import msgspec

from antecede import __version__, limits
from antecede.documents import read_text
from antecede.errors import AntecedeError, UsageError
from antecede.orders import parse
from antecede.pipeline.planning.problem import SIZES, STAMP_BYTES
from antecede.pipeline.sessions import one_line
from antecede.simulator.run import Setup, simulate
from antecede.topology import make

FLAT = "flat"


class Cell(msgspec.Struct, frozen=True):
    """All settings of one run."""

    order: str
    processes: int
    messages: int
    warmup: int
    seed: int
    workload: str = "unicast"
    gap: str = "exponential:0.1"
    delay: str = "exponential:0.1"
    shape: str = FLAT
    """The organisation of the processes into domains; ``flat`` means a single group of all processes."""
    size: int | None = None
    """Servers per domain; null means the default of the shape."""
    density: float | None = None
    """The share of requests that conflict; null if the run does not simulate a group of objects."""

    @property
    def key(self) -> str:
        """A text that identifies these settings. Different settings have different keys."""
        return sha256(msgspec.json.encode(self)).hexdigest()[:20]

    def check(self) -> None:
        """Raise an error if a run with these settings is not possible."""
        try:
            # A study of conflicts sends messages like ``simulate``, so its settings must pass the same checks.
            self._setup().check()
            if self.messages <= self.warmup:
                raise UsageError(f"warmup {self.warmup}: expected less than the number of messages ({self.messages})")
            if self.density is not None:
                self._check_study(self.density)
        except AntecedeError as error:
            raise UsageError(f"bad grid: {self}: {error}") from None

    def _check_study(self, density: float) -> None:
        if not 0.0 <= density <= 1.0:
            raise UsageError(f"density {density}: expected 0 to 1")
        if self.workload not in ("unicast", "multicast") or self.shape != FLAT:
            raise UsageError("a density of conflicts needs the workload unicast or multicast, and the shape flat")
        if {self.gap, self.delay} != {"exponential:0.1"}:
            raise UsageError("a density of conflicts needs gaps and delays of exponential:0.1")

    def _setup(self) -> Setup:
        organisation = None
        if self.shape != FLAT:
            organisation = make(self.shape, self.processes, self.size, self.order).organisation
        return Setup(
            parse(self.order),
            self.processes,
            self.messages,
            self.workload,
            self.gap,
            self.delay,
            warmup=self.warmup,
            seed=self.seed,
            organisation=organisation,
        )

    def __str__(self) -> str:
        parts = [self.order, f"{self.processes} processes", self.workload, f"gap {self.gap}", f"delay {self.delay}"]
        if self.shape != FLAT:
            parts.append(self.shape if self.size is None else f"{self.shape} of {self.size}")
        if self.density is not None:
            parts.append(f"density {self.density:g}")
        return ", ".join([*parts, f"seed {self.seed}"])

    def command(self) -> str:
        """Return the command that repeats only this run."""
        counts = f"--messages {self.messages} --warmup {self.warmup} --seed {self.seed}"
        if self.density is not None:
            one = " --unicast" if self.workload == "unicast" else ""
            chosen = f"--order {quote(self.order)} --density {self.density:g}"
            return f"antecede objects study --processes {self.processes} {chosen} {counts}{one}"
        kind = {"unicast": "", "multicast": " --multicast", "broadcast": " --broadcast"}
        counts += kind.get(self.workload, f" --workload {self.workload}")
        counts += "".join(
            f" --{name} {quote(spec)}"
            for name, spec in (("gap", self.gap), ("delay", self.delay))
            if spec != "exponential:0.1"
        )
        if self.shape == FLAT:
            return f"antecede simulate --order {quote(self.order)} --processes {self.processes} {counts}"
        file = f"{self.shape}-{self.processes}.toml"
        size = "" if self.size is None else f" --size {self.size}"
        made = f"antecede topology make {self.shape} --servers {self.processes}{size} --order {quote(self.order)}"
        return f"{made} -o {file} && antecede simulate --topology {file} {counts}"

    def effort(self) -> float:
        """Return the estimated run time of the cell in microseconds. It is used to estimate the remaining time, and to
        start the longest cells first."""
        n = self.processes
        deliveries = self.messages * receivers(self.workload, n)
        if self.density is not None:
            return deliveries * (30.0 + 10.0 * n)
        if self.shape != FLAT:
            return deliveries * 150.0
        family = self.order.partition(":")[0]
        return deliveries * {"direct": 0.1 * n * n, "updates": 0.35 * n * n, "pruned": 1.5 * n}.get(
            family, 8.0 + 0.1 * n
        )


def receivers(workload: str, processes: int) -> float:
    """Return the mean number of receivers of a message."""
    return {"multicast": processes / 2, "broadcast": processes - 1.0}.get(workload, 1.0)


class Row(msgspec.Struct, frozen=True):
    """One row of the table: a cell and its figures. ``docs/json.md`` explains each column."""

    key: str
    order: str
    shape: str
    size: int | None
    processes: int
    workload: str
    gap: str
    delay: str
    density: float | None
    messages: int
    warmup: int
    seed: int
    engine: str
    undelivered: int
    dependents_mean: float | None
    bytes_mean: float
    paper_bytes_mean: float | None
    bytes_max: int | None
    copies: int | None
    bytes_total: int | None
    deliveries: int | None
    held: float | None
    latency_mean: float | None
    latency_p99: float | None
    hops_mean: float | None
    control_packets: float | None
    conflicting_held: float | None
    conflicting_latency: float | None
    compatible_held: float | None
    compatible_latency: float | None
    seconds: float
    version: str
    command: str


FIGURES = (
    "dependents_mean",
    "bytes_mean",
    "paper_bytes_mean",
    "held",
    "latency_mean",
    "latency_p99",
    "hops_mean",
    "control_packets",
    "conflicting_held",
    "conflicting_latency",
    "compatible_held",
    "compatible_latency",
)
"""The columns that are averaged over seeds."""


Study = Callable[[Cell], dict[str, Any]]
"""A function that runs a cell with a density of conflicts, and returns the figures for the cell's row. The command
``antecede sweep`` passes this function, because this package must not import the simulation of objects."""


def measured(cell: Cell, study: Study) -> Row:
    """Run a cell. Return its row of the table. If the cell has a density of conflicts, the function calls ``study`` to
    run the cell."""
    started = perf_counter()
    figures = study(cell) if cell.density is not None else _simulated(simulate(cell._setup()))
    nothing = dict.fromkeys(Row.__struct_fields__)
    rest = {"key": cell.key, "engine": "simulator", "version": __version__, "command": cell.command()}
    seconds = round(perf_counter() - started, 3)
    return msgspec.convert({**nothing, **msgspec.structs.asdict(cell), **figures, **rest, "seconds": seconds}, Row)


def _simulated(report: dict[str, Any]) -> dict[str, Any]:
    stamp, latency = report["stamp"], report["latency"]
    return {
        **stamp,
        "deliveries": report["deliveries"],
        "undelivered": report["undelivered"],
        "held": report["held"],
        "latency_mean": latency["mean"],
        "latency_p99": latency["p99"],
        "hops_mean": report["hops"]["mean"] if "hops" in report else None,
    }


_usual = ("exponential:0.1",)


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The axes of a grid, and how long each run is."""

    orders: tuple[str, ...] = ("pruned",)
    processes: tuple[int, ...] = (8,)
    workloads: tuple[str, ...] = ("unicast",)
    gaps: tuple[str, ...] = _usual
    delays: tuple[str, ...] = _usual
    shapes: tuple[str, ...] = (FLAT,)
    size: int | None = None
    densities: tuple[float | None, ...] = (None,)
    seeds: int = 5
    receives: float = 1_000
    """Mean number of messages that each process receives after the warm-up. Only these messages are measured."""
    warmup_receives: float = 200
    """Mean number of messages that each process receives during the warm-up."""

    def cells(self, scale: float) -> Iterator[Cell]:
        """Yield the cells of the grid."""
        axes = (self.orders, self.shapes, self.processes, self.workloads, self.gaps, self.delays, self.densities)
        for order, shape, processes, workload, gap, delay, density in product(*axes):
            per_receive = processes * scale / receivers(workload, max(2, processes))
            warmup = round(self.warmup_receives * per_receive)
            messages = warmup + max(1, round(self.receives * per_receive))
            size = None if shape == FLAT else self.size
            for seed in range(1, self.seeds + 1):
                yield Cell(order, processes, messages, warmup, seed, workload, gap, delay, shape, size, density)


def _gaps(*ratios: float) -> tuple[str, ...]:
    """For each ratio, return a distribution of the time between two sends. The mean delay of a message is 0.1 seconds.
    The mean of the distribution is the ratio times this delay."""
    return tuple(f"exponential:{ratio / 10:g}" for ratio in ratios)


_jang = {"workloads": ("unicast", "multicast"), "receives": 50_000, "warmup_receives": 10_000}
_servers = (10, 50, 100, 150, 250, 500, 1_000)
_conflicting = ("objects:conflicts=set~set", "objects:clocks=asked,conflicts=set~set")
_densities = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
_enokido = {"processes": (20,), "workloads": ("multicast", "unicast"), "receives": 1_500, "warmup_receives": 500}

STUDIES: dict[str, tuple[Grid, ...]] = {
    "paper000": (
        Grid(("matrix",), _servers, shapes=(FLAT, "bus", "daisy", "tree", "star"), receives=20, warmup_receives=10),
    ),
    "paper002": (
        Grid(
            ("buffer", "buffer:pipelined=true", "matrix"),
            (10,),
            gaps=_gaps(20, 10, 5, 3, 2.5, 2.2),
            receives=5_000,
            warmup_receives=500,
        ),
    ),
    "paper003": (
        Grid(("matrix", "direct", "pruned", "updates"), (10, 20, 30, 40, 50), **_jang),  # type: ignore[arg-type]
        Grid(("matrix", "pruned", "updates"), (10, 20, 30, 40, 50), shapes=("bus",), **_jang),  # type: ignore[arg-type]
    ),
    "paper004": (
        Grid(_conflicting, densities=_densities, **_enokido),  # type: ignore[arg-type]
        # These orders hold the same messages, whatever the conflicts are.
        Grid(("pruned", "skeen"), densities=(0.5,), **_enokido),  # type: ignore[arg-type]
    ),
    "stamps": (Grid(tuple(STAMP_BYTES), SIZES, seeds=3, receives=200, warmup_receives=200),),
}


def study(name: str) -> tuple[Grid, ...]:
    """Return the grids of a named study, or the grid in a TOML file."""
    if not name.lower().endswith(".toml"):
        if name not in STUDIES:
            raise UsageError(f"unknown study {name!r}: expected {', '.join(STUDIES)}, or a file NAME.toml with a grid")
        return STUDIES[name]
    text = read_text(name, limits.sweep_file_bytes_max)
    try:
        return (msgspec.convert(tomllib.loads(text), Grid),)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {error}: expected the keys {', '.join(Grid.__struct_fields__)}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: not a TOML file: {error}") from None


def cells_of(grids: tuple[Grid, ...], axes: Mapping[str, Any], scale: float) -> list[Cell]:
    """Return the cells of all grids, without duplicates. In every grid, each value in ``axes`` replaces the field with
    the same name. Raise an error if a cell cannot run."""
    if not 0.0 < scale <= limits.sweep_scale_max:
        raise UsageError(f"--scale {scale:g}: expected more than 0, at most {limits.sweep_scale_max}")
    cells: dict[str, Cell] = {}
    for grid in grids:
        chosen = msgspec.structs.replace(grid, **axes)
        _check(chosen)
        for cell in chosen.cells(scale):
            cells.setdefault(cell.key, cell)
    for cell in {msgspec.structs.replace(cell, seed=1).key: cell for cell in cells.values()}.values():
        cell.check()
    return list(cells.values())


def _check(grid: Grid) -> None:
    """Raise an error if an axis is empty or the grid has more than ``limits.sweep_cells_max`` cells. Also raise an
    error if one of these numbers is outside its limits: seeds, processes, ``receives`` or ``warmup_receives``."""
    cells = grid.seeds
    for name in ("orders", "processes", "workloads", "gaps", "delays", "shapes", "densities"):
        values = getattr(grid, name)
        if not values:
            raise UsageError(f"bad grid: {name} is empty: expected one value or more")
        cells *= len(values)
    if not 1 <= grid.seeds <= limits.sweep_seeds_max:
        raise UsageError(f"bad grid: seeds {grid.seeds}: expected 1 to {limits.sweep_seeds_max}")
    if cells > limits.sweep_cells_max:
        raise UsageError(f"bad grid: {cells:,} cells: expected at most {limits.sweep_cells_max:,}")
    least = min(grid.processes)
    if least < 2:
        raise UsageError(f"bad grid: processes {least}: expected 2 or more")
    for name in ("receives", "warmup_receives"):
        value = getattr(grid, name)
        if not 0 <= value <= limits.simulated_messages_max:
            raise UsageError(f"bad grid: {name} {value:g}: expected 0 to {limits.simulated_messages_max}")


_poll_seconds = 1.0
"""The progress is reported each time a cell ends. While no cell ends, it is reported at this interval."""


class Failure(msgspec.Struct, frozen=True):
    """A cell that failed, the reason, and the command that runs the cell again."""

    cell: Cell
    error: str
    command: str


class Progress:
    """Counts the finished cells of a sweep, and estimates the finished share of the work and the remaining time."""

    def __init__(self, cells: Sequence[Cell], kept: int) -> None:
        self._efforts = {cell.key: cell.effort() for cell in cells}
        self._all = sum(self._efforts.values()) or 1.0
        self._began = perf_counter()
        self._ended = 0.0
        self.total = len(cells) + kept
        self.done = kept
        self.failed = 0

    def count(self, cell: Cell, failed: bool) -> None:
        """Count a cell that ended."""
        self._ended += self._efforts[cell.key]
        self.failed += failed
        self.done += not failed

    def text(self, now: float | None = None) -> str:
        """Return a line such as ``12 of 50 cells, 31 %, 4 min left``."""
        share = self._ended / self._all
        text = f"{self.done} of {self.total} cells, {share:.0%}"
        if self.failed:
            text += f", {self.failed} failed"
        if 0 < share < 1:
            elapsed = (perf_counter() if now is None else now) - self._began
            text += f", {_duration(elapsed * (1 - share) / share)} left"
        return text


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"


def carry_out(
    context: Any,
    cells: Sequence[Cell],
    keep: Callable[[Row], None],
    report: Callable[[Failure], None],
    progress: Progress,
    report_status: Callable[[str], None],
    study: Study,
) -> None:
    """Run the cells, the longest first. When a cell ends, call ``keep`` with its row, or ``report`` with its failure.
    While cells run, call ``report_status`` with a text about the progress. ``study`` must be a function at the top
    level of a module, because Spark sends it to the workers."""
    waiting = sorted(cells, key=lambda cell: -cell.effort())
    pool = ThreadPoolExecutor(max(1, context.defaultParallelism))
    try:
        open_: dict[Future[Row | str], Cell] = {pool.submit(_job, context, cell, study): cell for cell in waiting}
        while open_:
            report_status(progress.text())
            ended, _ = wait(open_, _poll_seconds, FIRST_COMPLETED)
            for future in ended:
                cell = open_.pop(future)
                found = future.result()
                if isinstance(found, Row):
                    keep(found)
                else:
                    report(Failure(cell, found, cell.command()))
                progress.count(cell, not isinstance(found, Row))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        with suppress(Exception):
            context.cancelAllJobs()
        raise
    pool.shutdown()


def _job(context: Any, cell: Cell, study: Study) -> Row | str:
    """Run one cell as a job. Return its row, or the reason why it failed."""
    given = msgspec.json.encode(cell)
    try:
        with one_line():
            found = context.parallelize([given], 1).map(partial(_task, study)).collect()[0]
    except AntecedeError as error:
        if context._jsc is None or context._jsc.sc().isStopped():
            raise
        return str(error)
    return msgspec.json.decode(found[1:], type=Row) if found[:1] == b"+" else found[1:].decode()


def _task(study: Study, given: bytes) -> bytes:
    """Run a cell in a worker. Return bytes: ``+`` followed by the row of the cell, or ``-`` followed by the error."""
    try:
        return b"+" + msgspec.json.encode(measured(msgspec.json.decode(given, type=Cell), study))
    except AntecedeError as error:
        return b"-" + str(error).encode()
    except Exception as error:
        # An order may come from another package and fail in any way; the other cells continue.
        return b"-" + f"{type(error).__name__}: {error}".encode()


_table = "table.parquet"
_cells = "cells"


class Results:
    """Reads the rows of earlier sweeps in a directory, and stores the rows of newly finished cells there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.table = directory / _table
        self.rows: dict[str, Row] = {}
        """All rows, by the key of their cell."""
        self._read_table()
        self._read_cells()

    def add(self, row: Row) -> None:
        """Store the row of a finished cell."""
        place = self._directory / _cells / f"{row.key}.json"
        _replace(place, msgspec.json.encode(row))
        self.rows[row.key] = row

    def join(self) -> None:
        """Write all rows into the table, and remove the files of single cells."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = sorted(self.rows.values(), key=_place)
        schema = pa.schema([(name, _arrow(kind, pa)) for name, kind in get_type_hints(Row).items()])
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist([msgspec.structs.asdict(row) for row in rows], schema), sink)
        _replace(self.table, sink.getvalue().to_pybytes())
        for file in (self._directory / _cells).iterdir():
            file.unlink()

    def _read_table(self) -> None:
        if not self.table.exists():
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            found = pq.read_table(self.table).to_pylist()
            self.rows |= {row.key: row for row in msgspec.convert(found, list[Row])}
        except (pa.ArrowException, OSError, msgspec.ValidationError) as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(
                f"{self.table}: not a table of results (made by: antecede sweep): {reason}; choose another directory "
                "with --out"
            ) from None

    def _read_cells(self) -> None:
        for file in (self._directory / _cells).glob("*.json"):
            try:
                row = msgspec.json.decode(file.read_bytes(), type=Row)
            except (OSError, msgspec.DecodeError) as error:
                raise UsageError(
                    f"{file}: not the result of a cell (made by: antecede sweep): {error}; remove the file to "
                    "run the cell again"
                ) from None
            self.rows[row.key] = row


@contextmanager
def results(directory: str) -> Iterator[Results]:
    """Open the results in a directory, and make the directory if it is missing. Raise an error if another sweep is
    using this directory."""
    place = Path(directory)
    try:
        (place / _cells).mkdir(parents=True, exist_ok=True)
        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(f"--out {directory}: cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"--out {directory}: another sweep writes there: wait for its end, or choose another directory"
            ) from None
        if not os.access(place / _cells, os.W_OK):
            raise UsageError(f"--out {directory}: cannot be written: the directory is not writable")
        yield Results(place)
    finally:
        os.close(handle)


def _replace(place: Path, data: bytes) -> None:
    """Replace the content of a file completely or not at all."""
    draft = place.with_name(f"{place.name}.new")
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, place)


def _place(row: Row) -> tuple[Any, ...]:
    density = -1.0 if row.density is None else row.density
    return (row.shape, row.workload, row.order, row.processes, row.gap, row.delay, density, row.messages, row.seed)


def _arrow(kind: Any, pa: Any) -> Any:
    plain = next(one for one in get_args(kind) if one is not type(None)) if isinstance(kind, UnionType) else kind
    return {str: pa.string(), int: pa.int64(), float: pa.float64()}[plain]


def half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the 95 % confidence interval of the mean; ``None`` for a single value."""
    if len(values) < 2:
        return None
    return student(len(values) - 1) * stdev(values) / sqrt(len(values))


@cache
def student(freedom: int) -> float:
    """Return the number t such that a value of Student's distribution with ``freedom`` degrees of freedom is between −t
    and t with a probability of 95 %. This t is the 97.5 % quantile."""
    low, high = 0.0, 20.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 0.95 else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """Return the probability that a value of Student's distribution is between −t and t (Abramowitz and Stegun 26.7.3
    and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    total = 0.0
    if freedom % 2:
        term = cos(angle)
        for k in range(1, freedom - 1, 2):
            total += term
            term *= cos(angle) ** 2 * (k + 1) / (k + 2)
        return 2 / pi * (angle + sin(angle) * total)
    term = 1.0
    for k in range(0, freedom - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (k + 1) / (k + 2)
    return sin(angle) * total


SETTINGS = ("order", "shape", "size", "processes", "workload", "gap", "delay", "density", "messages", "warmup")
"""The columns with the settings of a cell, except its seed."""


def summary(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return one entry for each combination of settings, in the sequence in which the combinations first occur in
    ``rows``."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in SETTINGS), []).append(row)
    return [
        {
            **dict(zip(SETTINGS, setting, strict=True)),
            "runs": len(group),
            "engines": sorted({row.engine for row in group}),
            "undelivered": sum(row.undelivered for row in group),
            "figures": {name: _figure([getattr(row, name) for row in group]) for name in FIGURES},
        }
        for setting, group in groups.items()
    ]


def _figure(values: Sequence[float | None]) -> dict[str, float | None] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    reach = half_width(known)
    mean = fmean(known)
    return {
        "mean": mean,
        "low": None if reach is None else mean - reach,
        "high": None if reach is None else mean + reach,
    }


def stamp_table(entries: Iterable[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """Return the mean size of a stamp in bytes, by order and number of processes. The planner's model has these values
    in its table ``STAMP_BYTES``."""
    table: dict[str, dict[int, float]] = {}
    for entry in entries:
        table.setdefault(entry["order"], {})[entry["processes"]] = round(entry["figures"]["bytes_mean"]["mean"], 1)
    return table
