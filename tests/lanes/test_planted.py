"""A checker that was never seen to fail proves nothing: each of these bugs must be found within a few runs.

The bugs are small subclasses of what ships (``Box``, ``Context``), or of the program around it (``Process``), in which
one rule is broken. The comments name the rule.
"""

from collections.abc import Callable
from typing import Any

import pytest

from antecede.lanes import Arrival, Box, Context, LanesError, Question, Stamp, Verdict, frontier
from antecede.lanes.frontier import merge, name_of
from antecede.simulator.broker import Stored
from helpers.lanes import Process, Spec, World

SOLE: dict[str, Any] = {"kind": "counted", "sole": True}
SHARED: dict[str, Any] = {"kind": "pooled", "sole": False, "filters": False}
KAFKA: dict[str, Any] = {"kind": "assigned", "filters": False}
BUSY: dict[str, Any] = {"crashes": 0.5, "cuts": 0.5, "lost_acks": 0.1, "late": 0.05}

bugs: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {}


def bug(budget: int = 150, **change: Any) -> Callable[[type], type]:
    """Register a class with a bug, and what the plans of its runs have in common."""

    def register(cls: type) -> type:
        role = "process" if issubclass(cls, Process) else "context" if issubclass(cls, Context) else "box"
        bugs[cls.__name__] = ({role: cls}, change, budget)
        return cls

    return register


# -- rule 1: what is a repeat, and what a lane that went back ---------------------------------------------------------


@bug(**{**SOLE, **BUSY})
class RepeatsWhateverLiesBelow(Box):
    """A redelivery below the reach is acknowledged, although this reader did not see it done."""

    def _delivered(self, reader: Any, arrival: Arrival) -> bool:
        if arrival.redelivered and arrival.position <= reader.seen and arrival.position not in reader.outstanding:
            reader.done[arrival.position] = arrival.time
        return super()._delivered(reader, arrival)


@bug(again=True, **SOLE)
class NeverGoesBack(Box):
    """A first delivery at or below what was seen is taken for a repeat."""

    def _went_back(self, reader: Any, arrival: Arrival) -> bool:
        return False


# -- rule 2: all readers of a lane ------------------------------------------------------------------------------------


@bug(filters=True, **SOLE)
class OneReaderPerLane(Box):
    """What one of two filtered readers of a lane has finished counts for both."""

    def _gate(self, name: str) -> Any:
        gate = super()._gate(name)
        return gate and (gate[0][:1], gate[1])

    def _needs(self, reader: Any, arrival: Arrival) -> Any:
        self._gates.clear()
        return [
            need
            for need in super()._needs(reader, arrival)
            if need.reader is None or need.name == "" or need.reader is self._lanes[name_of(need.reader.lane)][0]
        ]


# -- rule 3: sole is proven -------------------------------------------------------------------------------------------


@bug(within="lane", late=0.1, **SOLE)
class OverlooksGaps(Box):
    """A gap in the numbers of deliveries is not outstanding."""

    def arrive(self, arrival: Arrival) -> list[Arrival]:
        arrival.sequence = None
        return super().arrive(arrival)


@bug(rolling=True, **SOLE)
class OverlooksOthers(Box):
    """The same during a rolling deployment, with two sole readers."""

    def arrive(self, arrival: Arrival) -> list[Arrival]:
        arrival.sequence = None
        return super().arrive(arrival)


@bug(crashes=0.6, **SOLE)
class OpensAtTheEnd(Box):
    """What the broker had delivered before the lane was opened is not outstanding."""

    def open(self, reader: str, lane: str, floor: int, **more: Any) -> list[Arrival]:
        more["delivered"] = None
        return super().open(reader, lane, floor, **more)


@bug(**SHARED)
class BelievesToBeSole(Box):
    """A shared reader counts what it knows itself."""

    def open(self, reader: str, lane: str, floor: int, **more: Any) -> list[Arrival]:
        return super().open(reader, lane, floor, **{**more, "sole": True})


@bug(within="none", filters=True, **SOLE)
class QuietTooEarly(Box):
    """Everything that was delivered has arrived, although the last delivery is on its way."""

    def quiet(self, question: Question, position: int, sequence: int | None = None) -> list[Arrival]:
        return super().quiet(question, position)


@bug(budget=400, **SHARED)
class ReadsPendingFirst(Process):
    """The smallest pending entry is read before the last delivered one."""

    def facts(self, spec: Spec) -> tuple[int, int, int]:
        durable = spec.durable
        pending = self.__dict__.setdefault("earlier", {}).get(spec.name, {})
        self.__dict__["earlier"][spec.name] = dict(durable.pending)
        return min([durable.delivered + 1, *(p for p in pending if p in durable.pending)]) - 1, durable.handed, 0


