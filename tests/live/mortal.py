"""A server as on the command line in which a letter is dead after two tries, and slow handlers are logged soon."""

import sys

from antecede import limits
from antecede.cli import main

limits.reaction_tries_max = 2  # type: ignore[misc]
limits.reaction_pause_seconds = 0.01  # type: ignore[misc]
limits.reaction_slow_seconds = 0.2  # type: ignore[misc]

if __name__ == "__main__":
    sys.exit(main())
