"""Bugs planted into server time, the witnesses of a log and its truncations, as they ship.

Every test breaks one thing in one place, and the random worlds of :mod:`worlds.schedules` must
notice within a stated number of schedules.
"""

from typing import Any

import msgspec
import pytest

from antecede.server import AgentServer, Clock, State, Truncations, Upkeep, encode_state
from antecede.simulator.servers.network import Faults
from antecede.store import LogStore
from helpers.planted import caught

Patch = pytest.MonkeyPatch
_clocks = Faults(crashes=3, clock_jumps=4, looks=2)
_quiet = Faults(looks=4, seconds=2.0)
_torn = Faults(crashes=6, powercuts=1.0, looks=3)


def test_timers_by_the_wall_clock(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Clock, "at", lambda self, now, wall_ms: wall_ms)
    caught(300, "server time followed the wall clock", faults=_clocks)


def test_server_time_that_starts_with_the_wall_clock(monkeypatch: Patch) -> None:
    def start(self: Clock, now: float, wall_ms: int) -> None:
        real(self, now, wall_ms)
        self._start_ms = wall_ms

    real = Clock.start
    monkeypatch.setattr(Clock, "start", start)
    caught(300, "server time went back", "server time is wrong", faults=_clocks)


def test_the_time_of_a_crash_that_is_forgotten(monkeypatch: Patch) -> None:
    def start(self: Clock, now: float, wall_ms: int) -> None:
        real(self, now, wall_ms)
        self._start_ms = self.times.logged_ms or wall_ms

    real = Clock.start
    monkeypatch.setattr(Clock, "start", start)
    caught(300, "server time is wrong", faults=_clocks)


def test_a_wall_clock_that_is_set_and_not_logged(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Clock, "differs", lambda self, server_ms, wall_ms: False)
    caught(300, "server time is wrong", faults=_clocks)


def test_a_snapshot_without_the_time(monkeypatch: Patch) -> None:
    def encode(state: State) -> bytes:
        return real(msgspec.structs.replace(state, times=type(state.times)()))

    real = encode_state
    monkeypatch.setattr("antecede.server.node.encode_state", encode)
    caught(300, "server time", faults=Faults(crashes=6, clock_jumps=4, looks=6))


def test_a_log_without_witnesses(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Upkeep, "_witness_is_due", lambda self, now: False)
    caught(300, "after a quiet time, the loss of the last group", faults=_quiet)


def test_a_witness_that_vouches_for_nothing(monkeypatch: Patch) -> None:
    def write(self: LogStore) -> None:
        self._sure = False
        self._write([], 0)

    monkeypatch.setattr(LogStore, "_write_witness", write)
    caught(300, "after a quiet time, the loss of the last group", faults=_quiet)


def test_witnesses_for_ever(monkeypatch: Patch) -> None:
    monkeypatch.setattr(LogStore, "unvouched", property(lambda self: True, lambda self, value: None), raising=False)
    caught(300, "an empty group follows another", faults=_quiet)


def test_a_truncation_that_is_not_recorded(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Truncations, "unknown", lambda self, cuts: [])
    caught(300, "are not shown", faults=_torn)


def test_truncations_that_a_snapshot_forgets(monkeypatch: Patch) -> None:
    def restore(self: AgentServer, *given: Any) -> None:
        real(self, *given)
        self.truncations.open = []

    real = AgentServer.restore
    monkeypatch.setattr(AgentServer, "restore", restore)
    caught(300, "are not shown", faults=Faults(crashes=20, powercuts=1.0, looks=20))
