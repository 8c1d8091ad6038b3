"""The command ``python -m antecede.simulator.servers [--changes] SEED [SEED]``.

With one SEED, it plays this seed. With two, it plays all seeds from the first to the second, without the second. With
``--changes`` it plays schedules in which the topology changes.
"""

import argparse
import sys
from collections.abc import Callable

from antecede.crashes import guarded


def main(arguments: list[str]) -> int:
    """Play the seeds; the exit code is 1 if errors were found."""
    parser = argparse.ArgumentParser(prog="python -m antecede.simulator.servers")
    parser.add_argument("first", metavar="SEED", type=int, nargs="?", default=0)
    parser.add_argument("last", metavar="SEED", type=int, nargs="?")
    parser.add_argument("--changes", action="store_true")
    given = parser.parse_args(arguments)
    first = given.first
    last = given.last if given.last is not None else first + 1
    from antecede.simulator.servers import changes, schedules

    play: Callable[[int], schedules.Outcome] = changes.play if given.changes else schedules.play
    bad = crashes = letters = 0
    for seed in range(first, last):
        outcome = play(seed)
        crashes += outcome.crashes
        letters += outcome.deliveries
        if outcome.found:
            bad += 1
            print(outcome)
    print(f"{last - first} schedules, {crashes} crashes, {letters} letters: {bad} with errors")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
