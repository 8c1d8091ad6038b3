"""The parts of an object, each by itself: roots and wounds, who answers a call, and what decides how it ended."""

import inspect
import sys
from collections.abc import Generator
from math import nan
from typing import Any

import pytest

from antecede import Call, CallFailed, ReplicatedObject, limits, operation
from antecede.errors import ObjectError
from antecede.objects import (
    Answered,
    Instance,
    Intentions,
    Made,
    Object,
    Placed,
    Placement,
    Root,
    Roots,
    Table,
    Wounds,
    group,
)
from antecede.orders import Relation
from antecede.testing import World


def _root(number: int, deadline: float | None = None) -> Root:
    return Root(f"a.{number}", "op", (), (0, 0, number), 1, deadline)


_conflicts = Relation([("op", "op"), ("op", "other")])


def _started(count: int) -> Roots:
    roots = Roots(_conflicts)
    for number in range(1, count + 1):
        roots.add(_root(number))
    return roots


def test_roots_begin_up_to_the_bound_and_the_oldest_first() -> None:
    most = limits.roots_rival_max
    roots = _started(most + 2)
    assert [root.name for root in roots.admitted()] == [f"a.{number}" for number in range(1, most + 1)]
    assert roots.admitted() == []
    # One that rests still counts: it comes back.
    roots.rest("a.1")
    assert roots.admitted() == []
    roots.end(roots.running["a.2"])
    assert [root.name for root in roots.admitted()] == [f"a.{most + 1}"]


def _drawn(number: int, operation: str, size: int = 0) -> Root:
    return Root(f"a.{number}", operation, (), (0, 0, number), size=size)


def test_compatible_roots_are_not_limited_by_conflicts_and_overtake_only_what_they_do_not_conflict_with() -> None:
    most = limits.roots_rival_max
    roots = _started(most + 1)
    for number, name in enumerate(("free", "other", "free", "op"), most + 2):
        roots.add(_drawn(number, name))
    # The last of the first kind waits, and so do all that conflict with it: an older root must not be overtaken.
    assert [root.number[2] for root in roots.admitted()] == [*range(1, most + 1), most + 2, most + 4]
    for number in range(1, most + 1):
        roots.end(roots.running[f"a.{number}"])
    assert [root.operation for root in roots.admitted()] == ["op", "other"]
    assert [root.operation for root in roots.waiting] == ["op"]


def test_compatible_roots_are_limited_by_number_and_by_bytes() -> None:
    roots = Roots(_conflicts)
    for number in range(1, limits.roots_running_max + 3):
        roots.add(_drawn(number, "free"))
    assert len(roots.admitted()) == limits.roots_running_max
    roots.end(roots.running["a.1"])
    assert [root.name for root in roots.admitted()] == [f"a.{limits.roots_running_max + 1}"]
    roots = Roots(_conflicts)
    half = limits.roots_running_bytes_max // 2
    for number, size in enumerate((half, half, 1, 3 * half, 1), 1):
        roots.add(_drawn(number, "free", size))
    assert [root.number[2] for root in roots.admitted()] == [1, 2]
    roots.end(roots.running["a.1"])
    assert [root.number[2] for root in roots.admitted()] == [3], "the fourth is too large, and is not overtaken"
    roots.end(roots.running["a.2"])
    roots.end(roots.running["a.3"])
    assert [root.number[2] for root in roots.admitted()] == [4], "alone"


def test_the_first_deadline_is_known_without_a_search() -> None:
    roots = Roots(Relation([]))
    for number, deadline in enumerate((5.0, 3.0, None, 4.0), 1):
        roots.add(_root(number, deadline))
    assert roots.deadline() == 3.0
    roots.admitted()
    roots.end(roots.running["a.2"])
    assert roots.deadline() == 4.0
    assert [root.name for root in roots.late(4.5)] == ["a.4"]
    other = Roots(Relation([]))
    other.load(*roots.dump())
    assert other.deadline() == 4.0, "a root that is late and runs is ended by its site"


