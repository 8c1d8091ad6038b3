"""Several objects as one: operations, states as bytes with their types, what does not fit."""

import re
from collections.abc import Generator
from typing import Any

import msgspec
import pytest

from antecede import limits
from antecede.errors import ObjectError
from antecede.objects import (
    Call,
    CallFailed,
    Live,
    Outcome,
    ReplicatedObject,
    compute,
    hosting,
    initial,
    operation,
    operations_of,
    relation_of,
    run,
    state_in,
)


class Entry(msgspec.Struct):
    who: str
    amount: int


class Book(ReplicatedObject):
    entries: tuple[Entry, ...] = ()
    by_number: dict[int, str]
    tags: set[str]

    def __init__(self) -> None:
        self.by_number = {}
        self.tags = set()

    @operation(conflicts_with=["enter"])
    def enter(self, entry: Entry) -> int:
        self.entries = (*self.entries, entry)
        return len(self.entries)

    @operation
    def tag(self, number: int, tag: str = "new") -> None:
        self.by_number[number] = tag
        self.tags.add(tag)

    @operation
    def copy(self, to: str) -> Generator[Call, Any, str]:
        self.tags.add("copied")
        try:
            answer: str = yield Call(to, "tag", (1,))
        except CallFailed as error:
            answer = f"failed: {error}"
        self.tags.add("answered")
        return answer

    @operation
    def everything(self) -> dict[str, Any]:
        return {"entries": self.entries, "tags": sorted(self.tags)}

    @operation
    def large(self) -> bytes:
        return b"." * (limits.letter_bytes_max + 1)

    @operation
    def odd(self) -> None:
        self.thing = object()

    @operation
    def grow(self, levels: int) -> None:
        self.thing = _nested(levels)

    @operation
    def swell(self, bytes_: int) -> None:
        self.thing = b"." * bytes_

    @operation
    def show(self, levels: int) -> Any:
        return _nested(levels)

    @operation
    def send(self, levels: int, bytes_: int) -> Generator[Call, Any, None]:
        yield Call("book", "swell", (_nested(levels), b"." * bytes_))

    @operation
    def gather(self, first: int, *rest: int, last: str = "") -> list[Any]:
        return [first, *rest, last]


def _nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


_kind = hosting({"book": Book, "shelf.2": Book})


def _computed(state: dict[str, Any], name: str, *arguments: Any, answers: Any = ()) -> Outcome:
    return compute(_kind, state, name, arguments, answers)


def test_operations_are_named_after_their_object_and_conflict_within_it() -> None:
    assert {"call", "book.enter", "shelf.2.enter"} <= operations_of(_kind).keys()
    relation = relation_of(_kind)
    assert relation.pairs() == [("book.enter", "book.enter"), ("shelf.2.enter", "shelf.2.enter")]


def test_types_come_back() -> None:
    outcome = _computed(initial(_kind), "book.enter", {"who": "al", "amount": 3})
    outcome = _computed(outcome.state, "book.tag", 7)
    outcome = _computed(outcome.state, "book.everything")
    assert outcome.answer == (True, {"entries": [{"who": "al", "amount": 3}], "tags": ["new"]})
    state = state_in(Book, "book", outcome.state)
    assert state == {"entries": (Entry("al", 3),), "by_number": {7: "new"}, "tags": {"new"}}
    assert outcome.state["shelf.2"] == initial(_kind)["shelf.2"]


