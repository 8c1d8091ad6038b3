"""Backups of simulated systems under faults: each restored world goes on, and nothing is lost, doubled or late.

``ANTECEDE_SEEDS=20000`` makes it a campaign. ``tests/planted/test_backups.py`` plants bugs that it must find.
"""

import os

from worlds.backups import play_backup

_seeds = max(15, int(os.environ.get("ANTECEDE_SEEDS", "0")))


def test_every_backup_goes_on() -> None:
    restored = 0
    for seed in range(_seeds):
        outcome, count = play_backup(seed)
        assert not outcome.found, outcome
        restored += count
    assert restored > _seeds // 4, "the backups have become too rare"
