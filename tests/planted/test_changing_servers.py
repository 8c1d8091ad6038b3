"""Bugs planted into the part of running servers in changes of the topology, caught by the schedules of
:mod:`antecede.simulator.servers.changing_world`."""

import pytest

from antecede.server import changing
from antecede.server.deciding import Deciding
from antecede.server.lessons import Lessons
from antecede.server.peering import Peering
from antecede.simulator.servers import world
from antecede.simulator.servers.changing_world import FAULTS, ChangingServer, ChangingWorld
from antecede.simulator.servers.faults import Faults
from helpers.changing import BUS, FLAT, MOVED, ONE_MORE

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _short(monkeypatch: Patch) -> None:
    """A world that does not come to rest is found out sooner."""
    monkeypatch.setattr(world, "_steps_max", 30_000)


def _caught(texts: list[str], faults: Faults = FAULTS, kill: float = 0.05, first: int = 0, budget: int = 300) -> None:
    for seed in range(first, first + budget):
        try:
            found = ChangingWorld(seed, texts, faults, kill).play(60)
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        if found:
            print(f"after {seed + 1 - first} schedules: {found[0]}")
            return
    raise AssertionError(f"not caught in {budget} schedules")


def test_connections_that_outlive_their_domains(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Peering, "organise", lambda self, now, learned=False: None)
    _caught([FLAT, BUS])


def test_an_agent_that_stays_in_memory_although_its_outcomes_do_not_count(monkeypatch: Patch) -> None:
    monkeypatch.setattr(ChangingServer, "disown", lambda self, agents: None)
    _caught([ONE_MORE, MOVED, ONE_MORE, MOVED, ONE_MORE], kill=0.2, first=40)


def test_a_staged_change_that_is_never_asked_about(monkeypatch: Patch) -> None:
    """A server that was down at the commit goes on with the old topology."""
    monkeypatch.setattr(Deciding, "heard", lambda self, hello: False)
    monkeypatch.setattr(Lessons, "are_due_to", lambda self, hello: False)
    monkeypatch.setattr(changing, "_finish", lambda views, wish: iter(()))
    _caught([FLAT, BUS, FLAT], kill=0.3)


def test_letters_that_wait_for_ever_because_the_operator_is_gone(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Deciding, "watch", lambda self, now: "")
    monkeypatch.setattr(ChangingWorld, "_begin", _once)
    _caught([FLAT, BUS], kill=0.3)


def _once(self: ChangingWorld) -> None:
    if not self._run_number:
        _begin(self)
    else:
        # The operator does not come back; the servers must go on.
        self._station = len(self._files)
        self._files = self._files[:1] * len(self._files)


_begin = ChangingWorld._begin
