"""The kernel's figures against routes walked one by one, and its moves against the forest test."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypertrees import COUNTS, hypertrees

from antecede.pipeline.planning import kernel, search
from antecede.pipeline.planning.problem import Figures, Problem
from antecede.pipeline.planning.report import forwarding
from antecede.topology import Domain, Topology


def _topology(problem: Problem, plan: Any) -> Topology:
    domains = search.domains_of(plan)
    named = [Domain(f"d{number}", tuple(problem.servers[s] for s in members)) for number, members in enumerate(domains)]
    return Topology(named, problem.servers)


def _walked(problem: Problem, traffic: Any, plan: Any) -> Figures:
    """The same figures from the routes of the topology itself."""
    topology = _topology(problem, plan)
    cost = hops = 0.0
    passing = dict.fromkeys(problem.servers, 0.0)
    flows = [((source, (target,)), count) for (source, target), count in traffic.pairs.items()]
    for (source, targets), count in [*flows, *traffic.multicasts.items()]:
        name = problem.servers[source]
        before, onward = topology.tree(name), dict[str, set[str]]()
        for target in targets:
            for server in topology.route(name, problem.servers[target])[1:]:
                domain, previous = before[server]
                onward.setdefault(previous, set()).add(domain)
        for server, domains in onward.items():
            hops += count * len(domains)
            cost += count * sum(problem.model.price(len(topology.domains[domain].servers)) for domain in domains)
            if server != name:
                passing[server] += count
    longest = max(len(topology.route(a, b)) - 1 for a in problem.servers for b in problem.servers)
    total = problem.inputs.total
    return Figures(cost / total, hops / total, max(passing.values()) / total, 0, longest, 0, 0.0)


@pytest.mark.parametrize("servers", [4, 5, 6])
def test_figures_are_those_of_walked_routes(
    servers: int, problem: Callable[..., Problem], traffic: Callable[..., Any]
) -> None:
    parents, blocks = hypertrees(servers)
    assert len(parents) == COUNTS[servers]
    for seed in range(24):
        asked, sent = problem(seed, servers, False), traffic(seed, servers)
        row = (seed * 7919) % len(parents)
        plan = parents[row], blocks[row]
        found, expected = asked.figures(plan), _walked(asked, sent, plan)
        assert found.cost == pytest.approx(expected.cost), seed
        assert found.hops_mean == pytest.approx(expected.hops_mean), seed
        assert found.busiest_share == pytest.approx(expected.busiest_share), seed
        assert found.longest == expected.longest, seed
        assert max(forwarding(sent, plan)) / asked.inputs.total == pytest.approx(expected.busiest_share), seed


def test_moves_keep_the_forest_and_lead_everywhere() -> None:
    """From the flat plan random moves reach every tree of domains over four servers, and nothing else."""
    servers = 4
    parent, block = search.plan_of(search.flat(servers), servers)
    state, used = np.array([88172645463325252], np.uint64), np.zeros(servers, np.uint8)
    near, first = np.zeros(0, np.int32), np.zeros(servers + 1, np.int32)
    seen = set()
    for _ in range(6_000):
        kernel.move(parent, block, near, first, state, used)
        domains = search.domains_of((parent, block))
        topology = Topology([Domain(str(n), tuple(map(str, d))) for n, d in enumerate(domains)])
        assert topology.cycle is None
        assert len(topology.trees) == 1
        assert len(topology.servers) == servers
        seen.add(tuple(map(tuple, domains)))
    assert len(seen) == COUNTS[servers]


def test_a_plan_survives_as_domains(problem: Callable[..., Problem]) -> None:
    parents, blocks = hypertrees(5)
    for row in range(0, len(parents), 13):
        plan = parents[row].copy(), blocks[row].copy()
        domains = search.domains_of(plan)
        assert search.domains_of(search.plan_of(domains, 5, root=3)) == domains
        kernel.reroot(*plan, 2, np.zeros(5, np.uint8))
        assert search.domains_of(plan) == domains


def test_bounds_and_pins_are_seen(problem: Callable[..., Problem]) -> None:
    """Each bound by itself, on a daisy of four servers."""
    from antecede.pipeline.planning.problem import Bounds, Pins

    asked = problem(2, 4, False)
    daisy = search.plan_of([[0, 1], [1, 2], [2, 3]], 4)
    assert asked.figures(daisy).feasible
    assert asked.figures(daisy).longest == 3
    assert not asked.bounded(Bounds(max_hops=2)).figures(daisy).feasible
    assert asked.bounded(Bounds(max_hops=3)).figures(daisy).feasible
    share = asked.figures(daisy).busiest_share
    assert asked.bounded(Bounds(max_share=share)).figures(daisy).feasible
    assert not asked.bounded(Bounds(max_share=share * 0.99)).figures(daisy).feasible
    flat = search.plan_of(search.flat(4), 4)
    assert asked.bounded(Bounds(max_domain=4)).figures(flat).feasible
    assert not asked.bounded(Bounds(max_domain=3)).figures(flat).feasible
    from antecede.pipeline.planning.traffic import Traffic

    sent = Traffic(asked.servers, {(0, 1): 1.0}, {})
    for pins, broken in (
        (Pins(together=(("s0", "s1"),)), 0),
        (Pins(together=(("s0", "s2"),)), 1),
        (Pins(apart=(("s0", "s1"),)), 1),
        (Pins(apart=(("s0", "s2", "s3"),)), 1),
        (Pins(never_router=("s0", "s3")), 0),
        (Pins(never_router=("s1", "s2")), 2),
    ):
        for root in range(4):
            plan = search.plan_of([[0, 1], [1, 2], [2, 3]], 4, root)
            figures = Problem(sent, asked.model, Bounds(), pins).figures(plan)
            assert figures.broken_pins == broken, msgspec.structs.asdict(pins)
