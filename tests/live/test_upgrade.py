"""A rolling upgrade from version 616aa1a: its servers are killed under load, and go on under this version, one by one.

The old version comes from the history of the repository. A shallow clone lacks it; then these tests are skipped.
"""

import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_agents import Counted, Ping, Report

import antecede

_old = "616aa1a"
_root = Path(__file__).resolve().parents[2]
_frames_of_old = """
import json, sys
from antecede.runtime.application import run_by
from antecede.runtime.recovery import recover
from antecede.server import AgentServer
from antecede.store import open_store
from antecede.topology import parse_topology

file, server, directory = parse_topology(open(sys.argv[1]).read()), sys.argv[2], sys.argv[3]
store = open_store(directory)
machine = AgentServer(server, run_by(file, server, None)[0], store.incarnation)
recover(machine, store, file.epoch, 0.0)
"""
_frames_of_new = """
import json, sys
from antecede.live.application import run_by
from antecede.server import AgentServer
from antecede.server.recovery import recover
from antecede.store import open_store
from antecede.topology import parse_topology

file, server, directory = parse_topology(open(sys.argv[1]).read()), sys.argv[2], sys.argv[3]
store = open_store(directory)
machine = AgentServer(server, run_by(file, server, None)[0], store.incarnation)
found = store.recovered
snapshot = None if found.snapshot is None else found.snapshot.data()
recover(machine, snapshot, (record for _, record in found.records()), file.epoch, 0.0)
"""
_print_frames = """
frames = {
    f"{domain} {peer} {number}": body.hex()
    for domain, consumer in machine.channel.consumers.items()
    for peer, link in consumer.links.items()
    for number, body in link.dump()[3].items()
}
print(json.dumps(frames))
"""


@pytest.fixture(scope="module")
def old_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the old version."""
    archive = subprocess.run(["git", "archive", _old, "src"], cwd=_root, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"version {_old} is not in the history of this clone")
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder / "src"


def _frames(program: str, environment: dict[str, str], world: Any, server: str, to: Path) -> dict[str, str]:
    """The unacknowledged frames of a killed server, as a version makes them again from its directory."""
    shutil.copytree(world.folder / server, to)
    command = [sys.executable, "-c", program + _print_frames, str(world.file), server, str(to)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    frames: dict[str, str] = json.loads(done.stdout)
    return frames


async def _publish(world: Any, upgrade: Callable[[], None]) -> int:
    """Let a client publish while servers are replaced; return how many were accepted."""
    replaced = asyncio.create_task(asyncio.to_thread(upgrade))
    number = 0
    async with antecede.connect(world.addresses["s1"], name="alice", patience=60) as bus:
        while not replaced.done():
            number += 1
            await bus.send("counter", Ping(number=number))
        await replaced
        counted = await bus.ask("counter", Report(), expect=Counted, timeout=60)
        assert (counted.count, counted.twice, counted.late, counted.last) == (number, 0, 0, number)
        return number


def test_servers_are_upgraded_one_by_one_under_load(
    cluster: Callable[..., Any], old_source: Path, tmp_path: Path
) -> None:
    # s2 forwards between two domains. Clients are of the new version from the beginning.
    domains = {"A": ["s1", "s2"], "B": ["s2", "s3"]}
    world = cluster(domains, {"counter": ("s3", "live_agents:Counter")})
    new = world.environment
    old = {**new, "PYTHONPATH": os.pathsep.join([str(old_source), *new["PYTHONPATH"].split(os.pathsep)[1:]])}
    world.environment = old
    world.start(options=("--trace",))
    compared: list[int] = []

    def upgrade() -> None:
        for server in ("s2", "s1", "s3"):
            before = _last(world, server)
            world.until(lambda server=server, before=before: _last(world, server) > before + 20, f"{server} works")
            world.kill(server)
            made = [
                _frames(program, environment, world, server, tmp_path / f"{server}-{name}")
                for name, program, environment in (("old", _frames_of_old, old), ("new", _frames_of_new, new))
            ]
            assert made[0] == made[1], f"{server}: the frames differ"
            compared.append(len(made[0]))
            world.environment = new
            world.start(server, options=("--trace",))

    async def bounded() -> int:
        async with asyncio.timeout(120):
            return await _publish(world, upgrade)

    published = asyncio.run(bounded())
    assert published > 40
    # Acknowledgements are not in the log: after a kill every frame since the last snapshot counts as unacknowledged.
    assert min(compared[:2]) > 0, "no frames were compared"
    status = world.status()
    assert status["well"], status
    assert world.stop() == [0, 0, 0]
    verdict = json.loads(world.command("verify", str(world.folder), "--json", "--strict").stdout)
    assert verdict["orders"]["causal"]["holds"]
    assert verdict["undelivered"] == 0
    assert verdict["complete"]


def _last(world: Any, server: str) -> int:
    last: int = world.status()["servers"][server].get("log", {}).get("last", 0)
    return last
