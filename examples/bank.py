"""Replicated bank accounts: the same run under a causal order, a total order and ``objects``; and on live servers.

    python examples/bank.py                                   # the comparison, simulated: same sends, same delays
    antecede up examples/bank.toml --data bank --trace        # three servers, in one terminal, until Ctrl-C
    python examples/bank.py live                              # tellers at all of them, in another
    antecede verify bank --order significant                  # and the proof

Every branch of the bank has a replica of every account. Deposits and withdrawals may come in any order, because
overdrafts are allowed; only an audit must see the same balance everywhere. Remarks on an account may come at any time.

A causal order delays all three, and audits still differ from branch to branch: nothing orders them among deposits that
they do not know of. A total order puts everything into one sequence. ``objects`` knows what conflicts: remarks wait
for nothing, and a deposit only until it is certain that no audit comes before it.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Generator
from itertools import chain
from math import log
from random import Random
from typing import Any

import antecede
from antecede import AntecedeError, Call, ReplicatedObject, operation
from antecede.messages import COPY, REQUEST, Label, Message, Packet
from antecede.objects import relation_of
from antecede.orders import parse
from antecede.simulator.kernel import World
from antecede.simulator.worlds import BareWorld

names = ["anna", "ben", "carla", "dora"]
servers = ["tcp://127.0.0.1:7401", "tcp://127.0.0.1:7402", "tcp://127.0.0.1:7403"]
sort_of = {"remark": "remarks", "deposit": "moves of money", "withdraw": "moves of money", "audit": "audits"}
sorts = list(dict.fromkeys(sort_of.values()))


class Account(ReplicatedObject):
    balance: int = 0
    remarks: int = 0

    @operation(conflicts_with=["audit"])
    def deposit(self, amount: int) -> None:
        self.balance += amount

    @operation(conflicts_with=["audit"])
    def withdraw(self, amount: int) -> None:
        self.balance -= amount

    @operation(conflicts_with=["audit"])
    def transfer(self, to: str, amount: int) -> Generator[Call, Any, None]:
        self.balance -= amount
        yield Call(to, "deposit", (amount,))

    @operation
    def remark(self) -> None:
        self.remarks += 1

    @operation
    def audit(self) -> int:
        return self.balance


# The comparison.


class Bank(BareWorld):
    """Branches that compute the operations that an order delivers, and measure the waiting. The sends, their times and
    the delay of each copy depend on the seed alone, not on the order."""

    weighs = False

    def __init__(self, order: str, branches: int, audits: float, seed: int) -> None:
        if order == "objects":
            pairs = [f"{n}.{one}~{n}.{other}" for n in names for one, other in relation_of(Account).pairs()]
            order = f"objects:conflicts={'+'.join(pairs)}"
        super().__init__(parse(order), branches, Random(f"{seed}/control").random, observer=self)
        self.seed, self.audits = seed, audits
        self.choices = Random(f"{seed}/choices")
        self.replicas = [{name: Account() for name in names} for _ in range(branches)]
        self.answers: dict[str, set[int]] = {}
        self.times: dict[str, float] = {}
        self.waits: dict[str, list[float]] = {what: [] for what in sorts}
        self.latencies: dict[str, list[float]] = {what: [] for what in sorts}
        self.controls = 0

    def start(self, world: World) -> None:
        for branch in range(self.processes):
            self.wake_after(self.choices.expovariate(10), branch)

    def wake(self, world: World, branch: int) -> None:
        if self._sends == self.operations:
            return
        name = self.choices.choice(names)
        kind = self.choices.choice(["deposit", "withdraw", "remark"])
        kind = "audit" if self.choices.random() < self.audits else kind
        payload = json.dumps([name, kind, self.choices.randrange(1, 100)]).encode()
        label = Label(REQUEST, f"{name}.{kind}", "", f"{name}.{kind}")
        message = Message(f"m{self._sends}", branch, (1 << self.processes) - 1, payload, label)
        self._sends += 1
        self._carry_out(branch, self.orders[branch].send(message))
        self.wake_after(self.choices.expovariate(10), branch)

    def _transmit(self, packet: Packet) -> None:
        drawn = Random(f"{self.seed}/{packet.subject}/{packet.target}").random()
        if packet.kind != COPY:
            self.controls += 1
            drawn = self._delay()
        self._transmit_in(0.0 if packet.source == packet.target else -0.1 * log(1 - drawn), packet)

    def sent(self, branch: int, message: Message, sizes: list[int], now: float) -> None:
        self.times[message.id] = now

    def arrived(self, branch: int, message: Message, size: int | None, now: float) -> None:
        self.times.setdefault(f"{message.id} {branch}", now)

    def delivered(self, branch: Any, message: Any, now: Any) -> None:
        if branch is self:
            # The workload is notified as well, and has nothing to do.
            return
        name, kind, amount = json.loads(message.payload)
        account = self.replicas[branch][name]
        if kind == "audit":
            self.answers.setdefault(message.id, set()).add(account.audit())
        elif kind == "remark":
            account.remark()
        else:
            getattr(account, kind)(amount)
        self.waits[sort_of[kind]].append(now - self.times[f"{message.id} {branch}"])
        self.latencies[sort_of[kind]].append(now - self.times[message.id])

    def play(self, operations: int) -> dict[str, Any]:
        """Run this number of operations; return the results."""
        self.operations = operations
        self.run(self)
        states = {
            json.dumps({name: vars(one) for name, one in branch.items()}, sort_keys=True) for branch in self.replicas
        }
        row: dict[str, Any] = {
            "alike": len(states) == 1,
            "disputed": sum(len(answers) > 1 for answers in self.answers.values()),
            "accounts": json.loads(min(states)),
            "controls": self.controls / operations,
        }
        for what in sorts:
            waits = self.waits[what] or [0.0]
            row[what] = {
                "held": sum(wait > 0 for wait in waits) / len(waits),
                "wait_ms": sum(waits) / len(waits) * 1000,
                "latency_ms": sum(self.latencies[what]) / len(waits) * 1000,
            }
        return row


def compare(branches: int, operations: int, audits: float, seed: int) -> dict[str, dict[str, Any]]:
    """Run the same schedule under three orders."""
    return {order: Bank(order, branches, audits, seed).play(operations) for order in ("pruned", "skeen", "objects")}


def show(rows: dict[str, dict[str, Any]], operations: int, audits: float, branches: int) -> None:
    print(
        f"{operations:,} operations, {audits:.0%} of them audits, at {branches} branches; delays of 100 ms in the mean"
    )
    print("(share of copies that waited, how long in the mean over all copies, and the mean from send to delivery)")
    print(f"{'':8}{'final':>8}{'audits':>10}  {'control':>8}" + "".join(f"  {what:^25}" for what in sorts))
    print(f"{'order':8}{'states':>8}{'disputed':>10}  {'packets':>8}" + "    held    waited   in all" * len(sorts))
    for order, row in rows.items():
        told = "alike" if row["alike"] else "DIFFER"
        parts = [
            f"  {row[what]['held']:6.0%}{row[what]['wait_ms']:7.0f} ms{row[what]['latency_ms']:6.0f} ms"
            for what in sorts
        ]
        print(f"{order:8}{told:>8}{row['disputed']:>10,}  {row['controls']:>8.1f}{''.join(parts)}")


# Live.


async def teller(server: str, number: int, operations: int) -> list[float]:
    """Run the calls of one branch; return how long each call took."""
    random, times = Random(number), []
    async with antecede.connect(server, name=f"teller{number}") as bus:
        for _ in range(operations):
            one, other = random.sample(names, 2)
            account, begun = bus.object(one, Account), time.perf_counter()
            kind = random.random()
            if kind < 0.6:
                await account.deposit(random.randrange(1, 100))
            elif kind < 0.9:
                await account.transfer(other, random.randrange(1, 100))
            else:
                await account.audit()
            times.append(time.perf_counter() - begun)
    return times


async def live(servers: list[str], operations: int) -> None:
    """Run tellers at all servers, then audit all accounts at each server."""
    begun = time.perf_counter()
    tellers = [teller(server, number, operations) for number, server in enumerate(servers * 3)]
    times = sorted(chain.from_iterable(await asyncio.gather(*tellers)))
    seconds = time.perf_counter() - begun
    median = times[len(times) // 2] * 1000
    print(f"{len(times)} calls by {len(tellers)} tellers in {seconds:.1f} s, {median:.1f} ms each (median)")
    for server in servers:
        async with antecede.connect(server, name="auditor") as bus:
            balances = {name: await bus.object(name, Account).audit() for name in names}
        print(f"audit at {server}: {balances}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Replicated bank accounts under three orders, or on live servers.")
    parser.add_argument("mode", nargs="?", choices=["compare", "live"], default="compare")
    parser.add_argument("--operations", type=int, default=0, help="Number of operations (2,000; live: 20 per teller).")
    parser.add_argument("--audits", type=float, default=0.05, help="The share of audits.")
    parser.add_argument("--branches", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="The comparison as JSON.")
    parser.add_argument("--servers", nargs="*", default=servers)
    given = parser.parse_args()
    if given.mode == "live":
        try:
            asyncio.run(live(given.servers, given.operations or 20))
        except AntecedeError as error:
            sys.exit(f"bank: {error}")
        return
    operations = given.operations or 2_000
    rows = compare(given.branches, operations, given.audits, given.seed)
    if given.json:
        json.dump(rows, sys.stdout, indent=2)
    else:
        show(rows, operations, given.audits, given.branches)


if __name__ == "__main__":
    main()
