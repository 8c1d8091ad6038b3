"""What an operator is told of held messages, by a server that is asked."""

import asyncio
import json
from typing import Any

import pytest

from antecede.channel import Outgoing
from antecede.cli import run
from antecede.engine.agents import Agent, Notification
from antecede.engine.context import Context
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
    assert "A holds Word (s2…1) to end of s2: " in said
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
    monkeypatch.setattr("antecede.cli.live.ask_server", lambda *given: answer)
    assert run(["status", "tcp://127.0.0.1:7101", "--json"]) == code
