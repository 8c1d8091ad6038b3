"""Looks for a planted bug in the schedules of whole servers."""

from antecede.simulator.servers.network import Faults
from helpers.seeds import note, seeds
from worlds.schedules import Outcome, play


def caught(budget: int, *symptoms: str, orders: tuple[str, ...] = (), faults: Faults | None = None) -> Outcome:
    """Return a schedule in which something was found, and with it one of these symptoms, if any are named. The search
    tries the seeds below ``budget``."""
    pick = (lambda random: orders[int(random.random() * len(orders))]) if orders else None
    others: set[str] = set()
    for seed in seeds(budget):
        outcome = play(seed, orders=pick, faults=faults)
        said = "\n".join(outcome.found)
        if said and (not symptoms or any(symptom in said for symptom in symptoms)):
            note(seed)
            print(f"seed {seed}: {outcome}")
            return outcome
        others |= {line[:80] for line in outcome.found}
    raise AssertionError(f"not caught in {budget} schedules; seen instead: {sorted(others)[:5]}")
