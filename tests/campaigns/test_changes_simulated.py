"""Changes of random topologies of simulated servers; one seed is a schedule of several changes, while servers crash and
``topology apply`` is killed. ``absences``: servers that a change did not need, and that were down meanwhile."""

from collections.abc import Callable

from campaigns.driver import Played, Sums
from worlds.changes import play


def _play(seed: int) -> Played:
    outcome = play(seed)
    counts = {name: getattr(outcome, name) for name in ("changes", "crashes", "deliveries")}
    return counts | {"absences": outcome.missed}, [str(outcome)] if outcome.found else []


def test_changes_simulated(campaign: Callable[..., Sums]) -> None:
    sums = campaign(_play)
    if sums.seeds >= 100:
        assert sums.counts["changes"] > sums.seeds, "the schedules have become empty"
        assert sums.counts["absences"], "no server was away during a change"
