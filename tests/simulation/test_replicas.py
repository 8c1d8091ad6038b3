"""Replicated objects in whole servers under random schedules: crashes, disks that forget, frames lost and repeated.

Two accounts with replicas on two of three servers each, clients and an agent who call them, some with so little time
that calls are aborted. Whatever happens: what was answered is what all replicas hold, no call counts twice, the logs
alone give the same state again, and the significant order holds (``World.check``).
"""

import os
from collections import Counter
from collections.abc import Generator
from random import Random
from typing import Any

import msgspec
import pytest

from antecede import Agent, Call, CallFailed, Context, Notification, ReplicatedObject, Returned, operation
from antecede.errors import StoreError
from antecede.messages import Label
from antecede.objects import Execution, Instance, Made, Replicas, Root, Roots, Table
from antecede.orders import Rules
from antecede.server import AgentServer, Expired
from antecede.testing import NONE, ROUGH, Faults, World
from antecede.trace import DELIVER, SEND, judge
from helpers.replicas import topology

_seeds = int(os.environ.get("ANTECEDE_SEEDS", "40"))

TOPOLOGY = topology(anna="s1 s2", ben="s2 s3") + 'clerk = { server = "s3", class = "bank:Clerk" }\n'


class Account(ReplicatedObject):
    balance: int = 0
    log: tuple[str, ...] = ()

    @operation(conflicts_with=["withdraw", "pay", "audit"])
    def deposit(self, amount: int) -> None:
        self.balance += amount

    @operation(conflicts_with=["withdraw", "pay", "audit"])
    def withdraw(self, amount: int) -> int:
        if amount > self.balance:
            raise ValueError(f"only {self.balance}")
        self.balance -= amount
        self.log += (f"-{amount}",)
        return self.balance

    @operation(conflicts_with=["pay", "audit"])
    def pay(self, to: str, amount: int) -> Generator[Call, Any, int]:
        self.balance -= amount
        self.log += (f"{to} {amount}",)
        try:
            yield Call(to, "deposit", (amount,))
        except CallFailed:
            self.balance += amount
        if self.balance < 0:
            raise ValueError("too much")
        return self.balance

    @operation
    def audit(self) -> int:
        return self.balance


class Save(Notification):
    amount: int


class Clerk(Agent):
    saved: int = 0
    failed: int = 0

    def on_save(self, save: Save, ctx: Context) -> None:
        ctx.call("anna", "deposit", save.amount, reply="on_saved", timeout=20)

    def on_saved(self, returned: Returned, ctx: Context) -> None:
        if returned.ok:
            self.saved += 3
        else:
            self.failed += 1


def played(seed: int, faults: Faults, calls: int = 14, together: int = 1) -> tuple[World, Counter[str], dict[str, int]]:
    """A world that has come to rest, how its calls ended, and what the accounts must hold. ``together``: the calls that
    come at the same time, and may share requests."""
    world = World(TOPOLOGY, agents={"anna": Account, "ben": Account, "clerk": Clerk}, seed=seed, faults=faults)
    random = Random(seed)
    asked: dict[str, list[dict[str, int]]] = {}
    """For each client, for each of its publishes, what it does to the accounts if it succeeds."""
    for number in range(calls):
        if number % together == 0:
            home, pair = random.randrange(3) + 1, random.sample(["anna", "ben"], 2)
        client, (one, other) = f"c{random.randrange(3)}@s{home}", pair
        amount, kind = random.randrange(1, 9), random.random()
        timeout = 60.0 if random.random() < 0.7 else random.choice([0.002, 0.02, 0.2])
        mine = asked.setdefault(client, [])
        if kind < 0.4:
            world.call(client, one, "deposit", amount, timeout=timeout)
            mine.append({one: amount})
        elif kind < 0.55:
            world.call(client, one, "withdraw", amount, timeout=timeout)
            mine.append({one: -amount})
        elif kind < 0.65:
            world.call(client, one, "audit", timeout=timeout)
            mine.append({})
        elif kind < 0.85:
            world.call(client, one, "pay", other, amount, timeout=timeout)
            mine.append({one: -amount, other: amount})
        else:
            world.send(client, "clerk", Save(amount=3))
            mine.append({})
        if number % together == together - 1:
            world.run(random.random() * 0.05)
    world.run()
    return world, *_outcomes(world, asked)


