"""The commands as printed in the guide: up, send, status, a graceful end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def _until(true: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, f"in vain: {what}"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_example_runs_as_printed(root: Path, cluster: Callable[..., Any], tmp_path: Path, number: int) -> None:
    world = cluster({"A": ["s1", "s2"]}, {"greeter": ("s2", "hello:Greeter")})
    example = (root / "examples" / "hello.toml").read_text()
    for port, server in ((7101, "s1"), (7102, "s2")):
        example = example.replace(str(port), str(world.ports[server]))
    file = tmp_path / "hello.toml"
    file.write_text(example)
    (tmp_path / "hello.py").write_text((root / "examples" / "hello.py").read_text())
    errors = tmp_path / "errors"
    with errors.open("wb") as log:
        up = subprocess.Popen(
            [sys.executable, "-m", "antecede", "up", str(file), "--data", str(tmp_path / "data")],
            env=world.environment,
            cwd=tmp_path,
            stderr=log,
        )
    try:
        _until(lambda: "antecede: ready: s1, s2\n" in errors.read_text(), f"both servers talk: {errors.read_text()}")
        assert errors.read_text().count("peer-connected") == 2
        answer = world.command("send", str(file), "greeter", "Hello", '{"name": "Ada"}', "--ask")
        assert json.loads(answer.stdout)["fields"] == {"text": "Hello Ada, you are number 1."}
        assert world.command("send", str(file), "nobody", "Hello", "{}").returncode == 2
        sent = json.loads(world.command("send", str(file), "greeter", "Hello", '{"name": "Al"}', "--json").stdout)
        assert sent == {"to": ["greeter"], "type": "Hello", "accepted_by": "s1", "answer": None}
        answer = world.command("send", str(file), "greeter@s2", "Hello", '{"name": "Bea"}', "--ask")
        assert json.loads(answer.stdout)["fields"] == {"text": "Hello Bea, you are number 3."}
        refused = world.command("send", str(file), "greeter", "Nonsense", "--ask", "--timeout", "60")
        assert refused.returncode == 2
        assert refused.stderr == "antecede: greeter cannot answer: Greeter has no handler for Nonsense: it has Hello\n"
        status = world.command("status", str(file))
        assert status.returncode == 0
        assert "s2: ok" in status.stdout
    finally:
        up.send_signal(number)
        assert up.wait(30) == 0
    said = errors.read_text()
    assert said.count(" stopped ") == 2
    assert [line for line in said.splitlines() if not line.startswith(("s1 | ", "s2 | "))] == [
        "antecede: ready: s1, s2"
    ]
    assert world.command("status", str(file)).returncode == 1


def test_up_ends_when_a_server_cannot_start(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1", "s2"]}, {"x": ("s2", "nowhere:X")})
    answer = world.command("up", str(world.file))
    assert answer.returncode == 2
    assert "s2 | antecede: agent class nowhere:X: cannot import nowhere" in answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("antecede: s2 ended (exit code 2): agent class nowhere:X: cannot ")
    answer = world.command("up", str(world.file), "--log", "json")
    last = json.loads(answer.stderr.splitlines()[-1])
    assert (last["event"], last["level"]) == ("failed", "error")
    assert "cannot import nowhere" in last["text"]


def test_log_as_json(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {})
    world.start(options=("--log", "json", "--durability", "memory"))
    world.stop()
    events = [json.loads(line) for line in world.log("s1").splitlines()]
    assert [one["event"] for one in events] == ["started", "stopping", "stopped"]
    assert all(one["server"] == "s1" and one["level"] == "info" for one in events)


def test_tls(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1", "s2"]}, {"echo": ("s2", "live_agents:Echo")})
    key, certificate = world.folder / "key.pem", world.folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True, env={**os.environ})
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no openssl to make a certificate with")
    tls = ("--certificate", str(certificate), "--key", str(key), "--authority", str(certificate))
    world.start(options=tls)
    ask = ("send", str(world.file), "echo", "Ping", '{"number": 5}', "--ask")
    answer = world.command(*ask, "--authority", str(certificate))
    assert json.loads(answer.stdout)["fields"] == {"number": 5}
    assert world.command(*ask, "--timeout", "1").returncode == 2
