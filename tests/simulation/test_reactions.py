"""Applications in simulated worlds react when a step is done, and do again what a crash has undone."""

import pytest

from antecede.messages import Message
from antecede.orders import parse
from antecede.simulator.draws import parse_draw, stream
from antecede.simulator.kernel import World
from antecede.simulator.observers import Figures, Recorder, process_names
from antecede.simulator.run import RequestReply, uniform
from antecede.simulator.worlds import BareWorld, FaultyWorld
from antecede.trace import Event, judge, needless_delays


def _world(faulty: bool, seed: int, events: list[Event]) -> World:
    recorder = Recorder(process_names(5), events.append)
    delay = parse_draw("exponential:0.3", stream(seed, "delay"))
    spec = parse("matrix")
    if faulty:
        return FaultyWorld(spec, 5, delay, stream(seed, "faults"), duplicate=0.1, observer=recorder)
    return BareWorld(spec, 5, delay, observer=recorder)


@pytest.mark.parametrize("faulty", [False, True])
def test_reply_follows_from_every_delivery_of_its_step(faulty: bool) -> None:
    """One arrival can free several messages. A reply that the trace showed between them would be stamped as
    following from all of them, and its receiver would seem to hold it for nothing."""
    for seed in range(20):
        events: list[Event] = []
        rng = stream(seed, "destinations")
        gap = parse_draw("exponential:0.05", stream(seed, "gap"))
        _world(faulty, seed, events).run(RequestReply(120, gap, uniform(5, rng)))
        assert judge(events, ("causal",)).holds("causal")
        assert needless_delays(events) == []


class Counting:
    """Every process sends 20 messages to everybody, one at a time."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def start(self, world: World) -> None:
        for process in range(world.processes):
            world.wake_after(0.1, process)

    def wake(self, world: World, process: int) -> None:
        self.sent.append(world.send(process, 0b111))
        if sum(message.source == process for message in self.sent) < 20:
            world.wake_after(0.1, process)

    def delivered(self, world: World, process: int, message: Message) -> None:
        pass


@pytest.mark.parametrize("order", ["fifo", "synchronous"])
def test_send_that_a_crash_undid_is_done_again(order: str) -> None:
    for seed in range(10):
        delay = parse_draw("exponential:0.1", stream(seed, "delay"))
        figures = Figures()
        world = FaultyWorld(parse(order), 3, delay, stream(seed, "faults"), crash=0.1, figures=figures)
        workload = Counting()
        world.run(workload)
        assert world.crashes > 5
        assert len(workload.sent) == 60
        assert figures.sends == 60
        assert figures.deliveries == 180
        assert figures.outstanding == 0