def test_a_wounded_root_runs_again_under_a_new_name_with_its_old_number() -> None:
    roots = _started(1)
    roots.admitted()
    assert roots.rest("a.1") is None
    again = roots.heal("a.1")
    assert again is not None
    assert (again.attempt, again.number, list(roots.running)) == ("a.1~2", (0, 0, 1), ["a.1~2"])
    assert roots.heal("a.1") is None


def test_a_root_that_was_healed_before_it_was_wounded_does_not_rest() -> None:
    roots = _started(1)
    roots.admitted()
    assert roots.heal("a.1") is None
    again = roots.rest("a.1")
    assert again is not None
    assert again.attempt == "a.1~2"
    assert not roots.resting
    assert roots.rest("a.1~2") is None


def test_roots_are_what_was_written_down() -> None:
    roots = _started(limits.roots_rival_max + 1)
    roots.admitted()
    roots.rest("a.1")
    roots.heal("a.2")
    other = Roots(_conflicts)
    other.load(*roots.dump())
    assert other.dump() == roots.dump()
    assert [root.name for root in other] == [root.name for root in roots]


def test_a_snapshot_keeps_the_sequence_of_roots_and_of_instances() -> None:
    """It decides which of several late roots ends first, and which of several rivals makes way first."""
    roots, table = Roots(_conflicts), Table(_conflicts)
    for number, name in enumerate(("c.1", "b.2", "a.3"), 1):
        roots.add(Root(name, "op", (), (0, 0, number), 1, 5.0))
        table.queue(Instance(name, "op", (), name, (0, 0, number), "", 0))
    for root in roots.admitted():
        table.begin(table.instances[root.name])
    last = Instance("z.4", "op", (), "z.4", (0, 0, 4), "", 0)
    table.queue(last)
    other_roots, other_table = Roots(_conflicts), Table(_conflicts)
    other_roots.load(*roots.dump())
    other_table.load(table.dump())
    assert [root.name for root in other_roots.late(6.0)] == ["c.1", "b.2", "a.3"]
    assert [one.id for one in other_table.rivals(other_table.instances["z.4"])] == ["c.1", "b.2", "a.3"]


def test_wounds_are_healed_when_the_instance_that_they_were_for_has_ended() -> None:
    older = Instance("a.1", "op", (), "a.1", (0, 0, 1), "", 0)
    younger = Instance("b.1/1", "op", (), "b.1", (5, 1, 1), "b.1", 0)
    wounds = Wounds()
    wounds.add(older, younger)
    assert "b.1" in wounds
    assert wounds.healed(younger, last=True) == []
    assert "b.1" not in wounds
    assert wounds.healed(older, last=True) == [(1, "b.1")]
    assert wounds.healed(older, last=True) == []


class Book(ReplicatedObject):
    @operation
    def read(self) -> float:
        return 0.0


def _placement() -> Placement:
    return Placement(("s1", "s2", "s3"), (Placed("book", ("s1", "s2", "s3"), Book),), 0)


@pytest.mark.parametrize(
    ("answers", "agreed"),
    [
        ((1, 1, 1), True),
        ((nan, nan, nan), True),
        ((1, 1, 2), False),
        # The second is written as the first is, though not equal to it: that must not hide the third.
        ((nan, nan, 1), False),
    ],
)
def test_replicas_agree_if_all_of_them_do(answers: tuple[float, ...], agreed: bool) -> None:
    ok, answer = _placement().united(Made("book.read", 0b111), {at: (True, one) for at, one in enumerate(answers)})
    assert ok is agreed
    assert agreed or "is a conflict not declared?" in answer


