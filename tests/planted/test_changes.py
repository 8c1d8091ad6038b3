"""Bugs planted into changes of the topology, each caught by the schedules of
:mod:`worlds.changes`.

``tests/simulation/test_changes.py`` runs the same schedules on what we ship, and finds nothing.
"""

from typing import Any

import msgspec
import pytest

from antecede.channel import Channel, Pausing
from antecede.engine import Belongings, Engine
from antecede.server import (
    AgentServer,
    Command,
    Committed,
    Organisation,
    Participant,
    Projection,
    Timers,
    participation,
)
from antecede.server import change as changing
from antecede.topology import change as topology_change
from helpers.changing import BUS, FLAT, JOURNEY, MOVED, ONE_MORE, caught, topology, without_numbers
from worlds.changes import ChangingWorld

Patch = pytest.MonkeyPatch
_turned = [
    topology({"A": "123", "B": "24"}, {"a": 1, "b": 2, "c": 3, "d": 4}),
    topology({"A": "123", "B": "34"}, {"a": 1, "b": 2, "c": 3, "d": 4}),
    topology({"A": "123", "B": "24"}, {"a": 1, "b": 2, "c": 3, "d": 4}),
]
"""The route to s4 turns off at s2, then at s3."""


def test_a_mailbox_that_is_handed_over_twice(monkeypatch: Patch) -> None:
    def commit(self: Organisation, item: Committed, staged: Any, machine: Any) -> None:
        left = self.left
        real(self, item, staged, machine)
        for one in left:
            if one.address in machine.plan.homes:
                machine.put_in(one)
                machine.engine.homes = {**machine.plan.homes}

    real = Organisation._commit
    monkeypatch.setattr(Organisation, "_commit", commit)
    caught([BUS, MOVED.replace('"s5"', '"s4"').replace("s5 =", "# s5 =").replace("D =", "# D ="), BUS])


def test_a_frame_of_an_earlier_topology_that_is_taken(monkeypatch: Patch) -> None:
    """Servers compare the numbers of their changes first. Without that, the digests of domains keep such frames out."""
    without_numbers(monkeypatch)
    monkeypatch.setattr(ChangingWorld, "logged", lambda self, server, event, fields: None)
    assert not [found for seed in range(2, 8) if (found := ChangingWorld(seed, _turned).play(60))]
    real = Organisation.digest
    monkeypatch.setattr(Organisation, "digest", lambda self, domain, plan: real(Organisation(), domain, plan))
    caught(_turned)


def test_a_timer_that_is_lost(monkeypatch: Patch) -> None:
    def put_in(self: Timers, agent: str, timers: list[Any]) -> None:
        real(self, agent, timers[1:])

    real = Timers.put_in
    monkeypatch.setattr(Timers, "put_in", put_in)
    caught([ONE_MORE, MOVED, ONE_MORE, MOVED])


def test_letters_that_leave_a_border_router_in_another_sequence(monkeypatch: Patch) -> None:
    def resume(self: Channel) -> None:
        if self.pausing is not None:
            self.pausing.waiting.reverse()
        real(self)

    real = Channel.resume
    monkeypatch.setattr(Channel, "resume", resume)
    caught(JOURNEY)


def test_letters_that_do_not_wait_once_the_change_is_staged(monkeypatch: Patch) -> None:
    def stage(self: Organisation, item: Any, machine: Any) -> None:
        real(self, item, machine)
        machine.channel.pausing = None

    real = Organisation._stage
    monkeypatch.setattr(Organisation, "_stage", stage)
    caught([FLAT, BUS, FLAT])


def test_an_agent_that_goes_on_while_it_moves(monkeypatch: Patch) -> None:
    """What it sends waits on the server that it leaves, and what it sends from its new server overtakes it."""
    monkeypatch.setattr(Engine, "freeze", lambda self, agents: None)
    caught([ONE_MORE, MOVED, ONE_MORE])


def test_letters_that_wait_within_the_region(monkeypatch: Patch) -> None:
    """Then letters that were stamped in the region never arrive, and the change never happens or loses them."""

    def part(self: Pausing, letter: Any, local: Any, onward: Any, from_domain: str, domain_of: Any) -> Any:
        return real(self, letter, local, onward, "", domain_of)

    real = Pausing.part
    monkeypatch.setattr(Pausing, "part", part)
    caught([BUS, FLAT, BUS, MOVED])


def test_a_change_before_letters_have_arrived(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Channel, "in_transit", lambda self, domains: "")
    caught(JOURNEY)


