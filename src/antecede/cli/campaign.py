"""``antecede campaign``: many random adversarial schedules for every order, judged by the plain oracle.

It is a test for developers, so ``antecede --help`` does not list it. A schedule that breaks an order is printed with
the command that replays it; ``--show`` draws it.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar

import typer

from antecede.cli.options import JSON
from antecede.errors import UsageError

_chunk = 250
Given = TypeVar("Given")
Found = TypeVar("Found")
_kinds = ("undelivered", "needless")


def register(app: typer.Typer) -> None:
    @app.command(hidden=True)
    def campaign(
        order: Annotated[
            list[str] | None, typer.Option(metavar="NAME[:option=value,…]", help="The orders. Default: all.")
        ] = None,
        schedules: int = typer.Option(1, "--schedules", min=1, max=10**8, help="Schedules per order, one per seed."),
        seed: int = typer.Option(0, "--seed", min=0, max=10**8, help="The first seed."),
        faults: bool | None = typer.Option(
            None,
            "--faults/--no-faults",
            help="With faults: links, loss and crashes. Without: orders alone on a network that reorders.",
        ),
        jobs: int = typer.Option(1, "--jobs", min=1, max=64, help="Number of parallel processes."),
        show: bool = typer.Option(False, "--show", help="Draw each schedule."),
        as_json: bool = JSON,
    ) -> int:
        """Play random adversarial schedules on orders and check the results.

        Exit 0: no violation was found. 1: an order broke its guarantee.
        """
        from antecede.orders import parse
        from antecede.simulator.campaign import VARIANTS

        texts = [str(parse(text)) for text in order or VARIANTS]
        if show:
            if schedules > 20:
                raise UsageError(f"--show draws every schedule: at most 20, not {schedules}")
            return _show(texts, range(seed, seed + schedules), faults)
        if not as_json:
            print(_line("order", "schedules", "deliveries", "violations", "undelivered", "needless", "per second"))
        rows = []
        for text in texts:
            row = _campaign(text, range(seed, seed + schedules), faults, jobs)
            rows.append(row)
            if not as_json:
                print("\n".join(_lines(row)), flush=True)
        if as_json:
            print(json.dumps({"campaign": rows}, indent=2))
        return 1 if any(row["failed"] for row in rows) else 0


def _line(order: object, *columns: object) -> str:
    return f"{order!s:48}" + "".join(f"{column!s:>12}" for column in columns)


def _lines(row: dict[str, Any]) -> list[str]:
    numbers = [row[name] for name in ("schedules", "deliveries", "violations", "undelivered")]
    needless = "–" if row["needless"] is None else row["needless"]
    line = _line(row["order"], *numbers, needless, round(row["per_second"]))
    return [line, *(f"  {failure}" for failure in row["failures"])]


def _show(orders: list[str], seeds: range, faults: bool | None) -> int:
    from antecede.orders import parse
    from antecede.simulator.campaign import play

    failed = False
    for text in orders:
        for seed in seeds:
            outcome = play(parse(text), seed, faults=faults)
            failed = failed or bool(outcome.findings)
            for event in outcome.events:
                to = f" to {', '.join(event.to) or 'nobody'}" if event.to is not None else ""
                print(f"{event.process}  {event.kind:7} {event.message}{to}")
            print(f"\n{outcome.diagram()}\n{outcome}\n")
    return 1 if failed else 0


def _campaign(order: str, seeds: range, faults: bool | None, jobs: int) -> dict[str, Any]:
    from time import perf_counter

    from antecede.orders import parse
    from antecede.simulator.campaign import TIGHT

    began = perf_counter()
    counts: Counter[str] = Counter()
    failures: list[str] = []
    done = 0
    parts = [(order, part, faults) for part in parts_of(seeds, _chunk)]
    for played, found, lines in in_parts(_play_part, parts, jobs):
        counts.update(found)
        failures += lines[: 5 - len(failures)]
        done += played
        if sys.stderr.isatty():
            print(f"\r{order}: {done} of {len(seeds)} schedules", end="\r", file=sys.stderr, flush=True)
    seconds = perf_counter() - began
    other = sum(count for kind, count in counts.items() if kind not in (*_kinds, "deliveries", "failed"))
    return {
        "order": order,
        "schedules": done,
        "first_seed": seeds.start,
        "deliveries": counts["deliveries"],
        "violations": other,
        "undelivered": counts["undelivered"],
        "needless": counts["needless"] if parse(order).name in TIGHT else None,
        "failed": counts["failed"],
        "failures": failures,
        "seconds": seconds,
        "per_second": done / seconds,
    }


Part = tuple[int, Counter[str], list[str]]
"""Schedules played, the number of them with each kind of finding, and the first findings."""


def parts_of(seeds: range, size: int) -> list[range]:
    """Cut a range of seeds into parts for the processes of a campaign."""
    return [seeds[at : at + size] for at in range(0, len(seeds), size)]


def in_parts(play: Callable[[Given], Found], parts: list[Given], jobs: int) -> Iterator[Found]:
    """Play the parts of a campaign, in several processes if asked to."""
    if jobs == 1:
        yield from map(play, parts)
        return
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(play, parts)


def _play_part(part: tuple[str, range, bool | None]) -> Part:
    from antecede.orders import parse
    from antecede.simulator.campaign import play

    order, seeds, faults = part
    spec = parse(order)
    counts: Counter[str] = Counter()
    lines = []
    for seed in seeds:
        outcome = play(spec, seed, faults=faults)
        counts["deliveries"] += outcome.deliveries
        if outcome.findings:
            counts["failed"] += 1
            counts.update(outcome.kinds())
            lines.append(str(outcome))
    return len(seeds), counts, lines[:5]
