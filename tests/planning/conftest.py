"""Random problems for the planner, small enough to be judged by looking at every plan."""

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("numba")
sys.path.insert(0, str(Path(__file__).parent))

from antecede.pipeline.planning.problem import Bounds, Pins, Problem, model_of
from antecede.pipeline.planning.traffic import Traffic


def random_traffic(seed: int, servers: int) -> Traffic:
    """Some or all servers talk to each other; every third case has multicasts."""
    random = Random(f"traffic {seed}")
    density = random.choice((0.3, 0.6, 1.0))
    pairs = {
        (a, b): float(random.randint(1, 100))
        for a in range(servers)
        for b in range(servers)
        if a != b and random.random() < density
    }
    pairs = pairs or {(0, 1): 5.0}
    groups: dict[tuple[int, tuple[int, ...]], float] = {}
    for _ in range(4 if seed % 3 == 0 else 0):
        source = random.randrange(servers)
        others = [server for server in range(servers) if server != source]
        targets = tuple(sorted(random.sample(others, random.randint(2, servers - 1))))
        groups[source, targets] = float(random.randint(1, 60))
    return Traffic([f"s{number}" for number in range(servers)], pairs, groups)


def random_problem(seed: int, servers: int, bounded: bool) -> Problem:
    """Traffic, a model, and if asked some bounds and pins."""
    random = Random(f"problem {seed}")
    bounds, pins = Bounds(), Pins()
    if bounded:
        bounds = Bounds(random.choice((None, 3, 4)), random.choice((None, 0.3, 0.5)), random.choice((None, 2, 3)))
        if random.random() < 0.5:
            near = (f"s{random.randrange(servers // 2)}", f"s{servers - 1}")
            pins = Pins((near,), (("s0", "s1"),) if random.random() < 0.5 else (), ("s2",))
    model = model_of(random.choice(("paper", "cpu")), random.choice(("matrix", "pruned")))
    return Problem(random_traffic(seed, servers), model, bounds, pins)


@pytest.fixture(scope="session")
def problem() -> Callable[..., Any]:
    """Makes a problem of a seed, a number of servers, and whether it has bounds."""
    return random_problem


@pytest.fixture(scope="session")
def traffic() -> Callable[..., Any]:
    """Makes traffic of a seed and a number of servers."""
    return random_traffic
