"""The schedules themselves: varied, repeatable, with faults that happen, and a failure names its seed.

``tests/properties/test_every_order.py`` plays them on every order, and ``tests/campaigns/test_orders.py`` many of them.
"""

import os
import subprocess
import sys

import pytest

from antecede.messages import Packet
from antecede.orders import Matrix, parse
from antecede.simulator import schedules
from antecede.simulator.observers import Watcher
from antecede.simulator.schedules import STYLES, FaultySchedule, Outcome, Plan, play


@pytest.mark.parametrize("faults", [True, False])
def test_same_seed_same_trace(faults: bool) -> None:
    for order in ("pruned", "skeen", "buffer"):
        first, second = (play(parse(order), 11, faults=faults) for _ in range(2))
        assert first.events == second.events
        assert first.events != play(parse(order), 12, faults=faults).events


def test_trace_does_not_depend_on_the_hash_seed() -> None:
    """Sets and dictionaries of strings are iterated in a sequence that Python draws anew for each process."""
    program = (
        "from antecede.orders import parse\n"
        "from antecede.simulator.schedules import VARIANTS, play\n"
        "print([play(parse(o), s, faults=f).events for o in VARIANTS for s in range(2) for f in (True, False)])\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert len(said[0]) > 10_000


def _seen(order: str, count: int, faults: bool | None = None) -> list[Outcome]:
    return [play(parse(order), seed, faults=faults) for seed in range(count)]


def test_schedules_are_as_varied_as_they_claim() -> None:
    """A campaign of trivial schedules would find nothing either."""
    outcomes = _seen("matrix", 300)
    assert {outcome.processes for outcome in outcomes} == set(range(2, 9))
    plans = " ".join(outcome.plan for outcome in outcomes)
    for word in (*STYLES, "single", "subset", "everybody", "mixed", "others", "faulty links"):
        assert word in plans, word
    sends = [event for outcome in outcomes for event in outcome.events if event.kind == "send"]
    sizes = {len(event.to or ()) for event in sends}
    assert sizes == set(range(9))
    assert any(event.to == (event.process,) for event in sends)
    held = sum(
        event.kind == "arrive" and following.message != event.message
        for outcome in outcomes
        for event, following in zip(outcome.events, outcome.events[1:], strict=False)
    )
    assert held > 1_000


def test_faults_do_happen() -> None:
    crashed = 0
    for seed in range(30):
        spec = parse("pruned")
        plan = Plan(spec, seed, True)
        schedule = FaultySchedule(spec, plan, Watcher())
        schedule.world.run(schedule)
        crashed += schedule.world.crashes
    assert crashed > 30


def test_duplicates_reach_orders_that_recognise_them() -> None:
    repeated = 0
    for outcome in _seen("pruned", 50, faults=False):
        arrivals = [(event.process, event.message) for event in outcome.events if event.kind == "arrive"]
        repeated += len(arrivals) - len(set(arrivals))
    assert repeated > 100


def test_a_failure_names_its_seed_and_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "TIGHT", frozenset({"token"}))
    found = next(outcome for outcome in _seen("token", 200, faults=False) if outcome.findings)
    assert found.kinds() == {"needless"}
    assert f"token, seed {found.seed} " in str(found)
    assert found.diagram()


def test_a_late_delivery_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: Matrix, packet: Packet) -> None:
        return None

    monkeypatch.setattr(Matrix, "missing", careless)
    found = next(outcome for outcome in _seen("matrix", 20, faults=False) if "causal" in outcome.kinds())
    assert "◉" in found.diagram()