def _outcomes(world: World, asked: dict[str, list[dict[str, int]]]) -> tuple[Counter[str], dict[str, int]]:
    ended: Counter[str] = Counter()
    expected = {"anna": world.state("clerk").saved, "ben": 0}
    for client, publishes in asked.items():
        answered = set()
        for letter in world._world.client(client).inbox:
            returned = msgspec.msgpack.decode(letter.body, type=Returned)
            number = int(letter.answers[1:])
            assert number not in answered, "a call was answered twice"
            answered.add(number)
            ended["done" if returned.ok else "late" if returned.late else "failed"] += 1
            for name, amount in publishes[number - 1].items() if returned.ok else ():
                expected[name] += amount
    return ended, expected


@pytest.mark.parametrize(("calls", "together"), [(14, 1), (40, 8)])
def test_what_was_answered_is_what_all_replicas_hold(calls: int, together: int) -> None:
    ended: Counter[str] = Counter()
    crashes = 0
    for seed in range(_seeds if together == 1 else _seeds // 4):
        world, outcomes, expected = played(seed, ROUGH, calls, together)
        where = f"seed {seed}"
        for name in ("anna", "ben"):
            states = list(world.replicas(name).values())
            assert len(states) == 2, where
            assert states[0] == states[1], where
            assert states[0]["balance"] == expected[name], where
        world.check()
        ended += outcomes
        crashes += world._world.crashes
    assert crashes > _seeds // 4, "the schedules have become harmless"
    assert all(ended[how] > _seeds // 4 for how in ("done", "failed", "late")), ended


def test_a_seed_replays_byte_for_byte() -> None:
    one, other = ([msgspec.json.encode(row) for row in played(3, ROUGH)[0].trace()] for _ in range(2))
    assert one == other


def test_rows_of_a_trace_tell_who_called_and_what_it_called() -> None:
    world = World(TOPOLOGY, agents={"anna": Account, "ben": Account, "clerk": Clerk})
    world.call("al@s1", "anna", "deposit", 5)
    world.run()
    world.call("al@s1", "anna", "pay", "ben", 2)
    world.run()
    rows = [row for row in world.trace() if row.instance]
    root = next(row.instance for row in rows if row.process == "al@s1" and row.index > 5 and row.type == "begin")
    assert root is not None
    own = [(row.kind, row.operation, row.type) for row in rows if row.instance == root]
    assert own == [
        ("local", None, "begin"),
        ("send", None, "request"),
        ("deliver", None, "response"),
        ("deliver", None, "response"),
        ("send", None, "commit"),
        ("local", None, "commit"),
    ]
    nested = {(row.process, row.operation, row.parent) for row in rows if row.instance == f"{root}/1/1"}
    assert nested == {("ben@s2", "deposit", f"{root}/1"), ("ben@s3", "deposit", f"{root}/1")}
    begun = [row for row in rows if row.instance == f"{root}/1/1" and row.type == "begin"]
    assert len(begun) == 2, "two replicas call; each replica of the other computes it once"
    assert world.replicas("ben") == {server: {"balance": 2, "log": ()} for server in ("s2", "s3")}


def test_operations_that_are_not_deterministic_are_found_when_a_log_is_read_again() -> None:
    class Dice(Account):
        throws = 0

        @operation(conflicts_with=["throw"])
        def throw(self) -> Generator[Call, Any, int]:
            Dice.throws += 1
            if Dice.throws > 2:
                yield Call("ben", "deposit", (1,))
            return 1

    world = World(TOPOLOGY, agents={"anna": Dice, "ben": Account, "clerk": Clerk})
    world.call("al@s1", "anna", "throw")
    world.run()
    with pytest.raises(AssertionError, match="seed=1") as failed:
        world.check()
    assert isinstance(failed.value.__cause__, StoreError)


# Planted bugs, each of which must be found.


def _caught(seeds: int = 60, calls: int = 14, together: int = 1) -> None:
    for seed in range(seeds):
        try:
            world, _, expected = played(seed, ROUGH, calls, together)
            world.check()
        except (AssertionError, KeyError, StoreError):
            return
        for name in ("anna", "ben"):
            if any(state["balance"] != expected[name] for state in world.replicas(name).values()):
                return
    pytest.fail("a planted bug was not found")


def test_caught_calls_that_a_snapshot_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Replicas, state: Any) -> None:
        real(self, (state[0], [], state[2]))

    real = Replicas.load
    monkeypatch.setattr(Replicas, "load", load)
    _caught()


def test_caught_an_order_in_which_nothing_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rules, "before", lambda self, *given: False)
    _caught()


def test_caught_locks_that_nobody_respects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "_in_its_way", lambda self, one: iter(()))
    _caught(calls=40, together=2)


def test_caught_deadlines_that_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def do(self: AgentServer, item: Any, now: float) -> None:
        real(self, item, now)
        if isinstance(item, Expired):
            self.items.remove(item)

    real = AgentServer._do
    monkeypatch.setattr(AgentServer, "_do", do)
    _caught()


