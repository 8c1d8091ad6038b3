"""Changes of the topology under load, with crashes of servers and kills of the command, in the simulated world.

``tests/campaigns/test_changes_simulated.py`` is the campaign of random ones.
"""

import os

import msgspec
import pytest

from antecede.simulator.servers.network import NONE, Faults
from helpers.changing import AGENTS, BUS, FLAT, JOURNEY, MILD, MOVED, ONE_MORE, topology
from worlds.changes import FAULTS, ChangingWorld, play

_seeds = int(os.environ.get("ANTECEDE_SEEDS", "3"))


def _check(seed: int, topologies: list[str], publishes: int = 60, faults: Faults = FAULTS) -> ChangingWorld:
    world = ChangingWorld(seed, topologies, faults)
    found = world.play(publishes)
    assert not found, f"seed {seed}: {found[:3]}"
    return world


@pytest.mark.parametrize("seed", range(_seeds))
def test_a_journey_through_topologies(seed: int) -> None:
    world = _check(seed, JOURNEY, 100)
    # A command that was killed after the decision, and is given again, finds nothing to do.
    states = [one.state for one in world.outcomes if one.state != "refused"]
    assert (len(states), {*states} - {"unchanged"}) == (len(JOURNEY) - 1, {"done"})
    assert states.count("unchanged") <= 2
    assert {one.machine.organisation.change for one in world.servers.values()} == {len(JOURNEY) - 1}


@pytest.mark.parametrize("first", range(0, 30 * _seeds, 30))
def test_random_changes(first: int) -> None:
    missed = 0
    for seed in range(first, first + 30):
        outcome = play(seed)
        assert not outcome.found, str(outcome)
        missed += outcome.missed
    assert missed, "no server was away during a change"


@pytest.mark.parametrize("seed", range(_seeds))
def test_agents_and_servers_are_added_while_all_others_work(seed: int) -> None:
    more = topology({"A": "12", "B": "23", "C": "34"}, {**AGENTS, "x": 4})
    server = topology({"A": "12", "B": "23", "C": "34", "D": "45"}, {**AGENTS, "x": 4, "e": 5})
    _check(seed, [BUS, more, server])


@pytest.mark.parametrize("order", ["pruned", "updates", "direct"])
def test_other_orders(order: str) -> None:
    flat, other = topology({"A": "123"}, {"a": 1, "b": 2, "c": 3}, {"A": order}), {"a": 2, "b": 2, "c": 1}
    for seed in range(max(1, _seeds // 3)):
        _check(seed, [flat, topology({"A": "123"}, other, {"A": order}), topology({"A": "12", "B": "23"}, other)])


def test_a_total_order_is_changed_only_while_servers_are_stopped() -> None:
    flat = topology({"A": "123"}, {"a": 1, "b": 2, "c": 3}, {"A": "skeen:causal=true"})
    world = ChangingWorld(0, [flat, topology({"A": "12", "B": "23"}, {"a": 1, "b": 2, "c": 3})], NONE, kill=0)
    assert world.play(20) == [
        "operator: the change failed: domain A has total order: to change it, stop the servers and use --data DIR"
    ]


def test_without_faults_nothing_is_refused() -> None:
    world = ChangingWorld(1, [FLAT, MOVED.replace("s5", "s4x").replace("7005", "7009")], NONE, kill=0)
    assert not world.play(60)
    assert [one.state for one in world.outcomes] == ["done"]


@pytest.mark.parametrize("part", range(2))
def test_whole_servers_change_while_they_run(part: int) -> None:
    """Connections, queues, reactions in progress, and operators that are gone for a while; see ``ChangingWorld``."""
    made = 0
    for seed in range(part, max(4, _seeds * 2), 2):
        texts = [FLAT, BUS, ONE_MORE, MOVED, FLAT] if seed % 4 < 2 else [BUS, ONE_MORE, BUS, FLAT]
        world = ChangingWorld(seed, texts, kill=0.02 + 0.1 * (seed % 3))
        found = world.play(60)
        assert not found, f"seed {seed}: {found[:3]}"
        made += sum(one.state == "done" for one in world.outcomes)
    assert made > 1, "the changes have become rare"


def test_whole_servers_learn_changes_that_they_have_missed() -> None:
    """Servers that are not needed are down while agents and servers are added, and get letters of these afterwards."""
    missed, faults = 0, msgspec.structs.replace(FAULTS, seconds=4.0)
    for seed in range(_seeds * 2):
        world = ChangingWorld(seed, MILD, faults, kill=0.02, away=0.8)
        found = world.play(60)
        assert not found, f"seed {seed}: {found[:3]}"
        missed += world.missed
    assert missed, "no server was away during a change"


def test_an_agent_that_gets_another_class_handles_each_letter_once() -> None:
    """A letter that the step of the change had handed out was handed out again when the new class was declared."""
    outcome = play(5339)
    assert not outcome.found, str(outcome)


def test_an_answer_to_a_new_agent_waits_until_the_change_is_decided() -> None:
    """A new agent asked an agent whose server did not know it yet, and the question died of failed tries."""
    outcome = play(42314)
    assert not outcome.found, str(outcome)
