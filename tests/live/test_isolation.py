"""A handler that blocks, loops or ends its process harms its own agent only, and its letter is dead after its tries."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from live_agents import Counted, Ping, Pong, Report, Word

import antecede
from antecede.live.reactions import boot_id
from antecede.server import interrupted

HOWS = ("fault", "hog", "hold", "block", "leave")
_limited = ("hold", "block")


def _mortal(world: Any, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    """Let letters die soon, and add settings to agents."""
    monkeypatch.setattr(world, "program", lambda: [str(Path(__file__).with_name("mortal.py"))])
    text = world.file.read_text()
    for agent, keys in settings.items():
        head, _, rest = text.partition(f"{agent} = {{ ")
        text = f"{head}{agent} = {{ {keys}, {rest}"
    world.file.write_text(text)


def _run(main: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(240):
            await main()

    asyncio.run(bounded())


def _dead(world: Any) -> dict[str, str]:
    dead = json.loads(world.command("dead", "list", str(world.file), "--json").stdout)
    return {one["agent"]: one["reason"] for one in dead}


def _calls(world: Any, how: str) -> list[str]:
    path = world.folder / f"{how}.calls"
    return path.read_text().split() if path.exists() else []


def test_isolated_handlers_harm_their_own_agent_only(
    cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = {f"x-{how}": ("s1", "deadly_agents:Deadly") for how in HOWS}
    others = {"steady": ("s1", "deadly_agents:Deadly"), "parent": ("s1", "deadly_agents:Parent")}
    others["rough"] = ("s1", "deadly_agents:Deadly")
    world = cluster({"A": ["s1"]}, {**agents, **others})
    isolate = 'isolate = "process"'
    seconds = {how: 2 if how in _limited else 60 for how in HOWS}
    limited = {f"x-{how}": f"{isolate}, reaction_seconds_max = {seconds[how]}" for how in HOWS}
    _mortal(world, monkeypatch, {**limited, "parent": isolate, "rough": isolate})
    world.start()
    server = world.processes["s1"]

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            for how in HOWS:
                for notification in (Ping(number=1), Word(text=how), Ping(number=2)):
                    bus.send(f"x-{how}", notification)
            # Nobody waits for them.
            bus.send("steady", Ping(number=1))
            assert (await bus.ask("steady", Report(), expect=Counted)).count == 1
            pong = await bus.ask("parent", Ping(number=7), expect=Pong)
            assert pong.number != server.pid, "its handler runs in another process"
            assert (await bus.ask("child7@s1", Report(), expect=Counted)).count == 1
            with pytest.raises(antecede.UnansweredError, match="ValueError: quite wrong"):
                await bus.ask("parent", Word(text="quite wrong"), expect=Pong, timeout=30)
            for how in ("copy", "close", "copy"):
                bus.send("rough", Word(text=how))
                bus.send("rough", Ping(number=1))
            assert (await bus.ask("rough", Report(), expect=Counted)).count == 3, "a copy of the worker says nothing"
            counted = await asyncio.gather(*(bus.ask(a, Report(), expect=Counted, timeout=50) for a in agents))
            assert [one.count for one in counted] == [2] * len(agents), "before and after it they are handled once"

    _run(main)
    assert server.poll() is None
    for how in HOWS:
        assert len(_calls(world, how)) == 2, f"{how} has its two tries, and no more"
        assert str(server.pid) not in _calls(world, how)
    reasons = _dead(world)
    assert "its worker process ended: signal SIGSEGV" in reasons["x-fault"]
    assert "its worker process ended: signal SIGKILL" in reasons["x-hog"]
    assert "its worker process ended: exit code 7" in reasons["x-leave"]
    for how in _limited:
        assert "a reaction took longer than 2 s: its worker process was killed" in reasons[f"x-{how}"]
    assert reasons.keys() == set(agents) | {"parent"}
    assert interrupted((world.folder / "s1" / "calls").read_bytes(), boot_id()).calls == ()
    workers = {
        int(line.split("pid=")[1].split()[0]) for line in world.log("s1").splitlines() if "worker-started" in line
    }
    workers |= set(map(int, (world.folder / "left.pids").read_text().split()))
    assert world.stop() == [0]
    world.until(lambda: not any(_lives(pid) for pid in workers), "all workers are gone, and what they left behind")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_letters_that_end_the_server_die_after_their_tries(
    cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = dict.fromkeys(("deadly", "steady"), ("s1", "deadly_agents:Deadly"))
    world = cluster({"A": ["s1"]}, {**agents, "patient": ("s1", "deadly_agents:Patient")})
    _mortal(world, monkeypatch, {"deadly": "reaction_seconds_max = 0.6"})
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            bus.send("patient", Word(text="waits"))
            await bus.drain()
            world.until(lambda: _calls(world, "patient"), "it waits")
            for notification in (Ping(number=1), Word(text="loop"), Ping(number=2), Word(text="exit"), Ping(number=3)):
                bus.send("deadly", notification)
            bus.send("steady", Ping(number=1))

            async def keep_alive() -> None:
                while True:
                    if world.processes["s1"].poll() is not None:
                        codes.append(world.processes["s1"].returncode)
                        # A letter may end it before this sees that it listens.
                        with suppress(AssertionError):
                            await asyncio.to_thread(world.start, "s1")
                    await asyncio.sleep(0.02)

            keeper = asyncio.create_task(keep_alive())
            while True:
                try:
                    assert (await bus.ask("steady", Report(), expect=Counted, timeout=5)).count == 1
                    counted = await bus.ask("deadly", Report(), expect=Counted, timeout=5)
                    break
                except TimeoutError:
                    pass
            assert counted.count == 3
            keeper.cancel()

    codes: list[int] = []
    _run(main)
    # The first end may come before the letter is durable; then it is not counted.
    assert 4 <= len(codes) <= 6, codes
    assert set(codes) == {2, 3}
    assert len(_calls(world, "loop")) in (2, 3)
    assert len(_calls(world, "exit")) in (2, 3)
    reasons = _dead(world)
    assert reasons.keys() == {"deadly"}
    dead = json.loads(world.command("dead", "list", str(world.file), "--json").stdout)
    assert [one["reason"] for one in dead] == ["the process ended 2 times while it was handled"] * 2
    log = world.log("s1")
    assert "deadly_agents.py" in log.split("warning reaction-slow agent=deadly")[1], "the log has the stack"
    assert "error reaction-too-long agent=deadly" in log
    assert "ended-in-reaction agent=patient" not in log, "a call that only waited is not blamed"
    # A clean end counts nothing, although a call is in progress.
    assert world.stop() == [0]
    before = len(_calls(world, "patient"))
    world.start()
    world.until(lambda: len(_calls(world, "patient")) > before, "it waits again")
    assert "ended-in-reaction" not in world.log("s1").rpartition("stopping")[2]
    world.processes["s1"].send_signal(signal.SIGKILL)
    world.processes["s1"].wait()
    world.start()
    assert "ended-in-reaction agent=patient" in world.log("s1").rpartition("stopping")[2]
