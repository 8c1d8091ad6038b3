"""Kill -9 and power cuts of random servers under load: nothing lost, nothing twice, nothing overtaken.

Five servers, three domains, two routers; ``antecede trial kills`` and ``antecede trial powercuts`` are the campaigns.
"""

import asyncio
from pathlib import Path

from antecede.trials.kills import Kills
from antecede.trials.powercuts import PowerCuts
from antecede.trials.rounds import Outcome, Round


def _run(kind: type[Round], folder: Path, seed: int, count: int, counted: str) -> Outcome:
    async def main() -> Outcome:
        return await kind(folder, seed).run(count, counted)

    outcome = asyncio.run(main())
    assert not outcome.found, outcome
    assert outcome.faults[counted] >= count
    assert outcome.figures.deliveries > 30 * count, "the load has become harmless"
    return outcome


def test_thirty_kills(tmp_path: Path) -> None:
    _run(Kills, tmp_path / "round", 4, 30, "kills")


def test_ten_power_cuts(tmp_path: Path) -> None:
    _run(PowerCuts, tmp_path / "round", 12, 10, "cuts")
