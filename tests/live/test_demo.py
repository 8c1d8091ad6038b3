"""The demo as a person runs it: live servers, one killed, a verdict, and nothing left behind."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

_source = Path(__file__).resolve().parent.parent.parent / "src"


@pytest.fixture
def demo(tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    """With a folder of its own for whatever is temporary."""
    environment = {**os.environ, "PYTHONPATH": str(_source), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "antecede", "demo", "--no-spark", "--json"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_server_is_killed_and_nothing_is_lost(demo: "subprocess.CompletedProcess[str]", tmp_path: Path) -> None:
    assert demo.returncode == 0, demo.stderr
    document = json.loads(demo.stdout)
    live, verdict = document["live"], document["live"]["verdict"]
    assert live["killed"] == "s2"
    assert live["found"] == []
    assert live["walks"] > 100
    assert verdict["complete"]
    assert verdict["undelivered"] == 0
    assert verdict["messages"] > live["walks"]
    assert all(order["holds"] for order in verdict["orders"].values())
    assert document["spark"] is None
    assert list(tmp_path.iterdir()) == []
    # A process that builds a snapshot notices by itself that its server is gone.
    ends = time.monotonic() + 30
    while still := [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(path)]:
        assert time.monotonic() < ends, still
        time.sleep(0.1)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
