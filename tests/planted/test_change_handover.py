"""Bugs planted into what a change hands over, and into what its servers agree on; see ``test_changes.py``."""

from typing import Any

import msgspec
import pytest

from antecede.channel import Addresses
from antecede.engine import Belongings, Engine
from antecede.server import Abandoned, AgentServer, change
from helpers.changing import AGENTS, BUS, FLAT, MOVED, ONE_MORE, WITHOUT, caught, topology
from worlds.changes import FAULTS
from worlds.workload import Poisoned

Patch = pytest.MonkeyPatch
_leave = [topology({"A": "12345"}, AGENTS), WITHOUT]
"""Server s5 is removed, and s4 gets its clients."""
_exchanged = [
    topology({"A": "12", "B": "23"}, agents)
    for agents in ({"a": 1, "b": 2, "c": 3}, {"a": 2, "b": 3, "c": 1}, {"a": 3, "b": 1, "c": 2})
]
"""All agents move, twice."""
_poisoned = Poisoned(**{**msgspec.structs.asdict(FAULTS), "poisons": 4})


def test_a_publish_number_that_is_lost(monkeypatch: Patch) -> None:
    """The client's next publish is taken for one that its server has missed."""

    def taken_out(machine: Any, address: str) -> Belongings:
        found = real(machine, address)
        return msgspec.structs.replace(found, published=None if found.published is None else 0)

    real = AgentServer.take_out
    monkeypatch.setattr(AgentServer, "take_out", taken_out)
    caught(_leave)


def test_a_question_that_is_left_behind(monkeypatch: Patch) -> None:
    """Its answer comes to the new server, where nobody has asked."""

    def taken_out(machine: Any, address: str) -> Belongings:
        return msgspec.structs.replace(real(machine, address), asks={})

    real = AgentServer.take_out
    monkeypatch.setattr(AgentServer, "take_out", taken_out)
    caught([ONE_MORE, MOVED])


def test_dead_letters_that_are_lost(monkeypatch: Patch) -> None:
    def put_in(engine: Engine, belongings: Belongings) -> None:
        real(engine, msgspec.structs.replace(belongings, dead=[]))

    real = Engine.put_in
    monkeypatch.setattr(Engine, "put_in", put_in)
    caught(_exchanged)


def test_tries_that_are_lost(monkeypatch: Patch) -> None:
    def put_in(engine: Engine, belongings: Belongings) -> None:
        real(engine, msgspec.structs.replace(belongings, tries={}))

    real = Engine.put_in
    monkeypatch.setattr(Engine, "put_in", put_in)
    caught(_exchanged, faults=_poisoned)


def test_a_commit_before_all_servers_have_staged(monkeypatch: Patch) -> None:
    def all_(commands: Any) -> Any:
        given = list(commands)
        if given and given[0].name in ("change-stage", "change-ready"):
            given = given[:-1]
        return (yield from real(given))

    real = change.all_of
    monkeypatch.setattr(change, "all_of", all_)
    caught([FLAT, BUS])


def test_a_server_that_resumes_the_old_topology_after_the_commit(monkeypatch: Patch) -> None:
    """It crashes after it has staged the change, and takes its restart for a reason to abandon it."""

    def begin_life(self: AgentServer, life: int) -> None:
        real(self, life)
        staged = self.organisation.staged
        if staged is not None:
            self.organisation.apply(Abandoned(staged.change, self.organisation.attempt), self)

    real = AgentServer.begin_life
    monkeypatch.setattr(AgentServer, "begin_life", begin_life)
    caught([FLAT, BUS, FLAT, BUS])


def test_a_staged_change_that_counts_although_others_have_abandoned_it(monkeypatch: Patch) -> None:
    """Letters of agents that are to leave a removed server are then taken for forged ones."""

    def extended(self: Addresses, homes: Any, moved: Any, servers: Any) -> Addresses:
        return Addresses(homes | self.homes, moved | self._moved, {*self._servers, *servers}, self._objects)

    monkeypatch.setattr(Addresses, "extended", extended)
    agents = {"a": 1, "b": 2, "c": 3}
    caught(
        [topology({"A": "12", "B": "23"}, agents), topology({"A": "12"}, {**agents, "c": 1}, moved="3>2")],
        kill=0.1,
    )
