"""The printed protocol, misprint by misprint, and mistakes with live states: each must be caught (Enokido, Higaki,
Takizawa §4).

Every class below undoes one reading of :mod:`antecede.orders.objects` or of :mod:`antecede.objects`. It is planted
into groups of objects on the same random schedules on which the protocol as read breaks nothing, and what happened is
judged from the trace, by whether everything came to its end, and by whether that end is one that the roots would have
come to one after the other.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from antecede.messages import ABORT, COMMIT, COPY, RESPONSE, Effects, Message, Send
from antecede.objects import (
    DONE,
    Change,
    Entries,
    Execution,
    Instance,
    Intentions,
    Live,
    Object,
    Outcome,
    Root,
    Roots,
    Site,
    State,
    Table,
    fold,
)
from antecede.orders import PLAIN, Objects, Rules, Stamp, Vector, Waiting
from antecede.simulator.groups import Workload, play
from helpers.seeds import note, seeds

SEEDS = 150


def _with(**parts: type) -> type[Site]:
    """A site with another order, other locks or another execution."""
    return type("Planted", (Site,), parts)


def _workload(seed: int) -> Workload:
    """Busy, nested, with many conflicts and without crashes: where the printed rules fail soonest."""
    drawn = Workload.drawn(seed)
    few = min(drawn.roots, 9)
    return msgspec.structs.replace(drawn, density=(0.3, 0.6, 1.0)[seed % 3], depth=1 + seed % 3, crash=0.0, roots=few)


def _crowded(seed: int) -> Workload:
    """So many roots at once that some wait to be admitted."""
    return Workload(seed, objects=2, operations=2, density=1.0, depth=1, roots=40, gap="exponential:0.01")


class VectorOfTheMessage(Objects):
    """``V_tj := m.V_j``: what is received is not itself in the vector."""

    def begin(self, message: Message) -> None:
        waiting = self._handed.pop(message.id)
        self._note(waiting.label.instance, waiting.label.operation, _printed(waiting))

    def _deliver(self, waiting: Waiting, effects: Effects) -> None:
        before = {name: dict(vector) for name, vector in self.vectors.items()}
        seen = {name: dict(vector) for name, vector in self.seen.items()}
        super()._deliver(waiting, effects)
        if not (self.defer and waiting.message.id in self._handed):
            self.vectors, self.seen = before, seen
            self._note(waiting.label.instance, waiting.label.operation, _printed(waiting))


def _printed(waiting: Waiting) -> Vector:
    return {member: (clock, no) for member, clock, no in waiting.stamp.vector}


class OnlyChangesCount(Objects):
    """The event number counts changing actions only: sends between two of them are not told apart."""

    def send(self, message: Message) -> Effects:
        clock = self.clock
        effects = super().send(message)
        label = message.label or PLAIN
        if label.type in (COMMIT, ABORT) or self.no % 2:
            return effects
        return _restamped(self, effects, clock) if clock else effects


def _restamped(order: Objects, effects: Effects, clock: int) -> Effects:
    """The same packets, at another time."""
    out: Effects = []
    for effect in effects:
        if isinstance(effect, Send) and effect.packet.kind == COPY:
            old: Stamp = effect.packet.stamp
            vector = tuple(entry for entry in old.vector if entry[1] < clock)
            stamp = Stamp(old.number, clock, min(old.no, clock - 1), vector, old.label)
            effect = Send(msgspec.structs.replace(effect.packet, stamp=stamp))
        out.append(effect)
    return out


class NumberOfTheInstance(Objects):
    """``tno`` begins with the number that the instance was given when it started."""

    starts: dict[str, int]

    def begin(self, message: Message) -> None:
        label = message.label or PLAIN
        vars(self).setdefault("starts", {}).setdefault(label.instance, self.clock + 1)
        super().begin(message)

    def send(self, message: Message) -> Effects:
        label = message.label or PLAIN
        start = vars(self).setdefault("starts", {}).setdefault(label.by_instance, self.clock + 1)
        return _restamped(self, super().send(message), start)


class NumberGoesBackwards(NumberOfTheInstance):
    """``RV_src := tno``, without a maximum: a message of an older instance takes away what a younger one's brought.
    That can be only where numbers are given to instances, as above; given at sends they never go back."""

    def _note(self, instance: str, operation: str, vector: Vector) -> None:
        super()._note(instance, operation, vector)
        for known in (self.vectors.get(instance), self.seen.get(operation)):
            if known is not None:
                known.update({member: event for member, event in vector.items() if member != self.me})


class ResponseRepeats(Objects):
    """A response carries the event number of its request."""

    requests: dict[str, int]

    def _deliver(self, waiting: Waiting, effects: Effects) -> None:
        vars(self).setdefault("requests", {})[waiting.label.instance] = waiting.stamp.clock
        super()._deliver(waiting, effects)

    def send(self, message: Message) -> Effects:
        label = message.label or PLAIN
        effects = super().send(message)
        clock = vars(self).get("requests", {}).get(label.by_instance)
        return _restamped(self, effects, clock) if label.type == RESPONSE and clock else effects


class NumbersAreText(Rules):
    """Event numbers are concatenated, and compared as text: "10i0" comes before "2j0"."""

    def before(self, earlier: Waiting, later: Waiting) -> bool:
        if super().before(earlier, later):
            if not self.precedes(earlier, later):
                return _text(earlier) < _text(later)
            return True
        agreed = [self.agreed(one.label, one.message.to) for one in (earlier, later)]
        conflict = self.relation.conflict(earlier.label.operation, later.label.operation)
        return all(agreed) and conflict and not self.precedes(later, earlier) and _text(earlier) < _text(later)


def _text(waiting: Waiting) -> str:
    return "".join(map(str, waiting.event))


class NextOfTheSenderIsEnough(Rules):
    """Stable (1): something later of the same sender is in; a predecessor from a third object may be missing."""

    def needed(self, waiting: Waiting) -> list[tuple[int, int]]:
        return [(waiting.source, waiting.stamp.clock)] if super().needed(waiting) else []


class AnythingOfEachIsEnough(Rules):
    """Heartbeats without clocks: that something has come from everybody says nothing."""

    def needed(self, waiting: Waiting) -> list[tuple[int, int]]:
        return [(member, min(time, 1)) for member, time in super().needed(waiting)]


def _ruled(rules: type[Rules]) -> type[Objects]:
    class Planted(Objects):
        judge = rules

    return Planted


class OnlyTheTop(Site):
    """Only the top of the queue is tried."""

    def _begin_ready(self) -> None:
        while self.table.queued():
            one = self.table.queued()[0]
            rivals = self.table.rivals(one)
            if not rivals:
                self.execution.begin(one)
                self._follow()
            elif not self._wound(one, [other for other in rivals if other.number > one.number]):
                return


class ResponsesWait(Site):
    """A response waits behind the requests that came before it, and so behind one that waits for its instance."""

    behind: list[Message]

    def _handed_over(self, message: Message) -> None:
        queue = vars(self).setdefault("behind", [])
        label = message.label or PLAIN
        if label.type == RESPONSE and self.table.queued():
            queue.append(message)
            return
        super()._handed_over(message)

    def _begin_ready(self) -> None:
        super()._begin_ready()
        queue = vars(self).setdefault("behind", [])
        while queue and not self.table.queued():
            super()._handed_over(queue.pop(0))
            self._follow()
            super()._begin_ready()


class Neglects(Site):
    """What is not ready is neglected: the message is gone."""

    def _begin_ready(self) -> None:
        super()._begin_ready()
        for one in self.table.queued():
            if one.pending:
                self.table.remove(one)


class NothingIsWounded(Site):
    """The theorem of §3.3 taken for more than it says: without wound–wait instances wait in a circle."""

    def _wound(self, one: Instance, younger: list[Instance]) -> bool:
        return False


class CommitsAtOnce(Execution):
    """Effects are applied when an instance is done, not when its root commits: an abort comes too late."""

    def _done(self, one: Instance, answer: Any) -> None:
        super()._done(one, answer)
        if one.parent:
            one.decided = True
            self._settle(one.root)


class LocksEndEarly(Table):
    """An instance that is done is in nobody's way, though its root may still abort. No message is out of order."""

    def _in_the_way(self, other: Instance, one: Instance) -> bool:
        return other.state != DONE and super()._in_the_way(other, one)


