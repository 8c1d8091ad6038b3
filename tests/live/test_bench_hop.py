"""``antecede bench hop``: it runs and reports the constants of the planner's model; no timing is judged."""

import json

import pytest

from antecede.cli import run


def test_the_constants_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "hop", "--letters", "100", "--rounds", "1", "--order", "fifo,pruned", "--sizes", "2,3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["alpha_rounds_ns"]) == 1
    assert found["beta_ns"] > found["beta_line_ns"] == 8
    assert {order: len(row) for order, row in found["stamp_bytes"].items()} == {"fifo": 2, "pruned": 2}
    assert found["stamp_bytes"]["pruned"][0] < found["stamp_bytes"]["pruned"][1]
