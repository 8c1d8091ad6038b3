"""Races by their definition: the plain engine against loops over all pairs of deliveries, on random traces.

``ANTECEDE_SEEDS`` sets how many. A failure names its seed: ``definitions.random_trace(SEED)`` is the trace.
"""

import importlib.util
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import msgspec
import pytest

from antecede.trace import Event, Wanted, write_trace
from antecede.trace.races import assumed, races


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_for_races", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


definitions: Any = _load("definitions")


def timed(rows: list[Event], seed: int) -> list[Event]:
    """The rows with times that rise along most processes, on some or on all of them."""
    random = Random(f"times {seed}")
    share = random.choice((0.0, 0.7, 1.0, 1.0))
    return [
        msgspec.structs.replace(row, time=10 * (row.index if row.index < 1000 else 0) + random.randrange(15))
        if random.random() < share
        else row
        for row in rows
    ]


def defined(rows: list[Event], guarantee: str, every: bool) -> set[tuple[str, str, str, int | None]]:
    """All races as (first, second, process, slack), by their definition."""
    facts = definitions.Definitions(rows)
    found = set()
    for second in facts.delivers:
        of_sender: dict[str, int] = {}
        for first in facts.earlier(second):
            sender = rows[facts.send_of(first)].process
            races = (
                facts.send_of(second) in facts.after[facts.send_of(first)]
                and facts.send_of(second) not in facts.after[first]
                and not (guarantee == "fifo" and sender == rows[facts.send_of(second)].process)
                and guarantee != "causal"
            )
            if races and every:
                found.add(_pair(facts, first, second, guarantee))
            elif races:
                of_sender[sender] = first
        found |= {_pair(facts, first, second, guarantee) for first in of_sender.values()}
    return found


def _pair(facts: Any, first: int, second: int, guarantee: str) -> tuple[str, str, str, int | None]:
    rows = facts.rows
    one, other = _arrival(facts, first), _released(facts, second, guarantee)
    if one is not None and other is not None:
        slack = other - one
    else:
        one, other = rows[first].time, rows[second].time
        slack = None if one is None or other is None else other - one
    return rows[first].message, rows[second].message, rows[first].process, slack


def _arrival(facts: Any, delivery: int) -> int | None:
    row = facts.rows[delivery]
    arrivals = [
        facts.rows[i]
        for i in facts.valid
        if facts.rows[i].kind == "arrive"
        and facts.rows[i].message == row.message
        and facts.rows[i].process == row.process
        and facts.rows[i].index < row.index
    ]
    return min(arrivals, key=lambda arrival: arrival.index).time if arrivals else None


def _released(facts: Any, delivery: int, guarantee: str) -> int | None:
    """When a message could be delivered: under FIFO order not before those of its sender that were delivered before."""
    times = []
    for other in [delivery, *reversed(facts.earlier(delivery))]:
        if facts.rows[facts.send_of(other)].process != facts.rows[facts.send_of(delivery)].process:
            continue
        if other != delivery and guarantee != "fifo":
            break
        arrival = _arrival(facts, other)
        if arrival is None:
            break
        times.append(arrival)
    return max(times) if times else None


@pytest.mark.parametrize("every", [False, True])
def test_races_are_those_of_the_definition(every: bool, tmp_path: Path, seeds: int) -> None:
    seen = 0
    for seed in range(seeds // 2):
        guarantee = ("none", "fifo", "causal")[seed % 3 if seed % 7 else 2]
        rows = timed(definitions.random_trace(seed), seed)
        path = tmp_path / "trace.jsonl"
        write_trace(path, rows)
        report = races([path], assumed(guarantee), Wanted(10_000, every=every))
        told = {
            (one["first"], one["second"], one["at"], None if one["slack_seconds"] is None else one["slack_seconds"])
            for one in report["races"]
        }
        expected = {
            (a, b, at, None if slack is None else slack / 1e9) for a, b, at, slack in defined(rows, guarantee, every)
        }
        assert told == expected, f"seed {seed}"
        assert report["pairs"] == report["shown"] == len(expected), f"seed {seed}"
        assert report["untimed"] == sum(slack is None for *_, slack in expected), f"seed {seed}"
        few = races([path], assumed(guarantee), Wanted(3, every=every))
        assert few["races"] == report["races"][:3], f"seed {seed}"
        assert (few["pairs"], few["untimed"]) == (report["pairs"], report["untimed"]), f"seed {seed}"
        slacks = [one["slack_seconds"] for one in report["races"] if one["slack_seconds"] is not None]
        assert slacks == sorted(slacks)
        near = races([path], assumed(guarantee), Wanted(10_000, within=20, every=every))
        assert near["pairs"] == sum(slack <= 20 / 1e9 for slack in slacks), f"seed {seed}"
        _check_chains(rows, report)
        seen += len(expected)
    assert seen > seeds // 10, "random traces must have races"


def _check_chains(rows: list[Event], report: dict[str, Any]) -> None:
    """A chain begins at the first message's sender with it or after it, goes on from each receiver, and ends in the
    second message."""
    for race in report["races"]:
        at, least = race["from"], race["send_index"]
        for link in race["chain"]:
            assert link["from"] == at
            assert link["send_index"] >= least
            at, least = link["to"], link["deliver_index"] + 1
        last = race["chain"][-1]
        assert (last["message"], last["to"], last["deliver_index"]) == (
            race["second"],
            race["at"],
            race["second_index"],
        )
