"""Backups and restores when something else happens: connections, resets, a full disk, a server that starts."""

import asyncio
import errno
import os
from pathlib import Path

import msgspec
import pytest

from antecede import limits
from antecede.backups import locked
from antecede.cli import run
from antecede.errors import StoreLockedError
from antecede.link import Ack, Hello
from antecede.live import ServerRuntime
from antecede.server import FromPeer
from antecede.store import Files, Sizes
from antecede.topology import parse_topology
from helpers.overload import fill
from helpers.summing import Add
from helpers.systems import System, routed_topology, run_bounded, under_load


def test_connections_and_resets_during_a_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that connects again during a hold is not read either, and after a reset of a domain nothing that came
    before it is taken."""
    # On a busy machine a connection may take longer than a hold.
    monkeypatch.setattr(limits, "backup_hold_seconds_max", 60.0)

    async def act(system: System) -> None:
        server, other = system.servers["s2"], system.servers["s1"]
        peering, peer = server.core.peering, server.core.peering.peers["s1"]
        server.operations.backups.hold("one")
        before = peer.connection
        assert before is not None
        theirs = other.core.peering.peers["s2"].connection
        assert theirs is not None
        theirs.close("for the test")
        # A closed connection is noticed only by reading it: the next one replaces it.
        while peer.connection in (None, before):
            await asyncio.sleep(0.005)
        assert peer.connection._held  # type: ignore[union-attr]
        assert [one.content for one in peering._kept if isinstance(one.content, Hello)]
        taken: list[FromPeer] = []
        with monkeypatch.context() as patch:
            patch.setattr(server.driver, "feed", taken.append)
            peering._kept.append(FromPeer("B", "s3", Ack(0, 0, 0)))
            peering.reset("A", server.driver.now)
            peering.resume()
        assert [one.domain for one in taken] == ["B"] * len(taken)
        assert taken
        while not peer.ready:
            await asyncio.sleep(0.005)

    run_bounded(lambda: under_load(tmp_path / "data", routed_topology(), act))


def test_a_restore_without_space_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backup, topology = tmp_path / "backup", tmp_path / "topology.toml"
    run_bounded(
        lambda: under_load(tmp_path / "data", routed_topology(), lambda system: _saved(system, backup, topology))
    )
    real, left = Files.create, [0]

    def create(self: Files, path: str) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, path)

    for files in range(4):
        left[0] = files
        with monkeypatch.context() as patch:
            patch.setattr(Files, "create", create)
            assert run(["restore", str(backup), str(tmp_path / "new")]) == 2
        error = capsys.readouterr().err
        assert (error.count("\n"), "No space left on device" in error) == (1, True), error
        assert sorted(os.listdir(tmp_path)) == ["backup", "data", "topology.toml"]

    def begun(self: Files, path: str) -> None:
        # A server is started there while the restore works.
        (tmp_path / "new" / "s1").mkdir(parents=True, exist_ok=True)
        os.mkdir(path, 0o700)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "make_directory", begun)
        assert run(["restore", str(backup), str(tmp_path / "new")]) == 2
    assert "new: Directory not empty" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["backup", "data", "new", "topology.toml"]


def test_a_server_restored_from_a_full_log_starts_overloaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A restored log may be larger than a log may become: its server starts, and refuses publishes."""
    backup, topology, file = tmp_path / "backup", tmp_path / "topology.toml", routed_topology()
    run_bounded(lambda: under_load(tmp_path / "data", file, lambda system: _saved(system, backup, topology)))
    assert run(["restore", str(backup), str(tmp_path / "new")]) == 0
    small = Sizes(segment_bytes=65_536, group_bytes_max=16_384, pending_bytes_max=32_768, log_bytes_max=131_072)
    caplog.set_level("INFO")

    async def start() -> None:
        server = ServerRuntime(file, "s1", str(tmp_path / "new" / "s1"), agents={}, sizes=small)
        assert server.store.log_bytes > small.log_bytes_max
        await server.start()
        async with server.bus("alice") as bus:
            while not server.machine.overloaded:
                await asyncio.sleep(0.005)
            accepted, reason = await fill(bus, lambda: bus.send("sum", Add(amount=1)))
            assert accepted == 0
            assert "log_bytes_max is 131072" in reason
        await server.stop()

    run_bounded(start)
    assert "disk-full" in caplog.text


async def _saved(system: System, backup: Path, topology: Path) -> None:
    await system.backup(backup)
    topology.write_text(system.file.text())


def test_a_server_that_starts_while_its_directory_is_backed_up(tmp_path: Path) -> None:
    file = routed_topology()

    async def act(system: System) -> None:
        """Only let the servers write something."""

    run_bounded(lambda: under_load(tmp_path / "data", file, act))

    async def start() -> None:
        with (
            locked(str(tmp_path / "data" / "s1")),
            pytest.raises(StoreLockedError, match=r"s1: in use by process \d+$"),
        ):
            ServerRuntime(file, "s1", str(tmp_path / "data" / "s1"), agents={})
        # After the copy it starts.
        runtime = ServerRuntime(file, "s1", str(tmp_path / "data" / "s1"), agents={})
        await runtime.start()
        await runtime.stop()

    run_bounded(start)


def test_a_backup_with_an_outdated_topology_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its check fails, and it can be restored with the file that was in force."""
    old, new, file = tmp_path / "old.toml", tmp_path / "new.toml", routed_topology()
    old.write_text(file.text())
    renamed = msgspec.structs.replace(file.domains[0], name="other")
    new.write_text(msgspec.structs.replace(file, domains=(renamed, *file.domains[1:])).text())
    data, backup, target = str(tmp_path / "data"), str(tmp_path / "backup"), tmp_path / "restored"

    async def begin(file: Path, folder: str) -> None:
        async with System(parse_topology(file.read_text()), Path(folder)):
            pass

    run_bounded(lambda: begin(old, data))
    assert run(["topology", "apply", str(new), "--data", data]) == 0
    capsys.readouterr()
    assert run(["backup", str(old), backup, "--data", data]) == 1
    reason = "topology.toml: not the topology that was in force when the backup was made"
    assert reason in capsys.readouterr().out
    assert run(["inspect", backup, "--verify"]) == 1
    assert reason in capsys.readouterr().out
    assert run(["restore", backup, str(target)]) == 2
    assert reason in capsys.readouterr().err
    assert not target.exists()
    assert run(["restore", backup, str(target), "--topology", str(new)]) == 0
    run_bounded(lambda: begin(new, str(target)))
