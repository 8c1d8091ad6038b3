"""Changes of the topology of running servers, in one event loop: what moves, what is refused, operators that vanish.

``tests/live/test_changes.py`` has real processes and kills; ``tests/simulation/test_changes.py`` crashes everywhere.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antecede import limits
from antecede.errors import AntecedeError, RefusedError, UsageError
from antecede.live.client.line import connect
from antecede.live.client.operator import RunningServers, request
from antecede.live.process import WatchdogThread
from antecede.server import Outcome, end_change
from helpers.running import BUS, FLAT, System, played
from helpers.summing import Add


def test_agents_keep_their_states_and_letters_under_load(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        flat, bus = system.file(FLAT, {"sum": "2"}), system.file(BUS, {"sum": "3"})
        await system.start(flat)
        enough = asyncio.Event()

        async def publish(server: str) -> int:
            sent = 0
            async with connect(f"tcp://127.0.0.1:{system.ports[server]}", name="alice") as client:
                while not enough.is_set():
                    await client.send("sum", Add(amount=1))
                    sent += 1
            return sent

        load = [asyncio.create_task(publish(server)) for server in ("s1", "s2", "s3")]
        for station in (bus, flat, system.file({"A": "12", "B": "13"}, {"sum": "1"}), flat):
            await asyncio.sleep(0.1)
            outcome = await system.apply(station)
            assert outcome.state == "done", outcome.refusals
        enough.set()
        sent = sum(await asyncio.gather(*load))
        assert sent > 50
        await system.total("s3", "sum", sent)
        assert {system.organisation(server).change for server in system.running} == {4}
        assert (await system.apply(flat)).state == "unchanged"

    played(tmp_path, play)


def test_adding_an_agent_pauses_nothing(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        flat = system.file(FLAT, {"sum": "2"})
        await system.start(flat)
        await system.until(lambda: all(peer.ready for peer in system.running["s2"].core.peering.peers.values()))
        paused: list[str] = []
        for runtime in system.running.values():
            real = runtime.machine.channel.pause
            runtime.machine.channel.pause = lambda *given, real=real: (paused.append("paused"), real(*given))[1]
        before = {peer.name: peer.serial for peer in system.running["s2"].core.peering.peers.values()}
        outcome = await system.apply(system.file(FLAT, {"sum": "2", "more": "3"}))
        assert (outcome.state, outcome.change.region, paused) == ("done", (), [])
        # No connection was made again.
        assert before == {peer.name: peer.serial for peer in system.running["s2"].core.peering.peers.values()}
        async with connect(f"tcp://127.0.0.1:{system.ports['s1']}", name="alice") as client:
            await client.send("more", Add(amount=7))
        await system.total("s2", "more", 7)

    played(tmp_path, play)


def test_a_server_gets_another_address(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        flat = system.file(FLAT, {"sum": "2"})
        await system.start(flat)
        async with connect(f"tcp://127.0.0.1:{system.ports['s2']}", name="alice") as client:
            await client.send("sum", Add(amount=1))
            system.ports["s2"] = system.ports["s4"]
            outcome = await system.apply(system.file(FLAT, {"sum": "2"}))
            assert (outcome.state, outcome.change.region) == ("done", ())
            await client.send("sum", Add(amount=2))
        await system.total("s2", "sum", 3)

    played(tmp_path, play)


def test_what_is_refused_leaves_everything_as_it_was(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        flat = system.file(FLAT, {"sum": "2"})
        await system.start(flat)
        with pytest.raises(UsageError, match=r"server s3: agent class helpers\.summing:Nobody") as missing:
            await system.apply(system.file(BUS, {"sum": "3"}, "helpers.summing:Nobody"))
        assert "\n" not in str(missing.value)
        await system.stop("s3")
        outcome = await system.apply(system.file(BUS, {"sum": "2"}))
        assert outcome.state == "refused"
        assert outcome.refusals == ("server s3 does not answer, and must take part in this change",)
        await system.start(flat, "s3")
        for server in system.running:
            organisation = system.organisation(server)
            assert (organisation.change, organisation.attempt, organisation.staged) == (0, "", None)
        async with connect(f"tcp://127.0.0.1:{system.ports['s1']}", name="alice") as client:
            await client.send("sum", Add(amount=1))
        await system.total("s3", "sum", 1)

    played(tmp_path, play)


def test_a_state_that_the_new_class_cannot_read(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        flat = system.file(FLAT, {"sum": "2"})
        await system.start(flat)
        async with connect(f"tcp://127.0.0.1:{system.ports['s1']}", name="alice") as client:
            await client.send("sum", Add(amount=1))
        await system.total("s1", "sum", 1)
        with pytest.raises(UsageError, match="its state cannot be read as Named"):
            await system.apply(system.file(FLAT, {"sum": "2"}, "helpers.summing:Named"))
        await system.total("s1", "sum", 1)

    played(tmp_path, play)


def test_a_dry_run_checks_classes_and_imports_nothing_into_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fresh_agents.py").write_text("from helpers.summing import Sum\n\n\nclass Other(Sum):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    async def play(system: System) -> None:
        flat = system.file(FLAT, {"sum": "2"})
        await system.start(flat)
        for kind, reason in (
            ("thingz:Thing", "cannot import thingz"),
            ("fresh_agents:Missing", "module fresh_agents has no Missing"),
            ("helpers.summing:Missing", "module helpers.summing has no Missing"),
        ):
            outcome = await system.apply(system.file(FLAT, {"sum": "2"}, kind), dry=True)
            assert outcome.state == "refused"
            assert reason in outcome.refusals[0]
            assert outcome.refusals[0].startswith("server s2: ")
        outcome = await system.apply(system.file(FLAT, {"sum": "2"}, "fresh_agents:Other"), dry=True)
        assert (outcome.state, outcome.refusals) == ("planned", ())
        assert "fresh_agents" not in sys.modules, "the server will import it as it is when the change is made"

    played(tmp_path, play)


def test_a_wrong_token_at_one_server(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        flat = system.file(FLAT, {"sum": "2"})
        await system.start(flat, "s1", "s2")
        system.token = "another"
        await system.start(flat, "s3")
        system.token = ""
        with pytest.raises(RefusedError, match="server s3 at tcp://127"):
            await system.apply(system.file(BUS, {"sum": "2"}))
        assert not system.organisation("s1").attempt

    played(tmp_path, play)


@pytest.mark.parametrize("name", ["change-transit", "change-ready", "change-commit"])
def test_servers_resume_by_themselves_if_the_operator_is_gone(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "change_idle_seconds_max", 0.2)
    monkeypatch.setattr(limits, "change_ask_seconds", 0.1)

    async def play(system: System) -> None:
        flat = system.file(FLAT, {"sum": "2"})
        await system.start(flat)
        await system.apply_until(system.file(BUS, {"sum": "3"}), name)
        async with connect(f"tcp://127.0.0.1:{system.ports['s1']}", name="alice") as client:
            await client.send("sum", Add(amount=1))
        await system.total("s3", "sum", 1)
        await system.until(lambda: not any(system.organisation(server).attempt for server in system.running))
        assert {system.organisation(server).change for server in system.running} == {0}

    played(tmp_path, play)


def test_servers_finish_by_themselves_if_the_change_was_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "change_ask_seconds", 0.1)

    async def play(system: System) -> None:
        flat, bus = system.file(FLAT, {"sum": "2"}), system.file(BUS, {"sum": "3"})
        await system.start(flat)
        await system.apply_until(bus, "change-commit")
        await system.stop("s3")
        await request(flat.servers["s1"], "", "change-commit", f"1:{system.organisation('s1').attempt}", "5", long=True)
        # A server that was down at the commit, started with the old file.
        await system.start(flat, "s3")
        await system.until(lambda: {system.organisation(server).change for server in system.running} == {1})
        async with connect(f"tcp://127.0.0.1:{system.ports['s1']}", name="alice") as client:
            await client.send("sum", Add(amount=1))
        await system.total("s2", "sum", 1)

    played(tmp_path, play)


def test_a_killed_command_is_run_again(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        flat, bus = system.file(FLAT, {"sum": "2"}), system.file(BUS, {"sum": "3"})
        await system.start(flat)
        await system.apply_until(bus, "change-ready", before=False)
        assert (await system.apply(bus)).state == "done"
        await system.apply_until(flat, "change-transit", before=False)
        ended = await RunningServers([flat]).drive(end_change(system.wish(flat)))
        assert (ended.number, ended.old.epoch) == (1, bus.epoch)
        assert not any(system.organisation(server).attempt for server in system.running)

    played(tmp_path, play)


def test_two_operators_at_once(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        flat = system.file(FLAT, {"sum": "2"})
        bus, star = system.file(BUS, {"sum": "3"}), system.file({"A": "12", "B": "13"}, {"sum": "1"})
        await system.start(flat)
        found = await asyncio.gather(*(system.apply(one) for one in (bus, star)), return_exceptions=True)
        assert all(isinstance(one, Outcome | AntecedeError) for one in found), found
        assert any(isinstance(one, Outcome) and one.state == "done" for one in found), found
        assert len({system.organisation(server).change for server in system.running}) == 1
        assert len({system.running[server].epoch for server in system.running}) == 1
        async with connect(f"tcp://127.0.0.1:{system.ports['s3']}", name="alice") as client:
            await client.send("sum", Add(amount=1))
        await system.total("s2", "sum", 1)

    played(tmp_path, play)


def test_a_change_waits_for_a_backup(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        flat, bus = system.file(FLAT, {"sum": "2"}), system.file(BUS, {"sum": "3"})
        await system.start(flat)
        for address in flat.servers.values():
            await request(address, "", "backup", "monday")
        applying = asyncio.create_task(system.apply(bus))
        answers = [await _paused(address) for address in flat.servers.values()]
        assert answers == ["overloaded"] * 3
        for address in flat.servers.values():
            await request(address, "", "backup-end", "monday")
        assert (await applying).state == "done"

    async def _paused(address: Any) -> str:
        try:
            await request(address, "", "change-pause", "1:x", "A", "", "0", long=True)
        except AntecedeError as error:
            return error.code
        return ""

    played(tmp_path, play)


def test_nothing_is_staged_while_a_server_is_held_for_a_backup(tmp_path: Path) -> None:
    """The backup begins while the server prepares itself for the change."""

    async def play(system: System) -> None:
        flat, bus = system.file(FLAT, {"sum": "2"}), system.file(BUS, {"sum": "3"})
        await system.start(flat)
        server, address = system.running["s1"], flat.servers["s1"]
        adapter = server.core.changes.adapter
        waiting: list[Callable[[], None]] = []
        real = adapter.offload

        def offload(work: Callable[[], None], then: Callable[[AntecedeError | None], None]) -> None:
            if server.machine.organisation.paused:
                waiting.append(lambda: real(work, then))
            else:
                real(work, then)

        adapter.offload = offload  # type: ignore[method-assign]
        applying = asyncio.create_task(system.apply(bus))
        await system.until(lambda: waiting)
        await request(address, "", "backup", "monday")
        waiting.pop()()
        await system.until(lambda: server.machine.organisation.staged or not server.core.changes._busy)
        assert server.machine.organisation.staged is None
        await request(address, "", "backup-end", "monday")
        adapter.offload = real  # type: ignore[method-assign]
        assert (await applying).state == "done"

    played(tmp_path, play)


def test_an_earlier_file_is_good_enough_for_a_restart(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        flat, bus = system.file(FLAT, {"sum": "2"}), system.file(BUS, {"sum": "3"})
        await system.start(flat)
        assert (await system.apply(bus)).state == "done"
        await system.stop()
        await system.start(flat)
        assert {runtime.epoch for runtime in system.running.values()} == {bus.epoch}
        async with connect(f"tcp://127.0.0.1:{system.ports['s1']}", name="alice") as client:
            await client.send("sum", Add(amount=1))
        await system.total("s1", "sum", 1)

    played(tmp_path, play)


def test_the_limits_of_reactions_act_with_the_change_and_after_a_restart_with_an_earlier_file(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        flat = system.file(FLAT, {"sum": "2"})
        bus = system.file(BUS, {"sum": "3"}, more="[application]\nreaction_seconds_max = 7")
        await system.start(flat)
        watched = WatchdogThread(system.running["s3"])
        assert watched._reactions._limit("sum") == limits.reaction_seconds_max
        assert (await system.apply(bus)).state == "done"
        await system.until(lambda: watched._reactions._limit("sum") == 7)
        assert system.running["s3"].reactions._limit("sum") == 7
        await system.stop()
        await system.start(flat)
        assert {runtime.reaction_limit("sum") for runtime in system.running.values()} == {7}

    played(tmp_path, play)


def test_unreadable_commands(tmp_path: Path) -> None:
    async def play(system: System) -> None:
        flat = system.file(FLAT, {"sum": "2"})
        await system.start(flat, "s1")
        asked = [
            ("change-pause", "1", "A", "", "0"),
            ("change-pause", "1:x"),
            ("change-stage", "{}"),
            ("change-receive", "1:x", "0", "1", "!"),
            ("change-commit", "x:y", "0"),
            ("change-commit", "1:y", "0"),
            ("change-abandon", "1:" + 80 * "y"),
            ("change-look", "[servers", ""),
            ("change-left", "1:x", "s2", "-1"),
        ]
        for command, *arguments in asked:
            with pytest.raises(AntecedeError) as refused:
                await request(flat.servers["s1"], "", command, *arguments, long=True)
            assert "\n" not in str(refused.value)

    played(tmp_path, play)
