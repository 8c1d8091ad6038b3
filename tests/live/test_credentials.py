"""Three servers with mutual TLS and permissions, as in the guide: credentials, permissions, rotation, revocation."""

import asyncio
import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_agents import Counted, Ping, Report

import antecede
from antecede.cli import run
from antecede.live.keys import Credentials, read_access
from helpers.commands import failed

pytest.importorskip("cryptography")
_three = {"A": ["s1", "s2"], "B": ["s2", "s3"]}
_agents = {"counter": ("s3", "live_agents:Counter"), "other": ("s3", "live_agents:Counter")}


def _credentials(world: Any, command: str, *arguments: str) -> None:
    """Run a command in this process, which is faster."""
    assert run(["credentials", command, str(world.file), *arguments]) == 0


def _created(cluster: Callable[..., Any], *options: str, domains: dict[str, list[str]] | None = None) -> Any:
    world = cluster(domains or _three, _agents if domains is None else {"counter": ("s1", "live_agents:Counter")})
    _credentials(world, "create", "--client", "alice", "--client", "bob", *options)
    return world


def _edit(world: Any, old: str, new: str) -> None:
    path = world.folder / "access.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _reload(world: Any, *servers: str) -> None:
    digest = read_access(world.folder / "access.toml").digest
    for server in servers or world.servers:
        world.processes[server].send_signal(signal.SIGHUP)
        world.until(lambda server=server: f"digest={digest}" in world.log(server), f"{server} has read it")


def _folder(world: Any, identity: str) -> Path:
    path: Path = world.folder / "credentials" / identity
    return path


async def _count(world: Any, identity: str, agent: str = "counter", **options: Any) -> int:
    credentials = _folder(world, identity)
    async with antecede.connect(world.addresses["s1"], credentials=credentials, **options) as bus:
        await bus.send(agent, Ping(number=1))
        return (await bus.ask(agent, Report(), expect=Counted, timeout=10)).count


def test_three_servers_with_permissions(cluster: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    world = _created(cluster)
    private = list(world.folder.rglob("key.pem"))
    assert len(private) == 7, "three servers, two clients, an operator, the authority"
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    _edit(world, 'alice"]\nsend = ["*"]', 'alice"]\nsend = ["counter"]')
    world.start()
    assert asyncio.run(_count(world, "clients/alice")) == 1
    with pytest.raises(antecede.NotAllowedError, match="client alice may not send to other"):
        asyncio.run(_count(world, "clients/alice", "other"))
    assert asyncio.run(_count(world, "clients/bob", "other")) == 1

    # A stolen credential is worth only what its owner may do: not another name, and no command.
    with pytest.raises(antecede.RefusedError, match="client alice may not connect as client bob"):
        asyncio.run(_count(world, "clients/alice", name="bob"))
    refused = failed(capsys, "status", str(world.file), "--credentials", str(_folder(world, "clients/alice")))
    assert "these are the credentials of client alice: expected a folder in operators/" in refused

    # Without credentials there is no answer at all, because TLS wants a certificate.
    with pytest.raises(antecede.ClosedError, match=r"does it use TLS\? \(--credentials DIR"):
        asyncio.run(_plain(world))
    world.until(lambda: "stranger-refused" in world.log("s1") and "code=tls" in world.log("s1"), "it is logged")

    # A file with an error is not used; the previous one is.
    _edit(world, "[anonymous]", "[anonymus]")
    world.processes["s1"].send_signal(signal.SIGHUP)
    world.until(lambda: "access-kept" in world.log("s1"), "s1 keeps the previous file")
    status = world.status()["servers"]
    assert "anonymus" in status["s1"]["access"]["error"]
    assert status["s1"]["access"]["digest"] == status["s2"]["access"]["digest"]
    _edit(world, "[anonymus]", "[anonymous]")

    # Permissions count at once when the file is read again.
    _edit(world, 'alice"]\nsend = ["counter"]', 'alice"]\nsend = ["other"]')
    _reload(world)
    with pytest.raises(antecede.NotAllowedError):
        asyncio.run(_count(world, "clients/alice"))
    assert asyncio.run(_count(world, "clients/alice", "other")) == 2

    events = [json.loads(line) for line in (world.folder / "s1" / "audit.jsonl").read_text().splitlines()]
    assert {"connected", "refused", "reloaded", "reload-failed"} <= {one["event"] for one in events}
    assert any(one["event"] == "refused" and one.get("name") == "alice" for one in events)
    assert any("client alice may not send to other" in one.get("reason", "") for one in events)
    assert stat.S_IMODE(os.stat(world.folder / "s1" / "audit.jsonl").st_mode) == 0o600


async def _plain(world: Any) -> None:
    async with antecede.connect(world.addresses["s1"], patience=1.0):
        pass


async def _send_on(bus: antecede.Bus) -> None:
    while True:
        await bus.send("counter", Ping(number=3))


def test_rotation_and_revocation(cluster: Callable[..., Any]) -> None:
    """Two keys are valid during a rotation; when a key is revoked, its sessions end; a server can be rotated, too."""
    world = _created(cluster, domains={"A": ["s1", "s2"]})
    world.start()

    async def main() -> None:
        old = Credentials(_folder(world, "clients/alice"))
        address = world.addresses["s1"]
        async with antecede.connect(address, name="alice", credentials=old) as bus:
            _credentials(world, "rotate", "alice")
            await asyncio.to_thread(_reload, world)
            await bus.send("counter", Ping(number=1))
            async with antecede.connect(address, credentials=_folder(world, "clients/alice")) as second:
                await second.send("counter", Ping(number=2))
                _credentials(world, "revoke", "alice", "--old")
                await asyncio.to_thread(_reload, world)
                with pytest.raises(antecede.RefusedError, match="credentials of client alice were revoked") as caught:
                    await _send_on(bus)
                assert caught.value.code == "revoked"
                await second.send("counter", Ping(number=4))
        with pytest.raises(antecede.RefusedError, match="not proved to be client alice"):
            async with antecede.connect(address, credentials=old):
                pass
        _credentials(world, "revoke", "alice")
        await asyncio.to_thread(_reload, world)
        with pytest.raises(antecede.RefusedError, match="not proved to be client alice"):
            async with antecede.connect(address, credentials=_folder(world, "clients/alice")):
                pass

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())
    # A server uses its new key without a restart; connections of its old key end when that is revoked.
    _credentials(world, "rotate", "s2")
    _reload(world)
    _credentials(world, "revoke", "s2", "--old")
    _reload(world)
    world.until(lambda: world.log("s1").count("peer-connected") == 2, "they are connected again")
    assert world.log("s1").count("peer-lost") == 1
    status = world.status()["servers"]["s1"]["access"]
    assert [key["name"] for key in status["expires"]].count("s2") == 1