def test_states_are_alike_whatever_the_sequence_of_compatible_operations() -> None:
    one = _computed(_computed(initial(_kind), "book.tag", 1, "b").state, "book.tag", 2, "a").state
    other = _computed(_computed(initial(_kind), "book.tag", 2, "a").state, "book.tag", 1, "b").state
    assert one == other


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("book.tag", ("x",), "TypeError: tag: Expected `int`, got `str`"),
        ("book.tag", (1, "a", "b"), "TypeError: too many positional arguments"),
        ("book.enter", ({"who": 3},), "TypeError: enter: "),
        ("book.large", (), "ValueError: answer of "),
        ("book.odd", (), "TypeError: "),
        ("book.gather", (1, 2, "3"), "TypeError: gather: Expected `int`, got `str`"),
        ("book.grow", (limits.call_depth_max,), "ValueError: state of book nested deeper than 64"),
        ("book.show", (limits.call_depth_max + 1,), "ValueError: answer nested deeper than 64"),
        ("book.send", (limits.call_depth_max, 0), "ValueError: arguments of swell nested deeper than 64"),
        ("book.send", (0, limits.letter_bytes_max), "ValueError: arguments of swell of 8388615 bytes: at most"),
        ("book.swell", (limits.object_state_bytes_max,), "ValueError: state of book has "),
        ("book.none", (), "Book has no operation 'none' (it has: copy, enter, "),
        ("shelf.2.none", (), "Book has no operation 'none' (it has: copy, enter, "),
        ("book.no.ne", (), "Book has no operation 'no.ne' (it has: copy, enter, "),
    ],
)
def test_what_does_not_fit_is_the_failure_of_that_operation(name: str, arguments: tuple[Any, ...], reason: str) -> None:
    before = initial(_kind)
    outcome = _computed(before, name, *arguments)
    assert outcome.answer is not None
    assert not outcome.answer[0]
    assert str(outcome.answer[1]).startswith(reason)
    assert outcome.state == before


def test_what_just_fits() -> None:
    before = initial(_kind)
    depth = limits.call_depth_max
    assert _computed(before, "book.show", depth).answer == (True, _nested(depth))
    state = _computed(before, "book.grow", depth - 1).state
    assert state_in(Book, "book", state)["thing"] == _nested(depth - 1)
    room = limits.object_state_bytes_max - len(before["book"]) - len(b"\xa5thing") - 5
    assert _computed(before, "book.swell", room).answer == (True, None)
    assert _computed(before, "book.swell", room + 1).answer != (True, None)
    assert _computed(before, "book.send", depth - 1, limits.letter_bytes_max - 100).answer is None
    assert _computed(before, "book.gather", 1, 2, 3).answer == (True, [1, 2, 3, ""])


def test_a_nested_call_waits_goes_on_and_may_fail() -> None:
    outcome = _computed(initial(_kind), "book.copy", "other")
    assert outcome.answer is None
    assert outcome.calls == [Call("other", "tag", (1,))]
    outcome = _computed(initial(_kind), "book.copy", "other", answers=[(True, "fine")])
    assert outcome.answer == (True, "fine")
    assert state_in(Book, "book", outcome.state)["tags"] == {"copied", "answered"}
    outcome = _computed(initial(_kind), "book.copy", "other", answers=[(False, "no")])
    assert outcome.answer == (True, "failed: no")


def test_what_others_of_the_root_do_within_a_call_is_seen_after_it() -> None:
    live = Live(_kind)
    live.load(initial(_kind))

    def between(number: int) -> None:
        assert (number, state_in(Book, "book", live.dump())["tags"]) == (1, {"copied"})
        assert run(live, "book.tag", (5, "between")).answer == (True, None)

    assert run(live, "book.copy", ("book",), [(True, None)], between).answer is not None
    assert state_in(Book, "book", live.dump())["tags"] == {"copied", "between", "answered"}


def test_asynchronous_operations_are_refused() -> None:
    class Slow(ReplicatedObject):
        @operation
        async def wait(self) -> None:
            pass

    with pytest.raises(ObjectError, match=r"Slow\.wait is asynchronous"):
        hosting({"slow": Slow})


class Misspelt(ReplicatedObject):
    @operation
    def do(self, what: "Nothing") -> None: ...  # type: ignore[name-defined]  # noqa: F821


class Demanding(ReplicatedObject):
    def __init__(self, wanted: int) -> None:
        self.wanted = wanted


class Opaque(ReplicatedObject):
    def __init__(self) -> None:
        self.inside = object()


class Unfitting(ReplicatedObject):
    count: int = "none"  # type: ignore[assignment]


class Remark(msgspec.Struct):
    text: str


class Ambiguous(ReplicatedObject):
    either: Entry | Remark | None = None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Misspelt, "Misspelt.do: name 'Nothing' is not defined"),
        (Demanding, "cannot be created and saved: TypeError"),
        (Opaque, "cannot be created and saved: TypeError"),
        (Ambiguous, "Ambiguous: If a type union contains multiple Struct types"),
        (Unfitting, "cannot be created and saved: ValidationError"),
    ],
)
def test_a_class_that_cannot_be_held_is_refused_before_any_call(kind: type[ReplicatedObject], reason: str) -> None:
    with pytest.raises(ObjectError, match=re.escape(reason)):
        hosting({"one": kind})
