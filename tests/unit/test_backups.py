"""Backups: a cut of real servers under load that goes on as a new system, and everything that must be refused."""

import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antecede import limits
from antecede.access import Access, Audit, Identity, Key, Who
from antecede.backups import (
    LINKS,
    MARKER,
    Backup,
    NewBackup,
    NewFolder,
    SavedFile,
    SavedServer,
    check_backup,
    copied,
    locked,
    open_backup,
    restore,
)
from antecede.cli import run
from antecede.errors import MissingError, OverloadError, StoreError, StoreLockedError, UsageError
from antecede.live import ServerRuntime
from antecede.live.application import plan_of
from antecede.recording.segments import gathered
from antecede.server import Cutting
from antecede.topology import TopologyFile
from antecede.trace import judge, read_events
from helpers.identities import public_key
from helpers.summing import Add, Sum, Tell
from helpers.systems import NAMES, System, manifest_of, routed_topology, run_bounded, under_load


def _restored(backup: Backup, target: Path, file: TopologyFile) -> None:
    restore(backup, str(target), plan_of(file), file)


def test_backups_under_load_go_on_as_new_systems(tmp_path: Path) -> None:
    file = routed_topology()
    made: list[Backup] = []

    async def act(system: System) -> None:
        for number in range(2):
            made.append(await system.backup(tmp_path / f"backup{number}"))
            assert not (tmp_path / "data" / "s1" / LINKS).exists()

    run_bounded(lambda: under_load(tmp_path / "data", file, act))
    for number, backup in enumerate(made):
        assert check_backup(backup, plan_of(file)).sound
        other, target = routed_topology(), tmp_path / f"restored{number}"
        _restored(backup, target, other)

        async def go_on(other: TopologyFile = other, target: Path = target) -> None:
            async with System(other, target) as system:
                published = system.servers["s1"].machine.clients["alice"]
                assert published >= 50
                async with system.servers["s1"].bus("alice") as bus:
                    await bus.send("sum", Add(amount=published + 1))
                    total = (await bus.ask("sum", Tell())).fields["amount"]
                # What was in transit at the cut arrived once, and the client's numbers go on.
                assert total == (published + 1) * (published + 2) // 2

        run_bounded(go_on)
        with gathered([str(target)]) as paths:
            rows = list(read_events(paths)[0])
        verdict = judge(rows, ("fifo", "causal"))
        assert verdict.holds("causal")
        assert verdict.holds("fifo")
        assert verdict.undelivered == 0
        ids = {row.message.rpartition(".")[0] for row in rows if row.kind == "send" and row.message}
        assert len(ids) >= 3, "letters of the restored system have ids of their own"


