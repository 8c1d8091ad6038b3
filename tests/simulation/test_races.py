"""What slack means, by experiment: delay one copy, replay, and see whether it is late.

The delay of each copy is drawn from its message and its destination, and processes send at times of their own, so that
a replay changes nothing but the one copy. A copy is delayed only while its receiver sends nothing: a send in between
would no longer follow from the copy.
"""

import os
from random import Random

import pytest

from antecede.messages import Packet
from antecede.orders import parse
from antecede.simulator.draws import parse_draw, stream
from antecede.simulator.kernel import World
from antecede.simulator.observers import Recorder, process_names
from antecede.simulator.run import Spontaneous, multicast
from antecede.simulator.worlds import BareWorld
from antecede.trace import DELIVER, SEND, Event, Wanted, find_races, judge, match

_runs = int(os.environ.get("ANTECEDE_SEEDS", "40"))
_nanosecond = 1e-9


class _Delayed(BareWorld):
    """A world in which each copy has a delay of its own."""

    seed: int
    extra: dict[tuple[str, int], float]

    def _transmit(self, packet: Packet) -> None:
        own = Random(f"{self.seed}/{packet.subject}/{packet.target}").expovariate(10.0)
        self._transmit_in(own + self.extra.get((packet.subject, packet.target), 0.0), packet)


class _SomeSend(Spontaneous):
    """Only every process with an even number sends."""

    def start(self, world: World) -> None:
        for process in range(0, world.processes, 2):
            world.wake_after(self._gap(), process)


def _played(order: str, seed: int, extra: dict[tuple[str, int], float]) -> list[Event]:
    rows: list[Event] = []
    processes = 3 + seed % 4
    recorder = Recorder(process_names(processes), rows.append)
    world = _Delayed(parse(order), processes, lambda: 0.0, observer=recorder)
    world.seed, world.extra = seed, extra
    rng = stream(seed, "destinations")
    gap = parse_draw("exponential:0.1", stream(seed, "gap"))
    kind = _SomeSend if seed % 3 else Spontaneous
    world.run(kind(30, gap, multicast(processes, rng)))
    return rows


def _quiet_until(rows: list[Event], process: str, since: int) -> float:
    """The time of the next send of a process after that moment."""
    return min(
        (e.time or 0 for e in rows if e.kind == SEND and e.process == process and (e.time or 0) > since), default=2**62
    )


@pytest.mark.parametrize("order", ["none", "fifo"])
def test_a_copy_is_late_iff_it_is_delayed_by_more_than_a_slack(order: str) -> None:
    late = on_time = 0
    for seed in range(_runs):
        rows = _played(order, seed, {})
        trace = match(rows)
        slacks: dict[tuple[str, str], list[int]] = {}
        for race in find_races(trace, order, Wanted(10**6, every=True)).races:
            first = trace.lines[race.at][race.first]
            slacks.setdefault((first.message or "", first.process), []).append(race.slack)
        already = {(one.message, one.to) for one in judge(rows, ("causal",)).causal}
        copies = [(e.message or "", e.process) for e in rows if e.kind == DELIVER]
        random = Random(f"delays {seed}")
        # Half of the copies are those with a race, delayed by a little more or less than their slack.
        for copy in [*random.sample(copies, 4), *random.sample(sorted(slacks), min(4, len(slacks)))]:
            if copy in already:
                continue
            arrived = min(e.time or 0 for e in rows if e.kind == "arrive" and (e.message, e.process) == copy)
            near = [slack + side for slack in slacks.get(copy, []) for side in (-2000, 2000)]
            delta = random.choice([*near, random.randrange(10**9)])
            if delta <= 0 or arrived + delta >= _quiet_until(rows, copy[1], arrived):
                continue
            target = int(copy[1][1:]) - 1
            again = _played(order, seed, {(copy[0], target): delta * _nanosecond})
            is_late = copy in {(one.message, one.to) for one in judge(again, ("causal",)).causal}
            expected = any(slack < delta for slack in slacks.get(copy, []))
            assert is_late == expected, f"seed {seed}, copy {copy}, delayed by {delta} ns"
            late += is_late
            on_time += not is_late
    assert late > _runs // 4
    assert on_time > _runs // 4


def test_a_replay_changes_nothing_but_the_copy() -> None:
    """The experiment itself: the sends are the same, and without a delay so is everything."""
    assert _played("none", 3, {}) == _played("none", 3, {})
    delayed = _played("none", 3, {("m4", 1): 5.0})

    def sends(rows: list[Event]) -> list[tuple[str, str | None, int | None]]:
        return [(e.process, e.message, e.time) for e in rows if e.kind == SEND]

    assert sends(delayed) == sends(_played("none", 3, {}))
