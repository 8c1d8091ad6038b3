"""The demo tells the truth: each order keeps what it promises, and the weaker ones are seen to break."""

import json

import pytest

from antecede.cli import run


def test_orders_keep_their_promises_and_the_weak_ones_break(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--no-live", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    orders = {report["order"]: report["orders"] for report in document["runs"]}
    assert not orders["none"]["fifo"]["holds"]
    assert orders["fifo"]["fifo"]["holds"]
    assert not orders["fifo"]["causal"]["holds"]
    assert orders["pruned"]["causal"]["holds"]
    assert not orders["pruned"]["total"]["holds"]
    assert orders["lamport"]["total"]["holds"]
    assert all(report["broken"] == [] and report["undelivered"] == 0 for report in document["runs"])


def test_the_first_overtaking_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--no-live"]) == 0
    text = capsys.readouterr().out
    assert "is overtaken by" in text
    assert "delivered late" in text
