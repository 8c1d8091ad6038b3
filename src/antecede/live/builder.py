"""The process that builds a snapshot: ``python -m antecede.live.builder DIRECTORY``; its input is a :class:`Request`.

It reads the previous snapshot and the log while the server writes, replays them, and writes the new snapshot under a
temporary name with its process number. The server checks it and gives it its final name. The process runs with low
priority, and ends when the server that started it is gone. Its standard output is not read, because a module of the
application may print something when it is imported.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from antecede import limits
from antecede.crashes import guarded, how_ended
from antecede.errors import AntecedeError, StoreError
from antecede.live.application import plan_of
from antecede.server import AgentServer
from antecede.server.building import Task, build
from antecede.store import draft_path, read_state, write_draft
from antecede.topology import TopologyFile, parse_topology


class Request(msgspec.Struct, frozen=True):
    """The input of the process."""

    server: str
    topology: str
    """The text of the topology file."""
    task: Task
    folders: list[str]
    """The folders with the classes of replicated objects."""


class Orphaned(Exception):
    """The server that wanted this snapshot is gone."""


async def build_apart(directory: str, server: str, topology: TopologyFile, task: Task) -> str:
    """Let another process build a snapshot; return its path. Raise StoreError if it fails."""
    request = Request(server, topology.text(), task, sys.path)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "antecede.live.builder", directory),
        stdin=pipe,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=pipe,
    )
    draft = draft_path(directory, task.upto, str(process.pid))
    try:
        async with asyncio.timeout(limits.snapshot_build_seconds_max):
            _, output = await process.communicate(msgspec.msgpack.encode(request))
        if process.returncode:
            lines = output.decode(errors="replace").strip().splitlines()
            ended = how_ended(process.returncode)
            raise StoreError(lines[-1][:400] if lines else f"the process that builds it ended: {ended}")
        return draft
    except TimeoutError:
        await _give_up(process, draft)
        raise StoreError(f"the process that builds it has taken {limits.snapshot_build_seconds_max:g} s") from None
    except BaseException:
        await _give_up(process, draft)
        raise


async def _give_up(process: asyncio.subprocess.Process, draft: str) -> None:
    """End the process, and remove its file. Until it has its final name, a snapshot has no effect."""
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
    with suppress(OSError):
        os.unlink(draft)


def main(directory: str) -> int:
    """Run the process; the exit code is 2 after an error, with one line on standard error."""
    os.nice(10)
    # Ctrl-C on a terminal is for the server, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def wanted(records: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
        for number, record in records:
            if number % _look_records == 0 and os.getppid() != parent:
                raise Orphaned
            yield record

    try:
        request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Request)
        # For objects only: nothing else of the application is needed.
        sys.path.extend(folder for folder in request.folders if folder not in sys.path)
        topology = parse_topology(request.topology)
        incarnation, snapshot, records = read_state(directory, request.task.upto)
        machine = AgentServer(request.server, plan_of(topology), incarnation)
        state = build(machine, snapshot, wanted(records), topology.epoch, request.task)
        write_draft(directory, request.task.upto, state, str(os.getpid()))
    except Orphaned:
        return 2
    except (AntecedeError, OSError, MemoryError) as error:
        print(" ".join(str(error).split()) or type(error).__name__, file=sys.stderr)
        return 2
    return 0


_look_records = 1_000

if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1])))
