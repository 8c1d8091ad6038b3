"""``antecede campaign``: the table, the drawing and the document."""

import json

import pytest

from antecede.cli import run
from antecede.messages import Packet
from antecede.orders.matrix import Matrix


def test_table_has_a_line_for_each_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["campaign", "--order", "fifo", "--order", "skeen:causal=true", "--schedules", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "order"
    assert [line.split()[:2] for line in lines[1:]] == [["fifo", "20"], ["skeen:causal=true", "20"]]


def test_document_does_not_depend_on_the_number_of_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for jobs in ("1", "2"):
        assert run(["campaign", "--order", "pruned", "--schedules", "600", "--jobs", jobs, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["campaign"]
        assert (row.pop("seconds") > 0, row.pop("per_second") > 0) == (True, True)
        rows.append(row)
    assert rows[0] == rows[1]
    assert rows[0]["deliveries"] > 10_000
    assert rows[0]["needless"] == 0


def test_broken_order_is_reported_with_its_replay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(self: Matrix, packet: Packet) -> None:
        return None

    monkeypatch.setattr(Matrix, "missing", careless)
    assert run(["campaign", "--order", "matrix", "--schedules", "20", "--no-faults"]) == 1
    said = capsys.readouterr().out
    replay = next(line for line in said.splitlines() if "replay:" in line).partition("replay: antecede ")[2]
    assert run(replay.split()) == 1
    shown = capsys.readouterr().out
    assert "is late at" in shown
    assert "send    m0 to" in shown
    assert "◉" in shown, "the diagram marks no late delivery"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--order", "nonsense"],
        ["--order", "coordinator:member=8", "--json"],
        ["--schedules", "0"],
        ["--schedules", "21", "--show"],
        ["--seed", "-1"],
    ],
)
def test_misuse_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["campaign", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
