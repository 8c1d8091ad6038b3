"""The folders of credentials: what is created, rotated and read again, and what is refused."""

import asyncio
import errno
import logging
import os
import re
import shutil
import socket
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

from antecede.access import Identity
from antecede.cli import run
from antecede.errors import AccessError
from antecede.live import ServerRuntime, issuing
from antecede.live.keys import Credentials, ServerSecurity, read_access
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


def test_after_a_rotation_the_owner_signs_with_both_keys(topology: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _made(topology, "create") / "servers" / "s1"
    old = Credentials(folder).signer
    _made(topology, "rotate", "s1")
    new = Credentials(folder)
    assert old is not None
    assert new.signer is not None
    assert new.publics == [new.signer.public, old.public]
    assert new.sign(b"content") == new.signer.sign(b"content") + old.sign(b"content")
    refused = failed(capsys, "credentials", "rotate", str(topology), "s1")
    assert "server s1 has 2 valid keys already: first revoke the old key with antecede credentials revoke" in refused


def test_a_running_client_takes_a_new_folder(topology: Path) -> None:
    own = Credentials(_made(topology, "create", "--client", "alice") / "clients" / "alice")
    keyring, old = own.keyring(renew=own.renew), own.sign(b"content")
    assert not keyring.renew("not-proven"), "nothing has changed"
    assert not keyring.renew("revoked"), "it has no other key"
    _made(topology, "rotate", "s1")
    _made(topology, "rotate", "alice")
    own.read_again()
    assert keyring.servers() == _servers(topology)
    assert keyring.sign(b"content") == Credentials(own.folder).sign(b"content")
    assert keyring.sign(b"content").endswith(old), "servers may not know the new key yet"
    assert not keyring.renew("not-proven"), "both keys were refused"
    assert keyring.renew("revoked"), "perhaps the other key is valid"
    _made(topology, "revoke", "s1", "--old")
    assert keyring.renew("not-proven"), "there is another list of servers"
    (own.folder / "certificate.pem").write_text("half of a cert")
    (own.folder / "servers.toml").write_text("")
    assert not keyring.renew("not-proven"), "a folder that is just being written"
    assert keyring.servers()


def test_keys_of_other_kinds(topology: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key of an unknown kind is refused as any other damage, and a running client keeps the key that it has."""
    folder = _made(topology, "create", "--client", "alice")
    own = Credentials(folder / "clients" / "alice")
    before, path = own.sign(b"content"), own.folder / "key.pem"
    # The identifier of Ed25519, and one that nothing has.
    kind, unknown = b"\x06\x03\x2b\x65\x70", b"\x06\x03\x2a\x03\x04"
    lines = path.read_text().splitlines()
    changed = b64encode(b64decode("".join(lines[1:-1])).replace(kind, unknown)).decode()
    path.write_text("\n".join([lines[0], changed, lines[-1], ""]))
    with pytest.raises(AccessError, match=r"key\.pem: expected a private key in PEM, .*Unknown key type"):
        Credentials(own.folder)
    own.read_again()
    assert own.sign(b"content") == before
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    authority = folder / "authority" / "key.pem"
    shutil.copy(path, authority)
    refused = failed(capsys, "credentials", "rotate", str(topology), "s1")
    assert f"{authority.parent}: no usable authority: {authority}: expected a private key in PEM" in refused
    authority.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    refused = failed(capsys, "credentials", "rotate", str(topology), "s1")
    assert f"{authority.parent}: no usable authority: expected an Ed25519 key in key.pem" in refused


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
        _starts(topology, folder)
    assert refused > 4
    new = Credentials(folder)
    assert [key.public for key in _servers(topology)["s1"].keys] == [old.public, new.signer and new.signer.public]
    assert new.publics[1:] == [old.public]


def _starts(topology: Path, folder: Path) -> None:
    """A server starts with its folder, and proves itself to those who know its keys in the access file."""
    own = Credentials(folder)
    ServerSecurity(topology.parent / "access.toml", own, "s1")
    own.contexts()
    assert {key.public for key in _servers(topology)["s1"].keys}.intersection(own.publics)


def test_a_kill_stops_a_rotation_at_any_file(topology: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder always has a key; after a repeated rotation the valid key is kept, and all files fit together."""
    folder = _made(topology, "create", "--client", "alice") / "servers" / "s1"
    old = Credentials(folder).signer
    assert old is not None
    real, killed = os.replace, 0
    for renamed in range(20):
        left = [renamed]

        def replace(source: Path, target: Path, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            real(source, target)

        monkeypatch.setattr(os, "replace", replace)
        code = run(["credentials", "rotate", str(topology), "s1"])
        monkeypatch.setattr(os, "replace", real)
        if code == 0:
            break
        killed += 1
        _starts(topology, folder)
    assert killed > 8
    new = Credentials(folder)
    assert [key.public for key in _servers(topology)["s1"].keys] == [old.public, new.signer and new.signer.public]
    assert new.publics[1:] == [old.public]
    new.contexts()


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
        assert "access.toml is missing, but" in failed(capsys, *start)
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
