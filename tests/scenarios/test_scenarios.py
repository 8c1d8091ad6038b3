"""The golden scenarios: every figure and counter-example as a file, played under all the orders it speaks about.

A file says so itself, in a comment: ``# Played under: none, fifo, matrix`` (``# Played raw under:`` without links;
``its own`` is the order that the file itself chooses).
``ANTECEDE_REWRITE=1`` rewrites what ``expect P delivered …`` lines say into what was delivered, where all plays in
which the line counts agree; look at the difference before keeping it.
"""

import os
import re
from pathlib import Path

import pytest

from antecede.orders import parse
from antecede.simulator.player import Played, play
from antecede.simulator.scenario import Expectation, ExpectDelivered, read

_folder = Path(__file__).parent
_files = sorted(_folder.glob("*.txt"))
_header = re.compile(r"# Played (raw )?under: (.+)")


def _plays(path: Path) -> tuple[bool, list[str]]:
    """Whether a file is played without links, and under which orders."""
    found = [match for line in path.read_text().splitlines() if (match := _header.fullmatch(line))]
    assert len(found) == 1, f"{path.name}: expected one line like: # Played under: none, fifo"
    return found[0][1] is not None, [name.strip() for name in found[0][2].split(", ")]


_cases = [(path, raw, order) for path in _files for raw, orders in [_plays(path)] for order in orders]


def _result(path: Path, raw: bool, order: str) -> Played:
    return play(read(str(path)), None if order == "its own" else parse(order), raw=raw)


@pytest.mark.parametrize(("path", "raw", "order"), _cases, ids=[f"{path.stem}-{order}" for path, _, order in _cases])
def test_scenario_plays_as_written(path: Path, raw: bool, order: str) -> None:
    result = _result(path, raw, order)
    if os.environ.get("ANTECEDE_REWRITE"):
        _rewrite(path)
        result = _result(path, raw, order)
    shown = [f"{path.name}:{f.line}: expected {f.expected}; actual: {f.actual}" for f in result.failures]
    assert shown == []
    assert result.checked, "no expectation counts under this order"


@pytest.mark.parametrize(("path", "raw", "order"), _cases, ids=[f"{path.stem}-{order}" for path, _, order in _cases])
def test_computation_keeps_what_its_order_promises(path: Path, raw: bool, order: str) -> None:
    """The judge sees events only; it knows neither the order nor what the file expects."""
    world = _result(path, raw, order).world
    verdict = world.record.judge()
    assert verdict is not None
    if world.topology.cycle is None:
        broken = [name for name in sorted(world.guarantees) if verdict.holds(name) is False]
        assert broken == []


@pytest.mark.parametrize("path", _files, ids=lambda path: path.stem)
def test_every_expectation_counts_somewhere(path: Path) -> None:
    raw, orders = _plays(path)
    scenario = read(str(path))
    played = [_result(path, raw, order).world for order in orders]
    worlds = [(list(world.specs.values()), world.guarantees) for world in played]
    idle = [
        line.line
        for line in scenario.statements
        if isinstance(line, Expectation) and not any(line.under.counts(*world) for world in worlds)
    ]
    assert idle == []


@pytest.mark.parametrize("path", _files, ids=lambda path: path.stem)
def test_file_says_where_it_comes_from(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert re.match(r"# (Garg|Mattern|Jang|Laumay|Link)\b.*:? ", first)


def test_there_are_scenarios() -> None:
    assert len(_files) >= 30


def _rewrite(path: Path) -> None:
    raw, orders = _plays(path)
    scenario = read(str(path))
    actual: dict[int, set[str]] = {}
    for order in orders:
        result = _result(path, raw, order)
        failed = {failure.line: failure.actual for failure in result.failures}
        specs, kept = list(result.world.specs.values()), result.world.guarantees
        for line in scenario.statements:
            if isinstance(line, ExpectDelivered) and line.under.counts(specs, kept):
                said = f"{line.process} delivered {' '.join(line.messages)}".rstrip()
                actual.setdefault(line.line, set()).add(failed.get(line.line, said))
    lines = path.read_text().split("\n")
    for number, words in actual.items():
        if len(words) == 1:
            told = next(iter(words)).removesuffix(" nothing")
            lines[number - 1] = re.sub(r"(?<=expect ).*?(?= under |\s*$)", told, lines[number - 1], count=1)
    path.write_text("\n".join(lines))
