"""``python -m campaigns.serve serve …``: run a server like ``antecede serve``, on a disk with faults.

The program has the options of ``antecede serve`` that a trial needs, and three more: ``--journal`` (the journal of the
disk), ``--troubles`` (the faults of the disk) and ``--limit`` (another value for a limit). Small limits make rare
events frequent: log segments are full, snapshots are taken and bounds are reached within seconds.
"""

import argparse
import sys

from antecede import limits
from antecede.crashes import guarded, print_error
from antecede.errors import AntecedeError


def main(arguments: list[str]) -> int:
    """Run the server until it is stopped or killed."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.serve")
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("topology")
    parser.add_argument("--server", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--journal")
    parser.add_argument("--troubles", default="")
    parser.add_argument("--limit", action="append", default=[], metavar="NAME=NUMBER")
    given = parser.parse_args(arguments)
    for limit in given.limit:
        name, _, number = limit.partition("=")
        try:
            setattr(limits, name, type(getattr(limits, name))(number))
        except (AttributeError, ValueError):
            parser.error(f"--limit {limit}: expected NAME=NUMBER with a name of antecede.limits")

    # Only now, because many modules read their limits when they are imported.
    from antecede.live.application import find_beside
    from antecede.live.logs import write_logs
    from antecede.live.process import run, serve
    from antecede.topology import parse_topology
    from campaigns.disks import TroubledFiles

    write_logs("text")
    find_beside(given.topology)
    try:
        with open(given.topology, encoding="utf-8") as file:
            topology = parse_topology(file.read(), given.topology)
        files = None if given.journal is None else TroubledFiles(given.journal, given.troubles)
        return run(serve(topology, given.server, given.data, trace=given.trace, files=files))
    except (AntecedeError, OSError, UnicodeDecodeError) as error:
        print_error(str(error))
        return 2


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
