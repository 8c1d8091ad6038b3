"""Every interleaving of a small scope: two lanes, two services that read both, four messages, and one fault.

A client publishes 0 to X, and then 3 to Y. Service A answers 0 with 1 in Y; service B answers 1 with 2 in X. States
that have the same future are visited once.
"""

import copy
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from antecede.lanes import Arrival, Box, Context, Verdict, decode

CLIENT = [(0, "X"), (3, "Y")]
ANSWERS = {("A", 0): (1, "Y"), ("B", 1): (2, "X")}
Action = tuple[Any, ...]


class Group:
    def __init__(self, scope: Any, within: Any, box: type[Box]) -> None:
        self.scope, self.within, self.kind = scope, within, box
        self.past: set[int] = set()
        self.finished: set[int] = set()
        # What the broker knows: by lane.
        self.delivered = {"X": 0, "Y": 0}
        self.sequence = {"X": 0, "Y": 0}
        self.pending: dict[tuple[str, int], bool] = {}
        """Positions that are not acknowledged, and whether they are in the hands of the process."""
        self.start()

    def start(self) -> None:
        self.box = self.kind(self.within)
        self.context = Context(self.scope)
        self.running: dict[int, list[Any]] = {}
        for lane in "XY":
            self.box.open(lane, lane, self.floor(lane), delivered=self.delivered[lane], sequence=self.sequence[lane])

    def floor(self, lane: str) -> int:
        return min([self.delivered[lane] + 1, *(p for name, p in self.pending if name == lane)]) - 1


