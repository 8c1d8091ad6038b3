"""The matrix: every action × every identity × every entry point, at a server that listens. What the table does not
allow is refused, with this code."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from antecede import wire
from antecede.access import ANONYMOUS, COMMANDS, Identity, Keyring, Refusal, Who, temporary_name
from antecede.engine import Topic
from antecede.live import ServerRuntime
from antecede.live.issuing import table
from antecede.live.keys import Credentials, ServerSecurity
from antecede.live.metrics import MetricsPage
from antecede.topology import Address, parse_topology
from helpers.hellos import server_hello
from helpers.identities import RawConnection, issue
from helpers.ports import free_ports
from helpers.summing import Sum

pytest.importorskip("cryptography")
pytest.importorskip("prometheus_client")

_everything = dict.fromkeys(("send", "receive", "subscribe", "call"), ("*",))
_secret = "s3cret"

_no_proof, _not_proven = "proof-required", "not-proven"
_columns = (
    "link-s2", "connect-own", "connect-temporary", "connect-alice",
    "send-open", "send-closed", "subscribe-news", "subscribe-open", "call-counter.add",
    "operate-status", "operate-dead-list", "operate-dead-bury", "operate-mailbox-drop", "operate-forget",
)  # fmt: skip
_n, _r = "not-allowed", "wrong-role"
_matrix: dict[str, tuple[str, ...]] = {
    # A client's own actions come after "connect-own"; "-" where it cannot connect at all.
    "stranger":  (_no_proof, _no_proof, _no_proof, _no_proof, "-", "-", "-", "-", "-", *[_no_proof] * 5),
    "impostor":  (_not_proven,) * 4 + ("-",) * 5 + (_not_proven,) * 5,
    "expired":   (_not_proven,) * 4 + ("-",) * 5 + (_not_proven,) * 5,
    "revoked":   (_not_proven,) * 4 + ("-",) * 5 + (_not_proven,) * 5,
    "unknown":   (_not_proven,) * 4 + ("-",) * 5 + (_not_proven,) * 5,
    "server":    ("ok", _r, _r, _r, "-", "-", "-", "-", "-", *[_r] * 5),
    "other":     (_n, _r, _r, _r, "-", "-", "-", "-", "-", *[_r] * 5),
    "alice":     (_r, "ok", "ok", "ok", "ok", "ok", "ok", "ok", "unknown-agent", *[_r] * 5),
    "bob":       (_r, "ok", "ok", _n, "ok", _n, "ok", _n, _n, *[_r] * 5),
    "mute":      (_r, "ok", "ok", _n, _n, _n, _n, _n, _n, *[_r] * 5),
    "admin":     (_r, _r, _r, _r, "-", "-", "-", "-", "-", "ok", "ok", "missing", "ok", "ok"),
    "reader":    (_r, _r, _r, _r, "-", "-", "-", "-", "-", _n, "ok", _n, _n, _n),
    "viewer":    (_r, _r, _r, _r, "-", "-", "-", "-", "-", "ok", _n, _n, _n, _n),
}  # fmt: skip
_pages = {
    # Who calls → status of /metrics, /health, /live.
    "": (401, 401, 200),
    "wrong": (401, 401, 401),
    _secret: (200, 403, 403),
}


class _World:
    """One server with an access file, and credentials of all kinds."""

    def __init__(self, folder: Path) -> None:
        port, other, third, self.page_port = free_ports(4)
        self.file = parse_topology(
            f'[servers]\ns1 = "tcp://127.0.0.1:{port}"\ns2 = "tcp://127.0.0.1:{other}"\ns3 = "tcp://127.0.0.1:{third}"\n'
            '[domains]\nA = { servers = ["s1", "s2", "s3"] }\n[agents]\n'
            'open = { server = "s1", class = "nowhere:Sum" }\nclosed = { server = "s1", class = "nowhere:Sum" }\n'
            'news = { server = "s1", class = "nowhere:Topic" }\n'
        )
        self.address = self.file.servers["s1"]
        token = f"sha256:{hashlib.sha256(_secret.encode()).hexdigest()}"
        made: list[Identity] = [
            issue(folder / "s1", "server", "s1"),
            issue(folder / "server", "server", "s2"),
            issue(folder / "other", "server", "s3"),
            issue(folder / "alice", "client", "alice", **_everything),
            issue(folder / "bob", "client", "bob", send=("open",), subscribe=("news",)),
            issue(folder / "mute", "client", "mute"),
            issue(folder / "expired", "client", "expired", expires=1.0, **_everything),
            issue(folder / "admin", "operator", "admin", operate=("*",)),
            issue(folder / "reader", "operator", "reader", operate=("dead-list",)),
            issue(folder / "viewer", "operator", "viewer", operate=("status",)),
        ]
        issue(folder / "impostor", "client", "alice")
        issue(folder / "unknown", "client", "eve")
        issue(folder / "revoked", "client", "revoked")
        text = '[anonymous]\noperate = ["live"]\n[clients.revoked]\nkeys = []\nsend = ["*"]\n'
        text += f'[operators.scraper]\ntokens = ["{token}"]\noperate = ["metrics"]\n'
        self.access = folder / "access.toml"
        self.access.write_text(text + "".join(map(table, made)))
        self.security = ServerSecurity(self.access, Credentials(folder / "s1"), "s1")
        # Clients and operators trust the same servers.
        dialing = "alice", "bob", "mute", "expired", "admin", "reader", "viewer", "impostor", "unknown", "revoked"
        for name in dialing:
            (folder / name / "servers.toml").write_text("".join(map(table, made[:1])))
        self.folder = folder
        agents: Any = {"open": Sum, "closed": Sum, "news": Topic}
        self.runtime = ServerRuntime(self.file, "s1", str(folder / "data"), security=self.security, agents=agents)

    def keyring(self, who: str) -> Keyring | None:
        if who == "stranger":
            return None
        return Credentials(self.folder / who).keyring(self.security.authoriser.servers)

    def name(self, who: str) -> str:
        keyring = self.keyring(who)
        return "stranger" if keyring is None else keyring.name


def _played(folder: Path, play: Callable[[_World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = _World(folder)
        await world.runtime.start()
        try:
            async with asyncio.timeout(40):
                await play(world)
        finally:
            await world.runtime.stop(drain_seconds=0.1)

    asyncio.run(main())


async def _attempt(world: _World, who: str, attempt: str) -> str:
    action, _, what = attempt.partition("-")
    raw = await RawConnection.open(world.address, world.keyring(who))
    try:
        if action == "link":
            hello = _server_hello(world, what)
            return await raw.answer(hello)
        if action == "operate":
            arguments = {"status": [], "dead-list": [], "forget": ["A", "x"]}.get(what, ["x"])
            return await raw.answer(wire.Request("", what, arguments))
        name = world.name(who)
        if attempt == "connect-alice":
            name = "alice"
        elif attempt == "connect-temporary":
            name = temporary_name(name, "0123456789abcdef")
        code = await raw.answer(wire.ClientHello("", name))
        if action == "connect":
            return code
        if code != "ok":
            return "-"
        number = world.runtime.machine.clients.get(name, 0) + 1
        if action == "call":
            target, kind = what.split(".")
            return await raw.answer(wire.Publish(number, (f"{target}()",), kind, [b"\x90"], True))
        kind = "Subscribe" if action == "subscribe" else "Add"
        return await raw.answer(wire.Publish(number, (what,), kind, [b"\x81\xa6amount\x01"]))
    finally:
        raw.close()


def _server_hello(world: _World, name: str) -> wire.ServerHello:
    return server_hello(world.file, name, "s1", 7, life=1)


def test_the_matrix(tmp_path: Path) -> None:
    async def play(world: _World) -> None:
        found = {}
        for who in _matrix:
            found[who] = tuple([await _attempt(world, who, attempt) for attempt in _columns])
        for who, expected in _matrix.items():
            assert dict(zip(_columns, found[who], strict=True)) == dict(zip(_columns, expected, strict=True)), who

    _played(tmp_path, play)


def test_commands_in_pages_need_the_permission_of_their_command(tmp_path: Path) -> None:
    async def play(world: _World) -> None:
        assert await _attempt(world, "reader", "operate-dead-page") != _n
        assert await _attempt(world, "reader", "operate-dead-bury-page") == _n
        assert await _attempt(world, "reader", "operate-client-list") == _n

    _played(tmp_path, play)


async def _page(address: Address, path: str, secret: str) -> int:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    shown = f"Authorization: Bearer {secret}\r\n" if secret else ""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{shown}\r\n".encode())
    head = (await reader.read()).decode()
    writer.close()
    return int(head.split(" ")[1])


def test_the_pages(tmp_path: Path) -> None:
    async def play(world: _World) -> None:
        page, address = MetricsPage(world.runtime.core.guard.authoriser), Address("127.0.0.1", world.page_port)
        await page.start(address)

        async def answers(secret: str) -> tuple[int, ...]:
            return tuple([await _page(address, path, secret) for path in ("/metrics", "/health", "/live")])

        try:
            for secret, (metrics, health, live) in _pages.items():
                reading = [503 if code == 200 else code for code in (metrics, health)]
                assert await answers(secret) == (*reading, live), f"{secret}, while the log is read"
            page.show(world.runtime)
            for secret, expected in _pages.items():
                assert await answers(secret) == expected, secret
        finally:
            await page.stop()
        lines = (tmp_path / "data" / "audit.jsonl").read_text().splitlines()
        remotes = {one["remote"].rpartition(":")[0] for one in map(json.loads, lines) if "page" in one}
        assert remotes == {"127.0.0.1"}

    _played(tmp_path, play)


def test_every_command_can_be_allowed_by_its_name(tmp_path: Path) -> None:
    async def play(world: _World) -> None:
        operations, asked = world.runtime.operations, set[str]()
        refusal = operations._guard.authoriser.refusal

        def noted(who: Who, action: str, name: str) -> Refusal | None:
            asked.add(name)
            return refusal(who, action, name)

        with patch.object(operations._guard.authoriser, "refusal", noted):
            for command in (*operations._commands, *operations._reorganising.commands):
                operations.request(ANONYMOUS, "", command, [], lambda answer: None)
        assert asked == set(COMMANDS)

    _played(tmp_path, play)


def test_the_own_process_is_trusted(tmp_path: Path) -> None:
    async def play(world: _World) -> None:
        async with world.runtime.bus("anyone") as bus:
            await bus.post("closed", "Add", {"amount": 1})

    _played(tmp_path, play)


def test_what_a_client_may_receive(tmp_path: Path) -> None:
    """Bob may receive from the topic that he may subscribe to, and answers to his own questions; other letters die."""

    async def play(world: _World) -> None:
        raw = await RawConnection.open(world.address, world.keyring("bob"))
        assert await raw.answer(wire.ClientHello("", "bob")) == "ok"
        raw.send(wire.Listen())
        async with world.runtime.bus("anyone") as bus:
            await bus.post("bob@s1", "Gossip", {})
            await bus.post("bob@s1", "Gossip", {})
        assert await raw.answer(wire.Publish(1, ("open",), "Tell", [b"\x80"], True)) == "ok"
        part = await raw.next()
        assert isinstance(part, wire.Deliver)
        assert b"Total" in part.train
        assert b"Gossip" not in part.train
        dead = [one.reason for one in world.runtime.machine.engine.dead.values()]
        assert dead == ["client bob may not receive from anyone@s1"] * 2
        raw.close()

    _played(tmp_path, play)


def test_a_forged_hello_changes_nothing_on_disk(tmp_path: Path) -> None:
    async def play(world: _World) -> None:
        world.runtime.store.commit_here()
        before, state = world.runtime.store.last, world.runtime.machine.snapshot()
        links = {peer: link.hello() for peer, link in world.runtime.machine.channel.consumers["A"].links.items()}
        for who in ("stranger", "impostor", "unknown", "alice", "admin", "other"):
            assert await _attempt(world, who, "link-s2") != "ok"
            assert await _attempt(world, who, "connect-nobody") != "ok" or who == "alice"
        assert world.runtime.store.last == before
        assert world.runtime.machine.snapshot() == state
        assert links == {
            peer: link.hello() for peer, link in world.runtime.machine.channel.consumers["A"].links.items()
        }
        assert not world.runtime.machine.stopped
        assert not world.runtime.core.peering.refusals, "nothing is remembered under the name of a peer"

    _played(tmp_path, play)
