"""A checker that was never seen to fail proves nothing: here it is made to fail.

Each planted bug is a small subclass of a real order. ``caught`` plays random adversarial schedules on it
(:mod:`antecede.simulator.schedules`) and fails unless one of them shows the symptom that the bug must have, within a
small stated budget. The same budget on the real order finds nothing: ``tests/simulation`` sees to that.
"""

from collections.abc import Callable

import pytest

from antecede.orders import Order, OrderSpec
from antecede.simulator.schedules import Outcome, play

_budget = 400


@pytest.fixture
def caught() -> Callable[..., Outcome]:
    """The first schedule that shows one of the symptoms; how many may be tried is the test's to say."""

    def hunt(
        kind: type[Order], *symptoms: str, budget: int = _budget, faults: bool | None = False, **options: object
    ) -> Outcome:
        spec = OrderSpec(kind, options)
        seen: set[str] = set()
        for seed in range(budget):
            outcome = play(spec, seed, faults=faults)
            seen |= outcome.kinds()
            if outcome.kinds() & set(symptoms):
                print(f"{kind.__name__}: {outcome}")
                return outcome
        raise AssertionError(f"{kind.__name__}: no {' or '.join(symptoms)} in {budget} schedules, only {sorted(seen)}")

    return hunt
