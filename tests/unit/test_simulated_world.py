"""Simulated worlds: what they remember, and the bounds of virtual time."""

from random import Random
from typing import Any

import pytest

from antecede.errors import UsageError
from antecede.orders import parse
from antecede.simulator.draws import parse_draw
from antecede.simulator.observers import Figures
from antecede.simulator.run import Setup, Spontaneous, broadcast, simulate
from antecede.simulator.servers import ServerWorld
from antecede.simulator.worlds import FaultyWorld
from antecede.trace import Event
from worlds import changes, schedules


def test_a_faulty_world_remembers_only_what_is_under_way() -> None:
    """Memory must not grow with the number of messages, however a second delivery is told."""
    figures = Figures()
    world = FaultyWorld(parse("none"), 3, lambda: 0.1, Random(1), loss=0.2, duplicate=0.2, figures=figures)
    world.run(Spontaneous(300, lambda: 0.05, broadcast(3, Random(2))))
    assert figures.deliveries == 600
    assert world.twice == []
    assert world._under_way == {}


def test_a_second_delivery_is_counted_apart() -> None:
    world = FaultyWorld(parse("none"), 3, lambda: 0.1, Random(1))
    message = world.send(0, 0b110)
    found = [world._deliver(at, message) is not None for at in (1, 1, 2, 2)]
    assert found == [True, False, True, False]
    assert world.twice == [(1, message.id), (2, message.id)]


@pytest.mark.parametrize("spec", ["constant:1e12", "exponential:1e7", "pareto:0.01,1", "uniform:0,1e300"])
def test_no_time_is_beyond_what_a_trace_can_hold(spec: str) -> None:
    with pytest.raises(UsageError, match="bad distribution"):
        parse_draw(spec, Random(1))


def test_the_longest_draws_are_cut() -> None:
    draw = parse_draw("pareto:0.1,1000000", Random(1))
    assert {draw() for _ in range(100)} == {1_000_000}


def test_virtual_time_ends_with_the_integers_of_a_trace() -> None:
    rows: list[Event] = []
    setup = Setup(parse("fifo"), 2, 40_000, gap="constant:1000000", delay="constant:1000000")
    simulate(setup, rows.append)
    assert max(row.time or 0 for row in rows) == 2**63 - 1


@pytest.mark.parametrize("seconds", [0.00317, 0.1, 0.995, 1.0, 7.3])
def test_quantiles_of_latencies_are_exact_to_half_a_percent(seconds: float) -> None:
    """Below one second the logarithm is negative: cut towards zero, every quantile would be 1 % too large."""
    figures = Figures()
    world = FaultyWorld(parse("none"), 3, lambda: seconds, Random(1), figures=figures)
    world.run(Spontaneous(20, lambda: seconds, broadcast(3, Random(2))))
    assert figures.latency_quantile(0.99) == pytest.approx(seconds, rel=0.0051)


@pytest.mark.parametrize("play", [schedules.play, changes.play])
def test_a_schedule_that_an_exception_ends_shows_where(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerWorld, "events_max", 10)
    outcome = play(3)
    assert outcome.found
    assert "Traceback" in str(outcome)
    assert str(outcome).endswith(outcome.command)
