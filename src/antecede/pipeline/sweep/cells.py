"""A cell: one simulated run of a grid, its figures, and the command that repeats it.

The settings of a cell determine its result, and the key of a cell is a digest of its settings. A cell with a density of
conflicts runs the code of ``antecede objects study``. Any other cell runs the array kernel if the kernel supports the
settings of the cell. Otherwise it runs the code of ``antecede simulate``. The simulator and the kernel give the same
figures. The column ``engine`` shows which of the two was used.
"""

from collections.abc import Callable
from hashlib import sha256
from shlex import quote
from time import perf_counter
from typing import Any

import msgspec

from antecede import __version__
from antecede.errors import AntecedeError, UsageError
from antecede.orders import parse
from antecede.pipeline.sweep import arrays
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

    def engine(self) -> str:
        """Return ``kernel`` if the array kernel computes the cell, otherwise ``simulator``."""
        return "kernel" if self.density is None and arrays.serves(self._setup()) else "simulator"

    def effort(self) -> float:
        """Return the estimated run time of the cell in microseconds. It is used to estimate the remaining time, and to
        start the longest cells first."""
        n = self.processes
        deliveries = self.messages * receivers(self.workload, n)
        if self.density is not None:
            return deliveries * (30.0 + 10.0 * n)
        if self.shape != FLAT:
            return deliveries * 600.0
        family = self.order.partition(":")[0]
        if self.engine() == "kernel":
            return deliveries * n * _kernel_us.get(family, 0.3) + 4.0 * self.messages + 1.0
        return deliveries * {"direct": 20.0 * n, "updates": 40.0 * n, "pruned": 5.0 * n}.get(family, 40.0 + n)


_kernel_us = {"matrix": 0.05, "pruned": 0.25, "direct": 0.2, "updates": 0.35}
"""For each order, the time that the array kernel needs for one delivery, per process of the run, in microseconds. For
example, one delivery under ``matrix`` in a run of 40 processes takes 40 · 0.05 = 2 microseconds."""


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
    engine = cell.engine()
    figures = study(cell) if cell.density is not None else None
    if figures is None and engine == "kernel":
        try:
            figures = _simulated(arrays.simulate(cell._setup()))
        except arrays.KernelError:
            # The kernel cannot complete this run, but the simulator can.
            engine = "simulator"
    if figures is None:
        figures = _simulated(simulate(cell._setup()))
    nothing = dict.fromkeys(Row.__struct_fields__)
    rest = {"key": cell.key, "engine": engine, "version": __version__, "command": cell.command()}
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
