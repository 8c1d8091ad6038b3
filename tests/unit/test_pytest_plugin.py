"""The pytest plug-in and the assertions: a broken order fails with its explanation, and other runs notice nothing."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from antecede.errors import TraceError, UsageError
from antecede.record import Recording
from antecede.testing import assert_causal, assert_fifo, assert_order
from antecede.trace import Event

_root = Path(__file__).resolve().parents[2]

_project = """
import pytest
from antecede.testing import assert_causal


def overtake(recording):
    ann, bob, cy = map(recording.process, ("ann", "bob", "cy"))
    ann.sent("x", to="cy")
    ann.sent("y", to="bob")
    bob.delivered("y")
    bob.sent("z", to="cy")
    cy.delivered("z")
    cy.delivered("x")


def test_kept(antecede_recording):
    antecede_recording.process("a").sent("x", to="b")
    antecede_recording.process("b").delivered("x")


@pytest.mark.antecede("fifo")
def test_only_fifo(antecede_recording):
    overtake(antecede_recording)


def test_skipped(antecede_recording):
    pytest.skip("no broker here")


def test_without():
    pass


def test_broken(antecede_recording):
    overtake(antecede_recording)


def test_fails_by_itself(antecede_recording):
    overtake(antecede_recording)
    assert 1 == 2


def test_asserts(antecede_recording):
    overtake(antecede_recording)
    assert_causal(antecede_recording)


def test_records_nothing(antecede_recording):
    pass


@pytest.mark.antecede("casual")
def test_misspelt(antecede_recording):
    overtake(antecede_recording)


@pytest.mark.antecede(undelivered=False)
def test_lost(antecede_recording):
    antecede_recording.process("a").sent("x", to=["b", "c"])
    antecede_recording.process("b").delivered("x")
"""


def test_a_project_with_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_project)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "antecede.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "-c",
        "empty.ini",
    ]
    (tmp_path / "empty.ini").write_text("[pytest]\n")
    command += ["-p", "no:cacheprovider", "--strict-markers", "-rA", "--basetemp", str(tmp_path / "base"), "test_it.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert run.returncode == 1, run.stdout + run.stderr
    passed = set(re.findall(r"^PASSED test_it.py::(\w+)", run.stdout, re.MULTILINE))
    assert passed == {"test_kept", "test_only_fifo", "test_without"}
    failures = dict(re.findall(r"^_+ (test_\w+) _+\n(.*?)(?=^_+ test|^=====)", run.stdout, re.MULTILINE | re.DOTALL))
    for name in ("test_broken", "test_fails_by_itself", "test_asserts"):
        assert failures[name].count("cy delivered x late:") == 1, name
        assert "──▶◉" in failures[name]
    assert "assert 1 == 2" in failures["test_fails_by_itself"]
    assert "records no message" in failures["test_records_nothing"]
    assert "order 'casual' is not one of" in failures["test_misspelt"]
    assert "1 copy was never delivered" in failures["test_lost"]
    assert "Traceback" not in run.stdout + run.stderr
    drawn = re.search(r"drawn in (\S+)", failures["test_broken"])
    assert drawn is not None
    assert "<svg" in Path(drawn[1]).read_text(encoding="utf-8")


def test_runs_without_the_fixture_import_nothing() -> None:
    loaded = "import sys, antecede.pytest_plugin; print(*[name for name in sys.modules if name.startswith('antecede')])"
    run = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()) == {"antecede", "antecede.pytest_plugin"}


def test_pytest_finds_the_plugin() -> None:
    project = tomllib.loads((_root / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"antecede.pytest_plugin": "antecede.pytest_plugin"}


def _rows(*rows: tuple[str, int, str, str]) -> list[dict[str, Any]]:
    return [dict(zip(("process", "index", "kind", "message"), row, strict=True)) for row in rows]


_late = _rows(("a", 0, "send", "x"), ("a", 1, "send", "y"), ("b", 0, "deliver", "y"), ("b", 1, "deliver", "x"))


def test_a_trace_may_be_rows_events_paths_or_a_recording(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "r")
    for row in _late:
        process = recording.process(row["process"])
        (process.sent if row["kind"] == "send" else process.delivered)(row["message"])
    events = [Event(**row) for row in _late]
    for trace in (_late, events, recording, [tmp_path / "r"], str(tmp_path / "r")):
        with pytest.raises(AssertionError, match="fifo order is broken"):
            assert_fifo(trace)
        with pytest.raises(AssertionError, match="causal order is broken"):
            assert_causal(trace)
        assert_order(trace, "total")


def test_a_trace_that_proves_nothing_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nothing to judge: no delivery"):
        assert_causal(_rows(("a", 0, "send", "x")))
    orphan = [*_late[:3], *_rows(("b", 1, "deliver", "unknown"))]
    with pytest.raises(AssertionError, match=r"set aside.*\n +orphan_delivery +1 row"):
        assert_causal(orphan)
    assert_causal(orphan, complete=False)
    with pytest.raises(TraceError, match="no such file"):
        assert_causal(tmp_path / "missing")
    with pytest.raises(UsageError, match="expected a path, or rows"):
        assert_causal([3])
