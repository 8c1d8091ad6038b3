"""SIGTERM ends a command as Ctrl-C does: nothing half-written is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_simulation_leaves_nothing_behind(root: Path, tmp_path: Path, number: int, code: int) -> None:
    command = [sys.executable, "-m", "antecede", "simulate", "--processes", "8", "--messages", "100000000"]
    process = subprocess.Popen(
        [*command, "--trace", str(tmp_path / "x.jsonl")],
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + 30
        while not any(one.stat().st_size for one in tmp_path.iterdir()):
            assert time.monotonic() < end, "it writes"
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(20) == code
    finally:
        process.kill()
        _, said = process.communicate()
    assert said == "antecede: interrupted\n"
    assert list(tmp_path.iterdir()) == []
