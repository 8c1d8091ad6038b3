"""A small change, every point: a crash of a server at every effect, a kill of the command before every command, and
every place where an action waits for one other, or the network for the rest.

Three servers, three agents and three letters: m and n are sent to z and y, and y sends o to z when it gets n. So z must
get m before o. All actions (publish, connect, deliver one thing, react, the next command of the operator, restart) take
turns. The scope is the *delay-bounded* one of Emmi, Qadeer and Rakamarić (POPL 2011): all schedules that differ from
this one by at most one delay, of one action or of the whole network. ``ANTECEDE_SEEDS=1`` also tries every crash with
every delay of the network.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import pytest

from antecede.channel import Channel, Letter
from antecede.engine import Outbound, Reaction
from antecede.server.items import Published
from antecede.simulator.servers.changes import ChangeWorld
from antecede.simulator.servers.changes_load import Load, Server
from helpers.changing import topology

_agents = {"x": 1, "y": 2, "z": 3}
_two = topology({"A": "12", "B": "23"}, _agents)
_one = topology({"A": "123"}, _agents)
_scopes = {
    "merged": [_two, _one],
    "split": [_one, _two],
    "moved": [_two, topology({"A": "12", "B": "23"}, {**_agents, "y": 1})],
    "removed": [_one, topology({"A": "13"}, {**_agents, "y": 3}, moved="2>1")],
}
_notes = ((("z",), b"\x00"), (("y",), b"\x01"), (("z", "x"), b"\x00"))
_actions_max = 400
_whole = "ANTECEDE_SEEDS" in os.environ


class _Chain(Load):
    """Agents that send one letter to z for each letter that asks for it."""

    def _reaction(self, server: Server, letter: Letter) -> Reaction:
        return Reaction(letter.id, (Outbound(("z",), "Note", b"\x00"),) if letter.body == b"\x01" else ())


class _Scope(ChangeWorld):
    """A world in which actions take turns."""

    def __init__(self, topologies: list[str], crash: int = 0, kill: int = 0, delay: int = 0, slow: int = 0) -> None:
        """``crash``, ``kill``, ``delay``: the number of the effect, command or action at which it happens; 0: never.
        ``slow``: for how many actions nothing arrives."""
        self._crash_at, self._kill_at, self._delay_at, self._slow = crash, kill, delay, slow
        self.effects = self.commands = self.actions = 0
        super().__init__(0, topologies, 0.0, 0.0, rough=False)
        self.load = _Chain(Random(0))
        self._notes = 0

    def crashes(self, server: Server) -> bool:
        self.effects += 1
        return self.effects == self._crash_at

    def play(self) -> "_Scope":
        """Let all actions take turns until nothing is left to do."""
        last = ""
        while self.actions < _actions_max:
            enabled = dict(self._enabled())
            if not enabled:
                break
            self.actions += 1
            self.now += 0.01
            names = sorted(enabled)
            later = [name for name in names if name > last] or names
            if self.actions == self._delay_at:
                later = later[1:] or names
            last = later[0]
            enabled[last]()
        self._crash_at = 0
        self.settle()
        return self

    def _enabled(self) -> Iterator[tuple[str, Callable[[], object]]]:
        up = [server for server in self.servers.values() if server.up]
        if self._notes < len(_notes) and self.servers["s1"].up:
            yield "publish", self._note
        for way in self.ways() if self.actions >= self._slow else ():
            yield f"deliver {way}", partial(self.hand_over, way, 1)
        for server in self.servers.values():
            if server.up and server.due:
                yield f"react {server.name}", partial(self.load.react, server, self.clock_ms, True)
            elif not server.up:
                yield f"restart {server.name}", server.start
        for one in up:
            for other in up:
                if one.name < other.name and self._would_connect(one, other):
                    yield f"connect {one.name} {other.name}", partial(self.connect, one, other)
        if not self.made:
            yield "operate", self._next_command

    def _note(self) -> None:
        server = self.servers["s1"]
        to, body = _notes[self._notes]
        self._notes += 1
        number = self.load.numbers.get("c@s1", 0) + 1
        server.step([Published("c", number, server.machine.channel.check(to), "Note", body)])
        if server.up and server.machine.clients.get("c", 0) >= number:
            self.load.numbers["c@s1"] = number

    def _would_connect(self, one: Server, other: Server) -> bool:
        if one.machine.organisation.removed or other.machine.organisation.removed:
            return False
        shared = [name for name, consumer in one.machine.channel.consumers.items() if other.name in consumer.links]
        return bool(shared) and (one.name, other.name) not in self._connected

    def _next_command(self) -> None:
        self.commands += 1
        if self.commands == self._kill_at:
            self._steps = None
        else:
            self.operate()


def _check(world: _Scope, what: str) -> None:
    found = world.findings()
    assert not found, f"{what}: {found[:3]}"


@pytest.mark.parametrize("scope", _scopes)
def test_every_point_of_a_small_change(scope: str) -> None:
    topologies = _scopes[scope]
    plain = _Scope(topologies).play()
    _check(plain, "without faults")
    effects, commands, actions = plain.effects, plain.commands, plain.actions
    assert plain.commands > 10
    for crash in range(1, effects + 1):
        _check(_Scope(topologies, crash=crash).play(), f"a crash at effect {crash}")
    for kill in range(1, commands + 1):
        _check(_Scope(topologies, kill=kill).play(), f"a kill before command {kill}")
    for delay in range(1, actions + 1):
        _check(_Scope(topologies, delay=delay).play(), f"a delay of action {delay}")
    for slow in range(1, actions + 1):
        _check(_Scope(topologies, slow=slow).play(), f"a network that begins after action {slow}")
    for slow in range(1, actions + 1) if _whole else [actions // 3] if scope == "merged" else ():
        for crash in range(1, effects + 1):
            _check(_Scope(topologies, crash, slow=slow).play(), f"the same after {slow}, a crash at effect {crash}")


def test_the_scope_finds_a_change_before_letters_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channel, "in_transit", lambda self, domains: "")
    assert any(_Scope(_scopes["merged"], slow=slow).play().findings() for slow in range(60))
