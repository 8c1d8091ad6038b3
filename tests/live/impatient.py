"""A server as on the command line whose ``/live`` fails soon, and which forgets temporary clients soon."""

from antecede import limits
from antecede.cli import main

limits.live_seconds_max = 0.3  # type: ignore[misc]
limits.temporary_client_seconds_max = 0.3  # type: ignore[misc]

if __name__ == "__main__":
    main()
