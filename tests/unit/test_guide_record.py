"""The guide to ``antecede.record``: its programs and commands run as printed, and its examples exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from antecede import cli

_root = Path(__file__).resolve().parents[2]
_text = (_root / "docs" / "guide" / "record.md").read_text(encoding="utf-8")
_python = re.findall(r"^```python\n(.*?)^```$", _text, re.MULTILINE | re.DOTALL)
_commands = re.findall(r"^```\n(\$ .*?)^```$", _text, re.MULTILINE | re.DOTALL)

NEEDS_A_SERVICE = {"with_kafka.py", "with_nats.py", "with_rabbitmq.py", "with_celery.py"}
"""Examples that are not run by a test."""


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8", timeout=120)


def test_the_shop_is_recorded_and_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop, tests, assertions = _python
    (tmp_path / "shop.py").write_text(shop)
    (commands,) = _commands
    lines = commands.splitlines()
    assert lines[0] == "$ python shop.py"
    ran = _run(tmp_path, "shop.py")
    assert ran.stdout.splitlines() == lines[1:3], ran.stderr
    monkeypatch.chdir(tmp_path)
    assert lines[3:] == ["$ antecede verify shop-trace", "$ antecede explain shop-trace"]
    assert cli.run(["verify", "shop-trace"]) == 1
    assert cli.run(["explain", "shop-trace"]) == 0
    assert "shipping" in capsys.readouterr().out
    exec(compile(assertions, "record.md", "exec"), {})

    (tmp_path / "test_shop.py").write_text(tests)
    ran = _run(tmp_path, "-m", "pytest", "-p", "antecede.pytest_plugin", "--basetemp", "base", "test_shop.py")
    assert "1 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "causal order is broken" in ran.stdout
    assert "──▶◉" in ran.stdout


def test_the_examples_of_clients_are_in_the_guide() -> None:
    linked = set(re.findall(r"examples/record/(\w+\.py)\)", _text))
    assert linked == {path.name for path in (_root / "examples" / "record").glob("*.py")}
    assert linked > NEEDS_A_SERVICE


def test_the_example_with_grpc_runs(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    ran = _run(tmp_path, str(_root / "examples" / "record" / "with_grpc.py"))
    assert ran.stdout == "shipped: tea\n", ran.stderr
    assert cli.run(["verify", str(tmp_path / "traces"), "--strict"]) == 0
