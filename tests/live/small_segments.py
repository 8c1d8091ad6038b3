"""A recording server with segments so small that they close, are converted and dropped all the time.

``python small_segments.py TOPOLOGY SERVER DIRECTORY [unrecorded]``
"""

import sys
from pathlib import Path

from antecede import limits


def main(file: str, server: str, directory: str, trace: str = "recorded") -> int:
    """Serve; the exit code. Records are cut so small that many stand in two segments."""
    limits.snapshot_log_bytes = 300_000  # type: ignore[misc]
    limits.record_piece_bytes_max = 100_000  # type: ignore[misc]
    # Only now, for some modules take their bounds along when they are imported.
    from antecede.live.logs import write_logs
    from antecede.live.process import run, serve
    from antecede.store import Sizes
    from antecede.topology import parse_topology

    write_logs()
    sizes = Sizes(segment_bytes=600_000, group_bytes_max=256_000, pending_bytes_max=256_000)
    return run(serve(parse_topology(Path(file).read_text()), server, directory, trace=trace == "recorded", sizes=sizes))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
