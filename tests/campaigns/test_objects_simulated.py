"""Groups of objects on bad networks; one seed is one random workload. The trace of each run is verified."""

from collections import Counter
from collections.abc import Callable

from antecede.simulator.groups import play
from antecede.trace import DELIVER
from campaigns.driver import Played, Sums


def _play(seed: int) -> Played:
    judged = play(seed)
    counts = Counter(judged.findings.keys())
    if judged.ended is not None:
        counts["deliveries"] += sum(event.kind == DELIVER for event in judged.ended.events)
        counts["roots"] += len(judged.ended.answers)
        counts["wounds"] += judged.ended.wounds
    return counts, [str(judged)] if judged.findings else []


def test_objects_simulated(campaign: Callable[..., Sums]) -> None:
    sums = campaign(_play)
    assert sums.counts["wounds"] or sums.seeds < 100, "no operation is ever undone"