def test_caught_replicas_whose_answers_nobody_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undeclared conflicts: withdrawals in different orders. Without a comparison the replicas drift apart unseen."""

    class Careless(ReplicatedObject):
        value: int = 1

        @operation
        def add(self, amount: int) -> int:
            self.value += amount
            return self.value

        @operation
        def double(self) -> int:
            self.value *= 2
            return self.value

    differed = 0
    for seed in range(20):
        text = TOPOLOGY.replace('clerk = { server = "s3", class = "bank:Clerk" }', "")
        world = World(text, agents={"anna": Careless, "ben": Careless}, seed=seed)
        for _ in range(4):
            world.call("al@s1", "anna", "add", 1)
            world.call("bo@s3", "anna", "double")
            world.run(0.001)
        world.run()
        reasons = [one.reason for client in ("al@s1", "bo@s3") for one in world.returned(client)]
        differed += any("answer" in reason and "is a conflict not declared?" in reason for reason in reasons)
    assert differed, "the schedules have become harmless"


def test_caught_nested_calls_that_every_replica_makes_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Execution._addressed

    def addressed(self: Execution, one: Any, call: Call) -> tuple[int, Label]:
        to, label = real(self, one, call)
        # The name of the call tells who makes it: each replica then has one of its own.
        if one.parent:
            label = msgspec.structs.replace(label, instance=f"{label.instance}-{self.outbox.me}")
        return to, label

    monkeypatch.setattr(Execution, "_addressed", addressed)
    _caught(20)


def test_caught_calls_of_a_late_shared_request_that_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Roots, "put_back", lambda self, roots: None)
    _caught(calls=40, together=8)


def test_caught_answers_that_go_to_another_caller_of_a_shared_request(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Replicas._end

    def end(self: Replicas, root: Root, answer: Any, late: bool = False) -> None:
        if root.parts and answer[0]:
            answer = (True, answer[1][1:] + answer[1][:1])
        real(self, root, answer, late)

    monkeypatch.setattr(Replicas, "_end", end)
    _caught(calls=40, together=8)


def test_caught_nested_calls_of_a_shared_request_that_are_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Execution._undo

    def undo(self: Execution, one: Instance, made: Made, number: int) -> None:
        made.undone = True
        if not one.shared:
            real(self, one, made, number)

    monkeypatch.setattr(Execution, "_undo", undo)
    _caught(calls=40, together=8)


class Chain(Notification):
    left: int


class Walker(Agent):
    """Passes a word on to two others: chains of letters that overtake each other, if nobody prevents it."""

    def on_chain(self, chain: Chain, ctx: Context) -> None:
        if chain.left:
            for other in ("w1", "w2", "w3"):
                if other != ctx.agent:
                    ctx.send(other, Chain(left=chain.left - 1))
            ctx.call("anna", "deposit", 1)


def test_letters_between_agents_are_in_causal_order_whatever_objects_do() -> None:
    walkers = "".join(f'w{n} = {{ server = "s{n}", class = "bank:Walker" }}\n' for n in (1, 2, 3))
    kinds = {"anna": Account, "ben": Account, "clerk": Clerk, "w1": Walker, "w2": Walker, "w3": Walker}
    for seed in range(6):
        world = World(TOPOLOGY + walkers, agents=kinds, seed=seed, faults=ROUGH)
        world.send("al@s1", "w1", Chain(left=4))
        world.send("bo@s2", "w3", Chain(left=4))
        world.run()
        world.check()
        assert world.replicas("anna")["s1"]["balance"] == 2 * (1 + 2 + 4 + 8)
        count: Counter[str] = Counter()
        letters = []
        for row in sorted(world.trace(), key=lambda row: (row.process, row.index)):
            if row.kind in (SEND, DELIVER) and row.type is None:
                letters.append(msgspec.structs.replace(row, index=count[row.process]))
                count[row.process] += 1
        verdict = judge(letters, ("causal",))
        assert verdict.holds("causal"), verdict.causal[:1]
        assert verdict.deliveries > 60


@pytest.mark.parametrize("faults", [NONE, ROUGH])
def test_agents_are_answered_once(faults: Faults) -> None:
    world = World(TOPOLOGY, agents={"anna": Account, "ben": Account, "clerk": Clerk}, faults=faults, seed=4)
    for _ in range(5):
        world.send("al@s2", "clerk", Save(amount=3))
    world.run()
    assert world.state("clerk").saved == 15
    assert world.replicas("anna")["s1"]["balance"] == 15
    world.check()
