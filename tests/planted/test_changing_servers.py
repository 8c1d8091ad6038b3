"""Bugs planted into the part of running servers in changes of the topology, caught by the schedules of
:mod:`worlds.changes`."""

import pytest

from antecede.server import Deciding, Lessons, Peering, change
from helpers.changing import BUS, FLAT, MOVED, ONE_MORE, caught
from worlds.changes import ChangingServer, ChangingWorld

Patch = pytest.MonkeyPatch


def test_connections_that_outlive_their_domains(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Peering, "organise", lambda self, now, learned=False: None)
    caught([FLAT, BUS])


def test_an_agent_that_stays_in_memory_although_its_outcomes_do_not_count(monkeypatch: Patch) -> None:
    monkeypatch.setattr(ChangingServer, "drop_agents", lambda self, agents: None)
    caught([ONE_MORE, MOVED, ONE_MORE, MOVED, ONE_MORE], kill=0.2)


def test_a_staged_change_that_is_never_asked_about(monkeypatch: Patch) -> None:
    """A server that was down at the commit goes on with the old topology."""
    monkeypatch.setattr(Deciding, "receive_hello", lambda self, hello: False)
    monkeypatch.setattr(Lessons, "are_due_to", lambda self, hello: False)
    monkeypatch.setattr(change, "_finish", lambda views, request: iter(()))
    caught([FLAT, BUS, FLAT], kill=0.3)


def test_letters_that_wait_for_ever_because_the_operator_is_gone(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Deciding, "watch", lambda self, now: "")
    monkeypatch.setattr(ChangingWorld, "begin", _once)
    caught([FLAT, BUS], kill=0.3)


def _once(self: ChangingWorld) -> None:
    if not self._run_number:
        _begin(self)
    else:
        # The operator does not come back; the servers must go on.
        self._station = len(self.files)
        self.files = self.files[:1] * len(self.files)


_begin = ChangingWorld.begin
