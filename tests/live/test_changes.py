"""Changes of the topology of running servers, real processes: nothing lost, nothing twice, nothing late.

``tests/campaigns/test_live.py`` has the campaign; ``tests/unit/test_change_running.py`` has the single cases.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from campaigns.changes import Changes


def test_three_rounds_of_changes_with_kills(tmp_path: Path) -> None:
    async def main() -> Any:
        return await Changes(tmp_path / "round", 7, servers=4, kills=0.6).run(3, "rounds")

    outcome = asyncio.run(main())
    assert not outcome.found, outcome
    assert outcome.faults["changes"] == 15
    assert outcome.faults["kills"] + outcome.faults["commands"] > 2, "the kills have become harmless"
    assert outcome.faults["absences"] > 0, "no server was down during a change"
    assert outcome.figures.deliveries > 1_000, "the load has become harmless"


def test_the_commands_of_an_operator(cluster: Callable[..., Any]) -> None:
    """Apply, killed and run again; history, status, abort; a server that is removed ends."""
    domains, agents = {"A": ["s1", "s2", "s3"]}, {"echo": ("s2", "live_agents:Echo")}
    world = cluster(domains, agents)
    world.start()
    new = world.folder / "new.toml"
    text = world.text({"A": ["s1", "s2"]}, {"echo": ("s1", "live_agents:Echo")})
    new.write_text("\n".join(line for line in text.splitlines() if not line.startswith("s3 =")))
    planned = world.command("topology", "apply", str(new), "--dry-run", "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["state"] == "planned"
    killed = subprocess.Popen(
        [sys.executable, "-m", "antecede", "topology", "apply", str(new)],
        env=world.environment,
        cwd=world.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # At some moment of its work, or before.
    world.until(lambda: killed.poll() is not None or _in_progress(world), "the change begins", 20)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    ended = world.command("topology", "abort", str(world.file))
    assert ended.returncode == 0, ended.stderr
    assert not _in_progress(world)
    done = world.command("topology", "apply", str(new), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["state"] in ("done", "unchanged")
    history = json.loads(world.command("topology", "history", str(new), "--json").stdout)
    assert {one["change"] for one in history["servers"].values()} == {1}
    assert "change 1" in world.command("status", str(new)).stdout
    # It stays a while for its clients, unless it is stopped.
    world.until(lambda: "s3 removed" in world.log("s3"), "s3 knows that it was removed")
    assert world.stop("s3") == [0]


def _in_progress(world: Any) -> bool:
    servers = world.status()["servers"].values()
    return any((one.get("topology") or {}).get("in_progress") for one in servers)
