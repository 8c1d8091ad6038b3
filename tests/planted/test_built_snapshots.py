"""Bugs planted into the snapshots that another process builds from the log."""

from collections.abc import Iterable
from typing import Any

import pytest

from antecede.link import Link
from antecede.server import recovery
from antecede.simulator.servers import server as simulated_server
from antecede.simulator.servers.network import Faults
from helpers.planted import caught

Patch = pytest.MonkeyPatch
_looks = Faults(looks=20, seconds=0.3)


def test_acknowledged_frames_that_stay_for_ever(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Link, "settle", lambda self, upto, beyond: None)
    caught(300, "a snapshot that was built from the log differs", faults=_looks)


def test_a_build_that_leaves_out_the_last_record(monkeypatch: Patch) -> None:
    def build(machine: Any, snapshot: bytes | None, stored: Iterable[bytes], *given: Any) -> bytes:
        return real(machine, snapshot, list(stored)[:-1], *given)

    real = recovery.build
    monkeypatch.setattr(simulated_server, "build", build)
    caught(300, "a snapshot that was built from the log differs", faults=_looks)
