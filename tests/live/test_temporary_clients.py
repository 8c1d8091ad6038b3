"""``antecede send`` from several terminals at a time: each is a client of its own, and nothing of it stays."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antecede.live.client.operator import request
from antecede.topology import Address


def test_commands_are_temporary_clients(cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    world = cluster({"A": ["s1"]}, dict.fromkeys(("patient", "killed"), ("s1", "rough_agents:Holding")))
    monkeypatch.setattr(world, "program", lambda: [str(Path(__file__).with_name("impatient.py"))])
    world.start()
    command = [sys.executable, "-m", "antecede", "send", str(world.file)]
    asking = {
        agent: subprocess.Popen(
            [*command, agent, "Ping", '{"number": 7}', "--ask", "--timeout", "60"],
            env=world.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for agent in ("patient", "killed")
    }

    def clients() -> Any:
        return asyncio.run(request(Address("127.0.0.1", world.ports["s1"]), "", "status"))["clients"]

    try:
        world.until(lambda: len(clients()["here"]) == 2 and clients()["known"] == 2, "both are here", 60)
        asking["killed"].kill()
        world.until(lambda: clients()["known"] == 1, "the one that was killed is forgotten")
        (world.folder / "go").touch()
        answer, _ = asking["patient"].communicate(timeout=60)
        assert json.loads(answer)["fields"] == {"number": 7}
        # Also the answer to the one that was killed.
        world.until(lambda: clients() == {"here": [], "known": 0, "away": {}}, "nothing of them is left")
    finally:
        for one in asking.values():
            one.kill()
            one.wait()
    assert world.stop() == [0]