def test_a_domain_of_the_region_that_continues(monkeypatch: Patch) -> None:
    """A server that has not made the change forwards by the old routes what comes by the new ones."""

    def plan(old: Any, new: Any) -> Any:
        found = topology_change.plan_change(old, new)
        begun = tuple(name for name in found.begun if not topology_change._same_domain(old, new, name))
        return msgspec.structs.replace(found, begun=begun)

    monkeypatch.setattr(changing, "plan_change", plan)
    caught(_turned)


def test_a_region_without_the_domain_before_the_turn(monkeypatch: Patch) -> None:
    monkeypatch.setattr(topology_change, "_domains_with_other_routes", lambda before, after, source: set())
    caught(_turned)


def test_a_state_that_is_left_behind(monkeypatch: Patch) -> None:
    def taken_out(machine: Any, address: str) -> Belongings:
        return msgspec.structs.replace(real(machine, address), state=None)

    real = AgentServer.take_out
    monkeypatch.setattr(AgentServer, "take_out", taken_out)
    caught([ONE_MORE, MOVED])


def test_a_trace_whose_indices_begin_again(monkeypatch: Patch) -> None:
    def organised(self: Projection, item: Any) -> None:
        before = dict(self.indices)
        real(self, item)
        self.indices = before

    real = Projection._organised
    monkeypatch.setattr(Projection, "_organised", organised)
    caught([ONE_MORE, MOVED])


def test_an_abandoned_change_that_keeps_what_was_to_leave(monkeypatch: Patch) -> None:
    def put_back(self: Organisation, machine: Any) -> None:
        self.left = []
        real(self, machine)

    real = Organisation._put_back
    monkeypatch.setattr(Organisation, "_put_back", put_back)
    caught([ONE_MORE, MOVED, ONE_MORE, MOVED])


def test_a_decided_change_that_is_abandoned(monkeypatch: Patch) -> None:
    """The command is killed after the coordinator has committed, and started again."""

    def finish(views: dict[str, Any], request: Any) -> Any:
        parts = [view for view in views.values() if view.staged]
        yield from changing.all_of(
            Command(view.server, "change-abandon", (f"{view.staged}:{view.attempt}",)) for view in parts
        )

    real = participation.item_of
    monkeypatch.setattr(changing, "_finish", finish)
    # No other server says whether the change was made.
    monkeypatch.setattr(
        participation,
        "item_of",
        lambda machine, lesson: None if machine.organisation.attempt else real(machine, lesson),
    )
    caught(JOURNEY)


def test_a_router_that_does_not_know_an_agent_yet(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Channel, "learn", lambda self, topology, homes, moved, begun: None)
    caught([BUS, ONE_MORE])


def test_an_agent_that_gets_letters_before_the_change_is_decided(monkeypatch: Patch) -> None:
    def learn(self: Channel, *given: Any) -> None:
        real(self, *given)
        self.hidden = frozenset()

    def agents(self: ChangingWorld, server: Any) -> list[str]:
        return [*server.machine.channel._addresses.homes]

    real = Channel.learn
    monkeypatch.setattr(Channel, "learn", learn)
    monkeypatch.setattr(ChangingWorld, "known_agents", agents)
    caught([BUS, ONE_MORE])


def test_letters_that_wait_and_are_not_in_the_snapshot(monkeypatch: Patch) -> None:
    def dump(self: Organisation, channel: Channel) -> Any:
        return msgspec.structs.replace(real(self, channel), waiting=[])

    real = Organisation.dump
    monkeypatch.setattr(Organisation, "dump", dump)
    caught(JOURNEY)


def test_letters_that_came_early_and_overtake_those_that_were_handed_over(monkeypatch: Patch) -> None:
    def put_in(engine: Engine, belongings: Belongings) -> None:
        came = engine.clear(belongings.address)
        real(engine, belongings)
        later = engine.clear(belongings.address)
        for letter in (*came, *reversed(later)):
            engine.deliver(belongings.address, letter)

    real = Engine.put_in
    monkeypatch.setattr(Engine, "put_in", put_in)
    caught([ONE_MORE, MOVED, ONE_MORE])


def test_a_page_of_belongings_that_is_lost(monkeypatch: Patch) -> None:
    monkeypatch.setattr(participation.limits, "change_page_bytes", 200)

    def left(self: Participant, change: str, target: str, page: str) -> Any:
        return {**real(self, change, target, page), "more": False}

    real = Participant.left
    monkeypatch.setattr(Participant, "left", left)
    caught([ONE_MORE, MOVED])