# -- rule 4: what will not come ---------------------------------------------------------------------------------------


@bug(tries=3, crashes=0.3, late=0.2, fails=0.1, **SOLE)
class NeverAsksAboutSoleLanes(Box):
    def wanted(self, overdue: bool = False) -> list[Question]:
        return [q for q in super().wanted(overdue) if q.reopen or q.reader is None or not self._readers[q.reader].sole]


@bug(tries=3, late=0.2, fails=0.1, **SOLE)
class WaitsForWhatWasDelivered(Box):
    """The broker's floor does not count while something below it is outstanding here."""

    def floor(self, question: Question, position: int) -> list[Arrival]:
        reader = self._readers[question.reader or ""]
        lowest = reader.lowest(None)
        return super().floor(question, position if lowest is None else min(position, lowest - 1))


@bug(again=True, cuts=1.0, **SOLE)
class NamesPositions(Box):
    """A handler of the lane before it was made again finishes a position of the new one."""

    def done(self, arrival: Arrival) -> list[Arrival]:
        decided = super().done(arrival)
        reader = self._readers[arrival.reader]
        reader.done[arrival.position] = None
        return decided


@bug(trims=True, tries=3, late=0.2, fails=0.2, **SHARED)
class WaitsForDeadLetters(Process):
    """A dead letter is not finished."""

    def facts(self, spec: Spec) -> tuple[int, int, int]:
        floor, handed, sequence = super().facts(spec)
        return min([floor, *(dead.position - 1 for dead in spec.durable.dead)]), handed, sequence


# -- rule 5: redeliveries of what runs --------------------------------------------------------------------------------


@bug(budget=300, late=0.2, crashes=0.6, fails=0.2, **SHARED)
class AcknowledgesWhatRuns(Box):
    def arrive(self, arrival: Arrival) -> list[Arrival]:
        decided = super().arrive(arrival)
        for one in decided:
            if one.verdict is Verdict.IGNORE:
                one.verdict = Verdict.REPEAT
        return decided


# -- rule 6: impossible positions -------------------------------------------------------------------------------------


@bug(hostile=0.3)
class BelievesPositionsBeyondTheEnd(Box):
    def end(self, question: Question, position: int) -> list[Arrival]:
        return super().end(question, frontier.LARGEST)


@bug(hostile=0.4)
class WaitsForItself(Box):
    """A position at or above the message's own is a cause."""

    def _drop(self, arrival: Arrival, name: str) -> None:
        pass

    def _cut(self, decided: list[Arrival]) -> None:
        pass


@bug(budget=300, hostile=0.3, lanes=4, services=3, scope="service")
class TrustsUnreadLanes(Box):
    """Positions of lanes that nobody here reads are merged unproven."""

    def __init__(self, within: Any) -> None:
        super().__init__(within, trust=True)


@bug(hostile=0.5, sole=False, lanes=3, messages=60)
class LetsThemWaitInACircle(Box):
    def _cut(self, decided: list[Arrival]) -> None:
        pass


@bug(budget=300, scope="service", again=True, judge_again=True)
class KeepsWhatWentBack(Context):
    """An acknowledgement below the own entry does not replace it."""

    def sent(self, stamp: Stamp, lane: str, position: int) -> bool:
        self._record(stamp.track, {}, name_of(lane), position)
        return False


# -- rules 7 and 8: publishes without an answer, and the ends ---------------------------------------------------------


@bug(lost_acks=0.3, repeat=0.0, scope="service")
class ForgetsUnknownOutcomes(Context):
    def doubt(self) -> None:
        pass


@bug(crashes=1.0, scope="service")
class StartsWithoutEnds(Context):
    """The ends are not merged after a crash."""

    def __init__(self, scope: Any) -> None:
        super().__init__(scope)
        self._past.settled = self._past.doubts


@bug(crashes=1.0, scope="service")
class ReadsOnePageOfEnds(Context):
    def merge(self, more: Any, key: Any = None, settles: int = 0) -> None:
        super().merge(dict(list(more.items())[:1]), key, settles)


@bug(lost_acks=0.1, scope="service")
class CountsBeforeTheAcknowledgement(Context):
    """A message counts from the beginning of its publish on, at the position where it would lie now."""

    def header(self, key: Any = None) -> Stamp:
        stamp = super().header(key)
        for name in list(stamp.causes):
            self._record(stamp.track, {}, name, stamp.causes[name] + 1)
        return stamp


# -- rules 9 and 10: headers and keys ---------------------------------------------------------------------------------


