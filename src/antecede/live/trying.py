"""Import the classes of a planned change in another process: ``python -m antecede.live.trying``.

A dry run must not change the server. If the server imported a module for it, the server would use this version of the
module from then on, even if its file is changed before the change is made.
"""

import os
import signal
import subprocess
import sys

import msgspec

from antecede import limits
from antecede.crashes import guarded, how_ended
from antecede.errors import AgentError, AntecedeError
from antecede.live.application import readable
from antecede.topology import TopologyFile, parse_topology


class Request(msgspec.Struct, frozen=True):
    """The input of the process."""

    server: str
    topology: str
    """The text of the topology file."""
    folders: list[str]
    """The folders of modules."""


def is_imported(topology: TopologyFile, server: str) -> bool:
    """Return whether this process has all modules that a server needs for a topology."""
    modules = {agent.kind.partition(":")[0] for agent in topology.agents if agent.server == server}
    return modules | ({topology.module} if topology.module is not None else set()) <= sys.modules.keys()


def try_apart(topology: TopologyFile, server: str) -> None:
    """Let another process import the classes that a server needs for a topology; raise an error if that fails."""
    request = msgspec.msgpack.encode(Request(server, topology.text(), sys.path))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "antecede.live.trying"],
            input=request,
            capture_output=True,
            timeout=limits.change_command_seconds_max / 2,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise AgentError(f"the classes could not be imported in another process: {error}") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        ended = how_ended(done.returncode)
        raise AgentError(lines[-1][:400] if lines else f"the process that imports the classes ended: {ended}")


def main() -> int:
    """Run the process; the exit code is 2 after an error, with one line on standard error."""
    os.nice(10)
    # Ctrl-C on a terminal is for the server.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Request)
        sys.path.extend(folder for folder in request.folders if folder not in sys.path)
        readable(parse_topology(request.topology), request.server, [])
    except AntecedeError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
