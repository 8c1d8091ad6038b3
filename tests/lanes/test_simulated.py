"""Services on a simulated broker under faults: nothing late, nothing lost, nothing stuck."""

import pytest

from helpers.lanes import Plan, play


def test_drawn_runs(seeds: int) -> None:
    """Every kind of broker, scope, order and fault. A campaign: ``ANTECEDE_SEEDS=10000``."""
    starts = sum(play(seed).starts for seed in range(seeds))
    assert starts > 20 * seeds


@pytest.mark.parametrize("kind", ["counted", "pooled", "assigned"])
@pytest.mark.parametrize("scope", ["service", "key", "message"])
def test_without_faults(kind: str, scope: str) -> None:
    for seed in range(5):
        world = play(seed, plan=Plan(kind=kind, scope=scope, sole=kind != "pooled", messages=60))  # type: ignore[arg-type]
        assert world.calm()


@pytest.mark.parametrize("kind", ["counted", "pooled", "assigned"])
def test_forged_headers(kind: str) -> None:
    """Half of all messages have forged headers: everything is handled nevertheless."""
    for seed in range(15):
        play(seed, plan=Plan(kind=kind, sole=False, lanes=3, services=3, hostile=0.5, crashes=0.3, lost_acks=0.1))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["counted", "pooled", "assigned"])
def test_lanes_that_go_back(kind: str) -> None:
    for seed in range(15):
        play(seed, plan=Plan(kind=kind, sole=kind != "pooled", lanes=3, again=True, cuts=0.5, lost_acks=0.1, late=0.05))  # type: ignore[arg-type]
