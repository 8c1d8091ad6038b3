"""Given programs in all interleavings: which joint delivery orders can an order reach? (002 Fig. 7 and 8)"""

from pathlib import Path

import pytest

from antecede.errors import ScenarioError
from antecede.simulator.explorer import explore, read_program

_figures = """
processes P1 P2 P3   # 002, Fig. 7 and 8
send e P1 -> P2
send d P1 -> P3
send c P2 -> P3
send b P2 -> P1
send a P3 -> P1
send f P3 -> P2
"""
_figure_8 = (("b", "a"), ("f", "e"), ("d", "c"))


@pytest.fixture
def figures(tmp_path: Path) -> str:
    path = tmp_path / "figures.txt"
    path.write_text(_figures)
    return str(path)


@pytest.mark.parametrize("order", ["none", "fifo", "matrix", "updates", "pruned", "direct"])
def test_orders_that_wait_at_the_receiver_reach_all_eight(order: str, figures: str) -> None:
    names, program = read_program(figures)
    result = explore(order, program=program, process_names=names)
    assert result.violation is None
    assert len(result.outcomes) == 8
    assert _figure_8 in result.outcomes


@pytest.mark.parametrize("order", ["buffer", "buffer:pipelined"])
def test_buffers_reach_all_but_figure_8(order: str, figures: str) -> None:
    names, program = read_program(figures)
    every = explore("matrix", program=program, process_names=names).outcomes
    reached = explore(order, program=program, process_names=names).outcomes
    assert every - reached == {_figure_8}
    assert len(reached) == 7


def test_a_send_may_wait_for_deliveries(tmp_path: Path) -> None:
    path = tmp_path / "reply.txt"
    path.write_text("processes A B\nsend question A -> B\nsend answer B -> A after 1\nsend thanks A -> B after 1\n")
    names, program = read_program(str(path))
    result = explore("none", program=program, process_names=names)
    assert result.outcomes == {(("answer",), ("question", "thanks"))}


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("send x P1 -> P2\n", 1, "unknown process P1"),
        ("processes P1 P2\nsend x P1 P2\n", 2, "expected"),
        ("processes P1 P2\nsend x P1 -> P2 after many\n", 2, "expected"),
        ("processes P1 P2\nsend x P1 -> P2\nsend x P2 -> P1\n", 3, "twice"),
        ("processes P1 P1\n", 1, "different"),
        ("processes P1 P2\nsend x! P1 -> P2\n", 2, "is not a name"),
        ("processes P1 P2\narrive x P2\n", 2, "expected"),
        ("processes P1 P2\n", 0, "no sends"),
        ("\x00\xff", 1, "expected"),
    ],
)
def test_bad_program_is_named_by_its_line(text: str, line: int, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "program.txt"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ScenarioError, match=reason) as error:
        read_program(str(path))
    assert error.value.line == line
