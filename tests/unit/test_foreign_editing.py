"""Editing sessions: parents at another agent are messages from there."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from antecede import limits
from antecede.errors import TraceError
from antecede.trace import judge, read_events, sift, verify
from antecede.trace.foreign import convert
from helpers.snapshots import Snapshots


def _import(folder: Path, transactions: list[Any]) -> dict[str, Any]:
    (folder / "session.json").write_text(json.dumps({"kind": "concurrent", "txns": transactions}))
    return convert([folder / "session.json"], folder / "t.jsonl")


def _txn(agent: int | str, *parents: int, **more: Any) -> dict[str, Any]:
    return {"agent": agent, "parents": list(parents), **more}


def test_parents_at_another_agent_are_messages(tmp_path: Path) -> None:
    report = _import(tmp_path, [_txn(0), _txn(1, 0), _txn(0, 0), _txn(1, 1, 2), _txn("eve", 3, time="2020-01-01")])
    assert report["files"][0]["format"] == "editing"
    assert (report["processes"], report["events"], report["messages"], report["merges"]) == (3, 5, 3, 1)
    events, _ = read_events([tmp_path / "t.jsonl"])
    assert [(e.process, e.kind, e.message) for e in events] == [
        ("agent-0", "send", "agent-0:0->agent-1"),
        ("agent-0", "send", "agent-0:2->agent-1"),
        ("agent-1", "deliver", "agent-0:0->agent-1"),
        ("agent-1", "deliver", "agent-0:2->agent-1"),
        ("agent-1", "send", "agent-1:3->eve"),
        ("eve", "deliver", "agent-1:3->eve"),
    ]
    assert events[-1].time == 1_577_836_800 * 10**9
    assert verify([tmp_path / "t.jsonl"])["complete"]


def test_a_parent_named_again_is_no_second_delivery(tmp_path: Path) -> None:
    report = _import(tmp_path, [_txn(0), _txn(1, 0), _txn(1, 0, 0, 1)])
    assert (report["messages"], report["events"]) == (1, 3)
    assert verify([tmp_path / "t.jsonl"])["quarantined"] == {}


def test_what_an_agent_already_knows_is_no_delivery(tmp_path: Path) -> None:
    """Neither on a second branch of its own, nor if a parent is named with one of its descendants."""
    report = _import(tmp_path, [_txn(0), _txn(0, 0), _txn(1, 1), _txn(1, 0), _txn(2, 0, 2, 1), _txn(2, 4, 3)])
    assert report["messages"] == 3
    assert [e.message for e in read_events([tmp_path / "t.jsonl"])[0] if e.kind == "deliver"] == [
        "agent-0:1->agent-1",
        "agent-1:2->agent-2",
        "agent-1:3->agent-2",
    ]


def test_no_session_shows_a_late_delivery(seeds: int, tmp_path: Path) -> None:
    for seed in range(seeds // 3):
        dice = Random(seed)
        transactions = [
            _txn(dice.randrange(4), *(dice.randrange(number) for _ in range(dice.randint(0, 3)) if number))
            for number in range(dice.randint(2, 30))
        ]
        _import(tmp_path, transactions)
        sifted = sift(read_events([tmp_path / "t.jsonl"])[0])
        (tmp_path / "t.jsonl").unlink()
        verdict = judge(sifted.trace)
        assert (sifted.reasons, verdict.fifo, verdict.causal) == ({}, [], []), seed


@pytest.mark.parametrize(
    "broken", [_txn(0, 9), _txn(0, -1), _txn(0, 1), {"agent": 0}, 7, {"agent": 1.5, "parents": []}, None]
)
def test_a_broken_transaction_costs_itself_and_what_builds_on_it(broken: Any, tmp_path: Path) -> None:
    report = _import(tmp_path, [_txn(0), broken, _txn(1, 0), _txn(1, 1)])
    assert (report["events"], report["messages"], report["unreadable"]) == (2, 1, 2)
    assert report["unreadable_first"][0].startswith(f"{tmp_path / 'session.json'}: transaction 1: ")


@pytest.mark.parametrize("time", ["never", "9999-12-31", "0001-01-01T00:00:00+23:59", "1970-01-01T00:00:00+00:00", ""])
def test_times_that_are_none(time: str, tmp_path: Path) -> None:
    _import(tmp_path, [_txn(0, time=time)])
    assert read_events([tmp_path / "t.jsonl"])[0][0].time is None


def test_one_recording_at_a_time_and_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Snapshots
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.json").write_text('{"txns": [{"agent": 0, "parents": []}]}')
    with pytest.raises(TraceError) as caught:
        convert([tmp_path])
    reads(str(caught.value))
    (tmp_path / "c.json").write_text(json.dumps({"txns": [_txn(0), _txn(1, 0)]}))
    monkeypatch.setattr(limits, "foreign_clock_entries_max", 1)
    assert convert([tmp_path / "c.json"])["messages"] == 1
    monkeypatch.setattr(limits, "foreign_clock_entries_max", 0)
    with pytest.raises(TraceError) as caught:
        convert([tmp_path / "c.json"])
    reads(str(caught.value))
    monkeypatch.setattr(limits, "foreign_events_max", 0)
    with pytest.raises(TraceError) as caught:
        convert([tmp_path / "a.json"])
    reads(str(caught.value))
