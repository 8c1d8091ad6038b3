"""``/live`` of a server whose handler blocks it: it fails, with the reason, and recovers."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_agents import Word

import antecede
from helpers.ports import free_ports


def test_a_blocked_server_says_so(cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    world = cluster({"A": ["s1"]}, {"blocking": ("s1", "rough_agents:Blocking")})
    monkeypatch.setattr(world, "program", lambda: [str(Path(__file__).with_name("impatient.py"))])
    port = free_ports(1)[0]
    world.start(options=("--metrics", str(port)))

    def live() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/live", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    assert live() == (200, "ok\n")

    async def block() -> None:
        async with asyncio.timeout(40), antecede.connect(world.addresses["s1"], name="alice") as bus:
            bus.send("blocking", Word(text="go"))
            status, reason = 200, ""
            while status == 200:
                status, reason = await asyncio.to_thread(live)
            assert status == 503
            assert reason.startswith("the event loop has been blocked for ")
            assert reason.endswith(": a handler of agent blocking blocks it\n")
            (world.folder / "go").touch()

    asyncio.run(block())
    world.until(lambda: live() == (200, "ok\n"), "it is live again")
    assert world.stop() == [0]