def test_commands_find_credentials_beside_the_topology(
    cluster: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without TLS as well; and a server without its credentials, or with another's, does not start."""
    world = _created(cluster, "--no-tls", domains={"A": ["s1"]})
    file = str(world.file)
    assert "client alice exists already" in failed(capsys, "credentials", "create", file, "--client", "alice")
    other = ("--credentials", str(_folder(world, "clients/alice")))
    serve = ("serve", file, "--server", "s1", "--data", str(world.folder / "s1"))
    assert "expected those of server s1" in failed(capsys, *serve, *other)
    assert "several clients" in failed(capsys, "send", file, "counter", "Ping", '{"number": 1}')
    world.start()
    chosen = ("--credentials", str(_folder(world, "clients/bob")))
    sent = world.command("send", str(world.file), "counter", "Report", "--ask", *chosen)
    assert sent.returncode == 0, sent.stderr
    assert '"count": 0' in sent.stdout
    assert world.status()["servers"]["s1"]["access"]["mode"] == "access-file"
    with pytest.raises(antecede.RefusedError, match="only connections with credentials") as caught:
        asyncio.run(_plain(world))
    assert caught.value.code == "proof-required", "older hellos are refused"


def test_other_machines_need_credentials_and_tls(
    cluster: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    world = cluster({"A": ["s1"]}, {})
    short, long = world.folder / "short", world.folder / "long"
    short.write_text("x" * 31)
    long.write_text("x" * 32)
    serve = ("serve", str(world.file), "--server", "s1", "--data", str(world.folder / "s1"), "--host", "0.0.0.0")
    assert "or --credentials DIR" in failed(capsys, *serve)
    told = failed(capsys, *serve, "--token-file", str(short), "--insecure")
    assert "the token has 31 characters: expected at least 32" in told
    assert "in plain text" in failed(capsys, *serve, "--token-file", str(long))
    _credentials(world, "create", "--no-tls")
    assert "in plain text" in failed(capsys, *serve)
    assert "replaces --token-file" in failed(capsys, *serve, "--token-file", str(long))
