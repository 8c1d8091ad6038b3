"""The chat of the tutorial on real servers: people on different servers and domains talk, leave with and without their
servers, and the trace is in order."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from antecede import cli
from helpers.ports import free_ports

_patience_seconds = 60


def _until(path: Path, text: str, after: str = "") -> None:
    """Wait until a text is in a file, after another text."""
    end = time.monotonic() + _patience_seconds
    while text not in path.read_text()[path.read_text().find(after) :]:
        assert time.monotonic() < end, f"{text!r} is not in {path.name}: {path.read_text()}"
        time.sleep(0.02)


def test_people_on_three_servers_talk(tmp_path: Path) -> None:
    ports = iter(free_ports(4))
    assert cli.run(["sample", "chat", "--to", str(tmp_path)]) == 0
    file = tmp_path / "chat" / "chat.toml"
    file.write_text(re.sub(r"710\d", lambda _: str(next(ports)), file.read_text()))
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: str, stdin: int = subprocess.PIPE) -> tuple[Path, IO[str] | None]:
        out = tmp_path / name
        command = [sys.executable, "-m", "antecede", *arguments]
        with out.open("w") as log:
            child = subprocess.Popen(
                command, cwd=tmp_path, stdin=stdin, stdout=log, stderr=subprocess.STDOUT, text=True
            )
        started.append(child)
        return out, child.stdin

    def say(stream: IO[str] | None, text: str) -> None:
        assert stream is not None
        stream.write(text + "\n")
        stream.flush()

    terminal, theirs = os.openpty()
    try:
        start("up", "up", str(file), "--data", "data", "--trace")
        ann, to_ann = start("ann", "chat", str(file), "--name", "ann", "--server", "s1")
        bob, to_bob = start("bob", "chat", str(file), "--name", "bob", "--server", "s2")
        dan, _ = start("dan", "chat", str(file), "--name", "dan", "--server", "s4", stdin=theirs)
        for screen in (ann, bob, dan):
            _until(screen, "(in the kitchen: ann, bob, dan)")
        say(to_ann, "where is the tea?")
        _until(bob, "ann: where is the tea?")
        say(to_bob, "in the kitchen")
        _until(ann, "bob: in the kitchen")
        _until(dan, "bob: in the kitchen")
        again, to_bob = start("again", "chat", str(file), "--name", "bob", "--server", "s2")
        assert started[2].wait(_patience_seconds) == 2
        _until(bob, "another client connected as bob")
        _until(again, "(in the kitchen: ann, bob, dan)")
        assert to_ann is not None
        assert to_bob is not None
        to_ann.close()
        _until(dan, "(in the kitchen: bob, dan)")
        to_bob.close()
        assert [child.wait(_patience_seconds) for child in (started[1], started[4])] == [0, 0]
        started[0].send_signal(signal.SIGTERM)
        assert started[0].wait(_patience_seconds) == 0
        _until(dan, "antecede: waiting for tcp://127.0.0.1:", after="(in the kitchen: bob, dan)")
        os.write(terminal, b"\x04")
        _until(dan, "(the server has not answered yet: waiting 5 seconds more")
        os.write(terminal, b"\x04")
        assert started[3].wait(_patience_seconds) == 2
    finally:
        for child in started:
            child.kill()
            child.wait()
        os.close(terminal)
        os.close(theirs)
    screen = dan.read_text()
    assert screen.index("where is the tea?") < screen.index("in the kitchen\n")
    assert screen.endswith("antecede: no answer from the server: dan is still a member of the kitchen\n")
    assert cli.run(["verify", str(tmp_path / "data")]) == 0
