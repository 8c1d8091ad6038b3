"""``python -m antecede.simulator.servers SEED [SEED]``: play one seed, or all from the first up to the second."""

import argparse
import sys

from antecede.crashes import guarded


def main(arguments: list[str]) -> int:
    """Play the seeds; the exit code is 1 if errors were found."""
    parser = argparse.ArgumentParser(prog="python -m antecede.simulator.servers")
    parser.add_argument("first", metavar="SEED", type=int, nargs="?", default=0)
    parser.add_argument("last", metavar="SEED", type=int, nargs="?")
    given = parser.parse_args(arguments)
    first = given.first
    last = given.last if given.last is not None else first + 1
    from antecede.simulator.servers.schedules import play

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
