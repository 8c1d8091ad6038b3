"""Services under SIGKILL, and their brokers too. A campaign has more of them (some minutes for each broker):
``ANTECEDE_KILLS=200 ./run test tests/lanes/test_kills.py``; every tenth kill is then one of the broker."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.brokers import KINDS, missing

KILLS = int(os.environ.get("ANTECEDE_KILLS", "6"))


def campaign(kind: str, folder: Path, kills: int, *more: str) -> dict[str, int]:
    if reason := missing(kind):
        pytest.skip(reason)
    # The mock cluster of Kafka keeps nothing.
    brokers = 0 if kind == "kafka" else max(1, kills // 10)
    command = [sys.executable, "-m", "lanes.deadly", kind, str(folder), str(kills), str(brokers), *more]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=120 + 15 * kills
    )
    assert done.returncode == 0, done.stderr
    made: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_late_lost_or_stuck_when_services_and_brokers_are_killed(kind: str, tmp_path: Path) -> None:
    kills = KILLS if kind != "kafka" else max(3, KILLS // 5)
    made = campaign(kind, tmp_path, kills)
    assert made["sent"] > 0
    assert (made["late"], made["lost"]) == (0, 0), made


def test_the_oracle_finds_what_is_late_without_us(tmp_path: Path) -> None:
    assert campaign("nats", tmp_path, 4, "without")["late"] > 0
