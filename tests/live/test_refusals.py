"""Who may not talk, or start, is told why by name; nothing is lost silently."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from live_agents import Counted, Ping, Pong, Report

import antecede

_two = {"A": ["s1", "s2"]}
_counter = {"counter": ("s2", "live_agents:Counter")}


def _run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(40):
            await main

    asyncio.run(bounded())


def _token(world: Any, text: str) -> str:
    path: Path = world.folder / f"{text}.token"
    path.write_text(text + "\n")
    return str(path)


def test_wrong_token(cluster: Callable[..., Any]) -> None:
    world = cluster(_two, _counter)
    world.start("s1", options=("--token-file", _token(world, "right")))
    world.start("s2", options=("--token-file", _token(world, "wrong")))

    async def main() -> None:
        with pytest.raises(antecede.RefusedError, match="wrong token"):
            async with antecede.connect(world.addresses["s1"], name="alice", token="wrong"):
                pass
        async with antecede.connect(world.addresses["s1"], name="alice", token="right") as bus:
            await bus.send("counter", Ping(number=1))

    _run(main())
    world.until(lambda: "wrong token" in world.log("s2"), "s2 refuses s1")
    answer = world.command("status", str(world.file), "--token-file", _token(world, "right"))
    assert answer.returncode == 1
    assert "s2: no answer (wrong token)" in answer.stdout
    assert "refused: s2: wrong token" in answer.stdout

    # With the right token what was accepted arrives.
    assert world.stop("s2") == [0]
    world.start("s2", options=("--token-file", _token(world, "right")))

    async def count() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice", token="right") as bus:
            assert (await bus.ask("counter", Report(), expect=Counted)).count == 1

    _run(count())


def test_wrong_epoch(cluster: Callable[..., Any]) -> None:
    world = cluster(_two, _counter)
    world.start("s1")
    text = world.file.read_text()
    world.file.write_text(text.replace("A =", "B ="))
    world.start("s2")
    world.until(lambda: "peer-refused" in world.log("s2"), "s2 refuses s1")
    assert "if both were first started with different files" in world.log("s2")
    world.stop()

    # The data directory remembers the topology: by its first record after a kill, by its snapshot after a stop.
    refused = _serve(world, "s1")
    assert refused.returncode == 2
    assert "differs from the topology in force at server" in refused.stderr
    world.file.write_text(text)
    world.start("s1")


def _serve(world: Any, server: str, data: str | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "antecede", "serve", str(world.file), "--server", server]
    return subprocess.run(
        [*command, "--data", str(world.folder / (data or server))],
        env=world.environment,
        cwd=world.folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_another_servers_directory(cluster: Callable[..., Any]) -> None:
    world = cluster(_two, _counter)
    world.start("s1")
    second = _serve(world, "s1")
    assert second.returncode == 2
    assert f"in use by process {world.processes['s1'].pid}" in second.stderr
    world.kill("s1")
    other = _serve(world, "s2", data="s1")
    assert other.returncode == 2
    assert "belongs to server s1, not to s2" in other.stderr
    world.start("s1")
    assert world.stop("s1") == [0]
    other = _serve(world, "s2", data="s1")
    assert other.returncode == 2
    assert "belongs to server s1, not to s2" in other.stderr


def test_a_wiped_directory_stops_the_link(cluster: Callable[..., Any]) -> None:
    world = cluster(_two, {**_counter, "echo": ("s2", "live_agents:Echo")})
    world.start()

    async def send(count: int) -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            for number in range(1, count + 1):
                bus.send("counter", Ping(number=number))
            await bus.drain()
            await bus.ask("echo", Ping(number=1), expect=Pong)

    _run(send(10))
    world.kill("s2")
    shutil.rmtree(world.folder / "s2")
    # Not even a restart of the other end makes it forget whom it knew.
    world.kill("s1")
    world.start()
    world.until(lambda: "link-stopped" in world.log("s1"), "s1 stops the link")
    status = world.status()
    assert not status["well"]
    assert status["servers"]["s1"]["health"] == "link stopped"
    assert "the peer lost its data" in status["servers"]["s1"]["stopped"][0]["reason"]
    # Clients are served all the same; what they send waits.
    _run(_send_one(world))
    assert world.status()["servers"]["s1"]["domains"]["A"]["links"]["s2"]["unacknowledged"] >= 1

    # An operator lets the domain begin anew.
    answer = world.command("topology", "forget", str(world.file), "A")
    assert answer.returncode == 0, answer.stderr
    world.until(lambda: world.status()["well"], "both ends talk again")

    async def again() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            await bus.ask("echo", Ping(number=1), expect=Pong, timeout=10)
            assert (await bus.ask("counter", Report(), expect=Counted)).count >= 1, "what waited was sent again"

    _run(again())
    # And it stays so.
    world.kill("s1")
    world.kill("s2")
    world.start()
    _run(again())


async def _send_one(world: Any) -> None:
    async with antecede.connect(world.addresses["s1"], name="alice") as bus:
        await bus.send("counter", Ping(number=1))


def test_not_for_everybody_without_a_token(cluster: Callable[..., Any]) -> None:
    world = cluster(_two, _counter)
    refused = world.command("serve", str(world.file), "--server", "s1", "--data", "s1", "--host", "0.0.0.0")
    assert refused.returncode == 2
    assert "expected --token-file" in refused.stderr


def test_two_clients_of_one_name(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {"echo": ("s1", "live_agents:Echo")})
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as first:
            await first.send("echo", Ping(number=1))
            async with antecede.connect(world.addresses["s1"], name="alice") as second:
                await second.send("echo", Ping(number=2))
                await asyncio.sleep(0.1)
                with pytest.raises(antecede.RefusedError, match="another client connected as alice"):
                    await first.send("echo", Ping(number=3))

    _run(main())


def _backup(world: Any, server: str, run: Callable[[], None]) -> None:
    """Copy a server's directory, let things go on, and put the copy in its place."""
    world.kill(server)
    shutil.copytree(world.folder / server, world.folder / "backup")
    world.start(server)
    run()
    world.kill(server)
    shutil.rmtree(world.folder / server)
    shutil.copytree(world.folder / "backup", world.folder / server)


