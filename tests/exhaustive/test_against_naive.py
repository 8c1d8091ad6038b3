"""The explorer's reduction against plain brute force: same outcomes, same verdicts, same length of the shortest run."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from antecede.orders import parse
from antecede.simulator.explorer import Program, ProgramSend, explore

_quick = ["none", "fifo", "matrix", "updates", "pruned", "direct"]
_talkative = [
    "buffer",
    "buffer:pipelined",
    "buffer:multicast=hold-delivery",
    "synchronous",
    "coordinator",
    "token",
    "lamport",
    "skeen",
    "skeen:causal",
]


def _program(random: Random, sends: int) -> Program:
    """Some sends of three processes, with names that are their ids."""
    lines: list[list[ProgramSend]] = [[], [], []]
    for _ in range(sends):
        source = random.randrange(3)
        to = random.choice([mask for mask in range(1, 8) if mask.bit_count() < 3 or sends < 3])
        line = lines[source]
        # The first send waits for nothing, or nothing would ever happen.
        after = random.choice((0, 0, 1)) if any(lines) else 0
        line.append(ProgramSend(to, after, f"{source}.{len(line)}"))
    return tuple(map(tuple, lines))


@pytest.mark.parametrize("order", [*_quick, *_talkative])
def test_same_joint_delivery_orders(order: str, naive_search: Callable[..., Any]) -> None:
    random = Random(f"programs of {order}")
    spec = parse(order)
    sizes = [4] * 6 if order in _quick else [2] * 8 if order == "lamport" else [2, 2, 3, 3, 3]
    several = 0
    for sends in sizes:
        program = _program(random, sends)
        naive = naive_search(spec.create, program=program)
        explored = explore(spec, program=program)
        assert explored.violation is None
        assert naive.shortest is None
        assert explored.outcomes == naive.outcomes, program
        assert explored.states < naive.states
        several += len(explored.outcomes) > 1
    assert several


@pytest.mark.parametrize(
    ("order", "guarantee", "messages", "mode", "options"),
    [
        ("none", "fifo", 2, "unicast", {}),
        ("none", "causal", 2, "multicast", {}),
        ("none", "causal", 3, "unicast", {"fifo_links": True}),
        ("fifo", "causal", 3, "unicast", {}),
        ("fifo", "causal", 2, "multicast", {"to_self": True}),
        ("matrix", "total", 2, "multicast", {"to_self": True}),
        ("matrix", "synchronous", 2, "unicast", {}),
        ("buffer", "synchronous", 2, "unicast", {}),
        ("skeen", "fifo", 2, "unicast", {}),
        ("token", "synchronous", 2, "unicast", {}),
    ],
)
def test_same_shortest_violation(
    order: str, guarantee: str, messages: int, mode: str, options: dict[str, bool], naive_search: Callable[..., Any]
) -> None:
    spec = parse(order)
    naive = naive_search(spec.create, 3, messages, mode, guarantee=frozenset({guarantee}), **options)
    violation = explore(spec, 3, messages, mode, guarantee=[guarantee], **options).violation
    assert violation is not None
    assert naive.shortest == len(violation.actions)
    assert violation.kind in naive.kinds


@pytest.mark.parametrize("order", [*_quick, "vector", *_talkative])
def test_same_verdict_on_free_sends(order: str, naive_search: Callable[..., Any]) -> None:
    spec = parse(order)
    messages = 2 if order in _quick else 1
    mode = "broadcast" if order == "vector" else "multicast"
    naive = naive_search(spec.create, 3, messages, mode)
    assert naive.shortest is None
    assert explore(spec, 3, messages, mode).violation is None


@pytest.mark.parametrize("order", ["none", "matrix", "pruned", "buffer", "buffer:pipelined", "coordinator", "skeen"])
def test_same_verdict_on_duplicates(order: str, naive_search: Callable[..., Any]) -> None:
    """An order without counters delivers a duplicate; the link below is there to end it before."""
    spec = parse(order)
    messages = 1 if spec.kind.controls else 2
    naive = naive_search(spec.create, 2, messages, duplicates=True)
    violation = explore(spec, 2, messages, duplicates=True).violation
    assert (naive.shortest is None) == (violation is None) == (order != "none")
    if violation is not None:
        assert violation.kind == "contract"
        assert naive.shortest == len(violation.actions) == 3
        assert "arrive m1 P2 again\nexpect P2 delivered m1\n" in violation.scenario
