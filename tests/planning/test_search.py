"""The search against every plan there is, and what it promises of references, seeds and bounds.

By hand, more and larger cases: ``ANTECEDE_SERVERS=8 ANTECEDE_SEEDS=100 ./run test tests/planning/test_search.py``.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypertrees import hypertrees

from antecede.pipeline.kernels import compiled
from antecede.pipeline.planning import kernel
from antecede.pipeline.planning import search as plans
from antecede.pipeline.planning.kernel import FIGURES, better, evaluate
from antecede.pipeline.planning.problem import (
    SIZES,
    STAMP_BYTES,
    Bounds,
    Figures,
    Pins,
    Plan,
    Problem,
    figures_of,
    model_of,
)
from antecede.pipeline.planning.report import replay
from antecede.pipeline.planning.search import search, violated
from antecede.pipeline.planning.traffic import Traffic

_cases = int(os.environ.get("ANTECEDE_SEEDS", "8"))
_sizes = [int(size) for size in os.environ.get("ANTECEDE_SERVERS", "4,5,6").split(",")]


@compiled
def _write_best(parents: Any, blocks: Any, inputs: kernel.Inputs, figures: Any) -> None:
    """Write the figures of the best plan. Each row of ``parents`` and ``blocks`` is a plan."""
    new = np.zeros(FIGURES)
    for k in range(len(parents)):
        evaluate(parents[k], blocks[k], inputs, new)
        if k == 0 or better(new, figures):
            figures[:] = new


def _optimum(problem: Problem) -> Figures:
    figures = np.zeros(FIGURES)
    _write_best(*hypertrees(problem.n), problem.inputs, figures)
    return figures_of(figures)


@pytest.mark.parametrize("servers", _sizes)
@pytest.mark.parametrize("bounded", [False, True])
def test_the_exact_optimum_is_met(servers: int, bounded: bool, problem: Callable[..., Problem]) -> None:
    met = feasible = 0
    for seed in range(_cases):
        asked = problem(seed, servers, bounded)
        exact, outcome = _optimum(asked), search(asked, 1)
        found = outcome.best.figures
        assert found.feasible <= exact.feasible
        if exact.feasible:
            feasible += 1
            met += found.feasible and found.cost <= exact.cost * (1 + 1e-9)
            assert found.cost >= exact.cost * (1 - 1e-9) or not found.feasible
            assert asked.lower_bound() <= exact.cost * (1 + 1e-9)
    assert feasible
    assert met >= 0.95 * feasible


def test_a_result_is_never_worse_than_a_feasible_reference(problem: Callable[..., Problem]) -> None:
    for seed in range(4):
        asked = problem(seed, 9, True)
        outcome = search(asked, seed)
        for name, reference in outcome.references.items():
            if reference is not None and reference.figures.feasible:
                assert outcome.best.figures.feasible, name
                assert outcome.best.figures.cost <= reference.figures.cost * (1 + 1e-9), name
        for one in outcome.front:
            assert one.figures.feasible


@pytest.mark.parametrize(("name", "order"), [("paper", "matrix"), ("cpu", "matrix"), ("cpu", "pruned")])
def test_a_result_replays_no_dearer_than_a_feasible_reference(name: str, order: str) -> None:
    """With the same messages, in the simulation. Two groups of three talk among themselves, and a little to each
    other."""
    pairs = {(a, b): 50.0 if (a < 3) == (b < 3) else 1.0 for a in range(6) for b in range(6) if a != b}
    traffic = Traffic([f"s{number}" for number in range(6)], pairs, {})
    model = model_of(name, order)
    outcome = search(Problem(traffic, model, Bounds(), Pins(), traffic.messages), 1)

    def replayed(plan: Plan) -> float:
        domains = {
            f"d{number}": [traffic.servers[server] for server in members]
            for number, members in enumerate(plans.domains_of(plan))
        }
        found = replay(traffic, domains, model, 1.0, 2_000, 1)
        assert found is not None
        assert found.messages == traffic.messages
        return found.cost

    best = replayed(outcome.best.plan)
    for shape, reference in outcome.references.items():
        assert reference is None or best <= replayed(reference.plan) * (1 + 1e-9), shape


def test_the_same_seed_gives_the_same_plan(problem: Callable[..., Problem]) -> None:
    asked = problem(3, 12, True)
    one, other = search(asked, 5), search(asked, 5)
    assert plans.domains_of(one.best.plan) == plans.domains_of(other.best.plan)
    assert [c.figures for c in one.front] == [c.figures for c in other.front]


def test_a_front_has_no_plan_that_another_beats(problem: Callable[..., Problem]) -> None:
    front = [one.figures for one in search(problem(3, 10, False), 1).front]
    assert front
    for one in front:
        for other in front:
            better = (other.cost, other.hops_mean, other.busiest_share)
            mine = (one.cost, one.hops_mean, one.busiest_share)
            assert one is other or not all(a <= b for a, b in zip(better, mine, strict=True))


def test_blocks_re_route_nothing(problem: Callable[..., Problem]) -> None:
    """Every two servers that talk share a domain, so that each message takes one hop."""
    pytest.importorskip("igraph")
    for seed in (1, 2, 4, 5):
        asked = problem(seed, 9, False)
        domains = plans.blocks(asked)
        assert domains is not None
        assert asked.figures(plans.plan_of(domains, 9)).hops_mean == pytest.approx(1.0)


def test_the_tightest_bound_is_named() -> None:
    figures = Figures(1.0, 1.0, 0.9, 12, 4, 0, 1.0)
    assert "max-domain 3: 12 servers" in str(violated(figures, Bounds(max_domain=3, max_share=0.8)))
    assert "max-share 0.1" in str(violated(figures, Bounds(max_domain=11, max_share=0.1)))
    assert violated(figures, Bounds(max_domain=12, max_share=0.9, max_hops=4)) is None


def test_the_paper_s_star_costs_eight() -> None:
    """Σ s² alone has a degenerate optimum: 48 servers with uniform traffic, and everything through one hub."""
    from antecede.pipeline.planning.problem import Pins
    from antecede.pipeline.planning.traffic import Traffic

    servers = [f"s{number}" for number in range(48)]
    pairs = {(a, b): 1.0 for a in range(48) for b in range(48) if a != b}
    asked = Problem(Traffic(servers, pairs, {}), model_of("paper", "matrix"), Bounds(), Pins())
    star = asked.figures(plans.plan_of(plans.star(48, 0), 48))
    flat = asked.figures(plans.plan_of(plans.flat(48), 48))
    assert (round(star.cost, 1), flat.cost) == (7.8, 2304.0)
    assert star.busiest_share == pytest.approx(46 / 48)


def test_stamps_between_measured_sizes() -> None:
    pruned = model_of("cpu", "pruned")
    for size, known in zip(SIZES, STAMP_BYTES["pruned"], strict=True):
        assert pruned.stamp(size) == pytest.approx(known)
    assert STAMP_BYTES["pruned"][4] < pruned.stamp(10) < STAMP_BYTES["pruned"][5]
    assert pruned.stamp(128) > STAMP_BYTES["pruned"][-1]
    assert model_of("cpu", "matrix").stamp(10) == 100
    assert model_of("paper", "pruned").price(10) == 100
    assert model_of("paper", "matrix").break_even(64) == 4