def _answers(world: Any, number: int) -> None:
    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            assert (await bus.ask("echo", Ping(number=number), expect=Pong, timeout=10)).number == number

    _run(main())


@pytest.mark.parametrize("victim", ["s1", "s2"])
def test_an_old_backup_stops_the_link(cluster: Callable[..., Any], victim: str) -> None:
    """Both directions: the one who has heard more than the other now says it has sent notices."""
    world = cluster(_two, {**_counter, "echo": ("s2", "live_agents:Echo")})
    world.start()
    _answers(world, 1)
    _backup(world, victim, lambda: _answers(world, 2))
    world.start(victim)
    world.until(lambda: "link-stopped" in world.log("s1") + world.log("s2"), "a link stops")
    assert "counter went back" in world.log("s1") + world.log("s2")
    world.until(lambda: not world.status()["well"], "status says so")

    # Nothing goes over that link until an operator says so; then what waited does.
    _run(_send_one(world))
    assert world.command("topology", "forget", str(world.file), "A").returncode == 0
    world.until(lambda: world.status()["well"], "both ends talk again")
    _answers(world, 3)

    async def count() -> None:
        async with antecede.connect(world.addresses["s2"], name="bob") as bus:
            assert (await bus.ask("counter", Report(), expect=Counted)).count == 1

    _run(count())


def test_an_old_backup_of_one_who_only_listened(cluster: Callable[..., Any]) -> None:
    world = cluster(_two, _counter)
    world.start()
    _run(_send_one(world))
    world.until(lambda: not _unacknowledged(world), "all is acknowledged")

    def more() -> None:
        _run(_send_one(world))
        world.until(lambda: not _unacknowledged(world), "all is acknowledged")

    _backup(world, "s2", more)
    world.start("s2")
    world.until(lambda: "link-stopped" in world.log("s1"), "s1 stops the link")
    assert "had acknowledged" in world.log("s1")


def _unacknowledged(world: Any) -> int:
    link = world.status()["servers"]["s1"]["domains"]["A"]["links"]["s2"]
    return 0 if link["connected"] and link["sent"] and not link["unacknowledged"] else 1


def test_a_client_learns_that_its_server_lost_data(cluster: Callable[..., Any]) -> None:
    """A wiped home, or an old backup of it: whoever was told *accepted* is told that it is so no more."""
    world = cluster({"A": ["s1"]}, {"echo": ("s1", "live_agents:Echo")})
    world.start()

    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            await bus.send("echo", Ping(number=1))
            world.kill("s1")
            shutil.rmtree(world.folder / "s1")
            await asyncio.to_thread(world.start, "s1")
            with pytest.raises(antecede.RefusedError, match="lost its data: it had accepted 1 publish"):
                await bus.send("echo", Ping(number=2))

    _run(main())


def test_a_changed_topology_is_refused_on_either_side(cluster: Callable[..., Any]) -> None:
    """Whoever starts with another file than its directory was begun under is told which one to take; after a kill (by
    the log's first record) and after a stop (by the snapshot), and nothing in the directory changes by that."""
    world = cluster(_two, _counter)
    world.start()
    _run(_send_one(world))
    text = world.file.read_text()
    world.kill("s1")
    world.kill("s2")
    world.file.write_text(text.replace('"live_agents:Counter"', '"live_agents:Picky"'))
    for server in ("s1", "s2"):
        refused = _serve(world, server)
        assert refused.returncode == 2
        assert "differs from the topology in force at server" in refused.stderr
        assert "antecede topology apply" in refused.stderr
    world.file.write_text(text)
    world.start()
    assert world.stop() == [0, 0]
    world.file.write_text(text.replace('"live_agents:Counter"', '"live_agents:Picky"'))
    for server in ("s1", "s2"):
        assert "differs from the topology in force at server" in _serve(world, server).stderr
    world.file.write_text(text)
    world.start()

    async def count() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            assert (await bus.ask("counter", Report(), expect=Counted)).count == 1

    _run(count())


def test_an_old_backup_that_goes_its_own_way(cluster: Callable[..., Any]) -> None:
    """Restored while its peer is down, it sends as much again under the same numbers: none of that may vanish."""
    world = cluster(_two, {"counter": ("s1", "live_agents:Counter")})
    world.start()

    async def send(first: int, count: int) -> None:
        async with antecede.connect(world.addresses["s2"], name="alice") as bus:
            for number in range(first, first + count):
                await bus.send("counter", Ping(number=number))

    def more() -> None:
        _run(send(2, 5))
        world.until(lambda: "s1" in str(world.status()) and _heard(world) >= 6, "s1 has heard it")

    _run(send(1, 1))
    world.until(lambda: _heard(world) >= 1, "s1 has heard it")
    _backup(world, "s2", more)
    world.kill("s1")
    world.start("s2")
    _run(send(100, 10))
    world.start("s1")
    world.until(lambda: "link-stopped" in world.log("s1"), "s1 stops the link")
    assert "was restored from an old backup" in world.log("s1")


def _heard(world: Any) -> int:
    async def main() -> int:
        async with antecede.connect(world.addresses["s1"], name="bob") as bus:
            return (await bus.ask("counter", Report(), expect=Counted)).count

    return asyncio.run(main())