class Scope:
    """One run, as far as its choices go."""

    def __init__(self, scope: Any, within: Any, fault: str, box: type[Box] = Box) -> None:
        self.fault = fault
        self.logs: dict[str, list[tuple[int, str]]] = {"X": [], "Y": []}
        self.pasts: dict[int, set[int]] = {}
        self.client, self.client_past, self.sent = Context(scope), set[int](), 0
        self.stamp: Any = None
        self.groups = {name: Group(scope, within, box) for name in "AB"}

    # -- what may happen next -------------------------------------------------------------------------------------

    def actions(self) -> Iterator[Action]:
        if self.sent < 2 * len(CLIENT):
            yield ("client",)
        for name, group in self.groups.items():
            for lane in "XY":
                if group.delivered[lane] < len(self.logs[lane]):
                    yield "deliver", name, lane
                    if self.fault == "lose":
                        yield "lose", name, lane
            for (lane, position), held in group.pending.items():
                if not held or self.fault == "again":
                    yield "redeliver", name, lane, position
            for number, (_, stage, _) in group.running.items():
                yield "step", name, number
                answered = stage == 2 or (name, number) not in ANSWERS
                if self.fault == "fail" or (self.fault == "unacknowledged" and answered):
                    yield self.fault, name, number
            if self.fault in ("crash", "close"):
                yield self.fault, name
            if group.box.held or any(question.reopen for question in group.box.wanted()):
                yield "poll", name

    # -- one step -------------------------------------------------------------------------------------------------

    def do(self, action: Action) -> None:
        kind = action[0]
        if kind == self.fault or (kind == "redeliver" and self.groups[action[1]].pending[action[2], action[3]]):
            self.fault = ""
        if kind == "client":
            number, lane = CLIENT[self.sent // 2]
            if self.sent % 2 == 0:
                self.stamp = self.publish(self.client, self.client_past, number, lane)
            else:
                self.client.sent(self.stamp, lane, self.position(lane, number))
                self.client_past |= {number} | self.pasts[number]
            self.sent += 1
            return
        group = self.groups[action[1]]
        if kind in ("deliver", "lose"):
            lane = action[2]
            group.delivered[lane] += 1
            self.hand(group, lane, group.delivered[lane], kind == "lose", False)
        elif kind == "redeliver":
            self.hand(group, action[2], action[3], False, True)
        elif kind == "step":
            self.step(action[1], group, action[2])
        elif kind == "fail":
            arrival = group.running.pop(action[2])[0]
            group.pending[arrival.reader, arrival.position] = False
            self.act(group, group.box.failed(arrival))
        elif kind == "unacknowledged":
            self.finish(group, action[2], acknowledged=False)
        elif kind == "crash":
            group.pending = dict.fromkeys(group.pending, False)
            group.start()
        elif kind == "close":
            for lane in "XY":
                self.act(group, group.box.close(lane))
        elif kind == "poll":
            self.poll(group)

    def publish(self, context: Context, past: set[int], number: int, lane: str) -> Any:
        if context.doubts:
            context.merge({name: len(log) for name, log in self.logs.items()}, settles=context.doubts)
        stamp = context.header()
        if self.position(lane, number) == 0:
            self.pasts[number] = set(past)
            self.logs[lane].append((number, stamp.text))
        return stamp

    def position(self, lane: str, number: int) -> int:
        return next((at + 1 for at, (one, _) in enumerate(self.logs[lane]) if one == number), 0)

    def hand(self, group: Group, lane: str, position: int, lost: bool, redelivered: bool) -> None:
        held = group.pending.get((lane, position), False)
        group.pending[lane, position] = held or not lost
        group.sequence[lane] += 1
        if not lost:
            stamp = decode(self.logs[lane][position - 1][1])
            arrival = Arrival(lane, position, stamp.causes, redelivered=redelivered, sequence=group.sequence[lane])
            self.act(group, group.box.arrive(arrival))

    def act(self, group: Group, decided: list[Arrival]) -> None:
        for arrival in decided:
            at = (arrival.reader, arrival.position)
            number = self.logs[at[0]][at[1] - 1][0]
            if arrival.verdict is Verdict.START:
                lanes = chain(self.logs["X"], self.logs["Y"])
                late = (self.pasts[number] & {one for one, _ in lanes}) - group.finished
                assert not late, f"{number} starts before {late}"
                if group.within == "lane":
                    before = {one for one, _ in self.logs[at[0]][: at[1] - 1]}
                    assert before <= group.finished, f"{number} starts before {before - group.finished}"
                group.past |= {number} | self.pasts[number]
                group.context.run().saw(*at, arrival.causes)
                group.running[number] = [arrival, 0, None]
            elif arrival.verdict is Verdict.REPEAT:
                group.pending.pop(at, None)
            elif arrival.verdict is Verdict.RETURN:
                group.pending[at] = False

    def step(self, name: str, group: Group, number: int) -> None:
        """A handler publishes its answer, has the acknowledgement, or returns."""
        arrival, stage, stamp = group.running[number]
        answer = ANSWERS.get((name, number))
        if answer is None or stage == 2:
            self.finish(group, number, acknowledged=True)
        elif stage == 0:
            group.running[number] = [arrival, 1, self.publish(group.context, group.past, *answer)]
        else:
            group.context.sent(stamp, answer[1], self.position(answer[1], answer[0]))
            group.past |= {answer[0]} | self.pasts[answer[0]]
            group.running[number] = [arrival, 2, stamp]

    def finish(self, group: Group, number: int, acknowledged: bool) -> None:
        arrival = group.running.pop(number)[0]
        group.finished.add(number)
        if acknowledged:
            group.pending.pop((arrival.reader, arrival.position), None)
        else:
            group.pending[arrival.reader, arrival.position] = False
        self.act(group, group.box.done(arrival))

    def poll(self, group: Group) -> None:
        for question in group.box.wanted():
            lane = question.lane
            floor, delivered, sequence = group.floor(lane), group.delivered[lane], group.sequence[lane]
            if question.reopen:
                for at in [at for at in group.pending if at[0] == lane]:
                    group.pending[at] = False
                self.act(group, group.box.open(lane, lane, floor, delivered=delivered, sequence=sequence))
            else:
                self.act(group, group.box.end(question, len(self.logs[lane])))
                self.act(group, group.box.floor(question, floor))
                self.act(group, group.box.quiet(question, delivered, sequence))

    # -- states ---------------------------------------------------------------------------------------------------

    def state(self) -> Any:
        parts: list[Any] = [self.fault, self.sent, str(self.logs), str(self.client._past.general)]
        for group in self.groups.values():
            parts += [
                sorted(group.finished),
                sorted(group.pending.items()),
                str(group.delivered),
                str(group.sequence),
                sorted((number, run[1]) for number, run in group.running.items()),
                sorted(group.context._past.general.items()),
                group.context.doubts,
                sorted((a.reader, a.position, a._unclear) for a in group.box.held),
            ]
            for reader in group.box._readers.values():
                parts.append((reader.closed, reader.floor, reader.seen, reader.hole, reader.sequence))
                parts += [sorted(reader.outstanding), sorted(reader.done), [a.position for a in reader.queued]]
        return str(parts)

    def check_end(self) -> None:
        """Nothing is left but to ask: then everything must be done, unless the answers start something."""
        for _ in range(3):
            for name in "AB":
                self.do(("poll", name))
        if any(action[0] not in ("poll", "crash", "close") for action in self.actions()):
            return
        for name, group in self.groups.items():
            assert group.finished == {0, 1, 2, 3}, f"{name} has handled only {group.finished}"
            assert not group.box.held, f"{name} holds {group.box.held}"


def explore(limit: int = 200_000, **options: Any) -> int:
    """Visit all states; return how many there are."""
    start = Scope(**options)
    seen = {hash(start.state())}
    stack: list[tuple[Scope, list[Action]]] = [(start, [])]
    while stack:
        here, path = stack.pop()
        following = list(here.actions())
        try:
            if all(action[0] in ("poll", "crash", "close") for action in following):
                copy.deepcopy(here).check_end()
            for action in following:
                scope = copy.deepcopy(here)
                scope.do(action)
                key = hash(scope.state())
                if key not in seen:
                    seen.add(key)
                    assert len(seen) < limit
                    stack.append((scope, [*path, action]))
        except AssertionError as error:
            raise AssertionError(f"{error}; after {path}, then one of {following}") from error
    return len(seen)


@pytest.mark.parametrize("within", ["lane", "none"])
@pytest.mark.parametrize("fault", ["", "lose", "fail", "again", "unacknowledged", "crash", "close"])
def test_every_interleaving(fault: str, within: str, seeds: int) -> None:
    """With a fault there are up to 130,000 states: only in campaigns."""
    if fault and seeds < 10_000:
        pytest.skip("takes minutes; ANTECEDE_SEEDS=10000 includes it")
    assert explore(scope="service", within=within, fault=fault) > 1000
