"""Three objects and three operations, every interleaving of sends and arrivals, held to the definition of →.

The order under test keeps vectors. Beside it runs the definition itself: every message carries the set of all messages
that significantly precede it, worked out from what its object has sent and received by conflicting operations, and a
delivery that overtakes one of them is an exception, which the explorer reports as the shortest run that shows it.
Requests of conflicting operations to several objects must come in one order in every outcome; compatible ones must be
reachable in different orders, or the order would order too much.
"""

from itertools import combinations, permutations
from typing import Any

import msgspec
import pytest

from antecede.messages import REQUEST, Deliver, Effects, Label, Message, Packet, Verdict
from antecede.orders import Objects, Rules, Waiting
from antecede.simulator.explorer import Program, ProgramSend, Result, explore

Known = dict[str, tuple[str, int]]
"""Messages by id: the operation that receives each, and where it goes."""


class Overtaken(Exception):
    """A delivery that significant order forbids."""


class Watched(Objects):
    """The order, and the definition of significant precedence beside it. Message n of object k is labelled by
    ``labels[k][n]``: the operation that sends it, the operation that receives it."""

    labels: tuple[tuple[tuple[str, str], ...], ...]

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.past: dict[str, Known] = {}
        """By operation: all that its instances here sent and received, with all that precedes those."""
        self.delivered: list[str] = []

    def send(self, message: Message) -> Effects:
        source, number = map(int, message.id.split("."))
        by, operation = self.labels[source][number]
        known: Known = {}
        for other, past in self.past.items():
            if self.relation.conflict(by, other):
                known |= past
        payload = msgspec.msgpack.encode(known)
        message = msgspec.structs.replace(message, payload=payload, label=Label(REQUEST, operation, "", by))
        self.past[by] = {**self.past.get(by, {}), **known, message.id: (operation, message.to)}
        return self._watched(super().send(message))

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        verdict, effects = super().receive(packet)
        return verdict, self._watched(effects)

    def _watched(self, effects: Effects) -> Effects:
        for effect in effects:
            if isinstance(effect, Deliver):
                self._deliver_watched(effect.message)
        return effects

    def _deliver_watched(self, message: Message) -> None:
        assert message.label is not None
        operation = message.label.operation
        known = msgspec.msgpack.decode(message.payload, type=Known)
        for earlier, (other, to) in known.items():
            if to >> self.me & 1 and self.relation.conflict(other, operation) and earlier not in self.delivered:
                raise Overtaken(f"{message.id} overtakes {earlier}")
        self.delivered.append(message.id)
        self.past[operation] = {**self.past.get(operation, {}), **known, message.id: (operation, message.to)}

    def dump(self) -> Any:
        past = [(name, sorted((id_, *rest) for id_, rest in known.items())) for name, known in self.past.items()]
        return (super().dump(), sorted(past), list(self.delivered))

    def load(self, state: Any) -> None:
        inner, past, delivered = state
        super().load(inner)
        self.past = {name: {id_: (operation, to) for id_, operation, to in known} for name, known in past}
        self.delivered = list(delivered)


RELATIONS = ("a~b", "a~a+b~c", "a~b+b~c", "a~a+a~b+a~c", "a~a+a~b+a~c+b~b+b~c+c~c", "none")
"""From nothing to all; in the third a and c both conflict with b and not with each other."""

ONE_EACH = tuple((ProgramSend(0b111 & ~(1 << me), name=name),) for me, name in enumerate("xyz"))
"""Each object sends one request to the two others."""

CHAIN: Program = (
    (ProgramSend(0b100, name="x"), ProgramSend(0b010, name="y")),
    (ProgramSend(0b100, after=1, name="z"),),
    (),
)
"""x to the third object, y to the second, which then sends z to the third: z may or may not follow from x."""


def _explored(labels: Any, program: Program, kind: type[Watched] = Watched, **options: str) -> Result:
    class Labelled(kind):  # type: ignore[valid-type, misc]
        pass

    Labelled.labels = labels
    return explore(lambda me, members: Labelled(me, members, **options), program=program)


@pytest.mark.parametrize("relation", RELATIONS)
def test_three_requests_of_three_operations(relation: str) -> None:
    labels = tuple(((name, name),) for name in "abc")
    result = _explored(labels, ONE_EACH, conflicts=relation)
    assert result.violation is None, result.violation.scenario
    assert len(result.outcomes) > 1


def _conflict(relation: str, one: str, other: str) -> bool:
    return any({one, other} == set(pair.split("~")) for pair in relation.split("+"))


@pytest.mark.parametrize(("operations", "relation"), [("aab", "a~a"), ("abc", "a~b+b~c"), ("aaa", "none")])
def test_three_requests_to_two_objects(operations: str, relation: str) -> None:
    """Whatever two of them conflict come in one order at both objects; all others do not have to."""
    program: Program = tuple((ProgramSend(0b011, name=name),) for name in "xyz")
    result = _explored(tuple(((name, name),) for name in operations), program, conflicts=relation)
    assert result.violation is None, result.violation.scenario
    for one, other in combinations(range(3), 2):
        first, second = "xyz"[one], "xyz"[other]
        ways = {tuple(seen.index(first) < seen.index(second) for seen in outcome[:2]) for outcome in result.outcomes}
        crossed = any(len(set(way)) > 1 for way in ways)
        assert crossed is not _conflict(relation, operations[one], operations[other])


@pytest.mark.parametrize("relation", RELATIONS)
def test_everybody_gets_two_requests(relation: str) -> None:
    """Two requests to all three objects: in one order everywhere iff they conflict."""
    program: Program = ((ProgramSend(0b111, name="x"),), (ProgramSend(0b111, name="y"),), ())
    for one, other in (("a", "b"), ("a", "c"), ("a", "a")):
        result = _explored((((one, one),), ((other, other),), ()), program, conflicts=relation)
        assert result.violation is None, result.violation.scenario
        crossed = any(len(set(outcome)) > 1 for outcome in result.outcomes)
        assert crossed is not _conflict(relation, one, other)
        assert {seen for outcome in result.outcomes for seen in outcome} == {("x", "y"), ("y", "x")}


@pytest.mark.parametrize("clocks", ["eager", "asked"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_chain_through_operations(relation: str, clocks: str) -> None:
    """Nothing overtakes what precedes it. z passes x unless y precedes z and x conflicts with z: an object vector has
    one number an object, so that what the first object sent before y counts as preceding z, too."""
    for first, second, third in permutations("abc"):
        labels = (((first, first), (second, second)), ((third, third),), ())
        result = _explored(labels, CHAIN, conflicts=relation, clocks=clocks)
        assert result.violation is None, result.violation.scenario
        passes = ("z", "x") in {outcome[2] for outcome in result.outcomes}
        assert passes is not (_conflict(relation, second, third) and _conflict(relation, first, third))


class _NothingWaits(Rules):
    def needed(self, waiting: Waiting) -> list[tuple[int, int]]:
        return []


def test_the_watcher_sees_a_broken_order() -> None:
    class Broken(Watched):
        judge = _NothingWaits

    labels = ((("a", "a"), ("a", "a")), (("a", "a"),), ())
    result = _explored(labels, CHAIN, Broken, conflicts="a~a")
    assert result.violation is not None
    assert "overtakes" in result.violation.text
