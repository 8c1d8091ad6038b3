"""``antecede explore``: its three exit codes, its report, and a printed scenario that plays."""

import json
from pathlib import Path

import pytest

from antecede import limits
from antecede.cli import run
from antecede.errors import ScopeTooLargeError
from antecede.simulator.explorer import explore


def test_scope_that_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explore", "--order", "pruned", "--processes", "3", "--messages", "3", "--multicast", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["holds"] is True
    assert report["violation"] is None
    assert report["outcomes"] is None
    assert report["checked"] == ["causal", "fifo"]
    assert report["mode"] == "multicast"
    assert report["states"] > 100


def test_violation_is_a_scenario_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["explore", "--order", "fifo", "--guarantee", "causal"]) == 1
    path = tmp_path / "found.txt"
    path.write_text(capsys.readouterr().out)
    assert run(["play", str(path)]) == 0, "the expectation speaks of causal orders, and fifo is none"
    assert run(["play", str(path), "--order", "matrix"]) == 0
    path.write_text(path.read_text().replace("delivered m1 m3", "delivered m3 m1"))
    assert run(["play", str(path), "--order", "matrix"]) == 1


def test_program_reports_outcomes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "program.txt"
    path.write_text("processes A B\nsend x A -> B\nsend y A -> B\n")
    assert run(["explore", "--order", "none", "--program", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mode"] == "program"
    assert (report["processes"], report["messages"]) == (2, 2)
    assert report["outcomes"] == [{"A": [], "B": ["x", "y"]}, {"A": [], "B": ["y", "x"]}]
    assert run(["explore", "--order", "none", "--program", str(path)]) == 0
    assert "2 joint delivery orders" in capsys.readouterr().out


def test_without_an_order_the_usual_one_is_explored(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explore", "--messages", "2"]) == 0
    assert capsys.readouterr().out.startswith("pruned holds")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--order nope", "unknown order"),
        ("--order matrix --guarantee best", "guarantee 'best'"),
        ("--order matrix --multicast --broadcast", "exclude"),
        ("--order vector", "broadcasts only"),
        ("--order matrix --processes 1", "cannot send to others"),
        (f"--order matrix --processes {limits.explorer_processes_max + 1}", "expected 1 to"),
        (f"--order matrix --messages {limits.explorer_messages_max + 1}", "expected 1 to"),
        ("--order matrix --messages 0", "expected 1 to"),
        ("--order lamport --states-max 1000", "more than 1000 states"),
        ("--order matrix --program nowhere.txt", "nowhere.txt: cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explore", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_bound_on_states_is_exact() -> None:
    states = explore("matrix", 3, 2).states
    assert explore("matrix", 3, 2, states_max=states).states == states
    with pytest.raises(ScopeTooLargeError):
        explore("matrix", 3, 2, states_max=states - 1)
