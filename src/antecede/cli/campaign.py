"""``antecede campaign``: tests every order with many random schedules of sends and arrivals. The schedules are
adversarial: they try to make the order break its guarantee.

The oracle (a simple verifier, :mod:`antecede.trace.oracle`) checks every result. The command is for developers, so
``antecede --help`` does not list it. If an order breaks its guarantee in a schedule, the command prints this schedule
with the command line that repeats it. With ``--show``, the command draws each schedule.
"""

import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from typing import Annotated, Any, TypeVar

import typer

from antecede.cli.options import JSON
from antecede.cli.terminal import line
from antecede.errors import UsageError
from antecede.orders import parse

_chunk = 250
Given = TypeVar("Given")
_others = ("undelivered", "needless", "schedules", "deliveries", "failed")
"""The names of all counts except the counts of violations."""


def register(app: typer.Typer) -> None:
    @app.command(hidden=True)
    def campaign(
        order: Annotated[
            list[str] | None,
            typer.Option(metavar="NAME[:option=value,…]", help="An order; may be repeated. Default: all orders."),
        ] = None,
        schedules: int = typer.Option(1, min=1, max=10**8, help="Number of schedules per order, one per seed."),
        seed: int = typer.Option(0, min=0, max=10**8, help="The first seed."),
        faults: bool | None = typer.Option(
            None,
            "--faults/--no-faults",
            help="With --faults, packets are lost, machines crash and the network splits. With --no-faults, packets "
            "are only reordered or repeated. Default: one schedule in ten has faults.",
        ),
        jobs: int = typer.Option(1, min=1, max=64, help="Number of parallel processes."),
        show: bool = typer.Option(False, "--show", help="Draw each schedule."),
        as_json: bool = JSON,
    ) -> int:
        """Test orders with random schedules of sends and arrivals, and check every result.

        Exit codes:
        0: No violation was found.
        1: An order broke its guarantee.
        """
        from antecede.simulator.campaign import VARIANTS

        texts = [str(parse(text)) for text in order or VARIANTS]
        if show:
            if schedules > 20:
                raise UsageError(f"--show draws every schedule: expected --schedules 20 or less, not {schedules}")
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
    figures = _line(row["order"], *numbers, needless, round(row["per_second"]))
    return [figures, *(f"  {failure}" for failure in row["failures"])]


def _show(orders: list[str], seeds: range, faults: bool | None) -> int:
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
    from antecede.simulator.campaign import TIGHT

    def report_progress(counts: Counter[str]) -> None:
        line(f"{order}: {counts['schedules']} of {len(seeds)} schedules")

    parts = [(order, part, faults) for part in parts_of(seeds, _chunk)]
    counts, failures, seconds = tally(_play_part, parts, jobs, report_progress)
    other = sum(count for kind, count in counts.items() if kind not in _others)
    return {
        "order": order,
        "schedules": counts["schedules"],
        "first_seed": seeds.start,
        "deliveries": counts["deliveries"],
        "violations": other,
        "undelivered": counts["undelivered"],
        "needless": counts["needless"] if parse(order).name in TIGHT else None,
        "failed": counts["failed"],
        "failures": failures,
        "seconds": seconds,
        "per_second": counts["schedules"] / seconds,
    }


Part = tuple[Counter[str], list[str]]
"""The result of one part of a campaign: the counts by their names, and texts about the first schedules that failed."""


def tally(
    play: Callable[[Given], Part], parts: list[Given], jobs: int, report_progress: Callable[[Counter[str]], None]
) -> tuple[Counter[str], list[str], float]:
    """Call ``play`` for each part of a campaign, in several processes if ``jobs`` is above 1. A part contains a range
    of seeds. After each part, call ``report_progress`` with the counts so far. Return the counts, texts about the first
    schedules that failed, and the duration in seconds."""
    from concurrent.futures import ProcessPoolExecutor

    began = perf_counter()
    counts: Counter[str] = Counter()
    failures: list[str] = []
    with ExitStack() as stack:
        played = map if jobs == 1 else stack.enter_context(ProcessPoolExecutor(jobs)).map
        for found, lines in played(play, parts):
            counts.update(found)
            failures += lines[: 5 - len(failures)]
            report_progress(counts)
    return counts, failures, perf_counter() - began


def parts_of(seeds: range, size: int) -> list[range]:
    """Cut a range of seeds into parts of at most ``size`` seeds, for the processes of a campaign."""
    return [seeds[at : at + size] for at in range(0, len(seeds), size)]


def _play_part(part: tuple[str, range, bool | None]) -> Part:
    from antecede.simulator.campaign import play

    order, seeds, faults = part
    spec = parse(order)
    counts = Counter(schedules=len(seeds))
    lines = []
    for seed in seeds:
        outcome = play(spec, seed, faults=faults)
        counts["deliveries"] += outcome.deliveries
        if outcome.findings:
            counts["failed"] += 1
            counts.update(outcome.kinds())
            lines.append(str(outcome))
    return counts, lines[:5]