@bug(scope="key")
class LosesWhatExceedsTheBound(Context):
    def header(self, key: Any = None) -> Stamp:
        stamp = super().header(key)
        return Stamp(dict(list(stamp.causes.items())[:2]), stamp.track)


@bug(scope="key", within="key", foreign=0.4)
class HashesKeysDifferently(Process):
    """The consumer's keys have other tracks than the producer's."""

    def decode(self, message: Stored) -> Stamp:
        stamp = super().decode(message)
        return Stamp(
            stamp.causes,
            stamp.track and (stamp.track + len(self.name)) % 64 and hash((message.position, stamp.track)) % 64,
        )


@bug(scope="service", lanes=2)
class UnquotedNames(Process):
    """A lane whose name contains ``#``: the header cannot be read, or means another lane."""

    def decode(self, message: Stored) -> Stamp:
        return frontier.decode(message.header and message.header.replace("%23", "#").replace("%20", " "))


@bug(within="key")
class KeylessCountsForNothing(Box):
    """A message without a key has a track of its own."""

    def arrive(self, arrival: Arrival) -> list[Arrival]:
        arrival.track = 0 if arrival.track is None else arrival.track
        return super().arrive(arrival)


# -- rule 11: commits -------------------------------------------------------------------------------------------------


@bug(crashes=0.8, **KAFKA)
class CommitsWhatWasFetched(Process):
    """Commits everything that was read, not what is finished."""

    def finished(self, spec: Spec) -> int:
        return spec.position


@bug(lost_acks=0.3, budget=300, **KAFKA)
class CommitsOnce(Process):
    def commit(self) -> None:
        pass


# -- what else must not happen ----------------------------------------------------------------------------------------


@bug(within="none")
class SharedFlowControl(Process):
    """Lanes share their room: a lane that is full keeps messages of another lane away."""

    shared_flow = True
    capacity = 3


@bug(crashes=0.6, within="lane", **SOLE)
class NoRoomForRedeliveries(Process):
    """A lane holds fewer messages than the broker has in flight for it."""

    strict = True
    capacity = 2


@bug(cuts=1.0, late=0.1, crashes=0.5)
class LosesWaiters(Box):
    """Whoever waits for a lane is forgotten when the lane is closed."""

    def _close(self, reader: Any, decided: list[Arrival]) -> None:
        super()._close(reader, decided)
        reader.beyond = []


@bug(again=True, cuts=1.0)
class LosesWhatCameWhileClosed(Box):
    def open(self, reader: str, lane: str, floor: int, **more: Any) -> list[Arrival]:
        one = self._readers.get(reader)
        if one is not None:
            for arrival in one.queued:
                self._held.pop(arrival)
            one.queued = []
        return super().open(reader, lane, floor, **more)


@bug(cuts=1.0, budget=300)
class OpensTheGateWhileClosed(Box):
    """Nothing waits for a lane while it is closed."""

    def close(self, reader: str) -> list[Arrival]:
        one = self._readers[reader]
        decided = super().close(reader)
        for arrival in self.held:
            arrival._needs = [need for need in arrival._needs if need.reader is not one]
        for _, _, arrival in one.beyond:
            self._advance(arrival, decided)
        return decided


@bug(fails=0.3)
class FinishesWhatFailed(Box):
    def failed(self, arrival: Arrival) -> list[Arrival]:
        return self.done(arrival)


@bug(crashes=1.0)
class SubscribesTooEarly(Process):
    """Messages of one lane come before the other lanes are open."""

    eager = True


@bug(crashes=1.0)
class AcknowledgesFirst(Process):
    def handle(self, arrival: Arrival) -> None:
        self.acknowledge(arrival.tag)
        super().handle(arrival)


@bug(scope="service", within="none", lanes=3, services=3)
class ForgetsThePastOfMessages(Context):
    """A context merges the position of what it receives, but not its header."""

    def saw(self, lane: str, position: int, causes: Any, track: int | None = None) -> None:
        super().saw(lane, position, {}, track)


@bug()
class ForgetsMessages(Context):
    """A context merges the header of what it receives, but not its position."""

    def saw(self, lane: str, position: int, causes: Any, track: int | None = None) -> None:
        merge(self._past.general, causes)


def _caught(name: str) -> int:
    options, change, budget = bugs[name]
    change = dict(change)
    for seed in range(budget):
        world = World(seed, change=change, **options)
        try:
            world.play()
        except (LanesError, KeyError) as error:
            world.found.append(repr(error))
        if world.found:
            print(f"{name}: seed {seed}: {world.found[0]}")
            return seed
    raise AssertionError(f"{name} was not caught in {budget} runs")


@pytest.mark.parametrize("name", list(bugs))
def test_caught(name: str) -> None:
    _caught(name)
