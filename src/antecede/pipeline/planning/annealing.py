"""Compiled code that searches for a good plan by simulated annealing.

The search minimises log(cost) + penalty. The *excess* of a plan measures by how much the plan breaks its bounds and
pins. The penalty is 0 for a plan without excess. For all other plans it is strictness · (excess + 0.05), where the
strictness is a weight. Each step changes the plan by random moves (:mod:`antecede.pipeline.planning.moves`). During the
search the temperature falls and the strictness rises. If no better plan is found during a fifth of the search, the
search continues from its best plan. The result is the cheapest plan without excess or, if every plan has excess, the
plan with the least excess.
"""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled, inner
from antecede.pipeline.planning.kernel import COST, EXCESS, FIGURES, Inputs, evaluate
from antecede.pipeline.planning.moves import move, random

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]


@inner
def _energy(figures: Floats, strictness: float) -> float:
    excess = figures[EXCESS]
    return float(np.log(figures[COST] + 1e-300) + (strictness * (excess + 0.05) if excess > 1e-9 else 0.0))


@compiled
def better(one: Floats, other: Floats) -> bool:
    """Compare the figures of two plans. Return whether the first plan is better. The plan with less excess over the
    bounds and pins is better. If both have the same excess, the cheaper plan is better."""
    if (one[EXCESS] > 1e-9) != (other[EXCESS] > 1e-9):
        return bool(one[EXCESS] <= 1e-9)
    if one[EXCESS] > 1e-9 and abs(one[EXCESS] - other[EXCESS]) > 1e-9:
        return bool(one[EXCESS] < other[EXCESS])
    return bool(one[COST] < other[COST] * (1.0 - 1e-12))


@compiled
def anneal(
    parent: Ints,
    block: Ints,
    steps: int,
    hot: float,
    cold: float,
    seed: int,
    near: Ints,
    near_first: Ints,
    inputs: Inputs,
    best_parent: Ints,
    best_block: Ints,
    best: Floats,
) -> None:
    """Search for a better plan, starting from the plan ``parent`` and ``block``. Write the best plan found to
    ``best_parent`` and ``best_block``, and its figures to ``best``."""
    n = len(parent)
    state = np.array([seed * 2654435769 + 88172645463325252], np.uint64)
    used = np.zeros(n, np.uint8)
    now_parent, now_block = parent.copy(), block.copy()
    now, new = np.zeros(FIGURES), np.zeros(FIGURES)
    evaluate(now_parent, now_block, inputs, now)
    best_parent[:], best_block[:], best[:] = now_parent, now_block, now
    new_parent, new_block = now_parent.copy(), now_block.copy()
    since = 0
    for step in range(steps):
        new_parent[:] = now_parent
        new_block[:] = now_block
        changed = move(new_parent, new_block, near, near_first, state, used)
        while changed and random(state) < 0.25:
            changed = move(new_parent, new_block, near, near_first, state, used) or changed
        if not changed:
            continue
        evaluate(new_parent, new_block, inputs, new)
        part = step / steps
        heat = hot * (cold / hot) ** part
        strictness = 1.0 + 19.0 * part
        gain = _energy(now, strictness) - _energy(new, strictness)
        if gain >= 0 or random(state) < np.exp(gain / heat):
            now_parent, new_parent = new_parent, now_parent
            now_block, new_block = new_block, now_block
            now, new = new, now
            if better(now, best):
                best_parent[:], best_block[:], best[:] = now_parent, now_block, now
                since = step
        if step - since > steps // 5:
            # Nothing better for a fifth of the search: return to the best plan and continue from there, cooler.
            now_parent[:], now_block[:], now[:] = best_parent, best_block, best
            since = step
