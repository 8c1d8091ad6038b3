"""Servers that are added and removed while the system runs: what happens to clients, and to restored systems."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from antecede.backups import write_system
from antecede.errors import TopologyError, UsageError
from antecede.live.client.line import connect
from antecede.live.client.operator import request
from helpers.overload import refused
from helpers.running import FLAT, System, played
from helpers.summing import Add, Tell, Total


def test_a_server_is_added_and_removed_and_its_clients_follow(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        flat = system.file(FLAT, {"sum": "2"})
        more = system.file({**FLAT, "X": "39"}, {"sum": "2", "far": "9"})
        without = system.file(FLAT, {"sum": "2", "far": "3"}, more='[moved]\ns9 = "s3"')
        await system.start(flat)
        await system.start(more, "s9")
        await system.until(lambda: system.organisation("s9").outside)
        assert system.running["s9"].operations.health() == "not yet part"
        async with connect(f"tcp://127.0.0.1:{system.ports['s9']}", name="dora") as dora:
            first = dora.send("sum", Add(amount=2))
            assert "not part of the system yet" in await refused(dora, first)
            assert (await system.apply(more)).state == "done"
            await first
            await dora.send("far", Add(amount=1))
            await system.total("s1", "far", 1)
            assert (await system.apply(without)).state == "done"
            await system.until(system.running["s9"].removed.done)
            # The client learns where its mailbox is, and goes on with its address and its numbers.
            await dora.send("far", Add(amount=3))
            assert dora.address == "dora@s9"
            total = await dora.ask("far", Tell(), expect=Total, timeout=10)
            assert total.amount == 4
        await system.stop("s9")
        with pytest.raises(TopologyError, match="server s9 was removed by change 2"):
            await system.start(more, "s9")
        await system.total("s1", "far", 4)
        # Servers that begin with a snapshot know the addresses of the removed server, too.
        await system.stop()
        await system.start(without)
        async with connect(f"tcp://127.0.0.1:{system.ports['s3']}", name="dora") as dora:
            assert dora.address == "dora@s9"
            assert (await dora.ask("sum", Tell(), expect=Total, timeout=10)).amount == 2

    played(tmp_path, play)


def test_a_client_that_only_receives_follows_its_mailbox(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        more = system.file({**FLAT, "X": "39"}, {"sum": "2"})
        await system.start(more)
        async with connect(f"tcp://127.0.0.1:{system.ports['s1']}", name="ann") as ann:
            await ann.send("bob@s9", Add(amount=1))
            await system.until(lambda: system.running["s9"].machine.engine.mailboxes.get("bob@s9"))
            without = system.file(FLAT, {"sum": "2"}, more='[moved]\ns9 = "s3"')
            amounts: list[int] = []
            async with connect(f"tcp://127.0.0.1:{system.ports['s9']}", name="carl") as carl:
                # It is connected, and the server has nothing of it.
                carl.on(Add, lambda add: amounts.append(add.amount))
                assert (await system.apply(without)).state == "done"
                await ann.send("carl@s9", Add(amount=3))
                await system.until(lambda: amounts == [3])
            await ann.send("bob@s9", Add(amount=2))
        amounts.clear()
        async with connect(f"tcp://127.0.0.1:{system.ports['s3']}", name="bob") as bob:
            assert bob.address == "bob@s9"
            bob.on(Add, lambda add: amounts.append(add.amount))
            await system.until(lambda: amounts == [1, 2])

    played(tmp_path, play)


def test_clients_with_one_name_at_the_removed_server_and_at_the_next(tmp_path: Path) -> None:
    """Each of them would get the letters and the numbers of the other one."""

    async def play(system: System) -> None:
        more = system.file({**FLAT, "X": "39"}, {"sum": "2"})
        without = system.file(FLAT, {"sum": "2"}, more='[moved]\ns9 = "s3"')
        await system.start(more)

        def at(server: str, name: str) -> Any:
            return connect(f"tcp://127.0.0.1:{system.ports[server]}", name=name)

        async with at("s9", "dora") as dora, at("s9", "carl") as carl:
            for client in (dora, carl):
                await client.send("sum", Add(amount=1))
        async with at("s3", "dora"):
            # It is connected, and has published nothing so far.
            with pytest.raises(UsageError, match="client dora@s9 cannot move to server s3, which has another client"):
                await system.apply(without)
        async with at("s3", "ann") as ann:
            await ann.send("carl@s3", Add(amount=1))
            await system.until(lambda: system.running["s3"].machine.engine.mailboxes.get("carl@s3"))
            with pytest.raises(UsageError, match="client carl@s9 cannot move to server s3"):
                await system.apply(without)
            assert (await ann.ask("sum", Tell(), expect=Total, timeout=10)).amount == 2

    played(tmp_path, play)


def test_clients_of_a_server_without_agents_go_on_after_an_abandoned_removal(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        more = system.file({**FLAT, "X": "39"}, {"sum": "2"})
        without = system.file(FLAT, {"sum": "2"}, more='[moved]\ns9 = "s3"')
        await system.start(more)
        async with connect(f"tcp://127.0.0.1:{system.ports['s9']}", name="dora") as dora:
            await dora.send("sum", Add(amount=1))
            await system.apply_until(without, "change-ready", before=False)
            ticket = asyncio.ensure_future(dora.send("sum", Add(amount=2)))
            await system.abandon(without)
            await ticket
            await dora.send("sum", Add(amount=4))
        await system.total("s1", "sum", 7)

    played(tmp_path, play)


def test_a_restored_system_takes_in_servers_without_a_past(tmp_path: Path) -> None:
    """A server that is added, and one that has begun again with an empty directory."""

    async def play(system: System) -> None:
        flat = system.file(FLAT, {"sum": "2"})
        more = system.file({**FLAT, "X": "39"}, {"sum": "2", "far": "9"})
        for server in flat.servers:
            (tmp_path / server).mkdir()
            write_system(str(tmp_path / server), "ab12")
        await system.start(flat)
        await system.start(more, "s9")
        assert (await system.apply(more)).state == "done"
        await system.total("s1", "far", 0)
        await system.stop("s9")
        await system.start(more, "s9")
        await system.total("s1", "far", 0)

        await system.stop("s2")
        shutil.rmtree(tmp_path / "s2")
        await system.start(more, "s2")
        refusals = system.running["s1"].core.peering.refusals
        await system.until(lambda: "another system" in refusals.get("s2", ""))
        await system.apply(more)
        # From here on it is like a loss of data in any system: one end notices it, and stops the link.
        await system.until(lambda: any(system.running[one].machine.stopped for one in ("s1", "s2")))

    played(tmp_path, play)


def test_servers_of_a_system_and_of_its_restored_copy_are_not_joined(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        flat, more = system.file(FLAT, {"sum": "2"}), system.file(FLAT, {"sum": "2", "far": "3"})
        for server, restored in (("s1", "ab12"), ("s2", "cd34")):
            (tmp_path / server).mkdir()
            write_system(str(tmp_path / server), restored)
        await system.start(flat)
        with pytest.raises(TopologyError, match="servers s1 and s2 belong to different systems"):
            await system.apply(more)
        with pytest.raises(UsageError, match="belongs to another system, not to the one that was restored"):
            await request(flat.servers["s1"], "", "change-join", "cd34", long=True)
        with pytest.raises(UsageError, match="expected the id of a restored system"):
            await request(flat.servers["s3"], "", "change-join", "../x", long=True)

    played(tmp_path, play)
