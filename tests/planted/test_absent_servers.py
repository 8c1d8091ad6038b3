"""Bugs planted into the way a server that was down learns changes of the topology. Each is caught by the schedules of
:mod:`worlds.changes` in which servers are away.

``tests/simulation/test_changes.py`` runs the same schedules on what we ship, and finds nothing.
"""

from random import Random
from typing import Any

import msgspec
import pytest

from antecede.server import Committed, Learned, Lessons, Organisation, change, participation
from antecede.simulator.servers.network import Faults
from antecede.topology import change as topology_change
from helpers.changing import AGENTS, MILD, found_by, topology, without_numbers
from worlds.changes import FAULTS, ChangingWorld, journey

Patch = pytest.MonkeyPatch
_long = msgspec.structs.replace(FAULTS, seconds=4.0)
_alternating = [
    topology({"A": "12", "B": "23", "C": "34"}, {**AGENTS, **dict.fromkeys("uvwx"[: place // 2], 1)}, {"C": order})
    for place, order in enumerate(["matrix", "pruned"] * 4)
]
"""Changes of the order in a domain, and agents that are added elsewhere, so that others can do without that domain."""


def _caught(kill: float = 0.02, publishes: int = 60, fixed: list[str] | None = None, faults: Faults = _long) -> None:
    """Check that 300 schedules of mild changes find a planted bug. ``kill``: how often the operator's command is killed
    before one of its batches. ``fixed``: these topologies instead of random ones."""

    def play(seed: int) -> list[str]:
        topologies = fixed or journey(Random(seed), mild=True)
        return ChangingWorld(seed, topologies, faults, kill, away=0.8).play(publishes)

    found_by(play)


def test_a_staged_change_that_is_decided_by_its_number(monkeypatch: Patch) -> None:
    """The others have abandoned it, and have made another change with the same number."""

    def item_of(machine: Any, lesson: Any) -> Any:
        staged = machine.organisation.staged
        if staged is not None and lesson.change >= staged.change:
            return Committed(staged.change, staged.clock_ms, staged.attempt)
        return real(machine, lesson)

    real = participation.item_of

    def made(views: Any, number: int, attempt: str) -> bool:
        return any(view.change >= number for view in views)

    monkeypatch.setattr(participation, "item_of", item_of)
    monkeypatch.setattr(change, "_made", made)
    _caught(kill=0.05, publishes=20, fixed=_alternating, faults=msgspec.structs.replace(FAULTS, seconds=20.0))


def test_letters_of_new_agents_for_a_server_that_does_not_know_them(monkeypatch: Patch) -> None:
    """A server that has staged a change forwards them to one that does not take part."""
    monkeypatch.setattr(Organisation, "is_apart", lambda self, server: False)
    # Whoever comes back while the only change is made gets nothing new from the operator.
    _caught(kill=0.0, fixed=MILD[:2], faults=FAULTS)


def test_domains_that_begin_again_when_a_server_learns(monkeypatch: Patch) -> None:
    def learn(self: Organisation, item: Learned, machine: Any) -> None:
        real(self, item, machine)
        machine.organise(machine.plan, [])

    real = Organisation._learn
    monkeypatch.setattr(Organisation, "_learn", learn)
    _caught()


def test_a_server_that_is_left_out_although_it_is_needed(monkeypatch: Patch) -> None:
    def concerned(old: Any, new: Any, region: Any, begun: Any) -> set[str]:
        return real(old, new, set(), ())

    real = topology_change._concerned
    monkeypatch.setattr(topology_change, "_concerned", concerned)
    _caught()


def test_a_server_that_asks_nobody_whether_there_was_a_change(monkeypatch: Patch) -> None:
    """Whole servers: a server without a domain in common with the first one never learns."""
    monkeypatch.setattr(Lessons, "_send_away", lambda self, hello, connection: connection.close("not believed"))
    _caught(fixed=MILD)


def test_frames_that_flow_before_the_lesson(monkeypatch: Patch) -> None:
    """Whole servers: the hellos agree about all shared domains, and the numbers of the changes are not compared."""
    without_numbers(monkeypatch)
    _caught(fixed=MILD)
