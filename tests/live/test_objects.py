"""Replicated objects on real servers: over TCP that loses one frame in five, through kills, judged from the logs."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from live_objects import Account
from lossy import LossyProxy

import antecede
from antecede.live.application import plan_of
from antecede.objects import Replicas
from antecede.server import AgentServer, recover
from antecede.store import open_store
from antecede.topology import parse_topology
from helpers.clusters import Cluster

_servers = ["s1", "s2", "s3"]
_homes = {"anna": ["s1", "s2", "s3"], "ben": ["s2", "s3"]}


class Bank(Cluster):
    """Three servers that reach each other only through a network that loses, and two accounts."""

    host = "127.0.0.2"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {"A": _servers}, {})

    def text(self, domains: dict[str, list[str]], agents: dict[str, tuple[str, str]]) -> str:
        text = super().text(domains, agents).replace("] }", '], order = "objects" }')
        for name, servers in _homes.items():
            text += f'{name} = {{ servers = {servers!r}, class = "live_objects:Account" }}\n'.replace("'", '"')
        return text

    def program(self) -> list[str]:
        return [str(Path(__file__).with_name("hasty.py"))]

    def states(self) -> dict[str, dict[str, Any]]:
        """What the logs alone say of the accounts, once the servers are gone."""
        topology = parse_topology(self.file.read_text())
        found: dict[str, dict[str, Any]] = {name: {} for name in _homes}
        for server in _servers:
            store = open_store(str(self.folder / server))
            machine = AgentServer(server, plan_of(topology), store.incarnation)
            log = store.recovered
            snapshot = None if log.snapshot is None else log.snapshot.data()
            recover(machine, snapshot, (record for _, record in log.records()), topology.epoch, 0.0)
            site = machine.calls.site
            assert isinstance(site, Replicas)
            for name, servers in _homes.items():
                if server in servers:
                    found[name][server] = site.state_of(name)["balance"]
            store.close()
        return found


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    one = Bank(tmp_path)
    yield one
    for process in one.processes.values():
        if process.poll() is None:
            process.kill()
        process.wait()


class Ledger:
    """What clients know to have happened, and what may have."""

    def __init__(self) -> None:
        self.sure = {"anna": 0, "ben": 0}
        self.outcomes = {"done": 0, "failed": 0, "late": 0}
        self.reasons: set[str] = set()

    async def note(self, call: Any, **changes: int) -> None:
        try:
            await call
        except antecede.CallTimeoutError as error:
            self.outcomes["late"] += 1
            self.reasons.add(str(error).partition(": ")[2])
        except antecede.OperationError as error:
            self.outcomes["failed"] += 1
            self.reasons.add(str(error).partition(": ")[2].rstrip("0123456789"))
        else:
            self.outcomes["done"] += 1
            for name, amount in changes.items():
                self.sure[name] += amount


async def _client(bank: Bank, number: int, calls: int, ledger: Ledger) -> None:
    server = _servers[number % 3]
    random = Random(number)
    async with antecede.connect(f"tcp://127.0.0.2:{bank.ports[server]}", name=f"client{number}") as bus:
        for _ in range(calls):
            one, other = random.sample(sorted(_homes), 2)
            account, amount, kind = bus.object(one, Account, timeout=30.0), random.randrange(1, 10), random.random()
            if kind < 0.5:
                await ledger.note(account.deposit(amount), **{one: amount})
            elif kind < 0.65:
                await ledger.note(account.withdraw(amount), **{one: -amount})
            elif kind < 0.85:
                await ledger.note(account.pay(other, amount), **{one: -amount, other: amount})
            else:
                await ledger.note(account.audit())


@pytest.mark.parametrize("killed", ["", "s2"])
def test_calls_over_a_network_that_loses(bank: Bank, killed: str) -> None:
    calls = 6
    ledger = Ledger()

    async def main() -> None:
        clients = asyncio.gather(*(_client(bank, number, calls, ledger) for number in range(6)))
        if killed:
            while sum(ledger.outcomes.values()) < 8:
                await asyncio.sleep(0.01)
            bank.kill(killed)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(bank.start, killed, options=("--host", "127.0.0.2"))
        await clients
        proxy.calm()
        async with antecede.connect(f"tcp://127.0.0.2:{bank.ports['s1']}", name="auditor") as bus:
            for name, expected in ledger.sure.items():
                assert await bus.object(name, Account).audit() == expected

    with LossyProxy(list(bank.ports.values()), seed=5) as proxy:
        bank.start(options=("--host", "127.0.0.2"))
        asyncio.run(asyncio.wait_for(main(), 100))
        assert proxy.lost > 20
        assert bank.stop() == [0, 0, 0]
    assert sum(ledger.outcomes.values()) == 6 * calls
    assert ledger.outcomes["done"] > 3 * calls
    assert ledger.reasons <= {"ValueError: only ", "not finished at every replica within 30 s, and undone"}
    assert bank.states() == {name: dict.fromkeys(servers, ledger.sure[name]) for name, servers in _homes.items()}
    verdict = bank.command("verify", *(str(bank.folder / server) for server in _servers), "--order", "significant")
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    assert "significant  holds" in verdict.stdout
    print(ledger.outcomes, proxy.lost, proxy.passed, proxy.hung_up)


def test_an_operation_that_never_returns_is_logged_with_its_stack_and_ends_the_process(
    cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = cluster({"A": ["s1"]}, {})
    monkeypatch.setattr(world, "program", lambda: [str(Path(__file__).with_name("mortal.py"))])
    text = world.file.read_text().replace('["s1"]', '["s1"], order = "objects"')
    world.file.write_text(
        text + 'stuck = { servers = ["s1"], class = "live_objects:Stuck" }\n[application]\nreaction_seconds_max = 2\n'
    )
    world.start()

    async def call() -> None:
        async with antecede.connect(world.addresses["s1"], name="caller") as bus:
            await bus.object("stuck", timeout=60.0).loop()

    async def until_it_ends() -> int:
        calling = asyncio.create_task(call())
        code = await asyncio.to_thread(world.processes["s1"].wait, 60)
        calling.cancel()
        return code

    assert asyncio.run(until_it_ends()) == 2
    log = world.log("s1")
    assert "in loop" in log.split("warning operation-slow object=stuck operation=loop")[1], "the log has the stack"
    assert "error operation-too-long object=stuck operation=loop" in log