class AppliedBackwards(Execution):
    """What the instances of a root intended is applied in the reverse of the order in which they began."""

    def _settle(self, root: str) -> None:
        for one in (begun := self.table.begun(root)):
            if all(other.decided for other in begun):
                one.place = -one.place
        super()._settle(root)


class AppliedPieceByPiece(Execution):
    """What commits is applied at once, before it is known what else of its root lasts here."""

    def _settle(self, root: str) -> None:
        for one in self.table.begun(root):
            if one.decided:
                self.intentions.apply([one])
                self._close(one, COMMIT)


class StaleCopies(State):
    """After a call an operation goes on with what it read before it: what others of its root did meanwhile is lost."""

    def refresh(self, view: Object) -> None:
        pass


class AppliedTwice(Intentions):
    """An intention is applied when it is computed, and once more when its root commits."""

    def computed(self, begun: Sequence[Instance]) -> dict[str, Outcome]:
        return fold(self.live, begun)


class DigestIgnoresAField(State):
    """The digest does not change with the entries of one attribute: replicas that differ there seem equal."""

    def _entered(self, attribute: str, entries: Entries) -> list[Change]:
        changes = super()._entered(attribute, entries)
        if attribute == "boxes":
            changes = [msgspec.structs.replace(change, digest=0) for change in changes]
        return changes


