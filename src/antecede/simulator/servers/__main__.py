"""``python -m antecede.simulator.servers SEED [SEED]``: play one seed, or all from the first up to the second."""

import sys

from antecede.simulator.servers.schedules import play


def main(arguments: list[str]) -> int:
    """Exit code 1 iff something was found."""
    first = int(arguments[0]) if arguments else 0
    last = int(arguments[1]) if len(arguments) > 1 else first + 1
    bad = crashes = letters = 0
    for seed in range(first, last):
        outcome = play(seed)
        crashes += outcome.crashes
        letters += outcome.deliveries
        if outcome.found:
            bad += 1
            print(outcome)
    print(f"{last - first} schedules, {crashes} crashes, {letters} letters: {bad} found wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
