"""How many deliveries per second the simulator makes on one core.

Each message goes to half of the processes on average. The *floor* is the rate of the simulator without any order, and
the ratio is the order's rate divided by the floor. Two more runs measure the peak memory; one is twice as long as the
other. The growth from the shorter to the longer one should be about zero.
"""

import tracemalloc
from collections.abc import Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from antecede.orders import parse
from antecede.simulator.run import Setup, simulate
from benchmarks import common
from benchmarks.common import report_status


def measured(orders: Sequence[str], size: int, deliveries: int, rounds: int) -> list[dict[str, Any]]:
    """Measure the simulator's speed, in each round without an order and with each order; then the growth of the memory
    with each order. Return one row for each order."""
    speeds: dict[str, list[float]] = {name: [] for name in ["none", *orders]}
    for seed in range(rounds):
        for name, found in speeds.items():
            found.append(_per_second(name, size, deliveries, seed))
            report_status(f"round {seed + 1}/{rounds}  {name:<10} {size:>4} processes {found[-1]:>12,.0f}/s")
    return [
        {
            "order": name,
            "processes": size,
            "deliveries_per_second": median(speeds[name]),
            "floor_per_second": median(speeds["none"]),
            "ratio": median(speed / floor for speed, floor in zip(speeds[name], speeds["none"], strict=True)),
            "memory_growth_bytes": _growth(name, size, deliveries),
        }
        for name in orders
    ]


def _per_second(name: str, size: int, deliveries: int, seed: int) -> float:
    setup = Setup(parse(name), size, max(2 * deliveries // size, 1), "multicast", seed=seed)
    started = perf_counter()
    figures = simulate(setup)
    return float(figures["deliveries"] / (perf_counter() - started))


def _growth(name: str, size: int, deliveries: int) -> int:
    held: list[int] = []
    for share in (8, 4):
        tracemalloc.start()
        simulate(Setup(parse(name), size, max(2 * deliveries // size // share, 1), "multicast"))
        held.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return held[1] - held[0]


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"{'order':<10}{'n':>4}{'deliveries/s':>15}{'floor':>12}{'ratio':>8}{'memory growth':>16}"
    for row in report["rows"]:
        yield (
            f"{row['order']:<10}{row['processes']:>4}{row['deliveries_per_second']:>15,.0f}"
            f"{row['floor_per_second']:>12,.0f}{row['ratio']:>8.3f}{row['memory_growth_bytes'] / 1024:>12,.0f} KiB"
        )


def main(arguments: Sequence[str]) -> int:
    parser = common.parser("simulate", __doc__)
    parser.add_argument("--order", type=common.orders, default="matrix,pruned", help="orders, separated by commas")
    parser.add_argument("--processes", type=common.numbers(2), default="10,50")
    parser.add_argument("--deliveries", type=common.at_least(1), default=200_000, help="about, per measurement")
    parser.add_argument("--rounds", type=common.at_least(1), default=3)
    given = parser.parse_args(arguments)
    rows = [row for size in given.processes for row in measured(given.order, size, given.deliveries, given.rounds)]
    common.report({"bench": "simulate", "rows": rows}, given.json, _lines)
    return 0
