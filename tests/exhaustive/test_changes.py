"""A small change, every point: a crash of a server before and after each record is durable, a kill of the command
before each of its commands, and every place where one thing is late on the network, or all frames between
servers.

Three servers, three agents and three letters: m and n are sent to z and y, and y sends o to z when it gets n. So z must
get m before o. The schedule has no other faults. The scope is the *delay-bounded* one of Emmi, Qadeer and Rakamarić
(POPL 2011): all schedules that differ from this one by at most one delay, of one thing or of the whole network.
``ANTECEDE_SEEDS=1`` also tries crashes at all other effects, and every crash with every delay of the network.
"""

import os
from typing import Any

import pytest

from antecede.channel import Channel
from antecede.engine import Context
from antecede.server import Command
from antecede.simulator.servers.network import NONE
from antecede.store import PowerCut
from helpers.changing import topology
from worlds.changes import ChangingServer, ChangingWorld
from worlds.workload import Work, Worker

_agents = {"x": 1, "y": 2, "z": 3}
_two = topology({"A": "12", "B": "23"}, _agents)
_one = topology({"A": "123"}, _agents)
_scopes = {
    "merged": [_two, _one],
    "split": [_one, _two],
    "moved": [_two, topology({"A": "12", "B": "23"}, {**_agents, "y": 1})],
    "removed": [_one, topology({"A": "13"}, {**_agents, "y": 3}, moved="2>1")],
}
_notes = ((("z",), 0), (("y",), 1), (("z", "x"), 0))
_late_seconds = 0.05
"""Longer than anything takes that is not late."""
_slows = [0.005 * place for place in range(1, 40)]
"""Without faults the change is made within this time."""
_whole = "ANTECEDE_SEEDS" in os.environ


class _Chain(Worker):
    """Sends one letter to z for each letter that asks for it."""

    def on_work(self, work: Work, ctx: Context) -> None:
        self.seen.append(work.id)
        if work.depth:
            ctx.send("z", Work(id=self.shared.id(), depth=0))


class _Server(ChangingServer):
    world: "_Scope"

    def effect(self) -> None:
        # Not while the world is made.
        if _whole and self.world.now:
            self._may_crash()

    def _append(self, records: list[bytes]) -> None:
        if records:
            self._may_crash()
        super()._append(records)

    def _became_durable(self, number: int) -> None:
        self._may_crash()
        super()._became_durable(number)

    def _may_crash(self) -> None:
        if self.world.counts("crash"):
            self.how = "kill"
            raise PowerCut


class _Scope(ChangingWorld):
    """A world in which one thing happens at one point."""

    server_class = _Server
    agent_class = _Chain

    def __init__(self, topologies: list[str], slow: float = 0.0, **at: int) -> None:
        """``at``: the number of the ``crash``, ``kill`` or ``delay`` that happens, among all that could. ``slow``: the
        time before which no frame between servers arrives."""
        self._slow, self._at, self._is_frame, self._killed = slow, at, False, 0
        self.seen = {"crash": 0, "kill": 0, "delay": 0}
        super().__init__(0, topologies, NONE, kill=0)

    def counts(self, what: str) -> bool:
        """Count one more that could happen; return whether it happens."""
        self.seen[what] += 1
        return self.seen[what] == self._at.get(what)

    def copies(self) -> int:
        self._is_frame = True
        return 1

    def delay(self) -> float:
        slow, self._is_frame = self._slow if self._is_frame else 0.0, False
        return max(_late_seconds if self.counts("delay") else 0.001, slow - self.now)

    def _ask(self, place: int, command: Command, settle: Any, tries: int) -> None:
        if self.counts("kill"):
            self._killed = self._run_number
            self._again()
        elif self._killed != self._run_number:
            super()._ask(place, command, settle, tries)

    def result(self) -> list[str]:
        """Play it; return what is wrong."""
        for place, (to, depth) in enumerate(_notes):
            self.later(0.01 * place, self.send, "c@s1", to, Work(id=self.shared.id(), depth=depth))
        try:
            return self.play(0)
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]


def _check(topologies: list[str], slow: float = 0.0, **at: int) -> _Scope:
    world = _Scope(topologies, slow, **at)
    found = world.result()
    assert not found, f"{at}, a network that begins after {slow} s: {found[:3]}"
    return world


@pytest.mark.parametrize("scope", _scopes)
def test_every_point_of_a_small_change(scope: str) -> None:
    topologies = _scopes[scope]
    plain = _check(topologies)
    assert plain.seen["kill"] > 10
    for what, count in plain.seen.items():
        for place in range(1, count + 1):
            _check(topologies, **{what: place})
    for slow in _slows:
        _check(topologies, slow)
    for slow in _slows if _whole else _slows[12:13] if scope == "merged" else ():
        for place in range(1, plain.seen["crash"] + 1):
            _check(topologies, slow, crash=place)


def test_the_scope_finds_a_change_before_letters_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channel, "in_transit", lambda self, domains: "")
    assert any(_Scope(_scopes["merged"], slow).result() for slow in _slows)
