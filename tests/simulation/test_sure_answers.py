"""Answers that leave before the log has them: calls that conflict with nothing, under crashes and short time limits.

Such an answer must be given again, unchanged, if a crash loses what it was made from, and what was answered counts once
at all replicas. Two bugs are planted: a time limit that still undoes such a call after a crash, and an answer that is
called sure although only its own server knows the call.
"""

from collections import Counter
from random import Random

import pytest

from antecede import ReplicatedObject, Returned, operation
from antecede.engine import name_of
from antecede.objects import Calls, Replicas
from antecede.server import Driver
from antecede.testing import Faults, World
from helpers.replicas import topology
from helpers.seeds import note, seeds

TOPOLOGY = topology(tally="s1 s2 s3", local="s1")
_returned = name_of(Returned)
HARD = Faults(crashes=12, powercuts=0.7, loss=0.1, partitions=3, resets=2, slow_disks=8, looks=2, seconds=0.6)


class Tally(ReplicatedObject):
    counts: dict[str, int]

    def __init__(self) -> None:
        self.counts = {}

    @operation
    def add(self, name: str, amount: int) -> str:
        self.counts[name] = self.counts.get(name, 0) + amount
        return name


def _played(seed: int) -> Counter[str]:
    """Play one world and check it. Return how its calls ended."""
    world = World(TOPOLOGY, agents={"tally": Tally, "local": Tally}, seed=seed, faults=HARD)
    random = Random(seed)
    asked: dict[str, list[tuple[str, str]]] = {}
    for number in range(24):
        client = f"c{random.randrange(3)}@s{random.randrange(3) + 1}"
        name, object_ = f"call {number}", "tally" if random.random() < 0.8 else "local"
        world.call(client, object_, "add", name, 1, timeout=random.choice([0.03, 0.1, 60.0]))
        asked.setdefault(client, []).append((object_, name))
        if random.random() < 0.7:
            world.run(random.random() * 0.03)
    world.run()
    world.check()
    ended: Counter[str] = Counter()
    expected: dict[str, dict[str, int]] = {"tally": {}, "local": {}}
    for client, calls in asked.items():
        results = world.returned(client)
        assert len(results) == len(calls), f"seed {seed}: {client} called {len(calls)} times, and has {len(results)}"
        numbers = [int(letter.answers[1:]) - 1 for letter in world._world.client(client).inbox]
        for number, result in zip(numbers, results, strict=True):
            ended["done" if result.ok else "late" if result.late else "failed"] += 1
            if result.ok:
                object_, name = calls[number]
                expected[object_][name] = 1
    for object_, counts in expected.items():
        for server, state in world.replicas(object_).items():
            assert state["counts"] == counts, f"seed {seed}: {object_} at {server}"
    return ended


def test_what_was_answered_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    early = 0

    def hand_out(self: Driver, letters: list, deliver: object) -> None:
        nonlocal early
        early += not self.gate.calls and self.machine.calls.are_sure(letters) and self.gate.last > self.gate.durable
        real(self, letters, deliver)

    real = Driver.hand_out
    monkeypatch.setattr(Driver, "hand_out", hand_out)
    ended: Counter[str] = Counter()
    for seed in range(40):
        ended += _played(seed)
    assert early > 50, "the schedules have become harmless"
    assert min(ended["done"], ended["late"]) > 20, ended


def _caught(symptom: str) -> None:
    for seed in seeds(300):
        try:
            _played(seed)
        except AssertionError as error:
            if symptom not in str(error):
                raise
            note(seed)
            return
    pytest.fail("a planted bug was not found")


def test_caught_a_time_limit_that_undoes_what_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replicas, "resumed", lambda self: None)
    _caught("timeout")


def test_caught_an_answer_that_only_its_own_server_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calls, "are_sure", lambda self, letters: all(letter.type == _returned for letter in letters))
    _caught("received")
