"""SIGHUP while a server starts: the request to read the access file again is not lost."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from antecede.live.process import serve
from antecede.live.server import ServerRuntime
from antecede.server import recover
from antecede.topology import parse_topology
from helpers.ports import free_ports


def test_a_signal_during_the_replay_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    file = parse_topology(f'[servers]\ns1 = "tcp://127.0.0.1:{port}"\n[domains]\nA = {{ servers = ["s1"] }}\n')
    reloads: list[str] = []

    def signalled(*given: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGHUP)
        return recover(*given, **options)

    monkeypatch.setattr("antecede.live.server.recover", signalled)
    monkeypatch.setattr(ServerRuntime, "reload", lambda runtime: reloads.append(runtime.name))
    # The last thing that a starting server does.
    monkeypatch.setattr("antecede.live.process.settle_memory", lambda: signal.raise_signal(signal.SIGTERM))
    assert asyncio.run(serve(file, "s1", str(tmp_path / "s1"), agents={})) == 0
    assert reloads == ["s1"]
