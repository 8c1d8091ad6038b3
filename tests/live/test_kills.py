"""kill -9 of random servers under load: nothing lost, nothing twice, nothing overtaken."""

import asyncio
import os
from pathlib import Path

from antecede.trials.kills import trial

_kills = int(os.environ.get("ANTECEDE_KILLS", "30"))


def test_thirty_kills(tmp_path: Path) -> None:
    """Five servers, three domains, two routers; ``antecede trial kills --kills 2000`` is the campaign."""
    outcome = asyncio.run(trial(tmp_path / "round", 4, _kills))
    assert not outcome.found, outcome
    assert outcome.kills >= 30
    assert outcome.figures.deliveries > 50 * outcome.kills, "the load has become harmless"
