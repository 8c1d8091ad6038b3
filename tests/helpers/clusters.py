"""The servers of one topology as real processes, with real sockets and a real disk."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

from antecede.cli import run
from helpers.ports import free_ports

_tests = Path(__file__).resolve().parent.parent
_modules = os.pathsep.join(map(str, (_tests.parent / "src", _tests, _tests / "live")))
"""The folders of Antecede, and of the applications that the servers run."""


class Cluster:
    """The servers of one topology."""

    host = "127.0.0.1"

    def __init__(self, folder: Path, domains: dict[str, list[str]], agents: dict[str, tuple[str, str]]) -> None:
        self.folder = folder
        self.servers = list(dict.fromkeys(server for members in domains.values() for server in members))
        ports = free_ports(len(self.servers))
        self.ports = dict(zip(self.servers, ports, strict=True))
        self.addresses = {server: f"tcp://127.0.0.1:{port}" for server, port in self.ports.items()}
        self.file = folder / "topology.toml"
        self.file.write_text(self.text(domains, agents))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, "PYTHONPATH": _modules}

    def text(self, domains: dict[str, list[str]], agents: dict[str, tuple[str, str]]) -> str:
        lines = ["[servers]", *(f'{server} = "{self.addresses[server]}"' for server in self.servers), "[domains]"]
        lines += [f"{name} = {{ servers = {json.dumps(members)} }}" for name, members in domains.items()]
        lines += ["[agents]"]
        lines += [f'{name} = {{ server = "{server}", class = "{kind}" }}' for name, (server, kind) in agents.items()]
        return "\n".join(lines) + "\n"

    def program(self) -> list[str]:
        """What Python is told to run."""
        return ["-m", "antecede"]

    def log(self, server: str) -> str:
        """What the server has said so far."""
        path = self.folder / f"{server}.log"
        return path.read_text() if path.exists() else ""

    def start(self, *servers: str, options: tuple[str, ...] = ()) -> None:
        """Start servers (all), and wait until they listen."""
        chosen = servers or tuple(self.servers)
        for server in chosen:
            with (self.folder / f"{server}.log").open("ab") as log:
                command = [sys.executable, *self.program(), "serve", str(self.file), "--server", server]
                command += ["--data", str(self.folder / server), *options]
                self.processes[server] = subprocess.Popen(
                    command, stderr=log, stdout=log, env=self.environment, cwd=self.folder
                )
        for server in chosen:
            self.until(lambda server=server: self.listens(server), f"{server} listens:\n{self.log(server)}")

    def listens(self, server: str) -> bool:
        assert self.processes[server].poll() is None, f"{server} ended:\n{self.log(server)}"
        with socket.socket() as one:
            return one.connect_ex((self.host, self.ports[server])) == 0

    def until(self, true: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
        """Wait for something to become true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = true()
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError(f"in vain: {what}")

    def kill(self, server: str) -> None:
        """kill -9."""
        self.processes[server].kill()
        self.processes[server].wait()

    def stop(self, *servers: str) -> list[int]:
        """SIGTERM; the exit codes."""
        chosen = servers or tuple(self.processes)
        for server in chosen:
            self.processes[server].send_signal(signal.SIGTERM)
        return [self.processes[server].wait(20) for server in chosen]

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of Antecede."""
        return subprocess.run(
            [sys.executable, "-m", "antecede", *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def status(self) -> dict[str, Any]:
        """What ``antecede status --json`` says. It runs in this process, because tests ask until something is true, and
        the start of a process takes a hundred times as long as the answer."""
        output = io.StringIO()
        # A thread, because a test may have an event loop, and the command needs one of its own.
        with (
            patch.dict(os.environ, self.environment),
            contextlib.redirect_stdout(output),
            ThreadPoolExecutor(1) as thread,
        ):
            thread.submit(run, ["status", str(self.file), "--json"]).result()
        document: dict[str, Any] = json.loads(output.getvalue())
        return document
