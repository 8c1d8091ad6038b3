"""Notifications to systemd, received by a socket of our own; and the units that ask for them."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from antecede.cli import run
from antecede.live.process import ServiceManager
from helpers.ports import free_ports


class _Pulse:
    def __init__(self) -> None:
        self.reason = ""

    def trouble(self) -> str:
        return self.reason


def _receiver(address: str) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.settimeout(30)
    receiver.bind(address)
    return receiver


@pytest.mark.parametrize("abstract", [False, True])
def test_signs_of_life_while_the_server_works(tmp_path: Path, abstract: bool) -> None:
    name = f"@antecede-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    pulse = _Pulse()

    async def main(receiver: socket.socket) -> None:
        manager = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid())})
        manager.ready(pulse)  # type: ignore[arg-type]
        assert receiver.recv(100) == f"READY=1\nSTATUS=running\nMAINPID={os.getpid()}".encode()
        for _ in range(2):
            assert receiver.recv(100) == b"WATCHDOG=1"
            await asyncio.sleep(0.02)
        pulse.reason = "blocked"
        while receiver.recv(100) == b"WATCHDOG=1":
            # The last signs of life were sent before it was blocked.
            manager.stopping("the disk\nfailed")

    with _receiver("\0" + name[1:] if abstract else name) as receiver:
        asyncio.run(main(receiver))


@pytest.mark.parametrize(
    "environment", [{}, {"NOTIFY_SOCKET": "relative"}, {"NOTIFY_SOCKET": "/nowhere/at/all", "WATCHDOG_USEC": "x"}]
)
def test_no_manager_is_no_error(environment: dict[str, str]) -> None:
    ServiceManager(environment).stopping("nothing")


def test_a_server_reports_its_start_and_its_stop(tmp_path: Path) -> None:
    [port] = free_ports(1)
    topology = tmp_path / "one.toml"
    topology.write_text(f'[servers]\ns1 = "tcp://127.0.0.1:{port}"\n[domains]\nA = {{ servers = ["s1"] }}\n')
    command = [
        sys.executable,
        "-m",
        "antecede",
        "serve",
        str(topology),
        "--server",
        "s1",
        "--data",
        str(tmp_path / "d"),
    ]
    with _receiver(str(tmp_path / "notify")) as receiver:
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            assert receiver.recv(100).startswith(b"READY=1\n")
            socket.create_connection(("127.0.0.1", port)).close()
            process.send_signal(signal.SIGTERM)
            assert receiver.recv(100) == b"STOPPING=1\nSTATUS=stopping"
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()


def _topology(folder: Path) -> str:
    path = folder / "two.toml"
    path.write_text(
        '[servers]\ns1 = "tcp://127.0.0.1:7101"\ns2 = "tcp://127.0.0.1:7102"\n'
        '[domains]\nA = { servers = ["s1", "s2"] }\n'
    )
    return str(path)


def test_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology = _topology(tmp_path)
    options = ["--server", "s2", "--option=--trace", "--command", "/usr/local/bin/antecede", "-o", str(tmp_path)]
    assert run(["unit", topology, *options]) == 0
    service = (tmp_path / "antecede@.service").read_text()
    start = f"ExecStart=/usr/local/bin/antecede serve {topology} --server %i --data /var/lib/antecede/%i --trace\n"
    assert start in service
    for line in (
        "Type=notify",
        "KillSignal=SIGTERM",
        "LimitNOFILE=16384",
        "StateDirectory=antecede/%i",
        "User=antecede",
    ):
        assert f"\n{line}\n" in service
    assert "ExecReload" not in service
    assert "\nWants=antecede@s2.service\n" in (tmp_path / "antecede.target").read_text()
    (tmp_path / "access.toml").write_text("")
    capsys.readouterr()
    assert run(["unit", topology, "--data", "/srv/antecede", "--json"]) == 0
    units = {unit["name"]: unit["text"] for unit in json.loads(capsys.readouterr().out)["units"]}
    assert "\nReadWritePaths=/srv/antecede\n" in units["antecede@.service"]
    assert "\nExecReload=/bin/kill -HUP $MAINPID\n" in units["antecede@.service"]
    assert "Wants=antecede@s1.service antecede@s2.service\n" in units["antecede.target"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--server", "s9"], "has no server s9: expected one of s1, s2"),
        (["--data", "data"], "--data data: expected an absolute path"),
        (["--option", "a\nb"], "expected no quotes"),
        (["-o", "/proc/nowhere"], "--output /proc/nowhere"),
    ],
)
def test_units_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert run(["unit", _topology(tmp_path), *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
