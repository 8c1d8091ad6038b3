"""The live state of an object: it costs what is touched, and is what a copy of everything would be."""

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from antecede import ReplicatedObject, limits, operation
from antecede.objects import UNTYPED, Entries, Live, State, encode_state, forms_of, hosting, initial, state_in
from antecede.objects import state as values


class Part(msgspec.Struct):
    number: int
    tags: list[str]


class Mixed(ReplicatedObject):
    """Every form of cell: of each operation there are many, all drawn."""

    total: int = 0
    pair: tuple[int, int] = (0, 0)
    log: list[int]
    names: dict[str, int]
    rows: dict[str, list[int]]
    parts: dict[str, Part]
    seen: set[str]

    def __init__(self) -> None:
        self.log, self.names, self.rows, self.parts, self.seen = [], {}, {}, {}, set()
        self.free: Any = {}

    @operation
    def act(self, seed: int) -> Any:
        random = Random(seed)
        answers = [random.choice(_deeds)(self, random) for _ in range(random.randrange(1, 6))]
        if random.random() < 0.2:
            raise ValueError("as drawn")
        return answers


def _row(one: Any, random: Random) -> Any:
    one.rows.setdefault(str(random.randrange(5)), []).append(random.randrange(9))
    return {key: list(row) for key, row in one.rows.items()}


def _part(one: Any, random: Random) -> Any:
    name = random.choice("abc")
    part = one.parts.get(name) or Part(0, [])
    part.number += 1
    part.tags.append(name)
    one.parts[name] = part
    return [found.number for found in one.parts.values()]


def _alias(one: Any, random: Random) -> Any:
    one.free["log"] = one.log
    one.log.append(len(one.log))
    one.free["names"] = one.names
    one.names["alias"] = random.randrange(9)
    return str(one.free)


def _drop(one: Any, random: Random) -> Any:
    key = random.choice([*one.names, ""])
    return [one.names.pop(key, None), "total" in vars(one), sorted(one.names | {"z": 1})]


def _again(one: Any, random: Random) -> Any:
    """A key that is removed and comes back is the last one."""
    if one.names:
        key = next(iter(one.names))
        one.names[key] = one.names.pop(key) + 1
    return list(one.names)


def _replace(one: Any, random: Random) -> Any:
    one.names = {key: value for key, value in one.names.items() if random.random() < 0.8}
    one.pair = (one.pair[1], random.randrange(9))
    return list(one.pair)


def _remove(one: Any, random: Random) -> Any:
    if hasattr(one, "free"):
        del one.free
    one.free = {"fresh": [random.randrange(9)]}
    return one.free


def _count(one: Any, random: Random) -> Any:
    one.total += 1
    one.names[random.choice("mkjh")] = one.total
    one.seen.add(random.choice("pq"))
    one.names.update(x=1)
    return [one.total, one.names, sorted(one.seen)]


def _pop(one: Any, random: Random) -> Any:
    if len(one.names) > 3:
        one.names.popitem()
    if random.random() < 0.1:
        one.rows.clear()
    return [(key, value) for key, value in reversed(one.names.items())] if one.names else []


_deeds: list[Callable[[Any, Random], Any]] = [
    _row, _part, _alias, _drop, _again, _replace, _remove, _count, _pop,
]  # fmt: skip


def _whole(kind: type[ReplicatedObject], kept: bytes, seed: int) -> tuple[bytes, Any]:
    """The same operation on a copy of everything, as bytes in and out."""
    one: Any = kind.__new__(kind)
    one.__dict__.update(state_in(kind, "one", {"one": kept}))
    try:
        answer = msgspec.msgpack.decode(msgspec.msgpack.encode(one.act(seed)))
    except ValueError:
        return kept, "failed"
    return encode_state(one.__dict__), answer


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_operations_do_to_the_live_state_what_they_do_to_a_copy(first: int) -> None:
    kind = hosting({"one": Mixed})
    live = Live(kind)
    live.load(initial(kind))
    state = live.states["one"]
    expected = state.encoded()
    run = kind._operations["one.act"]
    for seed in range(first, first + 100):
        undone = seed % 4 == 0
        after, answer = _whole(Mixed, expected, seed)
        try:
            found = run(live, seed)
        except ValueError:
            found = "failed"
            live.discard()
            live.rollback()
        assert found == answer, seed
        assert state.encoded() == after, seed
        if undone:
            changes = live.rollback()
            assert state.encoded() == expected, seed
            live.redo(changes)
            assert state.encoded() == after, seed
        live.commit()
        expected = after
        assert (state.content, state.digest) == state.recomputed(), seed
        assert state.size == len(after), seed


def test_equal_states_have_equal_digests_and_behave_alike() -> None:
    kind = hosting({"one": Mixed})
    run = kind._operations["one.act"]
    one, other = Live(kind), Live(kind)
    one.load(initial(kind))
    for seed in range(40):
        try:
            run(one, seed)
        except ValueError:
            one.discard()
    other.load(one.dump())
    assert one.states["one"].digest == other.states["one"].digest
    assert repr(one.dump()) == repr(other.dump())
    for live in (one, other):
        live.commit()
    view, again = one.states["one"].view(), other.states["one"].view()
    assert repr(vars(view)["names"]) == repr(vars(again)["names"])
    run(one, 1001)
    assert one.states["one"].digest != other.states["one"].digest


class Counting(Entries):
    """Counts the entries that are read out."""

    copies = 0

    def __getitem__(self, key: Any) -> Any:
        Counting.copies += 1
        return super().__getitem__(key)


class Counted(State):
    entries = Counting


def test_an_operation_touches_only_the_cells_that_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Counted("one", Mixed, forms_of(Mixed), UNTYPED)
    state.load(
        {**initial(Mixed), "rows": {str(number): [number] for number in range(10_000)}, "log": list(range(10_000))}
    )
    encoded: list[int] = []
    monkeypatch.setattr(values, "encode_state", lambda value: encoded.append(1) or encode_state(value))
    Counting.copies = 0
    view: Any = state.view()
    view.rows["7"].append(1)
    view.total += 1
    changes = state.keep(view)
    assert Counting.copies == 1
    assert len(encoded) < 10
    assert [(change.key, change.after) for change in changes] == [("7", [7, 1]), ("total", 1)]
    assert state.attributes()["rows"]["7"] == [7, 1]


def test_a_failed_keep_changes_nothing() -> None:
    state = State("one", Mixed, forms_of(Mixed), UNTYPED)
    state.load(initial(Mixed))
    before = state.encoded()
    for spoil in (
        lambda view: view.names.update(a="no number"),
        lambda view: view.rows.update({"1": [object()]}),
        lambda view: setattr(view, "free", _nested(limits.call_depth_max)),
        lambda view: view.free.update(a=_nested(limits.call_depth_max - 1)),
    ):
        view: Any = state.view()
        view.total += 1
        view.rows["5"] = [5]
        spoil(view)
        with pytest.raises((TypeError, ValueError)):
            state.keep(view)
        state.discard()
        assert state.encoded() == before
        assert (state.content, state.digest) == state.recomputed()


def _nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def test_bounds_on_depth_hold_for_an_entry_too() -> None:
    state = State("one", Mixed, forms_of(Mixed), UNTYPED)
    state.load(initial(Mixed))
    view: Any = state.view()
    view.free["a"] = _nested(limits.call_depth_max - 2)
    state.keep(view)
    encode_state(state.cells)
