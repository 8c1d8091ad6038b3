"""Whole simulated servers; one seed is one schedule of crashes, power cuts, partitions and bad clocks."""

from collections.abc import Callable

from campaigns.driver import Played, Sums
from worlds.schedules import play


def _play(seed: int) -> Played:
    outcome = play(seed)
    return {"crashes": outcome.crashes, "deliveries": outcome.deliveries}, [str(outcome)] if outcome.found else []


def test_servers(campaign: Callable[..., Sums]) -> None:
    sums = campaign(_play)
    if sums.seeds >= 100:
        assert sums.counts["crashes"] > sums.seeds, "the schedules have become harmless"
        assert sums.counts["deliveries"] > 20 * sums.seeds, "the schedules have become empty"
