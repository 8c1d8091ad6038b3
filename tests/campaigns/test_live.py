"""Real servers under faults. One seed is one round: a load, some faults, a quiet time, and a verdict from the servers'
logs. The folder of a round with findings is kept.

``kills``: 10 kills, on the five servers of the rounds or on those of the example. ``power_cuts``: 10 power cuts, and
disks that fail or are full. ``object_kills``: 10 kills under calls of replicated objects. ``backups``: 3 backups, each
restored at the end. ``changes``: 5 changes of the topology. ``frames``: 2,000 forged frames against one server, with
one order after the other. ``overload``: two minutes.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from antecede.topology import parse_topology
from campaigns.backups import Backups
from campaigns.changes import Changes
from campaigns.disks import PowerCuts
from campaigns.driver import Played, Sums
from campaigns.lies import ORDERS, trial
from campaigns.objects import ObjectKills
from campaigns.overload import Settings, Trial
from campaigns.rounds import Kills, Round
from campaigns.walks import walking

_example = Path(__file__).resolve().parents[2] / "examples" / "snowflake.toml"


def _on(kind: type[Round], example: bool, folder: Path, seed: int) -> Round:
    topology = walking(parse_topology(_example.read_text(), str(_example))) if example else None
    return kind(folder, seed, topology)


def _play(make: Callable[[Path, int], Round], faults: int, counted: str, seed: int) -> Played:
    place = Path(tempfile.mkdtemp(prefix="antecede-campaign-"))
    outcome = asyncio.run(make(place / f"seed-{seed}", seed).run(faults, counted))
    figures = msgspec.to_builtins(outcome.figures)
    counts = {name: count for name, count in figures.items() if isinstance(count, int)} | outcome.faults
    if not outcome.found:
        shutil.rmtree(place)
    return counts, [*outcome.found, f"the servers' data and logs: {place}"] if outcome.found else []


@pytest.mark.parametrize("example", [False, True], ids=["five", "snowflake"])
def test_kills(example: bool, campaign: Callable[..., Sums]) -> None:
    campaign(partial(_play, partial(_on, Kills, example), 10, "kills"))


def test_power_cuts(campaign: Callable[..., Sums]) -> None:
    campaign(partial(_play, PowerCuts, 10, "cuts"))


def _object_kills(folder: Path, seed: int) -> Round:
    return ObjectKills(folder, seed, 32)


def test_object_kills(campaign: Callable[..., Sums]) -> None:
    campaign(partial(_play, _object_kills, 10, "kills"))


def test_backups(campaign: Callable[..., Sums]) -> None:
    campaign(partial(_play, Backups, 3, "backups"))


def test_changes(campaign: Callable[..., Sums]) -> None:
    campaign(partial(_play, Changes, 1, "rounds"))


def _forge(seed: int) -> Played:
    outcome = asyncio.run(trial(seed, 2_000, (ORDERS[seed % len(ORDERS)],), 2_000))
    counts = {name: getattr(outcome, name) for name in ("lies", "closed", "records")} | outcome.kinds
    counts |= {"stall_ms_max": round(outcome.stall_ms), "calls_per_byte_max": round(outcome.calls_per_byte)}
    return counts, outcome.found


def test_frames(campaign: Callable[..., Sums]) -> None:
    sums = campaign(_forge)
    assert sums.counts["closed"] > sums.counts["lies"] // 10, "the lies have become harmless"


def _overload(seed: int) -> Played:
    place = Path(tempfile.mkdtemp(prefix="antecede-overload-"))
    settings = Settings(seconds=120, factor=3, strangers=2_000, memory_mib=1_024, p99_ms=100)
    result = asyncio.run(Trial(place, settings, lambda text: None).run())
    names = ("offered", "accepted", "refused", "handled", "news", "news_dead", "stuck", "stuck_dead", "probes")
    counts = {name: getattr(result, name) for name in names} | result.strangers
    counts |= {"p99_ms_max": round(result.p99_ms), "peak_mib_max": max(result.peak_mib.values(), default=0)}
    if not result.found:
        shutil.rmtree(place)
    return counts, [*result.found, f"the servers' data and logs: {place}"] if result.found else []


def test_overload(campaign: Callable[..., Sums]) -> None:
    campaign(_overload)
