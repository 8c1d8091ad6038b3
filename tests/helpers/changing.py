"""Topologies for tests of changes, and the search for planted bugs."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from antecede.server import Lessons, Peering
from antecede.simulator.servers import ServerWorld
from antecede.simulator.servers.network import Faults
from antecede.wire import ServerHello
from helpers.seeds import note, seeds
from worlds.changes import FAULTS, ChangingWorld


def topology(
    domains: dict[str, str],
    agents: dict[str, int],
    orders: dict[str, str] | None = None,
    moved: str = "",
    more: str = "",
) -> str:
    """Return the text of a topology. ``domains``: for each its servers as digits, such as ``A="123"``. ``agents``: the
    number of each agent's server. ``orders``: of domains that do not have the order matrix."""
    servers = sorted({server for members in domains.values() for server in members})
    lines = ["[servers]", *(f's{one} = "tcp://127.0.0.1:{7000 + int(one)}"' for one in servers), "[domains]"]
    for name, members in domains.items():
        names = ", ".join(f'"s{one}"' for one in members)
        lines.append(f'{name} = {{ servers = [{names}], order = "{(orders or {}).get(name, "matrix")}" }}')
    lines.append("[agents]")
    lines += [f'{name} = {{ server = "s{server}", class = "nowhere:Agent" }}' for name, server in agents.items()]
    if moved:
        lines += ["[moved]", *(f's{one} = "s{other}"' for one, other in (pair.split(">") for pair in moved.split()))]
    return "\n".join([*lines, more]) + "\n"


AGENTS = {"a": 1, "b": 2, "c": 3, "d": 4}
FLAT = topology({"A": "1234"}, AGENTS)
BUS = topology({"A": "12", "B": "23", "C": "34"}, AGENTS)
ONE_MORE = topology({"A": "12", "B": "23", "C": "34", "D": "45"}, {**AGENTS, "e": 5})
MOVED = topology({"A": "12", "B": "23", "C": "34", "D": "45"}, {**AGENTS, "e": 5, "a": 3})
OTHER_ORDER = topology({"A": "12", "B": "23", "C": "34", "D": "45"}, {**AGENTS, "e": 5, "a": 3}, {"A": "pruned"})
SPLIT = topology({"A": "12", "B": "23", "C": "345"}, {**AGENTS, "e": 5, "a": 3}, {"A": "pruned"})
BACK = topology({"A": "12345"}, {**AGENTS, "e": 5})
WITHOUT = topology({"A": "1234"}, AGENTS, moved="5>4")
_BUS = {"A": "12", "B": "23", "C": "34"}
MILD = [
    BUS,
    topology(_BUS, {**AGENTS, "x": 3}),
    topology(_BUS, {**AGENTS, "x": 3}, {"C": "pruned"}),
    topology({**_BUS, "D": "35"}, {**AGENTS, "x": 3, "e": 5}, {"C": "pruned"}),
]
"""Changes that need few servers."""
JOURNEY = [FLAT, BUS, ONE_MORE, MOVED, OTHER_ORDER, SPLIT, BACK]


def caught(
    topologies: list[str],
    publishes: int = 60,
    faults: Faults = FAULTS,
    kill: float = 0.05,
    away: float = 0.0,
) -> None:
    """Check that 300 schedules of these changes find a planted bug."""
    found_by(lambda seed: ChangingWorld(seed, topologies, faults, kill, away).play(publishes))


def found_by(play: Callable[[int], list[str]]) -> None:
    """Check that one of 300 schedules finds a planted bug. A world that does not come to rest is found out sooner."""
    for seed in seeds(300):
        try:
            with patch.object(ServerWorld, "events_max", 30_000):
                found = play(seed)
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        if found:
            note(seed)
            print(f"seed {seed}: {found[0]}")
            return
    raise AssertionError("not caught in 300 schedules")


def without_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant that servers do not compare the numbers of their changes when they connect, and teach each other none."""

    real = Peering.refusal

    def uncounted(self: Peering, hello: ServerHello) -> Any:
        return real(self, msgspec.structs.replace(hello, change=self.change))

    monkeypatch.setattr(Lessons, "are_due_to", lambda self, hello: False)
    monkeypatch.setattr(Lessons, "are_due_from", lambda self, hello: False)
    monkeypatch.setattr(Peering, "refusal", uncounted)
