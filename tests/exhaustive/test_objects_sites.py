"""Small groups of objects, every sequence of arrivals: every root ends, whatever the order of what arrives.

Three objects with three operations, and roots whose calls cross, nest and come back. A state is what all objects would
write down, and what is in flight; each is looked at once. In every final state all roots have ended well, nothing is
left, and the values are those of one of the sequences in which the roots could have run alone.
"""

import os
from collections.abc import Generator
from itertools import permutations
from typing import Any

import pytest

from antecede.messages import Packet, Send
from antecede.objects import Answered, Call, Object, Site, SiteSpec, group, operation

States = 120_000

_large = pytest.mark.skipif("ANTECEDE_SEEDS" not in os.environ, reason="100,000 states: part of a campaign")


class Cell(Object):
    """Set conflicts with everything, add with all but itself; pass_on is set elsewhere, and then here."""

    value: int = 1

    @operation(conflicts_with=["set", "add", "pass_on"])
    def set(self, value: int) -> None:
        self.value = value

    @operation(conflicts_with=["pass_on"])
    def add(self, amount: int) -> None:
        self.value += amount

    @operation(conflicts_with=["pass_on"])
    def pass_on(self, others: list[str], name: str, *arguments: Any) -> Generator[Call, Any, None]:
        yield Call(tuple(others), name, arguments)
        self.value = self.value * 2 + 1


Start = tuple[int, str, tuple[Any, ...]]


class Explored:
    """All runs of a group in which these roots are started at once, one after the other."""

    def __init__(self, names: tuple[str, ...], starts: tuple[Start, ...], clocks: str = "asked") -> None:
        self.spec: SiteSpec = group(dict.fromkeys(names, Cell), clocks=clocks)
        self.members = len(names)
        sites = [self.spec.create(me, self.members) for me in range(self.members)]
        self.finals: set[tuple[int, ...]] = set()
        self.wounds = 0
        flights: list[Packet] = []
        answers: list[Answered] = []
        for me, name, arguments in starts:
            _, effects = sites[me].start(name, arguments)
            self._sort(effects, flights, answers)
        self.starts = len(starts)
        self.states = 0
        self._walk([site.snapshot() for site in sites], flights, answers)

    @staticmethod
    def _sort(effects: Any, flights: list[Packet], answers: list[Answered]) -> None:
        flights += [effect.packet for effect in effects if isinstance(effect, Send)]
        answers += [effect for effect in effects if isinstance(effect, Answered)]

    def _site(self, me: int, snapshot: bytes) -> Site:
        site = self.spec.create(me, self.members)
        site.restore(snapshot)
        return site

    def _walk(self, snapshots: list[bytes], flights: list[Packet], answers: list[Answered]) -> None:
        known: set[Any] = set()
        waiting = [(snapshots, flights, answers)]
        while waiting:
            snapshots, flights, answers = waiting.pop()
            key = (tuple(snapshots), tuple(sorted(map(repr, flights))))
            if key in known:
                continue
            known.add(key)
            self.states = len(known)
            assert self.states <= States, "a larger scope than was meant"
            if not flights:
                self._final(snapshots, answers)
            for place, packet in enumerate(flights):
                site = self._site(packet.target, snapshots[packet.target])
                _, effects = site.receive(packet)
                after, found = flights[:place] + flights[place + 1 :], list(answers)
                self._sort(effects, after, found)
                saved = list(snapshots)
                saved[packet.target] = site.snapshot()
                waiting.append((saved, after, found))

    def _final(self, snapshots: list[bytes], answers: list[Answered]) -> None:
        sites = [self._site(me, snapshot) for me, snapshot in enumerate(snapshots)]
        assert not any(site.unended() for site in sites), "something is left"
        assert len(answers) == self.starts
        assert all(answer.ok for answer in answers), answers
        self.wounds = max(self.wounds, *(site.roots.wounds for site in sites))
        self.finals.add(tuple(site.state["value"] for site in sites))


def _serial(names: tuple[str, ...], starts: tuple[Start, ...]) -> set[tuple[int, ...]]:
    """The values after each sequence in which the roots run alone, one after the other."""
    found = set()
    for order in permutations(starts):
        values = dict.fromkeys(names, 1)

        def run(at: str, name: str, arguments: tuple[Any, ...], values: dict[str, int] = values) -> None:
            if name == "set":
                values[at] = arguments[0]
            elif name == "add":
                values[at] += arguments[0]
            else:
                for other in arguments[0]:
                    run(other, arguments[1], tuple(arguments[2:]))
                values[at] = values[at] * 2 + 1

        for me, name, arguments in order:
            run(names[me], name, arguments)
        found.add(tuple(values.values()))
    return found


TWO, THREE = ("a", "b"), ("a", "b", "c")
CROSSWISE: tuple[Start, ...] = ((0, "pass_on", (["b"], "set", 5)), (1, "pass_on", (["a"], "set", 7)))
CHAIN: tuple[Start, ...] = (
    (0, "pass_on", (["b"], "add", 1)),
    (1, "pass_on", (["c"], "add", 2)),
    (2, "set", (3,)),
)
SEVERAL: tuple[Start, ...] = ((0, "pass_on", (["b", "c"], "set", 5)), (1, "add", (7,)))
SHARED: tuple[Start, ...] = ((0, "pass_on", (["b", "c"], "set", 5)), (1, "pass_on", (["c"], "add", 7)))
NESTED: tuple[Start, ...] = (
    (0, "pass_on", (["b"], "pass_on", ["c"], "set", 2)),
    (2, "pass_on", (["b"], "pass_on", ["a"], "set", 5)),
)
RING: tuple[Start, ...] = (
    (0, "pass_on", (["b"], "set", 5)),
    (1, "pass_on", (["c"], "set", 7)),
    (2, "pass_on", (["a"], "set", 9)),
)
BACK: tuple[Start, ...] = ((0, "pass_on", (["b"], "pass_on", ["a"], "add", 2)), (1, "add", (3,)))


@pytest.mark.parametrize(
    ("names", "starts", "wounded"),
    [
        pytest.param(TWO, CROSSWISE, True, id="crosswise"),
        pytest.param(THREE, CHAIN, True, id="chain"),
        pytest.param(THREE, SEVERAL, False, id="several"),
        pytest.param(TWO, BACK, False, id="back"),
        pytest.param(THREE, SHARED, True, id="shared"),
        pytest.param(THREE, NESTED, True, id="nested"),
        pytest.param(THREE, RING, True, id="ring", marks=_large),
    ],
)
def test_every_run_ends_as_if_one_root_ran_after_the_other(
    names: tuple[str, ...], starts: tuple[Start, ...], wounded: bool
) -> None:
    explored = Explored(names, starts)
    assert explored.finals
    assert explored.finals <= _serial(names, starts)
    assert (explored.wounds > 0) is wounded
