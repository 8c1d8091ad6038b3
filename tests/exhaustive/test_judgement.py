"""How one delivery is judged, where no shortest run would show it."""

import pytest

from antecede.orders import Fifo, NoOrder
from antecede.simulator.explorer import explore
from antecede.simulator.explorer.machine import Finding, Judgement, Local, Machine, Scope
from antecede.simulator.explorer.witness import with_overtaker

CAUSALLY = "which was sent causally after {message}"


def _grown(after: Local | Finding) -> Local:
    assert isinstance(after, Local)
    return after


def test_what_is_covered_stays_so_until_it_is_delivered() -> None:
    """The first message is late also when something that is none of its business came in between."""
    scope = Scope(3, 2)
    machine = Machine(NoOrder, scope)
    judgement = Judgement(machine, scope, frozenset({"causal"}), histories=False)
    first, step_1 = judgement.send(0, judgement.initial(0), 2)
    second, step_2 = judgement.send(0, _grown(first), 2)
    other, step_3 = judgement.send(2, judgement.initial(2), 2)
    befores = [*_grown(second).befores, *_grown(other).befores]
    incoming = dict(zip([scope.bit(0, 0), scope.bit(0, 1), scope.bit(2, 0)], befores, strict=True))
    receiver = judgement.initial(1)
    for step in (step_2, step_3):
        receiver = _grown(judgement.receive(1, receiver, step.emitted[0], incoming)[0])
    late, _ = judgement.receive(1, receiver, step_1.emitted[0], incoming)
    assert isinstance(late, Finding)
    assert (late.kind, late.process, late.bit) == ("causal", 1, scope.bit(0, 0))
    sends = [(0, ~2), (0, ~2), (2, ~2)]
    arrivals = [(1, step.emitted[0]) for step in (step_2, step_3, step_1)]
    named = with_overtaker(late, [*sends, *arrivals], machine)
    assert named.text == f"{{process}} delivers {{message}} after [{scope.bit(0, 1)}], {CAUSALLY}"


def test_a_message_in_the_past_of_another_process_is_named() -> None:
    """P3 received m2 and sent m3: m3 overtakes m1 although another process sent it."""
    violation = explore(Fifo, 3, 3, guarantee=["causal"]).violation
    assert violation is not None
    assert violation.text == "P2 delivers m1 after m3, which was sent causally after m1"
    assert violation.text in violation.scenario


def test_fifo_order_alone_names_a_message_of_the_same_process() -> None:
    violation = explore(NoOrder, 2, 2, guarantee=["fifo"]).violation
    assert violation is not None
    assert violation.text == "P2 delivers m1 after m2, which the same process sent after m1"


def test_nothing_is_kept_that_no_guarantee_needs() -> None:
    scope = Scope(2, 2)
    machine = Machine(NoOrder, scope)
    plain = Judgement(machine, scope, frozenset(), histories=False)
    local, _ = plain.send(0, plain.initial(0), 2)
    assert (_grown(local).past, _grown(local).history) == (0, ())
    curious = Judgement(machine, scope, frozenset({"synchronous"}), histories=True)
    local, _ = curious.send(0, curious.initial(0), 2)
    assert _grown(local).history == (~scope.bit(0, 0),)


def test_links_that_keep_their_sequence_are_enough_for_fifo() -> None:
    assert explore("none", 3, 3, fifo_links=True, guarantee=["fifo"]).violation is None


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
