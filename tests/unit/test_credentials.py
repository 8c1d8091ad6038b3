"""The folders of credentials: what is created, rotated and read again, and what is refused."""

import asyncio
import errno
import logging
import os
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from antecede.access.model import Identity
from antecede.cli import run
from antecede.live import ServerRuntime, issuing
from antecede.live.keys import Credentials, read_access
from antecede.live.security import ServerSecurity
from antecede.topology import parse_topology
from helpers.commands import failed

pytest.importorskip("cryptography")


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    """Return a topology of one server."""
    path = tmp_path / "shop.toml"
    path.write_text('[servers]\ns1 = "tcp://127.0.0.1:7101"\n[domains]\nA = { servers = ["s1"] }\n')
    return path


def _made(topology: Path, command: str, *arguments: str) -> Path:
    """Run a command; return the folder of credentials."""
    assert run(["credentials", command, str(topology), *arguments]) == 0
    return topology.parent / "credentials"


def _servers(topology: Path) -> dict[str, Identity]:
    return read_access(topology.parent / "access.toml").servers


def test_a_server_signs_with_its_old_key_until_that_is_revoked(
    topology: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _made(topology, "create") / "servers" / "s1"
    old = Credentials(folder).signer
    _made(topology, "rotate", "s1")
    new = Credentials(folder)
    keyring = new.keyring(lambda: _servers(topology))
    assert old is not None
    assert new.signer is not None
    assert new.signer.public != old.public
    assert keyring.sign(b"content") == old.sign(b"content")
    refused = failed(capsys, "credentials", "rotate", str(topology), "s1")
    assert "server s1 has 2 valid keys already: revoke the old one first" in refused
    _made(topology, "revoke", "s1", "--old")
    assert keyring.sign(b"content") == new.signer.sign(b"content")


def test_a_running_client_takes_a_new_folder(topology: Path) -> None:
    """New servers count at the next connection; a new key only when the old one is refused."""
    own = Credentials(_made(topology, "create", "--client", "alice") / "clients" / "alice")
    keyring, old = own.keyring(renew=own.renew), own.sign(b"content")
    assert not keyring.renew(), "nothing has changed"
    _made(topology, "rotate", "s1")
    _made(topology, "rotate", "alice")
    own.read_again()
    assert keyring.servers() == _servers(topology)
    assert own.sign(b"content") == old, "servers may not know the new key yet"
    assert keyring.renew()
    assert own.sign(b"content") == Credentials(own.folder).sign(b"content") != old
    assert not keyring.renew()
    (own.folder / "certificate.pem").write_text("half of a cert")
    (own.folder / "servers.toml").write_text("")
    assert not keyring.renew(), "a folder that is just being written"
    assert keyring.servers()


def test_no_second_authority(topology: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The authority may be kept elsewhere; servers would not accept certificates of another one."""
    folder = _made(topology, "create")
    shutil.move(folder / "authority", topology.parent / "kept")
    before = (topology.parent / "access.toml").read_text()
    create = ("credentials", "create", str(topology), "--client", "dora")
    assert "there is no authority, and" in failed(capsys, *create)
    assert not (folder / "authority").exists()
    assert not (folder / "clients" / "dora").exists()
    assert (topology.parent / "access.toml").read_text() == before
    shutil.move(topology.parent / "kept", folder / "authority")
    assert run(list(create)) == 0


def test_an_interrupted_command_can_be_repeated(topology: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, count = issuing._write, [0]

    def interrupted(*given: Any) -> None:
        count[0] -= 1
        if not count[0]:
            raise KeyboardInterrupt
        write(*given)

    monkeypatch.setattr(issuing, "_write", interrupted)
    folder, writes = topology.parent / "credentials", 0
    while not (topology.parent / "access.toml").exists():
        writes += 1
        # From the start, and where an earlier version was killed.
        for left in (False, True):
            shutil.rmtree(folder, ignore_errors=True)
            if left:
                (folder / "authority").mkdir(parents=True)
            count[0] = writes
            if run(["credentials", "create", str(topology), "--client", "alice"]) == 0:
                break
            count[0] = 0
            assert run(["credentials", "create", str(topology), "--client", "alice"]) == 0
            Credentials(folder / "clients" / "alice").dialing()
            Credentials(folder / "servers" / "s1").contexts()
            (topology.parent / "access.toml").unlink()
    assert writes > 10


def test_a_full_disk_stops_a_rotation_at_any_file(
    topology: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server can start with what is there, and a repeated rotation keeps the key that is valid."""
    folder = _made(topology, "create", "--client", "alice") / "servers" / "s1"
    old = Credentials(folder).signer
    assert old is not None
    real, refused = os.fsync, 0
    for written in range(20):
        space = [written]

        def fsync(file: int, space: list[int] = space) -> None:
            space[0] -= 1
            if space[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(file)

        monkeypatch.setattr(os, "fsync", fsync)
        capsys.readouterr()
        code = run(["credentials", "rotate", str(topology), "s1"])
        monkeypatch.setattr(os, "fsync", real)
        if code == 0:
            break
        refused += 1
        assert code == 2
        assert re.fullmatch(rf"antecede: {topology.parent}/\S+: No space left on device\n", capsys.readouterr().err)
        assert not list(folder.glob(".*")), "nothing half-written stays"
        keyring = Credentials(folder).keyring(lambda: _servers(topology))
        assert keyring.sign(b"content") == old.sign(b"content")
    assert refused > 4
    new = Credentials(folder)
    assert [key.public for key in _servers(topology)["s1"].keys] == [old.public, new.signer and new.signer.public]
    assert new.keyring(lambda: _servers(topology)).sign(b"content") == old.sign(b"content")


def test_what_exists_stays(topology: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _made(topology, "create", "--client", "alice", "--no-tls")
    key = (folder / "clients" / "alice" / "key.pem").read_bytes()
    capsys.readouterr()
    _made(topology, "create", "--client", "alice", "--client", "carol", "--operator", "admin", "--no-tls")
    shown = capsys.readouterr()
    assert "client carol:" in shown.out
    assert "client alice exists already and stays as it is" in shown.err
    assert (folder / "clients" / "alice" / "key.pem").read_bytes() == key
    assert read_access(topology.parent / "access.toml").clients.keys() == {"alice", "carol"}
    create = ("credentials", "create", str(topology), "--client", "alice", "--no-tls")
    assert "client alice exists already: use antecede credentials rotate" in failed(capsys, *create)


def test_what_to_do_after_a_rotation(topology: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _made(topology, "create", "--client", "alice", "--no-tls")
    _made(topology, "revoke", "alice")
    capsys.readouterr()
    _made(topology, "rotate", "alice", "--days", "0.000000001")
    error = capsys.readouterr().err
    assert "client alice has 0 valid keys and 1 expired key. Then give it its new folder\n" in error
    _made(topology, "rotate", "alice")
    assert (
        "client alice has 1 valid key and 1 expired key. Then give it its new folder; when it uses that: antecede "
        in (capsys.readouterr().err)
    )
    _made(topology, "rotate", "s1")
    error = capsys.readouterr().err
    assert "server s1 has 2 valid keys. Then give all clients and operators their folders again; when they" in error
    assert "--days 0: expected more than 0" in failed(
        capsys, "credentials", "rotate", str(topology), "alice", "--days", "0"
    )


def test_an_operator_with_a_token_has_no_key(topology: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _made(topology, "create", "--no-tls")
    access = topology.parent / "access.toml"
    tokens = f'[operators.prometheus]\ntokens = ["sha256:{"0" * 64}"]\noperate = ["metrics"]\n'
    access.write_text(f"{access.read_text()}{tokens}[operators.gone]\n")
    _made(topology, "show")
    shown = capsys.readouterr().out
    assert "operator prometheus: no key; 1 token for the pages of the metrics server\n" in shown
    assert "operator gone: no key: it cannot connect\n" in shown


def test_a_system_with_credentials_does_not_start_open(topology: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _made(topology, "create", "--no-tls")
    (topology.parent / "access.toml").unlink()
    data = ("--data", str(topology.parent / "data"))
    for start in (("up", str(topology), *data), ("serve", str(topology), "--server", "s1", *data)):
        assert "access.toml is missing, and there are" in failed(capsys, *start)
        assert not (topology.parent / "data").exists()
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        topology.write_text(topology.read_text().replace("7101", str(busy.getsockname()[1])))
        assert "cannot listen" in failed(capsys, "serve", str(topology), "--server", "s1", *data, "--insecure")


def test_the_data_directory_of_a_server(topology: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders above it are made. A folder with files of others is left alone."""
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        topology.write_text(topology.read_text().replace("7101", str(busy.getsockname()[1])))
        serve = ("serve", str(topology), "--server", "s1", "--data")
        error = failed(capsys, *serve, str(topology.parent))
        assert "not a data directory: it has shop.toml and no identity" in error
        assert os.listdir(topology.parent) == ["shop.toml"]
        assert "cannot listen" in failed(capsys, *serve, str(topology.parent / "new" / "data" / "s1"))
        assert (topology.parent / "new" / "data" / "s1" / "identity").exists()
        # The second start finds what the first one made; and a new file system is not quite empty.
        assert "cannot listen" in failed(capsys, *serve, str(topology.parent / "new" / "data" / "s1"))
        for name in ("lost+found", "lock", ".hidden", "audit.jsonl"):
            (topology.parent / "disk" / name).mkdir(parents=True) if name[0] == "l" else (
                topology.parent / "disk" / name
            ).touch()
        (topology.parent / "disk" / "lock").rmdir()
        assert "cannot listen" in failed(capsys, *serve, str(topology.parent / "disk"))


def test_files_that_cannot_be_used_are_named(topology: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _made(topology, "create", "--client", "alice", "--client", "bob")
    own, other = folder / "servers" / "s1", folder / "clients" / "alice"
    serve = ("serve", str(topology), "--server", "s1", "--data", str(topology.parent / "s1"))
    good = {name: (own / name).read_bytes() for name in ("certificate.pem", "authority.pem", "key.pem")}
    shutil.copy(other / "certificate.pem", own / "certificate.pem")
    assert f"{own / 'certificate.pem'} does not belong to {own / 'key.pem'}" in failed(capsys, *serve)
    for name in ("certificate.pem", "authority.pem"):
        for file, content in good.items():
            (own / file).write_bytes(content)
        (own / name).write_text("no PEM")
        assert f"TLS: {own / name}: expected a certificate in PEM" in failed(capsys, *serve)
    (own / "authority.pem").unlink()
    (own / "certificate.pem").write_bytes(good["certificate.pem"])
    assert f"TLS: {own / 'authority.pem'}: No such file or directory" in failed(capsys, *serve)
    (topology.parent / "access.toml").unlink()
    given = ("--insecure", "--certificate", str(other / "certificate.pem"), "--key", str(own / "key.pem"))
    assert f"{other / 'certificate.pem'} does not belong to {own / 'key.pem'}" in failed(capsys, *serve, *given)
    status = ("status", str(topology), "--authority", "nope.pem")
    assert "TLS: nope.pem: No such file or directory" in failed(capsys, *status)


def test_the_folder_of_a_role_names_the_folders_in_it(topology: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _made(topology, "create", "--client", "alice", "--client", "bob", "--no-tls")
    send = ("send", str(topology), "x", "X", "{}", "--credentials", str(folder / "clients"))
    error = failed(capsys, *send)
    assert f"expected --credentials with one of {folder / 'clients' / 'alice'}, {folder / 'clients' / 'bob'}" in error


def test_a_size_that_the_log_cannot_have(topology: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve = ("serve", str(topology), "--server", "s1", "--data", str(topology.parent / "s1"), "--keep-log-size")
    assert "--keep-log-size 20GB: expected at most 8 GiB" in failed(capsys, *serve, "20GB")
    assert "--keep-log-size 8589934593B: expected at most 8 GiB" in failed(capsys, *serve, "8589934593B")
    assert "has no server s2" in failed(capsys, "serve", str(topology), "--server", "s2", *serve[4:], "8589934592B")


@pytest.mark.parametrize("rotated", [False, True])
def test_a_server_whose_key_has_expired_says_so_first(
    rotated: bool, topology: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = _made(topology, "create", "--no-tls", "--days", "0.000000001")
    if rotated:
        _made(topology, "rotate", "s1")
    security = ServerSecurity(topology.parent / "access.toml", Credentials(folder / "servers" / "s1"), "s1")
    file = parse_topology(topology.read_text())

    async def made() -> None:
        ServerRuntime(file, "s1", durability="memory", security=security)

    caplog.set_level(logging.INFO, "antecede")
    asyncio.run(made())
    assert [record.getMessage() for record in caplog.records[:1]] == ([] if rotated else ["key-expired"])
