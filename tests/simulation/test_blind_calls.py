"""Calls of blind operations in whole servers under crashes, power cuts and bad networks.

Their home decides and answers them alone. Whatever happens, what was answered counts once at all replicas, what was
refused or late counts nowhere, the logs alone give the same state again, and the significant order holds
(``World.check``). Bugs are planted in the code that ships.
"""

from collections import Counter
from collections.abc import Generator
from random import Random
from typing import Any

import pytest

from antecede import Call, ReplicatedObject, operation
from antecede.messages import Label, Message
from antecede.objects import Calls, Execution, Instance, Intentions, Placement, Request
from antecede.testing import Faults, World
from helpers.replicas import topology

TOPOLOGY = topology(tally="s1 s2 s3", pair="s2 s3", purse="s2 s3")
HARD = Faults(crashes=12, powercuts=0.7, loss=0.1, partitions=3, resets=2, slow_disks=8, looks=2, seconds=0.6)


class Tally(ReplicatedObject):
    counts: dict[str, int]
    total: int = 0
    audits: int = 0

    def __init__(self) -> None:
        self.counts = {}

    @operation(confirm=False)
    def add(self, name: str, amount: int) -> None:
        if amount < 0:
            raise ValueError("negative")
        self.counts[name] = self.counts.get(name, 0) + amount
        self.total += amount

    @operation(confirm=False)
    def also(self, name: str, amount: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount
        self.total += amount

    @operation(conflicts_with=["audit"])
    def audit(self) -> int:
        self.audits += 1
        return self.audits


class Purse(ReplicatedObject):
    names: dict[str, int]

    def __init__(self) -> None:
        self.names = {}

    @operation(conflicts_with=["give"])
    def give(self, to: str, name: str, amount: int) -> Generator[Call, Any, int]:
        self.names[name] = amount
        yield Call(to, "add", (name, amount))
        return len(self.names)


def _played(seed: int) -> Counter[str]:
    """Play one world and check it. Return how its calls ended."""
    agents = {"tally": Tally, "pair": Tally, "purse": Purse}
    world = World(TOPOLOGY, agents=agents, seed=seed, faults=HARD)
    random = Random(seed)
    asked: dict[str, list[tuple[str, str, int]]] = {}
    given: set[str] = set()
    for number in range(24):
        client = f"c{random.randrange(3)}@s{random.randrange(3) + 1}"
        object_ = "tally" if random.random() < 0.7 else "pair"
        timeout = random.choice([0.03, 0.1, 60.0])
        name, amount, kind = f"call {number}", random.choice([1, 2, 3, -1]), random.random()
        if kind < 0.1:
            world.call(client, object_, "audit", timeout=timeout)
            asked.setdefault(client, []).append((object_, "", 0))
        elif kind < 0.25:
            # Those that come together share a request, unless one fails.
            for more in range(random.choice([1, 2, 5])):
                name, amount = f"call {number}.{more}", random.choice([1] * 9 + [-1])
                world.call(client, "purse", "give", object_, name, amount, timeout=timeout)
                asked.setdefault(client, []).append((object_, name, amount))
                given.add(name)
        else:
            operation_ = "also" if amount > 0 and random.random() < 0.3 else "add"
            world.call(client, object_, operation_, name, amount, timeout=timeout)
            asked.setdefault(client, []).append((object_, name, amount))
        if random.random() < 0.6:
            world.run(random.random() * 0.03)
    world.run()
    world.check()
    ended: Counter[str] = Counter()
    expected: dict[str, dict[str, int]] = {"tally": {}, "pair": {}}
    for client, calls in asked.items():
        results = world.returned(client)
        assert len(results) == len(calls), f"seed {seed}: {client} called {len(calls)} times, and has {len(results)}"
        numbers = [int(letter.answers[1:]) - 1 for letter in world._world.client(client).inbox]
        for number, result in zip(numbers, results, strict=True):
            object_, name, amount = calls[number]
            ended["done" if result.ok else "late" if result.late else "failed"] += 1
            assert result.late or result.ok == (amount >= 0), f"seed {seed}: {result}"
            if result.ok and name:
                expected[object_][name] = amount
    for object_, counts in expected.items():
        for server, state in world.replicas(object_).items():
            assert state["counts"] == counts, f"seed {seed}: counts of {object_} at {server}"
            assert state["total"] == sum(counts.values()), f"seed {seed}: total of {object_} at {server}"
    through = {name: amount for counts in expected.values() for name, amount in counts.items() if name in given}
    for server, state in world.replicas("purse").items():
        assert state["names"] == through, f"seed {seed}: names at {server}"
    return ended


def test_what_was_answered_counts_once_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    decided = 0

    def conclude(self: Intentions, one: Instance) -> Any:
        nonlocal decided
        decided += 1
        return real(self, one)

    real = Intentions.conclude
    monkeypatch.setattr(Intentions, "conclude", conclude)
    ended: Counter[str] = Counter()
    for seed in range(30):
        ended += _played(seed)
    assert decided > 700, "the schedules have become harmless"
    assert min(ended["done"], ended["late"], ended["failed"]) > 20, ended


def _caught(*symptoms: str) -> None:
    for seed in range(300):
        try:
            _played(seed)
        except AssertionError as error:
            if not any(symptom in str(error) for symptom in symptoms):
                raise
            print(f"caught after {seed + 1} schedules: {error}")
            return
    pytest.fail("a planted bug was not found")


def test_caught_an_answer_that_does_not_wait_for_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def letter(self: Calls, *given: Any) -> Any:
        made = real(self, *given)
        self.sure.add(made.id)
        return made

    real = Calls._letter
    monkeypatch.setattr(Calls, "_letter", letter)
    _caught("received", "called", "counts of")


def test_caught_a_call_that_is_applied_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def conclude(self: Intentions, one: Instance) -> Any:
        real(self, one)
        return real(self, one)

    real = Intentions.conclude
    monkeypatch.setattr(Intentions, "conclude", conclude)
    _caught("counts of")


def test_caught_changes_that_were_computed_from_an_older_state(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, Any] = {}

    def predicted(self: Intentions, name: str, operation_: str, request: Request) -> Any:
        answer = real(self, name, operation_, request)
        kept[name] = self._last
        return answer

    def conclude(self: Intentions, one: Instance) -> Any:
        self._last = kept.pop(one.id, self._last)
        return concluded(self, one)

    real, concluded = Intentions.predicted, Intentions.conclude
    monkeypatch.setattr(Intentions, "predicted", predicted)
    monkeypatch.setattr(Intentions, "conclude", conclude)
    _caught("total of", "counts of", "digest")


def test_caught_a_change_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def conclude(self: Intentions, one: Instance) -> Any:
        if self._last is None or self._last[0] != one.id:
            self._last = None
        else:
            self._last = (one.id, self._last[1], [])
        return real(self, one)

    real = Intentions.conclude
    monkeypatch.setattr(Intentions, "conclude", conclude)
    _caught("counts of")


def test_caught_a_request_that_does_not_say_that_it_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    def conclude(self: Execution, message: Message, label: Label, request: Request) -> None:
        self.ignore(message)

    monkeypatch.setattr(Execution, "_conclude", conclude)
    _caught("counts of")


def test_caught_a_nested_call_that_does_not_reach_all_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    def near(self: Placement, caller: str, operation_: str, to: int) -> int:
        return 1 << self._me if operation_ in self.blind and to >> self._me & 1 else to

    monkeypatch.setattr(Placement, "near", near)
    _caught("counts of", "names at", "has")
