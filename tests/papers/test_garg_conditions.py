"""Garg's problems 12.2, 12.3 and 12.5, by going through every small computation (``computations.py``)."""

import importlib.util
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from antecede.trace import DELIVER, SEND, Event, judge


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("computations", Path(__file__).with_name("computations.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_computations = _load()
computations: Callable[..., Iterator[Any]] = _computations.computations

EVERYWHERE = list(permutations(range(3), 2))
"""All links between three processes."""
STAR = [(0, leaf) for leaf in (1, 2, 3)] + [(leaf, 0) for leaf in (1, 2, 3)]
PATH = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]
RING = [(0, 1), (1, 2), (0, 2)]


def _small() -> Iterator[Any]:
    for messages in (1, 2, 3, 4):
        yield from computations(messages, EVERYWHERE)


def _mysterious(c: Any) -> bool:
    """Problem 12.2. Taken literally, x = y makes it false of every message; it can only be meant of two messages."""
    return all(not (c.happened_before(c.s(x), c.r(y)) and c.happened_before(c.s(y), c.r(x))) for x, y in c.pairs())


def test_12_2_a_causally_ordered_need_not_be_mysteriously_ordered() -> None:
    """Disproved: two messages that cross."""
    found = [c for c in computations(2, EVERYWHERE) if c.is_causal() and not _mysterious(c)]
    assert any(sorted(c.ends) == [(0, 1), (1, 0)] and all(line[0] % 2 == 0 for line in c.lines if line) for c in found)


def test_12_2_b_mysteriously_ordered_is_causally_ordered() -> None:
    """Proved: if x.s → y.s and y.r → x.r, then x.s → y.r and y.s → x.r. Here, of every small computation."""
    mysterious = [c for c in _small() if _mysterious(c)]
    assert len(mysterious) > 1_000
    assert all(c.is_causal() for c in mysterious)


def _c1(c: Any) -> bool:
    return all(not (c.happened_before(c.s(x), c.s(y)) and c.happened_before(c.r(y), c.r(x))) for x, y in c.pairs())


def _c2(c: Any) -> bool:
    return all(not (c.before_locally(c.s(x), c.s(y)) and c.happened_before(c.r(y), c.r(x))) for x, y in c.pairs())


def _c3(c: Any) -> bool:
    return all(not (c.happened_before(c.s(x), c.s(y)) and c.before_locally(c.r(y), c.r(x))) for x, y in c.pairs())


def test_12_3_the_three_conditions_are_equivalent() -> None:
    counts = {True: 0, False: 0}
    for c in _small():
        verdicts = {_c1(c), _c2(c), _c3(c)}
        assert len(verdicts) == 1, c.lines
        counts[verdicts.pop()] += 1
    assert min(counts.values()) > 100


def test_fifo_is_weaker_than_all_three() -> None:
    """§12.1: with ≺ on both sides nothing is said about chains."""
    assert all(c.is_fifo() for c in _small() if _c1(c))
    assert any(c.is_fifo() and not _c1(c) for c in _small())


def test_12_5_on_a_star_fifo_is_causal() -> None:
    count = 0
    for messages in (2, 3, 4):
        for c in computations(messages, STAR):
            if c.is_fifo():
                count += 1
                assert c.is_causal(), c.lines
    assert count > 4_000


def test_on_a_tree_fifo_is_causal() -> None:
    """Where traffic follows a tree, FIFO on each link implies causal order. A path is no star."""
    count = 0
    for messages in (2, 3, 4):
        for c in computations(messages, PATH):
            if c.is_fifo():
                count += 1
                assert c.is_causal(), c.lines
    assert count > 3_000


def test_on_a_ring_fifo_is_not_causal() -> None:
    """One link more than a tree, and the chain of Fig. 12.1 is there."""
    assert any(c.is_fifo() and not c.is_causal() for c in computations(3, RING))


@pytest.mark.parametrize("links", [EVERYWHERE, STAR], ids=["everywhere", "star"])
def test_oracle_says_the_same(links: list[tuple[int, int]]) -> None:
    for c in computations(3, links):
        events = [
            Event(f"P{p}", index, DELIVER, f"m{event // 2}")
            if event % 2
            else Event(f"P{p}", index, SEND, f"m{event // 2}", (f"P{c.ends[event // 2][1]}",))
            for p, line in enumerate(c.lines)
            for index, event in enumerate(line)
        ]
        verdict = judge(events, ("fifo", "causal"))
        assert verdict.holds("fifo") == c.is_fifo()
        assert verdict.holds("causal") == c.is_causal()
