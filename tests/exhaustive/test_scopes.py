"""All runs of small scopes under every order: nothing that it guarantees is ever broken, nothing is left over.

Three processes and four messages for orders without control packets, three messages for the others, to oneself too;
multicasts of four and of two messages. What no order promises must be found broken, or these tests would say nothing.
"""

import pytest

from antecede.orders import names
from antecede.simulator.explorer import explore

_stamped = ["none", "fifo", "matrix", "updates", "pruned", "direct"]
_talkative = [
    "buffer",
    "buffer:pipelined",
    "buffer:multicast=hold-delivery",
    "buffer:pipelined,multicast=hold-delivery",
    "synchronous",
    "coordinator",
    "token",
    "skeen",
    "skeen:causal",
    "objects",
]


def _holds(order: str, processes: int, messages: int, mode: str = "unicast", **options: bool) -> None:
    result = explore(order, processes, messages, mode, **options)
    assert result.violation is None, result.violation.scenario
    assert result.states > messages


def test_no_order_is_left_out() -> None:
    played = {order.partition(":")[0] for order in [*_stamped, *_talkative, "vector", "lamport"]}
    assert set(names()) - played == set()


@pytest.mark.parametrize("order", _stamped)
def test_orders_without_control_packets(order: str) -> None:
    _holds(order, 3, 4, to_self=True)
    _holds(order, 3, 4, "multicast")
    _holds(order, 3, 3, "multicast", to_self=True)
    _holds(order, 4, 3)


def test_vector_on_broadcasts() -> None:
    _holds("vector", 3, 4, "broadcast", to_self=True)
    _holds("vector", 4, 3, "broadcast")


@pytest.mark.parametrize("order", _talkative)
def test_orders_with_control_packets(order: str) -> None:
    _holds(order, 3, 3, to_self=True)
    _holds(order, 3, 2, "multicast", to_self=True)


def test_lamport_on_multicasts() -> None:
    _holds("lamport", 3, 2, "multicast", to_self=True)


def test_lamport() -> None:
    """By far the largest: every message concerns everybody six times."""
    _holds("lamport", 3, 3)


@pytest.mark.parametrize("order", [*_stamped[1:], *_talkative[1:4:2], "synchronous", "coordinator", "token", "skeen"])
def test_duplicates_are_recognised(order: str) -> None:
    _holds(order, 3, 2, duplicates=True)


@pytest.mark.parametrize("order", ["none", *_stamped[2:], "buffer", "token"])
def test_links_that_keep_their_sequence(order: str) -> None:
    _holds(order, 3, 3, fifo_links=True)
    if order == "none":
        assert explore(order, 3, 3, fifo_links=True, guarantee=["fifo"]).violation is None


@pytest.mark.parametrize(
    ("order", "guarantee", "mode", "inputs"),
    [
        ("none", "fifo", "unicast", 4),
        ("none", "causal", "unicast", 4),
        ("fifo", "causal", "unicast", 6),
        ("matrix", "total", "multicast", 9),
        ("matrix", "synchronous", "unicast", 4),
        ("skeen", "fifo", "unicast", 8),
        ("skeen", "causal", "unicast", 8),
        ("coordinator", "synchronous", "unicast", 4),
    ],
)
def test_what_is_not_promised_is_found_broken(order: str, guarantee: str, mode: str, inputs: int) -> None:
    violation = explore(order, 3, 3, mode, guarantee=[guarantee]).violation
    assert violation is not None
    assert violation.kind == guarantee
    assert len(violation.actions) == inputs, violation.scenario


def test_shortest_overtaking_under_fifo_is_gargs_figure() -> None:
    """Garg Fig. 12.1: x to one process, y to another, who sends z to the first; z overtakes x."""
    violation = explore("fifo", 3, 4, guarantee=["causal"]).violation
    assert violation is not None
    lines = violation.scenario.splitlines()
    assert lines[lines.index("order fifo") + 1 :] == [
        "send m1 P1 -> P2",
        "send m2 P1 -> P3",
        "arrive m2 P3",
        "send m3 P3 -> P2",
        "arrive m3 P2",
        "arrive m1 P2",
        "expect P2 delivered m1 m3 under causal",
    ]
