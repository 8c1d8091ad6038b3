"""What the simulated groups of objects record is judged from the trace alone: good runs hold, spoilt ones do not."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, islice

import msgspec

from antecede.errors import TraceError
from antecede.simulator.groups import Driver, Ended, Workload
from antecede.trace import Conflicts, Event, Instances, conflicts_in, judge, judge_significant, match
from antecede.trace.significant import REQUEST


def _run(seed: int) -> tuple[Ended, Conflicts]:
    ended = Driver(Workload.drawn(seed)).run()
    return ended, conflicts_in(ended.conflicts(), "simulated")


def test_what_the_order_objects_delivers_is_in_significant_order_and_not_in_causal_order(seeds: int) -> None:
    overtaken = 0
    for seed in range(seeds // 3):
        ended, conflicts = _run(seed)
        found = judge_significant(match(ended.events), conflicts, every_overtaker=True)
        assert found.late == [], f"Workload.drawn({seed})"
        overtaken += len(judge(ended.events, ("causal",)).causal)
    assert overtaken > 0


def _spoilt(events: list[Event], conflicts: Conflicts) -> Iterator[list[Event]]:
    """The events with two conflicting requests swapped at one of two objects that received both, one pair a time."""
    trace = match(events)
    instances = Instances(trace)
    # Where replicas repeat a request, any of its copies may come first.
    repeated = Counter(
        (event.process, event.instance) for event in events if (event.kind, event.type) == ("deliver", REQUEST)
    )
    received: dict[str, dict[str, Event]] = {}
    for process, line in enumerate(trace.lines):
        for position, event in enumerate(line):
            if repeated[event.process, event.instance] > 1:
                continue
            if event.kind == "deliver" and instances.received_as(process, position, event) == REQUEST:
                received.setdefault(event.message or "", {})[event.process] = event
    for one, other in combinations(received, 2):
        common = sorted(received[one].keys() & received[other].keys())
        clashing = [
            name
            for name in common
            if received[other][name].operation in conflicts.at(name).get(received[one][name].operation or "", ())
        ]
        if len(clashing) > 1:
            a, b = received[one][clashing[0]], received[other][clashing[0]]
            moved = {
                a.index: msgspec.structs.replace(a, index=b.index),
                b.index: msgspec.structs.replace(b, index=a.index),
            }
            yield [moved[event.index] if event is a or event is b else event for event in events]


def test_two_conflicting_requests_swapped_at_one_object_are_found(seeds: int) -> None:
    spoilt = 0
    for seed in range(seeds // 5):
        ended = Driver(Workload(seed, objects=4, operations=6, density=0.3, depth=1, several=1.0, failing=0.0)).run()
        conflicts = conflicts_in(ended.conflicts(), "simulated")
        for events in islice(_spoilt(ended.events, conflicts), 20):
            try:
                found = judge_significant(match(events), conflicts)
            except TraceError:
                # A request would be delivered before it was sent.
                continue
            spoilt += 1
            assert found.late, f"seed {seed}"
    assert spoilt > seeds // 30
