"""The cost of a restart: the time that a server needs to replay its log, and the memory that it needs for messages that
wait in mailboxes.

Two logs are made by calling the server's state machine directly, without sockets. The log *single* has many records
with one letter each. All letters except the last one are handled. The log *crowd* has multicasts to clients that are
absent. For each log, a separate process then restarts from this log, as a server does. There are two restarts from
*crowd*: the first restart replays the records and writes a snapshot, and the second restart reads this snapshot. The
memory should be at most 2 × (bytes of all messages + 64 bytes for each waiting copy).
"""

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from antecede.engine import Reaction
from antecede.live.application import plan_of
from antecede.server import AgentServer, Plan
from antecede.server.items import Published, Reacted
from antecede.server.recovery import recover, task_of
from antecede.store import open_log
from antecede.topology import parse_topology
from benchmarks import common
from benchmarks.common import at_least, environment

_topology = """
[servers]
s1 = "tcp://127.0.0.1:7101"
[domains]
A = { servers = ["s1"], order = "pruned" }
[mailboxes]
clients = { letters = 4000000, bytes = 4000000000 }
"""


def restart(records: int, messages: int, subscribers: int, body_bytes: int) -> dict[str, Any]:
    """Make the logs *single* and *crowd*, and measure a restart from each. Return the report."""
    with tempfile.TemporaryDirectory(prefix="antecede-restart-") as folder:
        _write_single(f"{folder}/single", records)
        single = _restarted(f"{folder}/single")
        _write_crowd(f"{folder}/crowd", messages, subscribers, body_bytes)
        replayed = _restarted(f"{folder}/crowd", snapshot=True)
        crowd = _restarted(f"{folder}/crowd")
        snapshots = sorted(Path(f"{folder}/crowd").glob("snapshot-*"))
        size = snapshots[-1].stat().st_size
    allowed = 2 * (messages * body_bytes + 64 * messages * subscribers)
    return {
        "single": {"records": records, **single, "microseconds_per_record": single["cpu_seconds"] / records * 1e6},
        "crowd": {
            "entries": messages * subscribers,
            "allowed_bytes": allowed,
            "snapshot_bytes": size,
            "replay_memory_bytes": replayed["memory_bytes"],
            "restart_memory_bytes": crowd["memory_bytes"],
            "cpu_seconds": crowd["cpu_seconds"],
            "pause_seconds": replayed["task_seconds"],
            "pause_seconds_without_process": replayed["encode_seconds"],
        },
    }


def _machine(incarnation: int) -> tuple[AgentServer, str]:
    topology = parse_topology(_topology)
    plan: Plan = plan_of(topology)
    return AgentServer("s1", plan, incarnation), topology.epoch


def _write_single(directory: str, records: int) -> None:
    """Write the log *single*. In each record, a client publishes one letter. Each record except the first also contains
    the reaction to the previous letter."""
    with open_log(directory, durability="os") as log:
        machine, epoch = _machine(log.incarnation)
        log.append(recover(machine, None, [], epoch, 0.0, wall_ms=1_000))
        before = ""
        for number in range(1, records + 1):
            given: list[Any] = [Published("alice", number, ("bob@s1",), "Note", b"%024d" % number)]
            if before:
                given.insert(0, Reacted("bob@s1", (Reaction(before),), None, 0))
            step = machine.step(given, 0.0, 1_000)
            before = step.due[0].letters[0].id if step.due else before
            assert step.record is not None
            last = log.append(step.record)
            if number % 2_000 == 0:
                log.wait(last)


def _write_crowd(directory: str, messages: int, subscribers: int, body_bytes: int) -> None:
    to = tuple(f"c{number}@s1" for number in range(subscribers))
    with open_log(directory, durability="os") as log:
        machine, epoch = _machine(log.incarnation)
        log.append(recover(machine, None, [], epoch, 0.0, wall_ms=1_000))
        for number in range(1, messages + 1):
            step = machine.step([Published("alice", number, to, "Note", bytes(body_bytes))], 0.0, 1_000)
            assert step.record is not None
            log.wait(log.append(step.record))


def _restarted(directory: str, snapshot: bool = False) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "benchmarks.restart", directory, "snapshot" if snapshot else ""]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _peak_bytes() -> int:
    """Return the largest amount of memory that this process has used at any time so far, in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    except (OSError, StopIteration):
        # Elsewhere the figure may include that of the process that started this one.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def restart_here(directory: str, snapshot: str) -> None:
    """Restart from a log in this process, and print the time and the memory that the restart took. Write a snapshot as
    well, unless ``snapshot`` is empty."""
    peak = _peak_bytes()
    cpu, begun = process_time(), perf_counter()
    with open_log(directory) as log:
        machine, epoch = _machine(log.incarnation)
        found = log.recovered
        state = None if found.snapshot is None else found.snapshot.data()
        recover(machine, state, (record for _, record in found.records()), epoch, 0.0, wall_ms=1_000)
        waiting = sum(map(len, machine.engine.mailboxes.values()))
        cost: dict[str, Any] = {
            "waiting": waiting,
            "cpu_seconds": process_time() - cpu,
            "seconds": perf_counter() - begun,
        }
        cost["memory_bytes"] = _peak_bytes() - peak
        if snapshot:
            begun = perf_counter()
            task_of(machine, log.last)
            cost["task_seconds"], begun = perf_counter() - begun, perf_counter()
            state = machine.snapshot()
            cost["encode_seconds"] = perf_counter() - begun
            log.snapshot(state, log.last)
    print(json.dumps(cost))


def _lines(report: dict[str, Any]) -> Iterator[str]:
    single, crowd = report["single"], report["crowd"]
    yield (
        f"{single['records']:,} records replayed in {single['cpu_seconds']:.1f} s of CPU time, "
        f"{single['microseconds_per_record']:.1f} µs per record"
    )
    yield (
        f"{crowd['entries']:,} waiting copies: snapshot {crowd['snapshot_bytes'] / 1e6:.1f} MB, "
        f"memory of the restart {crowd['restart_memory_bytes'] / 1e6:.1f} MB, "
        f"at most {crowd['allowed_bytes'] / 1e6:.1f} MB"
    )
    yield (
        f"pause for a snapshot {crowd['pause_seconds'] * 1000:.2f} ms; "
        f"if the server encoded it: {crowd['pause_seconds_without_process'] * 1000:.0f} ms"
    )


def main(arguments: Sequence[str]) -> int:
    parser = common.parser("restart", __doc__)
    parser.add_argument("--records", type=at_least(1), default=200_000, help="of the first log, with one letter each")
    parser.add_argument("--messages", type=at_least(1), default=1_000, help="multicasts that wait for absent clients")
    parser.add_argument("--subscribers", type=at_least(1), default=1_000, help="absent clients; each gets all")
    parser.add_argument("--body", type=at_least(0), default=100, help="bytes of one message")
    given = parser.parse_args(arguments)
    found = restart(given.records, given.messages, given.subscribers, given.body)
    common.report({"bench": "restart", **found}, given.json, _lines)
    return 0


if __name__ == "__main__":
    restart_here(sys.argv[1], sys.argv[2])
