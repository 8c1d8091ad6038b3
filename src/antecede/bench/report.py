"""The report of ``antecede bench channel``: medians over the rounds, and ratios between the sides (the compared
systems)."""

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from statistics import median
from typing import Any

import msgspec

from antecede.bench import payload
from antecede.bench.channel import CLIENTS, Sample, Side, measure, sides
from antecede.bench.children import SideError
from antecede.bench.interpreter import interpreter
from antecede.errors import UsageError


class Target(msgspec.Struct, frozen=True):
    """A target of the benchmark: the smallest (``least``) or the largest (``most``) accepted value. If ``against`` is
    empty, the value is the figure of ``side``. If ``against`` names another side, the value is the figure of ``side``
    divided by the figure of ``against``. A target with ``least`` = 0 accepts every value: its only purpose is that the
    report shows the value."""

    side: str
    against: str
    """The side with which ``side`` is compared. If it is empty, the target is for the figure of ``side`` itself."""
    least: float | None = None
    most: float | None = None

    @property
    def wanted(self) -> str:
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"

    def met(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


targets = [
    Target("durable", "redis-pipelined", least=2),
    Target(CLIENTS, "redis-pipelined", least=0),
    Target("durable", "jetstream-pipelined", least=20),
    Target("durable", "floor-1", least=0),
    Target("durable", "floor-64", least=0),
    Target("durable-traced", "durable", least=0.8),
    Target("stateful", "", least=20_000),
    Target("accepted", "redis-accepted", least=0.8),
    Target("exchange", "floor-exchange", least=0.7),
    Target("ping-pong", "echo", most=2),
    Target("ping-pong", "nats-request", most=1),
    Target("ping-pong-client", "echo", most=2),
    Target("ping-pong-client", "nats-request", most=1),
    Target("not-durable", "zeromq", least=1),
    Target("not-durable", "zeromq-asyncio", least=1),
    Target("idle", "", most=60),
]


def chosen(only: str | None) -> list[Side]:
    """Return the sides (the compared systems) that ``only`` names, or all sides if ``only`` is None. ``only``: names of
    sides, separated by commas. If ``only`` contains both ``durable`` and ``redis-pipelined``, add the side
    ``durable-clients``, in which the sender and the receiver are clients. Raise UsageError if a name is not the name of
    a side."""
    if only is None:
        return sides
    names = [name.strip() for name in only.split(",")]
    known = {side.name for side in sides}
    for name in names:
        if name not in known:
            raise UsageError(f"--only {name}: expected some of {', '.join(sorted(known))}")
    if {"durable", "redis-pipelined"} <= set(names):
        names.append(CLIENTS)
    return [side for side in sides if side.name in names]


def bench_channel(
    wanted: Sequence[Side],
    messages: int,
    rounds: int,
    directory: str | None,
    report_status: Callable[[str], None],
    step: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Measure the sides ``wanted`` (systems to compare) in several rounds, and return the report. Each round measures
    one side after the other. ``step`` is called for each side in each round, before the side is measured or skipped."""
    samples: dict[str, list[Sample]] = {}
    skipped: dict[str, str] = {}
    for side in wanted:
        missing = side.missing()
        if missing:
            skipped[side.name] = f"not installed: {', '.join(missing)}"
            report_status(f"{side.name}: skipped, {skipped[side.name]}")
    for number in range(rounds):
        for at, side in enumerate(wanted):
            step(number * len(wanted) + at, rounds * len(wanted))
            if side.name in skipped:
                continue
            try:
                sample = measure(side, messages, directory)
            except (SideError, OSError) as error:
                skipped[side.name] = str(error)
                report_status(f"{side.name}: given up, {error}")
                continue
            samples.setdefault(side.name, []).append(sample)
            report_status(f"round {number + 1}/{rounds}  {side.name:<20} {shown(side.unit, sample[side.unit])}")
    return {
        "bench": "channel",
        "payload_bytes": len(payload),
        "messages": messages,
        "rounds": rounds,
        "machine": {
            "cores": os.cpu_count(),
            "python": interpreter()["python"],
            "uvloop": find_spec("uvloop") is not None,
        },
        "interpreter": interpreter(),
        "sides": [_row(side, samples.get(side.name, []), skipped.get(side.name)) for side in wanted],
        "ratios": _ratios({side.name: side for side in wanted}, samples),
    }


def _row(side: Side, found: list[Sample], skipped: str | None) -> dict[str, Any]:
    names = found[0] if found else {}
    return {
        "name": side.name,
        "says": side.says,
        "unit": side.unit,
        "median": median(sample[side.unit] for sample in found) if found else None,
        "figures": {name: median(sample[name] for sample in found) for name in names},
        "samples": [sample[side.unit] for sample in found],
        "skipped": skipped,
    }


def _ratios(wanted: dict[str, Side], samples: dict[str, list[Sample]]) -> list[dict[str, Any]]:
    rows = []
    for target in targets:
        if target.side not in samples or (target.against and target.against not in samples):
            continue
        unit = wanted[target.side].unit
        value = median(sample[unit] for sample in samples[target.side])
        if target.against:
            value /= median(sample[unit] for sample in samples[target.against])
        aim = target.least != 0
        rows.append(
            {
                "side": target.side,
                "against": target.against or None,
                "value": value,
                "target": target.wanted if aim else None,
                "met": target.met(value) if aim else None,
            }
        )
    return rows


def shown(unit: str, value: float) -> str:
    """Return a figure with its unit."""
    if unit == "per_second":
        return f"{value:,.0f}/s"
    return f"{value:,.0f} µs" if unit == "p50_us" else f"{value:.1f} MiB"


def table(report: dict[str, Any]) -> str:
    """Return the report as a table of text."""
    lines = [f"{'side':<21}{'median':>13}  what"]
    for row in report["sides"]:
        figure = "–" if row["median"] is None else shown(row["unit"], row["median"])
        why = f" (skipped: {row['skipped']})" if row["skipped"] else ""
        lines.append(f"{row['name']:<21}{figure:>13}  {row['says']}{why}")
    lines += ["", f"{'ratio':<44}{'value':>10}  target"]
    for row in report["ratios"]:
        name = f"{row['side']} / {row['against']}" if row["against"] else row["side"]
        mark = "" if row["met"] is None else f"{row['target']}  {'met' if row['met'] else 'MISSED'}"
        lines.append(f"{name:<44}{row['value']:>10,.2f}  {mark}".rstrip())
    return "\n".join([*lines, "", report["interpreter"]["text"]])
