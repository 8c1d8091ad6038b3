"""SIGTERM: nothing more is taken, what is under way comes to an end, a snapshot is kept, exit 0; twice: at once."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from live_agents import Ping

import antecede
from helpers.ports import free_ports


def _run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(40):
            await main

    asyncio.run(bounded())


def _send(world: Any, to: str, count: int) -> None:
    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            for number in range(count):
                await bus.send(to, Ping(number=number))

    _run(main())


def test_a_graceful_stop_drains(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {"slow": ("s1", "live_agents:SlowEcho")})
    world.start()
    _send(world, "slow", 20)
    assert world.stop("s1") == [0]
    assert [line.split()[2] for line in world.log("s1").splitlines()] == ["started", "stopping", "stopped"]
    assert list((world.folder / "s1").glob("snapshot-*.state")), "a snapshot is kept"
    world.start("s1")
    status = world.status()["servers"]["s1"]
    assert status["mailboxes"] == {"alice@s1": 20}, "all were answered before the server stopped"
    assert status["reactions"] == 0, "and none is reacted to again"
    assert status["log"]["last"] > 1
    world.stop()


def test_it_waits_until_the_others_have_read_why(cluster: Callable[..., Any]) -> None:
    """Had the process ended before, a write of the other end could meet a reset, and the reason would be lost."""
    world = cluster({"A": ["s1", "s2"]}, {"slow": ("s2", "live_agents:SlowEcho")})
    world.start()
    _send(world, "slow", 1)
    world.until(lambda: "peer-connected" in world.log("s2"), "they are connected")
    stopping, other = world.processes["s1"], world.processes["s2"]
    other.send_signal(signal.SIGSTOP)
    try:
        stopping.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            stopping.wait(0.5)
    finally:
        other.send_signal(signal.SIGCONT)
    assert stopping.wait(20) == 0
    world.until(lambda: "the server stops" in world.log("s2"), "s2 has read why")
    world.stop("s2")


def test_a_second_signal_ends_it_at_once(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {"sleeper": ("s1", "live_agents:Sleeper")})
    world.start(options=("--log", "text"))
    _send(world, "sleeper", 1)
    world.until(lambda: world.status()["servers"]["s1"]["waiting_letters"] == 1, "the sleeper sleeps")
    process = world.processes["s1"]
    process.send_signal(signal.SIGTERM)
    world.until(lambda: "stopping" in world.log("s1"), "it drains")
    with socket.socket() as stranger, pytest.raises(ConnectionRefusedError):
        stranger.connect(("127.0.0.1", world.ports["s1"]))
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 130
    assert "stopped" not in world.log("s1")
    # As after a kill: what was accepted is still there.
    world.start("s1")
    assert world.status()["servers"]["s1"]["waiting_letters"] == 1
    world.kill("s1")


def _health(port: int) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_a_draining_server_says_so(cluster: Callable[..., Any]) -> None:
    """The metrics page is there from the first to the last."""
    pytest.importorskip("prometheus_client")
    world = cluster({"A": ["s1"]}, {"sleeper": ("s1", "live_agents:Sleeper")})
    (port,) = free_ports(1)
    world.start(options=("--metrics", str(port)))
    assert _health(port) == (200, '{"server": "s1", "health": "ok", "trouble": ""}\n')
    _send(world, "sleeper", 1)
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert "antecede_log_records_total" in answer.read().decode()
    world.processes["s1"].send_signal(signal.SIGTERM)
    world.until(lambda: "stopping" in world.log("s1"), "it drains")
    status, said = _health(port)
    assert status == 503
    assert '"stopping"' in said
    world.kill("s1")


def test_an_interrupt_that_was_ignored_stays_ignored(cluster: Callable[..., Any]) -> None:
    """As in the background of a shell. Had it been counted, SIGTERM would be the second signal: exit code 130."""
    world = cluster({"A": ["s1"]}, {})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        world.start()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    world.processes["s1"].send_signal(signal.SIGINT)
    world.processes["s1"].send_signal(signal.SIGTERM)
    assert world.processes["s1"].wait(20) == 0


def test_servers_end_with_the_command_that_started_them(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1", "s2"]}, {})
    up = subprocess.Popen(
        [sys.executable, "-m", "antecede", "up", str(world.file), "--data", str(world.folder / "data")],
        env=world.environment,
        cwd=world.folder,
        stderr=subprocess.DEVNULL,
    )
    try:
        world.until(lambda: all(_listens(world, server) for server in world.servers), "both servers listen")
    finally:
        up.kill()
        up.wait()
    world.until(lambda: not any(_listens(world, server) for server in world.servers), "both servers ended")
    snapshots = [world.folder / "data" / server for server in world.servers]
    world.until(lambda: all(list(one.glob("snapshot-*.state")) for one in snapshots), "they stopped gracefully")


def _listens(world: Any, server: str) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", world.ports[server])) == 0


def test_hangups_without_an_access_file(cluster: Callable[..., Any]) -> None:
    """One is logged and ignored, by ``up`` and its servers; if the terminal was closed, it is a graceful stop."""
    world = cluster({"A": ["s1"]}, {"echo": ("s1", "live_agents:Echo")})
    terminal, stdin = os.openpty()
    command = [sys.executable, "-m", "antecede", "up", str(world.file)]
    with (world.folder / "up.log").open("ab") as log:
        # The tests may have been started with nohup, and a process that ignores hangups survives its terminal.
        heeding = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
        own: Any = {"stdin": stdin, "stderr": log, "env": world.environment, "start_new_session": True}
        up = subprocess.Popen(command, preexec_fn=heeding, **own)
    try:
        os.close(stdin)
        world.until(lambda: "ready: s1" in world.log("up"), "it is ready")
        up.send_signal(signal.SIGHUP)
        world.until(lambda: "reload-ignored" in world.log("up"), "the server has read it")
        assert up.poll() is None
        os.close(terminal)
        up.send_signal(signal.SIGHUP)
        assert up.wait(20) == 0
    finally:
        up.kill()
        up.wait()
    assert "this server has no access file" in world.log("up")
    assert world.log("up").rstrip().splitlines()[-1].split()[4] == "stopped"


def test_a_closed_terminal_with_an_access_file(cluster: Callable[..., Any]) -> None:
    """The servers run on, although nobody reads their log any more, and stop gracefully."""
    pytest.importorskip("cryptography")
    world = cluster({"A": ["s1"]}, {"echo": ("s1", "live_agents:Echo")})
    assert world.command("credentials", "create", str(world.file)).returncode == 0
    terminal, ours = os.openpty()
    command = [sys.executable, "-m", "antecede", "up", str(world.file)]
    own: Any = {"stdin": ours, "stdout": ours, "stderr": ours, "env": world.environment, "start_new_session": True}
    up = subprocess.Popen(command, **own)
    try:
        os.close(ours)
        output = b""
        while b"ready: s1" not in output:
            output += os.read(terminal, 4_096)
        os.close(terminal)
        up.send_signal(signal.SIGHUP)
        world.until(lambda: _listens(world, "s1"), "the server runs on")
        assert up.poll() is None
        up.send_signal(signal.SIGTERM)
        assert up.wait(20) == 0
    finally:
        up.kill()
        up.wait()