def test_a_stopped_system(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = routed_topology()
    topology = tmp_path / "topology.toml"
    topology.write_text(file.text())
    data, backup = str(tmp_path / "data"), str(tmp_path / "backup")

    async def act(system: System) -> None:
        assert run(["backup", str(topology), backup, "--data", data]) == 2
        assert "stop that process, or back up the running system" in capsys.readouterr().err
        assert not os.path.exists(backup)
        assert not os.path.exists(backup + ".partial")

    run_bounded(lambda: under_load(tmp_path / "data", file, act))
    capsys.readouterr()
    assert run(["backup", str(topology), backup, "--data", data, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sound"] is True
    assert report["servers"].keys() == set(NAMES)
    assert run(["inspect", backup, "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sound"] is True
    assert run(["inspect", backup]) == 0
    assert "3 servers" in capsys.readouterr().out
    assert run(["restore", backup, str(tmp_path / "again"), "--json"]) == 0
    servers = json.loads(capsys.readouterr().out)["servers"]
    assert len({one["incarnation"] for one in servers.values()}) == 3
    assert run(["backup", str(topology), backup, "--data", data]) == 2
    assert "exists already" in capsys.readouterr().err
    assert run(["restore", backup, str(tmp_path / "again")]) == 2
    assert "not empty" in capsys.readouterr().err

    # A damaged file, a damaged manifest, a missing one.
    victim = next(Path(backup, "s2").glob("segment-*"))
    good = victim.read_bytes()
    victim.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert run(["inspect", backup, "--verify"]) == 1
    assert f"DAMAGED: {victim}: does not match its checksum" in capsys.readouterr().out
    assert run(["restore", backup, str(tmp_path / "more")]) == 2
    assert not (tmp_path / "more").exists()
    victim.write_bytes(good)
    # Also files that recovery does not read.
    for victim in (Path(backup, "s1", "trace", "begun"), Path(backup, "topology.toml")):
        good = victim.read_bytes()
        victim.write_bytes(good + b"# changed\n")
        capsys.readouterr()
        assert run(["restore", backup, str(tmp_path / "more")]) == 2
        assert f"{victim}: {len(good) + 10} bytes, expected {len(good)}" in capsys.readouterr().err
        assert not list(tmp_path.glob("more*"))
        victim.write_bytes(good)
    manifest = Path(backup, "backup.json")
    text = manifest.read_text()
    manifest.write_text(text.replace(file.epoch, "0" * 16))
    assert run(["inspect", backup]) == 2
    assert "does not match its checksum" in capsys.readouterr().err
    manifest.unlink()
    assert run(["restore", backup, str(tmp_path / "more")]) == 2
    assert "not a backup: it has no backup.json" in capsys.readouterr().err
    manifest.write_text(text)
    assert run(["inspect", backup, "--verify"]) == 0


def test_copies_of_different_moments_are_refused(tmp_path: Path) -> None:
    file = routed_topology()
    copies = tmp_path / "copies"

    async def act(system: System) -> None:
        for name in NAMES:
            # By hand, one after the other, while the system goes on.
            shutil.copytree(tmp_path / "data" / name, copies / name)
            before = system.servers[name].store.last
            while system.servers[name].store.last < before + 20:
                await asyncio.sleep(0.005)

    run_bounded(lambda: under_load(tmp_path / "data", file, act))
    with NewBackup(str(tmp_path / "backup")) as new:
        saved = {}
        for name in NAMES:
            with locked(str(copies / name)):
                saved[name] = copied(str(copies / name), name, new.folder(name), lambda done, total: None)
        backup = new.complete(manifest_of(file, saved), file.text())
    checked = check_backup(backup, plan_of(file))
    assert not checked.sound
    assert "has accepted frame" in checked.faults[0]
    with pytest.raises(StoreError, match="not a consistent cut"):
        _restored(backup, tmp_path / "restored", file)
    assert not (tmp_path / "restored").exists()


def test_the_old_and_the_restored_system_do_not_connect(tmp_path: Path) -> None:
    file = routed_topology()
    made: list[Backup] = []

    async def act(system: System) -> None:
        made.append(await system.backup(tmp_path / "backup"))

    run_bounded(lambda: under_load(tmp_path / "data", file, act))
    _restored(made[0], tmp_path / "restored", file)

    async def mixed() -> None:
        # By mistake one server of the restored system runs among those of the old one.
        folders = {"s1": "data", "s2": "restored", "s3": "data"}
        servers = [
            ServerRuntime(file, name, str(tmp_path / folder / name), agents={"sum": Sum} if name == "s3" else {})
            for name, folder in folders.items()
        ]
        for server in servers:
            await server.start()
        before = [server.machine.engine.dump() for server in servers]
        while not all(server.core.peering.refusals for server in servers):
            await asyncio.sleep(0.01)
        assert [server.machine.engine.dump() for server in servers] == before
        assert not any(server.machine.stopped for server in servers), "neither system is harmed"
        assert "another system" in str(servers[0].core.peering.refusals)
        assert not any(peer.ready for server in servers for peer in server.core.peering.peers.values())
        for server in servers:
            await server.stop()

    run_bounded(mixed)

    async def old() -> None:
        async with System(file, tmp_path / "data") as system, system.servers["s1"].bus("bob") as bus:
            await bus.ask("sum", Tell())

    run_bounded(old)


def test_only_operators_who_may_back_up(tmp_path: Path) -> None:
    access = Access(
        operators={
            "keeper": Identity("operator", "keeper", (Key(public_key(1)),), operate=("backup",)),
            "reader": Identity("operator", "reader", (Key(public_key(2)),), operate=("status", "dead-*")),
        }
    )
    noted: list[str] = []

    async def act(system: System) -> None:
        server = system.servers["s2"]
        server.core.guard.authoriser.access = access
        server.core.guard._audit = Audit(noted.append, "s2", lambda: 0.0)
        answers: list[Any] = []
        reader, keeper = (Who("operator", name, public_key(key)) for name, key in (("reader", 2), ("keeper", 1)))
        for command in ("backup", "backup-cut", "backup-end"):
            server.operations.request(reader, "there", command, ["x"], answers.append)
        server.operations.request(reader, "there", "backup-read", ["x", "identity", "0"], answers.append)
        assert [answer.code for answer in answers] == ["not-allowed"] * 4
        answers.clear()
        for command in ("backup", "backup-cut"):
            server.operations.request(keeper, "there", command, ["x"], answers.append)
        server.operations.request(keeper, "there", "backup-read", ["x", "identity", "0"], answers.append)
        server.operations.request(keeper, "there", "backup-end", ["x"], answers.append)
        assert all(answer.ok for answer in answers)
        server.core.guard.authoriser.access = None

    run_bounded(lambda: under_load(tmp_path / "data", routed_topology(), act))
    lines = [json.loads(line) for line in noted]
    assert [line["command"] for line in lines if line["event"] == "refused"] == [
        *("backup", "backup-cut", "backup-end", "backup-read")
    ]
    assert [line["command"] for line in lines if line["event"] == "command"] == ["backup", "backup-cut", "backup-end"]


def test_a_hold_ends_by_itself(tmp_path: Path) -> None:
    async def act(system: System) -> None:
        server = system.servers["s2"]
        backups, now = server.operations.backups, server.driver.now
        with pytest.raises(MissingError):
            backups.cut("first")
        backups.hold("first")
        with pytest.raises(OverloadError, match=f"{limits.backup_hold_seconds_max:.0f} s"):
            backups.hold("second")
        assert server.core.peering.paused
        # At the bound it waits, beyond it it does not.
        server.core.operations.backups.watch(server.driver.now + limits.backup_hold_seconds_max)
        assert server.core.peering.paused
        backups.watch(backups._until + 0.001)
        assert not server.core.peering.paused
        with pytest.raises(MissingError):
            backups.cut("first")
        backups.hold("second")
        cut = backups.cut("second")
        assert not server.core.peering.paused
        assert max(cut["files"].values()) > limits.backup_page_bytes / 2
        with pytest.raises(UsageError):
            backups.read("second", "../s1/identity", "0")
        for name in cut["files"]:
            assert len(backups.read("second", name, "0")["bytes"]) <= 4 * (limits.backup_page_bytes // 3 + 1)
        backups.watch(backups._until)
        assert backups.read("second", "identity", "0")["bytes"]
        backups.watch(backups._until + 0.001)
        assert backups._until >= now + limits.backup_idle_seconds_max
        with pytest.raises(MissingError):
            backups.read("second", "identity", "0")
        assert not (tmp_path / "data" / "s2" / LINKS).exists()

    run_bounded(lambda: under_load(tmp_path / "data", routed_topology(), act))


def test_a_failed_cut_leaves_nothing(tmp_path: Path) -> None:
    async def act(system: System) -> None:
        await system.servers["s3"].stop()
        with pytest.raises(Exception, match="s3"):
            await system.backup(tmp_path / "backup")
        assert not list(tmp_path.glob("backup*"))
        assert not system.servers["s1"].core.peering.paused

    run_bounded(lambda: under_load(tmp_path / "data", routed_topology(), act))


def test_the_operator_cuts_only_when_all_are_held() -> None:
    cutting = Cutting(["s1", "s2"], "x")
    assert [one[:2] for one in cutting.requests()] == [("s1", "backup"), ("s2", "backup")]
    cutting.answered("s1", {}, None)
    assert cutting.requests() == []
    cutting.answered("s2", {}, None)
    assert [one[:2] for one in cutting.requests()] == [("s1", "backup-cut"), ("s2", "backup-cut")]
    cutting.answered("s1", {"position": 1}, None)
    cutting.answered("s2", None, MissingError("gone"))
    assert cutting.over
    assert not cutting.done
    assert [one[1] for one in cutting.releases()] == ["backup-end"] * 2


def test_an_interrupted_backup_does_not_look_complete(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    with suppress(KeyboardInterrupt), NewBackup(str(path)) as new:
        (Path(new.folder("s1")) / "identity.backup").write_bytes(b"")
        # As after a kill: the folder stays.
        shutil.copytree(f"{path}.partial", tmp_path / "killed.partial")
        raise KeyboardInterrupt
    assert not list(tmp_path.glob("backup*"))
    with pytest.raises(StoreError, match="an interrupted backup"):
        open_backup(str(tmp_path / "killed.partial"))


def test_only_the_rest_of_an_interrupted_attempt_is_removed(tmp_path: Path) -> None:
    path, partial = tmp_path / "backup", tmp_path / "backup.partial"
    partial.mkdir()
    (partial / "keep").write_text("somebody else's")
    with pytest.raises(UsageError, match=r"backup\.partial: exists, but was not made by an interrupted backup"):
        NewBackup(str(path)).__enter__()
    assert (partial / "keep").read_text() == "somebody else's"
    shutil.rmtree(partial)
    with NewBackup(str(path)) as new:
        (Path(new.folder("s1")) / "identity.backup").write_bytes(b"")
        shutil.copytree(partial, tmp_path / "killed.partial")
        # Another command with this name at the same time: the first one is not disturbed.
        with pytest.raises(UsageError, match=r"backup: another command is making this folder$"):
            NewFolder(str(path)).__enter__()
        new.finish()
    assert os.listdir(path) == ["s1"]
    assert not partial.exists()
    with NewBackup(str(tmp_path / "killed")) as again:
        assert os.listdir(again.partial) == [MARKER]
        again.finish()
    assert os.listdir(tmp_path / "killed") == []
    with pytest.raises(StoreError, match="nope: no such folder"):
        open_backup(str(tmp_path / "nope"))


def test_a_cleanup_that_is_killed_does_not_block_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        """A kill: nothing more is removed."""

    left = [0]

    def counted(real: Callable[..., None]) -> Callable[..., None]:
        def remove(*given: object, **options: object) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KilledError
            real(*given, **options)

        return remove

    path = str(tmp_path / "backup")
    # Each folder has one file, and there is the marker.
    for removed in range(2 * len(NAMES) + 2):
        new = NewBackup(path).__enter__()
        for server in NAMES:
            (Path(new.folder(server)) / "identity.backup").write_bytes(b"")
        left[0] = removed
        with monkeypatch.context() as patch:
            for name in ("unlink", "rmdir"):
                patch.setattr(os, name, counted(getattr(os, name)))
            with pytest.raises(KilledError):
                new.__exit__()
        # A kill releases the lock.
        os.close(new._lock)
    with NewBackup(path) as new:
        assert os.listdir(new.partial) == [MARKER]


def test_a_finished_folder_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All names in it are durable before it gets its name, and the names of the folders above it at the end."""
    durable: dict[int, set[str]] = {}
    sync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        sync(descriptor)
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            durable[status.st_ino] = set(os.listdir(descriptor))

    def lost(top: Path) -> list[str]:
        """Return the folders with names that a power cut would lose."""
        return [
            folder
            for folder, folders, files in os.walk(top)
            if durable.get(os.stat(folder).st_ino, set()) != {*folders, *files}
        ]

    def renamed(old: str, new: str) -> None:
        assert lost(Path(old)) == []
        rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    with NewFolder(str(tmp_path / "above" / "other" / "new")) as new:
        for folder in ("s1/trace", "s2/trace"):
            os.makedirs(f"{new.partial}/{folder}")
            Path(new.partial, folder, "topology.toml").write_text("")
        new.finish()
    assert lost(tmp_path) == []


def test_a_restore_onto_a_file(tmp_path: Path) -> None:
    file = routed_topology()
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="file: is a file: expected the name of a new folder"):
        _restored(Backup(str(tmp_path), manifest_of(file, {})), tmp_path / "file", file)


def test_a_pipe_in_a_backup_is_refused(tmp_path: Path) -> None:
    file = routed_topology()
    topology, backup = tmp_path / "topology.toml", tmp_path / "backup"
    topology.write_text(file.text())

    async def act(system: System) -> None:
        return

    run_bounded(lambda: under_load(tmp_path / "data", file, act))
    assert run(["backup", str(topology), str(backup), "--data", str(tmp_path / "data")]) == 0
    for path in (next(backup.glob("s1/segment-*")), backup / "backup.json"):
        path.unlink()
        os.mkfifo(path)
        command = [sys.executable, "-m", "antecede", "restore", str(backup), str(tmp_path / "new")]
        assert subprocess.run(command, timeout=60, check=False).returncode == 2


def test_a_manifest_from_outside(tmp_path: Path) -> None:
    saved = SavedFile("../../etc/passwd", 1, "x")
    manifest = msgspec.structs.replace(manifest_of(routed_topology(), {}), servers={"s1": SavedServer("0", 1, [saved])})
    (tmp_path / "backup.json").write_bytes(msgspec.json.encode(manifest.sealed()))
    with pytest.raises(StoreError, match="outside of the backup"):
        open_backup(str(tmp_path))
    (tmp_path / "backup.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, format=9).sealed()))
    with pytest.raises(StoreError, match="format 9"):
        open_backup(str(tmp_path))
    (tmp_path / "backup.json").write_bytes(b"\xff{")
    with pytest.raises(StoreError, match="not the manifest"):
        open_backup(str(tmp_path))


def test_a_locked_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a data directory"), locked(str(tmp_path)):
        pass
    assert StoreLockedError.code
