"""Changes of the topology under load, with crashes of servers and kills of the command, in the simulated world.

``ANTECEDE_SEEDS=20000`` runs them as a campaign.
"""

import os

import pytest

from antecede.simulator.servers.changes import ChangeWorld
from helpers.changing import AGENTS, BUS, FLAT, JOURNEY, MOVED, topology

_seeds = int(os.environ.get("ANTECEDE_SEEDS", "3"))


def _check(seed: int, topologies: list[str], operations: int) -> ChangeWorld:
    world = ChangeWorld(seed, topologies)
    world.run(operations)
    assert not world.findings(), f"seed {seed}: {world.findings()[:3]}"
    return world


@pytest.mark.parametrize("seed", range(_seeds))
def test_a_journey_through_topologies(seed: int) -> None:
    world = _check(seed, JOURNEY, 500)
    # The first topology is in force from the start, so that its change has nothing to do.
    assert [one.state for one in world.outcomes if one.state != "refused"] == ["unchanged"] + ["done"] * (
        len(JOURNEY) - 1
    )
    assert {one.machine.organisation.change for one in world.servers.values()} == {len(JOURNEY) - 1}


@pytest.mark.parametrize("seed", range(_seeds))
def test_agents_and_servers_are_added_while_all_others_work(seed: int) -> None:
    more = topology({"A": "12", "B": "23", "C": "34"}, {**AGENTS, "x": 4})
    server = topology({"A": "12", "B": "23", "C": "34", "D": "45"}, {**AGENTS, "x": 4, "e": 5})
    _check(seed, [BUS, more, server], 150)


@pytest.mark.parametrize("order", ["pruned", "updates", "direct"])
def test_other_orders(order: str) -> None:
    flat, other = topology({"A": "123"}, {"a": 1, "b": 2, "c": 3}, {"A": order}), {"a": 2, "b": 2, "c": 1}
    for seed in range(max(1, _seeds // 3)):
        _check(seed, [flat, topology({"A": "123"}, other, {"A": order}), topology({"A": "12", "B": "23"}, other)], 150)


def test_a_total_order_is_changed_only_while_servers_are_stopped() -> None:
    flat = topology({"A": "123"}, {"a": 1, "b": 2, "c": 3}, {"A": "skeen:causal=true"})
    world = ChangeWorld(0, [flat, topology({"A": "12", "B": "23"}, {"a": 1, "b": 2, "c": 3})], crash=0, kill=0)
    world.run(100)
    assert world.wrongs == [
        "the change failed: domain A has a total order: stop the servers, and change it with --data DIR"
    ]


def test_without_faults_nothing_is_refused() -> None:
    world = ChangeWorld(1, [FLAT, MOVED.replace("s5", "s4x").replace("7005", "7009")], crash=0, kill=0)
    world.run(200)
    assert not world.findings()
    assert [one.state for one in world.outcomes] == ["unchanged", "done"]
