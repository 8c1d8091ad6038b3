"""Truncations of a log are shown until an operator acknowledges them."""

import json

import pytest

from antecede.live.application import plan_of
from antecede.server import Acknowledged, AgentServer, Truncated, recover
from antecede.topology import parse_topology

_topology = parse_topology("""
[servers]
s1 = "tcp://127.0.0.1:7101"
[domains]
A = { servers = ["s1"], order = "pruned" }
""")
_cut = Truncated(7, "data/segment-000000000001.log", 60, 100, 0, "group 7 does not match its checksum", 1_000)


def _started(stored: list[bytes], cuts: list[Truncated]) -> tuple[AgentServer, bytes]:
    machine = AgentServer("s1", plan_of(_topology), 1)
    return machine, recover(machine, None, stored, _topology.epoch, 0.0, wall_ms=1_000, cuts=cuts)


@pytest.mark.parametrize("empty", [True, False])
def test_a_truncation_is_in_the_first_record_of_a_life(empty: bool) -> None:
    """Also if nothing of the log is left."""
    stored = [] if empty else [_started([], [])[1]]
    machine, first = _started(stored, [_cut])
    assert machine.truncations.open == [_cut]
    # After a crash the store may report it again.
    again, second = _started([*stored, first], [_cut])
    assert again.truncations.open == [_cut]
    step = again.step([Acknowledged(7)], 0.0, 1_000)
    assert step.record is not None
    assert again.truncations.status() == []
    last, _ = _started([*stored, first, second, step.record], [_cut])
    assert json.dumps(last.truncations.status()) == "[]"
