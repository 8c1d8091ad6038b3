"""Domains: when they are a forest, and which way a message takes (Laumay et al. §4)."""

import random

import pytest

from antecede.errors import TopologyError
from antecede.topology import Domain, Topology, shown
from helpers.snapshots import Snapshots

_fig_2 = {"A": "s1 s2 s3", "B": "s4 s5", "C": "s6 s7 s8", "D": "s3 s6", "E": "s1 s4"}


def _topology(domains: dict[str, str]) -> Topology:
    return Topology([Domain(name, tuple(servers.split())) for name, servers in domains.items()])


@pytest.mark.parametrize(
    ("domains", "cycle"),
    [
        ({"A": "s0 s1 s2"}, None),
        (_fig_2, None),
        ({"A": "s0 s1", "B": "s0 s2", "C": "s0 s3"}, None),
        ({"A": "s0 s1", "B": "s2 s3"}, None),
        ({"A": "s0 s1", "B": "s0 s1 s2"}, "s0 –A– s1 –B– s0"),
        ({"A": "s0 s1 s2", "B": "s1 s2 s3"}, "s2 –A– s1 –B– s2"),
        ({"A": "s0 s1", "B": "s1 s2", "C": "s2 s0"}, "s2 –C– s0 –A– s1 –B– s2"),
    ],
)
def test_forest(domains: dict[str, str], cycle: str | None) -> None:
    found = _topology(domains).cycle
    assert (shown(found) if found else None) == cycle


def test_cycles_are_real_and_none_is_missed() -> None:
    """A graph is a forest iff it has as many edges as nodes less components; a cycle's edges must all be there."""
    dice = random.Random(7)
    for _ in range(500):
        servers = [f"s{number}" for number in range(dice.randint(1, 6))]
        groups = [tuple(dice.sample(servers, dice.randint(1, len(servers)))) for _ in range(dice.randint(1, 4))]
        topology = Topology([Domain(f"d{number}", group) for number, group in enumerate(groups)], servers)
        parent = {name: name for name in [*servers, *topology.domains]}

        def root(name: str, parent: dict[str, str] = parent) -> str:
            while parent[name] != name:
                name = parent[name]
            return name

        forest = True
        for domain in topology.domains.values():
            for server in domain.servers:
                one, other = root(domain.name), root(server)
                forest = forest and one != other
                parent[one] = other
        cycle = topology.cycle
        assert (cycle is None) is forest
        if cycle is not None:
            assert cycle[0] == cycle[-1]
            assert len(set(cycle)) == len(cycle) - 1 >= 4
            for position in range(0, len(cycle) - 1, 2):
                members = topology.domains[cycle[position + 1]].servers
                assert cycle[position] in members
                assert cycle[position + 2] in members


def test_routes_of_figure_2() -> None:
    topology = _topology(_fig_2)
    assert topology.route("s1", "s8") == ["s1", "s3", "s6", "s8"]
    assert topology.route("s5", "s7") == ["s5", "s4", "s1", "s3", "s6", "s7"]
    assert topology.route("s1", "s1") == ["s1"]


def test_ties_go_to_what_was_named_first() -> None:
    topology = _topology({"A": "s0 s1", "B": "s0 s2", "C": "s1 s3", "D": "s2 s3"})
    assert topology.route("s0", "s3") == ["s0", "s1", "s3"]


def test_no_way(reads: Snapshots) -> None:
    topology = _topology({"A": "s0 s1", "B": "s2 s3"})
    with pytest.raises(TopologyError) as caught:
        topology.route("s0", "s3")
    reads(str(caught.value))
    with pytest.raises(TopologyError) as caught:
        topology.route("s0", "s9")
    reads(str(caught.value))


def test_names_are_unique(reads: Snapshots) -> None:
    with pytest.raises(TopologyError) as caught:
        Topology([Domain("A", ("s0",)), Domain("A", ("s1",))])
    reads(str(caught.value))
    with pytest.raises(TopologyError) as caught:
        Topology([Domain("A", ("s0", "s0"))])
    reads(str(caught.value))


def test_trees_and_routers() -> None:
    topology = _topology({"A": "s0 s1", "B": "s2 s3", "C": "s3 s4"})
    assert topology.trees == (frozenset({"s0", "s1"}), frozenset({"s2", "s3", "s4"}))
    assert [server for server in topology.servers if topology.is_router(server)] == ["s3"]
