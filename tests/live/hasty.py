"""A server as on the command line, for a network that loses frames of connections that stay: it resends soon."""

import sys

from antecede import limits
from antecede.cli import main

limits.peer_resend_seconds = 0.05  # type: ignore[misc]

if __name__ == "__main__":
    sys.exit(main())