class LostChange(State):
    """A list that was changed in place is taken for unchanged: only what is assigned counts."""

    def _replaced(self, attribute: str, after: Any, encoded: Any) -> list[Change]:
        return [] if encoded is not None else super()._replaced(attribute, after, encoded)


class YoungestFirst(Roots):
    """The root that was started last is admitted first."""

    def add(self, root: Root) -> None:
        super().add(root)
        self._waiting[self._operation(root)].rotate(1)


def _intending(kind: type[Intentions]) -> type[Site]:
    return _with(executing=type("Planted", (Execution,), {"intending": kind}))


def _stated(kind: type[State]) -> type[Site]:
    live = type("Planted", (Live,), {"state": kind})
    return _intending(type("Planted", (Intentions,), {"live_kind": live}))


BUGS: list[tuple[type[Site], Callable[[set[str]], bool]]] = [
    (_with(ordering=VectorOfTheMessage), lambda kinds: bool(kinds & {"conflict", "instance", "agreement"})),
    (_with(ordering=OnlyChangesCount), bool),
    (_with(ordering=NumberOfTheInstance), bool),
    (_with(ordering=NumberGoesBackwards), bool),
    (_with(ordering=ResponseRepeats), bool),
    (_with(ordering=_ruled(NumbersAreText)), bool),
    (
        _with(ordering=_ruled(NextOfTheSenderIsEnough)),
        lambda kinds: bool(kinds & {"conflict", "instance", "agreement"}),
    ),
    (_with(ordering=_ruled(AnythingOfEachIsEnough)), lambda kinds: bool(kinds & {"conflict", "instance", "agreement"})),
    (OnlyTheTop, lambda kinds: "stuck" in kinds),
    (ResponsesWait, lambda kinds: "stuck" in kinds),
    (Neglects, lambda kinds: "stuck" in kinds),
    (NothingIsWounded, lambda kinds: "stuck" in kinds),
    (_with(executing=CommitsAtOnce), lambda kinds: "stuck" in kinds),
    (_with(locking=LocksEndEarly), lambda kinds: kinds == {"serial"}),
    (_with(executing=AppliedBackwards), lambda kinds: kinds == {"serial"}),
    (_with(executing=AppliedPieceByPiece), lambda kinds: kinds == {"serial"}),
    (_stated(StaleCopies), bool),
    (_intending(AppliedTwice), lambda kinds: "stuck" in kinds),
    (_stated(DigestIgnoresAField), lambda kinds: kinds == {"stuck"}),
    (_stated(LostChange), lambda kinds: kinds == {"stuck"}),
]
NAMES = [
    "VectorOfTheMessage",
    "OnlyChangesCount",
    "NumberOfTheInstance",
    "NumberGoesBackwards",
    "ResponseRepeats",
    "NumbersAreText",
    "NextOfTheSenderIsEnough",
    "AnythingOfEachIsEnough",
    "OnlyTheTop",
    "ResponsesWait",
    "Neglects",
    "NothingIsWounded",
    "CommitsAtOnce",
    "LocksEndEarly",
    "AppliedBackwards",
    "AppliedPieceByPiece",
    "StaleCopies",
    "AppliedTwice",
    "DigestIgnoresAField",
    "LostChange",
]


@pytest.mark.parametrize(("site", "shows"), BUGS, ids=NAMES)
def test_misprint_is_caught(site: type[Site], shows: Callable[[set[str]], bool]) -> None:
    for seed in seeds(SEEDS):
        if shows(set(play(seed, site=site, workload=_workload(seed)).findings)):
            note(seed)
            return
    pytest.fail(f"not caught in {SEEDS} runs")


def test_the_runs_that_get_stuck_by_the_printed_rules() -> None:
    """The figures in docs/papers.md."""
    counts = {
        site: sum("stuck" in play(seed, site=site, workload=_workload(seed)).findings for seed in range(40))
        for site in (OnlyTheTop, ResponsesWait, Neglects, NothingIsWounded)
    }
    assert counts == {OnlyTheTop: 15, ResponsesWait: 14, Neglects: 23, NothingIsWounded: 17}


def test_a_root_that_is_admitted_out_of_order_is_caught() -> None:
    assert "admission" in play(0, site=_with(rooting=YoungestFirst), workload=_crowded(0)).findings
    assert not play(0, workload=_crowded(0)).findings


def test_the_protocol_as_read_passes_the_same_runs() -> None:
    for seed in range(30):
        judged = play(seed, workload=_workload(seed))
        assert not judged.findings, str(judged)
