"""Kill -9 and power cuts of random servers under load: nothing lost, nothing twice, nothing overtaken.

Five servers, three domains, two routers; ``tests/campaigns/test_live.py`` has the campaigns.
"""

import asyncio
from pathlib import Path

from campaigns.disks import PowerCuts
from campaigns.objects import ObjectKills
from campaigns.rounds import Kills, Outcome, Round


def _run(kind: type[Round], folder: Path, seed: int, count: int, counted: str) -> Outcome:
    outcome = asyncio.run(kind(folder, seed).run(count, counted))
    assert not outcome.found, outcome
    assert outcome.faults[counted] >= count
    assert outcome.figures.deliveries > 30 * count, "the load has become harmless"
    return outcome


def test_thirty_kills(tmp_path: Path) -> None:
    _run(Kills, tmp_path / "round", 4, 30, "kills")


def test_ten_power_cuts(tmp_path: Path) -> None:
    _run(PowerCuts, tmp_path / "round", 12, 10, "cuts")


def test_three_kills_under_calls_of_objects(tmp_path: Path) -> None:
    trial = ObjectKills(tmp_path / "round", 3, 8)
    # The trial must find a call that was answered and is lost, and nothing else.
    trial.load.expected["table"].add("a lost call")
    outcome = asyncio.run(trial.run(3, "kills"))
    assert outcome.found == ["the call a lost call was answered, but is not in table"]
    assert outcome.faults == {"kills": 3}
    assert trial.load.answered > 30, "the load has become harmless"
