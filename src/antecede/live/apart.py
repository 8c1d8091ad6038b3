"""Work that a separate process does for a server, so that the server is not disturbed.

The process is ``python -m antecede.live.apart``. It reads a :class:`Request` from standard input, and does one of two
things:

* **Build a snapshot.** The process reads the previous snapshot and replays the log after it, while the server continues
  to write the log. It writes the new snapshot under a temporary name, which contains its process id. Then the server
  checks the snapshot and gives it its final name. The process ends early if the server that started it is gone.
* **Import the classes of a planned change.** A dry run of a change must not change the server. If the server itself
  imported a module for a dry run, it would keep this version of the module, even if the module's file is edited before
  the real change.

The process runs with low priority. The server does not read the process's standard output, because a module of the
application may print something when it is imported.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from antecede import limits
from antecede.crashes import guarded, how_ended
from antecede.errors import AgentError, AntecedeError, StoreError
from antecede.live.application import plan_of, readable
from antecede.server import AgentServer
from antecede.server.recovery import Task, build
from antecede.store import draft_path, read_state, write_draft
from antecede.topology import TopologyFile, parse_topology


class Request(msgspec.Struct, frozen=True):
    """The task for the separate process, which reads this object from its standard input."""

    server: str
    topology: str
    """The text of the topology file."""
    folders: list[str]
    """The folders from which modules are imported: ``sys.path`` of the server."""
    directory: str = ""
    """The server's data directory. It is used only to build a snapshot."""
    task: Task | None = None
    """The snapshot to build. If it is None, the process imports the classes that the server needs for the topology."""


async def build_apart(directory: str, server: str, topology: TopologyFile, task: Task) -> str:
    """Let another process build a snapshot. Return the path of the snapshot, which still has a temporary name. Raise
    StoreError if the process fails."""
    request = Request(server, topology.text(), sys.path, directory, task)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *_command, stdin=pipe, stdout=asyncio.subprocess.DEVNULL, stderr=pipe
    )
    draft = draft_path(directory, task.upto, str(process.pid))
    try:
        async with asyncio.timeout(limits.snapshot_build_seconds_max):
            _, output = await process.communicate(msgspec.msgpack.encode(request))
        if process.returncode:
            raise StoreError(_failure("the process that builds the snapshot", process.returncode, output))
        return draft
    except TimeoutError:
        await _give_up(process, draft)
        raise StoreError(
            f"the process that builds the snapshot was ended after {limits.snapshot_build_seconds_max:g} s: too slow"
        ) from None
    except BaseException:
        await _give_up(process, draft)
        raise


async def _give_up(process: asyncio.subprocess.Process, draft: str) -> None:
    """End the process, and remove the snapshot file that it may have begun to write. If the file cannot be removed, it
    has no effect, because it does not have its final name."""
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
    with suppress(OSError):
        os.unlink(draft)


def is_imported(topology: TopologyFile, server: str) -> bool:
    """Return whether this process has already imported all modules that the server's agents need in this topology."""
    modules = {agent.kind.partition(":")[0] for agent in topology.agents if agent.server == server}
    return modules | ({topology.module} if topology.module is not None else set()) <= sys.modules.keys()


def try_apart(topology: TopologyFile, server: str) -> None:
    """Let another process import the classes that a server needs for a topology. Raise AgentError if this fails."""
    request = msgspec.msgpack.encode(Request(server, topology.text(), sys.path))
    seconds = limits.change_command_seconds_max / 2
    try:
        done = subprocess.run(_command, input=request, capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise AgentError(f"the classes could not be imported in another process: {error}") from None
    if done.returncode:
        raise AgentError(_failure("the process that imports the classes", done.returncode, done.stderr))


def _failure(process: str, code: int, output: bytes) -> str:
    """Return why a process failed: the last line of its error output. If there is no error output, return how the
    process ended."""
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1][:400] if lines else f"{process} ended: {how_ended(code)}"


def main() -> int:
    """Carry out the request from standard input. After an error, print one line on standard error and return exit code
    2."""
    os.nice(10)
    # Ctrl-C on a terminal is for the server, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def wanted(records: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
        for number, record in records:
            if number % _look_records == 0 and os.getppid() != parent:
                # The server that wanted this snapshot is gone.
                sys.exit(2)
            yield record

    try:
        request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Request)
        # For a snapshot only the classes of objects: nothing else of the application is needed.
        sys.path.extend(folder for folder in request.folders if folder not in sys.path)
        topology, task = parse_topology(request.topology), request.task
        if task is None:
            readable(topology, request.server, [])
            return 0
        incarnation, snapshot, records = read_state(request.directory, task.upto)
        machine = AgentServer(request.server, plan_of(topology), incarnation)
        state = build(machine, snapshot, wanted(records), topology.epoch, task)
        write_draft(request.directory, task.upto, state, str(os.getpid()))
    except (AntecedeError, OSError, MemoryError) as error:
        print(" ".join(str(error).split()) or type(error).__name__, file=sys.stderr)
        return 2
    return 0


_command = (sys.executable, "-m", "antecede.live.apart")
_look_records = 1_000

if __name__ == "__main__":
    sys.exit(guarded(main))
