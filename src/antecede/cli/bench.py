"""``antecede bench``: speed as a ratio against a floor measured in the same run."""

import json
import time
from typing import Any

import typer


def register(app: typer.Typer) -> None:
    bench = typer.Typer(
        help="Measure speed, as ratios against a floor or a peer in the same run.", no_args_is_help=True
    )
    app.add_typer(bench, name="bench")

    @bench.command()
    def simulate(
        order: str = typer.Option("matrix,pruned", help="Orders to measure, separated by commas."),
        processes: str = typer.Option("10,50", help="Numbers of processes, separated by commas."),
        deliveries: int = typer.Option(200_000, help="About how many deliveries a measurement."),
        rounds: int = typer.Option(3, help="Rounds; the median counts."),
        as_json: bool = typer.Option(False, "--json", help="One JSON document on standard output."),
    ) -> None:
        """Deliveries a second on one core: multicasts of mean n/2, full protocol state, stamps weighed, no trace.

        The floor is the same loop under no order at all (none), measured in the same round. Memory is the growth of
        the process while the second half of a run is simulated: it must be flat.
        """
        from antecede.orders import parse

        sizes = [int(size) for size in processes.split(",") if size.strip().isdecimal()]
        names = [name for name in order.split(",") if name]
        for name in names:
            parse(name)
        rows = [
            _measure(name, size, deliveries, rounds, floor)
            for size in sizes
            for floor in [_floor(size, deliveries, rounds)]
            for name in names
        ]
        if as_json:
            print(json.dumps({"bench": "simulate", "rows": rows}, indent=2))
            return
        print(f"{'order':<10}{'n':>4}{'deliveries/s':>15}{'floor':>12}{'ratio':>8}{'memory growth':>16}")
        for row in rows:
            print(
                f"{row['order']:<10}{row['processes']:>4}{row['deliveries_per_second']:>15,.0f}"
                f"{row['floor_per_second']:>12,.0f}{row['ratio']:>8.3f}{row['memory_growth_bytes'] / 1024:>12,.0f} KiB"
            )


def _floor(size: int, deliveries: int, rounds: int) -> list[float]:
    return [_once("none", size, deliveries, seed) for seed in range(rounds)]


def _measure(name: str, size: int, deliveries: int, rounds: int, floor: list[float]) -> dict[str, Any]:
    speeds = [_once(name, size, deliveries, seed) for seed in range(rounds)]
    ratios = sorted(speed / base for speed, base in zip(speeds, floor, strict=True))
    return {
        "order": name,
        "processes": size,
        "deliveries_per_second": sorted(speeds)[rounds // 2],
        "floor_per_second": sorted(floor)[rounds // 2],
        "ratio": ratios[rounds // 2],
        "memory_growth_bytes": _growth(name, size, deliveries),
    }


def _once(name: str, size: int, deliveries: int, seed: int) -> float:
    from antecede.orders import parse
    from antecede.simulator.run import Setup, simulate

    setup = Setup(parse(name), size, max(2 * deliveries // size, 1), "multicast", seed=seed)
    started = time.perf_counter()
    figures = simulate(setup)
    return float(figures["deliveries"] / (time.perf_counter() - started))


def _growth(name: str, size: int, deliveries: int) -> int:
    """Bytes held at the end of a run beyond those held half-way, by Python's own count, in a shorter run."""
    import tracemalloc

    from antecede.orders import parse
    from antecede.simulator.run import Setup, simulate

    held: list[int] = []
    for share in (8, 4):
        tracemalloc.start()
        simulate(Setup(parse(name), size, max(2 * deliveries // size // share, 1), "multicast"))
        held.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return held[1] - held[0]
