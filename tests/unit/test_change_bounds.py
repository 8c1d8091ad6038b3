"""The bounds of what other servers and operators send about changes of the topology: in JSON a number may have any
number of digits, and a text or a list any length."""

from typing import Any

import msgspec
import pytest

from antecede import limits
from antecede.errors import TopologyError, UsageError
from antecede.server import (
    AgentServer,
    Participant,
    item_of,
    read_attempt,
    read_lesson,
    read_number,
    read_stage,
    read_view,
)
from antecede.topology import parse_topology
from helpers.changing import MILD
from worlds.changes import plan_of

_plain: dict[str, Any] = {"system": "s", "change": 1, "topology": "", "since": {}, "history": []}
_stage = {**_plain, "coordinator": "s1", "clock_ms": 0}
_view = {**_plain, "server": "s1", "epoch": "e"}


def _epoch(**other: Any) -> dict[str, Any]:
    epoch = {"change": 1, "epoch": "e", "clock_ms": 0, "attempt": "a", **other}
    return {"history": [list(epoch.values())]}


_shared: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"change": limits.change_number_max}, {"change": limits.change_number_max + 1}),
    ({"change": 0}, {"change": -1}),
    ({"since": {"A": limits.change_number_max}}, {"since": {"A": limits.change_number_max + 1}}),
    ({"since": {"zz": 0}}, {"since": {"zz": 2**64}}),
    (
        {"since": {str(one): 0 for one in range(limits.topology_servers_max)}},
        {"since": {str(one): 0 for one in range(limits.topology_servers_max + 1)}},
    ),
    ({"since": {"A" * limits.name_chars_max: 0}}, {"since": {"A" * (limits.name_chars_max + 1): 0}}),
    ({"system": "s" * limits.mark_chars_max}, {"system": "s" * (limits.mark_chars_max + 1)}),
    ({"topology": "x" * limits.topology_bytes_max}, {"topology": "x" * (limits.topology_bytes_max + 1)}),
    (_epoch(change=limits.change_number_max), _epoch(change=limits.change_number_max + 1)),
    (_epoch(clock_ms=limits.clock_ms_max), _epoch(clock_ms=limits.clock_ms_max + 1)),
    (_epoch(epoch="e" * limits.mark_chars_max), _epoch(epoch="e" * (limits.mark_chars_max + 1))),
    (_epoch(attempt="a" * limits.mark_chars_max), _epoch(attempt="a" * (limits.mark_chars_max + 1))),
    (
        {"history": _epoch()["history"] * limits.changes_kept_max},
        {"history": _epoch()["history"] * (limits.changes_kept_max + 1)},
    ),
]


@pytest.mark.parametrize(("fits", "exceeds"), _shared)
def test_lessons_stages_and_views_at_their_bounds(fits: dict[str, Any], exceeds: dict[str, Any]) -> None:
    read_lesson(msgspec.json.encode({**_plain, **fits}))
    read_stage(msgspec.json.encode({**_stage, **fits}).decode())
    read_view("s1", {**_view, **fits})
    with pytest.raises(TopologyError, match="unreadable topology of another server"):
        read_lesson(msgspec.json.encode({**_plain, **exceeds}))
    with pytest.raises(UsageError, match="unreadable change"):
        read_stage(msgspec.json.encode({**_stage, **exceeds}).decode())
    with pytest.raises(TopologyError, match="unreadable answer of server s1"):
        read_view("s1", {**_view, **exceeds})


@pytest.mark.parametrize("many", ["pausing", "absent", "members"])
def test_the_servers_of_a_stage(many: str) -> None:
    read_stage(msgspec.json.encode({**_stage, many: ["s1"] * limits.topology_servers_max}).decode())
    with pytest.raises(UsageError, match="unreadable change"):
        read_stage(msgspec.json.encode({**_stage, many: ["s1"] * (limits.topology_servers_max + 1)}).decode())


def test_the_clock_of_a_stage_and_of_a_commit() -> None:
    """In the metadata of a trace it is a number of nanoseconds."""
    assert limits.clock_ms_max * 1_000_000 <= 2**63 - 1
    read_stage(msgspec.json.encode({**_stage, "clock_ms": limits.clock_ms_max}).decode())
    with pytest.raises(UsageError, match="unreadable change"):
        read_stage(msgspec.json.encode({**_stage, "clock_ms": limits.clock_ms_max + 1}).decode())
    assert read_number(str(limits.clock_ms_max), limits.clock_ms_max) == limits.clock_ms_max
    with pytest.raises(UsageError, match="expected a number"):
        read_number(str(limits.clock_ms_max + 1), limits.clock_ms_max)


def test_the_longest_attempt() -> None:
    longest = "a" * limits.mark_chars_max
    assert read_attempt(f"{limits.change_number_max}:{longest}") == (limits.change_number_max, longest)
    for wrong in (f"{limits.change_number_max + 1}:a", f"1:{longest}a", "1", "-1:a"):
        with pytest.raises(UsageError):
            read_attempt(wrong)


@pytest.mark.parametrize("since", [2**64, 2**63, 10**40])
def test_a_number_that_no_log_can_contain_does_not_reach_a_step(since: int) -> None:
    """The step of a server that took it would fail, and the server would end."""
    old, new = parse_topology(MILD[0]), parse_topology(MILD[1])
    machine = AgentServer("s4", plan_of(old), 4)
    machine.begin(old.epoch)
    history = [[0, old.epoch, 0, ""], [1, new.epoch, 5, "x"]]
    lesson = {"system": "s", "change": 1, "topology": new.text(), "since": {"zz": since}, "history": history}
    participant = Participant(machine, lambda item: machine.step([item], 0.0, 0) and None)
    with pytest.raises(TopologyError, match="unreadable topology of another server"):
        participant.learn(msgspec.json.encode(lesson).decode())
    assert item_of(machine, read_lesson(msgspec.json.encode({**lesson, "since": {}}))) is not None
