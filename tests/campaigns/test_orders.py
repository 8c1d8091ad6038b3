"""Every order, and every option that changes one, under an adversary's schedules; one seed is one schedule, and one of
ten has losses, crashes and partitions. Choose orders with ``-k pruned``."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from antecede.orders import parse
from antecede.simulator.schedules import VARIANTS, play
from campaigns.driver import Played, Sums


def _play(order: str, seed: int) -> Played:
    outcome = play(parse(order), seed)
    counts = Counter(deliveries=outcome.deliveries, **dict.fromkeys(outcome.kinds(), 1))
    return counts, [f"{outcome}\n{outcome.diagram()}"] if outcome.findings else []


@pytest.mark.parametrize("order", VARIANTS)
def test_order(order: str, campaign: Callable[..., Sums]) -> None:
    sums = campaign(partial(_play, order))
    assert sums.counts["deliveries"] > 10 * sums.seeds or sums.seeds < 100, "the schedules have become empty"
