"""The guide to ``antecede.record``: its examples exist, and the one that needs no service runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from antecede import cli

_root = Path(__file__).resolve().parents[2]
_text = (_root / "docs" / "guide" / "record.md").read_text(encoding="utf-8")

NEEDS_A_SERVICE = {"with_kafka.py", "with_nats.py", "with_rabbitmq.py", "with_celery.py"}
"""Examples that are not run by a test."""


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8", timeout=120)


def test_the_examples_of_clients_are_in_the_guide() -> None:
    linked = set(re.findall(r"examples/record/(\w+\.py)\)", _text))
    assert linked == {path.name for path in (_root / "examples" / "record").glob("*.py")}
    assert linked > NEEDS_A_SERVICE


def test_the_example_with_grpc_runs(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    ran = _run(tmp_path, str(_root / "examples" / "record" / "with_grpc.py"))
    assert ran.stdout == "shipped: tea\n", ran.stderr
    assert cli.run(["verify", str(tmp_path / "traces"), "--strict"]) == 0