@pytest.mark.parametrize(
    ("to", "reason"),
    [(("book", "book"), "a call to several objects: expected one object"), ("shelf", "no object 'shelf'")],
)
def test_a_call_that_reaches_nobody_is_refused(to: Any, reason: str) -> None:
    with pytest.raises(ObjectError, match=reason):
        _placement().destination(Call(to, "read"))
    assert _placement().destination(Call("book", "read")) == (0b111, "book.read")


class Tally(Object):
    """Counts how often it is computed, which no object should know."""

    value: int = 1
    computed = 0

    @operation
    def add(self, amount: int) -> int:
        Tally.computed += 1
        self.value += amount
        return self.value

    @operation
    def double(self) -> int:
        self.value *= 2
        return self.value


def _instance(root: str, name: str, *arguments: Any) -> Instance:
    return Instance(root, name, arguments, root, (0, 0, 1), "", 1)


def test_an_operation_is_computed_once_if_nothing_comes_between_it_and_its_commit() -> None:
    Tally.computed = 0
    intentions = Intentions(Tally)
    one = _instance("a.1", "add", 2)
    assert intentions.computed([one])["a.1"].answer == (True, 3)
    assert intentions.state == {"value": 1}, "an intention is not a commit"
    intentions.apply([one])
    assert (intentions.state, Tally.computed) == ({"value": 3}, 1)


@pytest.mark.parametrize("between", ["commit", "snapshot"])
def test_an_intention_is_computed_again_if_the_state_has_changed(between: str) -> None:
    intentions = Intentions(Tally)
    one, other = _instance("a.1", "add", 2), _instance("b.1", "double")
    intentions.computed([one])
    if between == "commit":
        intentions.apply([other])
    else:
        intentions.restore({"value": 2})
    assert intentions.computed([one])["a.1"].answer == (True, 4)
    intentions.apply([one])
    assert intentions.state == {"value": 4}
    again = _instance("a.1", "add", 5)
    again.place = 2
    assert intentions.computed([again])["a.1"].answer == (True, 9), "another instance of that name"


class Stubborn(Object):
    """Calls objects that do not exist, again and again, and goes on."""

    @operation
    def insist(self, times: int) -> Generator[Call, Any, int]:
        failed = 0
        for _ in range(times):
            try:
                yield Call("nobody", "insist")
            except CallFailed:
                failed += 1
        return failed


def test_many_calls_that_cannot_be_sent_need_no_deep_stack() -> None:
    """How deep the stack may grow depends on the caller: an outcome that depends on it could differ at replicas."""
    site = group({"a": Stubborn}).create(0, 1)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 120)
    try:
        _, effects = site.start("insist", (200,))
    finally:
        sys.setrecursionlimit(before)
    assert [(one.ok, one.answer) for one in effects if isinstance(one, Answered)] == [(True, 200)]
    assert site.unended() == []


class Teller(ReplicatedObject):
    """Fails with words that the protocol uses itself."""

    @operation
    def say(self, words: str) -> None:
        raise RuntimeError(words)

    @operation
    def pass_on(self, words: str) -> Generator[Call, Any, None]:
        yield Call("teller", "say", (words,))


TOPOLOGY = """
[servers]
s1 = "tcp://127.0.0.1:7101"
s2 = "tcp://127.0.0.1:7102"
[domains]
A = { servers = ["s1", "s2"], order = "objects" }
[agents]
teller = { servers = ["s1", "s2"], class = "x:Teller" }
"""


def test_no_word_of_a_reason_decides_how_a_call_ended() -> None:
    world = World(TOPOLOGY, agents={"teller": Teller})
    timeout = "timeout: the call took too long and was aborted"
    for called, words in (("say", timeout), ("say", "CallFailed: no"), ("pass_on", "no")):
        world.call("al@s1", "teller", called, words)
        world.run()
    assert [(one.ok, one.late, one.reason) for one in world.returned("al@s1")] == [
        (False, False, f"RuntimeError: {timeout}"),
        (False, False, "RuntimeError: CallFailed: no"),
        (False, False, "CallFailed: RuntimeError: no"),
    ]
    world.check()
