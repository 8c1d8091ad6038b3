"""Kill -9 and power cuts of random servers under load: nothing lost, nothing twice, nothing overtaken.

Five servers, three domains, two routers; ``antecede trial kills`` and ``antecede trial powercuts`` are the campaigns,
and ``antecede trial objects`` for calls of replicated objects.
"""

import asyncio
from pathlib import Path

from antecede.trials.objects import ObjectKills
from antecede.trials.powercuts import PowerCuts
from antecede.trials.rounds import Kills, Outcome, Round


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


def test_three_kills_under_calls_of_objects(tmp_path: Path) -> None:
    async def main() -> ObjectKills:
        trial = ObjectKills(tmp_path / "round", 3, 8)
        # The trial must find a call that was answered and is lost, and nothing else.
        trial._expected["table"].add("a lost call")
        await trial.run(3)
        return trial

    result = asyncio.run(main()).result
    assert result.found == ["a lost call was answered, and is not in table"]
    assert result.kills == 3
    assert result.answered > 30, "the load has become harmless"
