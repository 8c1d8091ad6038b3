"""Grids: the cells that a sweep runs, from a named study, a file or options.

A grid has one cell for each combination of the values of its axes. The length of a run is given as the mean number of
messages that each process receives, as in Jang et al.; a multicast to k processes is received k times. ``scale``
multiplies the length of the warm-up and of the measurement.

These are the named studies. If a paper has a measurement, its study repeats and extends the measurement:

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
  (:mod:`antecede.pipeline.planning.model`) uses these sizes.
"""

import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import msgspec

from antecede import limits
from antecede.documents import read_text
from antecede.errors import UsageError
from antecede.pipeline.planning.model import SIZES, STAMP_BYTES
from antecede.pipeline.sweep.cells import FLAT, Cell, receivers

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
