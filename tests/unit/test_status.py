"""What an operator is told of held messages, by a server that is asked."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from antecede.channel import Outgoing
from antecede.cli import run
from antecede.engine import Agent, Context, Notification
from antecede.live import ServerRuntime
from antecede.topology import parse_topology
from helpers.ports import free_ports


class Word(Notification):
    text: str


class Relay(Agent):
    def on_word(self, word: Word, ctx: Context) -> None:
        ctx.send("end", word)


class End(Agent):
    def on_word(self, word: Word, ctx: Context) -> None:
        pass


@pytest.mark.parametrize("order", ["pruned", "matrix"])
def test_what_a_held_message_waits_for(order: str, capsys: pytest.CaptureFixture[str]) -> None:
    """alice writes to the end, then to the relay, which writes to the end; the first letter is late."""

    async def main() -> None:
        servers = "\n".join(f's{place} = "tcp://127.0.0.1:{port}"' for place, port in enumerate(free_ports(3), 1))
        file = parse_topology(
            f'[servers]\n{servers}\n[domains]\nA = {{ servers = ["s1", "s2", "s3"], order = "{order}" }}\n'
            '[agents]\nrelay = { server = "s2", class = "x:R" }\nend = { server = "s3", class = "x:E" }\n'
        )
        classes: dict[str, dict[str, type[Agent]]] = {"s1": {}, "s2": {"relay": Relay}, "s3": {"end": End}}
        running = {
            name: ServerRuntime(file, name, durability="memory", agents=agents) for name, agents in classes.items()
        }
        for one in running.values():
            await one.start()
        try:
            async with asyncio.timeout(20):
                await _hold(running)
                status = running["s3"].operations.status()["domains"]["A"]
                (held,) = status["held"]
                assert (held["from"], held["letters"]["count"]) == ("s2", 1)
                assert held["letters"]["first"]["to"] == ["end"]
                reason = {"server": "s1", "what": "message 1, the last one delivered is 0"}
                assert held["waits_for"] == [reason]
                assert status["unposted"] == {"copies": 0, "waits_for": []}
                await asyncio.to_thread(_asked, str(file.servers["s3"]), capsys)
        finally:
            for one in running.values():
                await one.stop(0.0)

    asyncio.run(main())


async def _hold(running: dict[str, ServerRuntime]) -> None:
    """Nothing leaves s1 for s3."""
    near, gate = running["s1"], running["s1"].driver.gate
    send = gate._send

    def dropping(outgoing: list[Outgoing]) -> None:
        send([one for one in outgoing if one.peer != "s3"])

    gate._send = dropping
    async with near.bus("alice") as alice:
        await alice.send("end", Word(text="first"))
        await alice.send("relay", Word(text="second"))
        while not running["s3"].operations.status()["domains"]["A"]["held"]:
            await asyncio.sleep(0.01)


def _asked(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command says the same, in words and as JSON."""
    assert run(["status", address]) == 0
    said: Any = capsys.readouterr().out
    assert "A holds message Word (s2…1) to end from s2: it " in said
    assert "waits for s1: message 1, the last one delivered is 0" in said
    assert run(["status", address, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["servers"]["s3"]["domains"]["A"]["held"][0]["waits_for"][0]["server"] == "s1"
    assert run(["status", address, "--watch", "0"]) == 2


@pytest.mark.parametrize(
    ("health", "refused", "code"), [("ok", {}, 0), ("ok", {"s2": "another system"}, 1), ("x", {}, 1)]
)
def test_the_exit_code_is_1_if_a_server_refuses_another(
    health: str, refused: dict[str, str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"server": "s1", "health": health, "refused": refused}
    monkeypatch.setattr("antecede.cli.status.ask_server", lambda *given: answer)
    assert run(["status", "tcp://127.0.0.1:7101", "--json"]) == code


@pytest.mark.parametrize(
    ("access", "differs", "code"),
    [
        ({}, False, 0),
        ({"digest": "other"}, True, 1),
        ({"mode": "open", "digest": None}, True, 1),
        ({"error": "access.toml:3: unknown key"}, False, 1),
    ],
)
def test_the_exit_code_is_1_if_servers_use_different_access_files(
    access: dict[str, Any],
    differs: bool,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    same = {"mode": "access-file", "digest": "d", "identities": 3, "error": "", "expires": []}
    answers = [{**_idle, "server": "s1", "access": same}, {**_idle, "server": "s2", "access": {**same, **access}}]
    file = tmp_path / "shop.toml"
    servers = '[servers]\ns1 = "tcp://127.0.0.1:7101"\ns2 = "tcp://127.0.0.1:7102"\n'
    file.write_text(servers + '[domains]\nA = { servers = ["s1", "s2"] }\n')
    monkeypatch.setattr("antecede.cli.status.ask_server", lambda address, *given: answers[address.port - 7101])
    assert run(["status", str(file)]) == code
    assert ("servers check identities in different ways" in capsys.readouterr().out) == differs
    assert run(["status", str(file), "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert (document["well"], document["access_differs"]) == (code == 0, differs)


def test_advice_about_keys(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def key(name: str, days: float, **more: bool) -> dict[str, Any]:
        return {"role": "client", "name": name, "key": "ed25519:x", "time": 0.0, "days": days, **more}

    keys = [
        key("a", 0.0, expired=False, replaced=False),
        key("b", 1.0, expired=False, replaced=True),
        key("c", -1.0, expired=True, replaced=True),
        key("d", 12.0, expired=False, replaced=False),
        key("e", -0.1),
    ]
    access = {"mode": "access-file", "digest": "d", "identities": 3, "error": "", "expires": keys}
    answer = {**_idle, "server": "s1", "access": access}
    monkeypatch.setattr("antecede.cli.status.ask_server", lambda *given: answer)
    assert run(["status", "tcp://127.0.0.1:7101"]) == 0
    shown = capsys.readouterr().out
    assert "  key of client a expires in less than a day: antecede credentials rotate\n" in shown
    assert "  old key of client b expires in 1 day: antecede credentials revoke --old\n" in shown
    assert "  old key of client c has expired: antecede credentials revoke --old\n" in shown
    assert "  key of client d expires in 12 days: antecede credentials rotate\n" in shown
    assert "  key of client e has expired: antecede credentials rotate\n" in shown


_idle: dict[str, Any] = {
    "health": "ok",
    "trouble": "",
    "waiting_letters": 0,
    "reactions": 0,
    "dead": 0,
    "log": {"last": 1, "durable": 1},
    "clients": {"here": [], "away": {}},
    "mailboxes": {},
    "domains": {},
    "stopped": [],
    "refused": {},
}
